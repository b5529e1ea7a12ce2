"""One lane at its sender: the log's ranges, the receiver's ranges, and the ranges still to send."""

from __future__ import annotations

from enum import Enum

from weft.protocols.chunk import LaneFlag, Mark
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane
from weft.protocols.link import Clock, Frame, Gap, LaneOpen, LaneOrigins
from weft.protocols.ranges import Range, RangeSet
from weft.replication.accounting import RANGES_MAX
from weft.replication.source import LaneSnapshot, OfferedLane


class LinkLaneState(Enum):
    """States of a lane on one connection. A closed lane is offered again under another number."""

    CLOSED = 1
    OPENING = 2
    OPEN = 3


class SenderLane:
    """The state of one lane on one connection.

    Args:
        identity: tenant, edge, log and stream of its records.
        epoch: epoch of the link; a relayed lane claims none.
    """

    def __init__(self, offered: OfferedLane, identity: Lane, epoch: int, state: LaneSnapshot) -> None:
        self.key = offered.lane
        """Number in the source."""
        self.number = -1
        """Number on the link."""
        self.state = LinkLaneState.CLOSED
        self.offered = offered
        self.identity = identity
        own = epoch if offered.epoch is None else offered.epoch
        self._epoch = 0 if offered.flags & LaneFlag.RELAY else own
        self.end = 0
        """Sequence number after the last one that the log assigned, as of the last ``offer``."""
        self.read_bytes = 0
        """Bytes of the batches that were read to be sent."""
        self._reset()
        self.offer(state)

    def _reset(self) -> None:
        self.safe = RangeSet()
        """Ranges that are durable at the receiver, by LANE_OPENED and ACK."""
        self.sent = RangeSet()
        """Ranges that are not to be read (again) on this connection."""
        self._told = RangeSet()
        """Gaps of the log that need no notice on this connection: sent, or the receiver has the records."""
        self._told_lost = RangeSet()
        self._origins_told: set[int] = set()
        self._origins_named: list[int] = []
        self._clocks_told: dict[int, Clock] = {}
        self._clocks_named: dict[int, Clock] = {}
        self._awaited: Mark | None = None

    def offer(self, state: LaneSnapshot) -> None:
        """Update the log's state."""
        self._latest = state
        self._held = state.held
        self.end = max(self.end, state.end)
        self._newest = state.mark
        self._gaps = [gap for gap in state.gaps if not self._told.covers(gap.first, gap.end)]

    def open(self, number: int) -> LaneOpen:
        """Start over under a number of the link, and return the LANE_OPEN frame."""
        self._reset()
        self.offer(self._latest)
        self.number = number
        self.state = LinkLaneState.OPENING
        offered = self.offered
        return LaneOpen(
            number, *self.identity, self._epoch, list(self._held)[:RANGES_MAX], list(offered.topics), offered.payload,
            offered.flags, acknowledged=offered.acknowledged(),
        )  # fmt: skip

    def opened(self, held: RangeSet) -> None:
        """Note that the receiver accepted the lane and holds ``held`` already."""
        self.state = LinkLaneState.OPEN
        self.safe = held
        if self.offered.continues_hub:
            self.end = max(self.end, held.end)
        # Records that the receiver holds are never read again on this connection.
        self.sent = held.copy()

    def acknowledge(self, ranges: RangeSet) -> None:
        """Note that the receiver made ``ranges`` durable.

        Raises:
            Corrupt: they are beyond the lane's end, or the receiver's ranges have more holes than ``RANGES_MAX``.
        """
        # Another owner's records are no fault of the hub: the owner of a lane that continues the hub's sees them.
        if ranges.end > self.end and not self.offered.continues_hub:
            raise Corrupt(f"an ACK up to seq {ranges.end} of lane {self.number}, which ends at {self.end}")
        self.safe.update(ranges)
        self.sent.update(ranges)
        if len(self.safe) > RANGES_MAX:
            raise Corrupt(f"more than {RANGES_MAX} holes in what the receiver holds of lane {self.number}")

    def wanted(self, start: int = 0) -> int | None:
        """Return the oldest held record from ``start`` on that is neither sent nor safe."""
        for first, end in self._held:
            missing = self.sent.missing(max(first, start), end) if end > start else None
            if missing:
                return missing[0][0]
        return None

    def holes(self) -> list[Range]:
        """Return the ranges of held records that are neither sent nor safe."""
        return [hole for run in self._held for hole in self.sent.missing(*run)]

    def claim(self, first: int, end: int) -> None:
        """Note that ``[first, end)`` was read and is being sent."""
        self.sent.add(first, end)
        self.end = max(self.end, end)

    def name_origin(self, number: int) -> None:
        """Note that a batch to be sent names an origin."""
        if number not in self._origins_told:
            self._origins_told.add(number)
            self._origins_named.append(number)

    def name_boot(self, boot: int) -> None:
        """Note that a batch to be sent has times of a boot whose clock was not set."""
        clock = self.offered.clock(boot)
        if clock is not None and self._clocks_told.get(boot) != clock:
            self._clocks_told[boot] = self._clocks_named[boot] = clock

    def explanations(self) -> list[Frame]:
        """Return the frames with the origins and clocks that this connection has not explained to the receiver yet."""
        named, self._origins_named = self._origins_named, []
        clocks, self._clocks_named = self._clocks_named, {}
        origins = [origin for number in named if (origin := self.offered.origin(number)) is not None]
        return [*([LaneOrigins(self.number, origins)] if origins else []), *clocks.values()]

    def skip(self, seq: int, start: int | None) -> Range | None:
        """Note that a read from ``seq`` returned batches from ``start`` on (None: no batch), and skip the numbers
        between.

        Returns:
            The skipped range, or None if the read began at ``seq``.
        """
        if start is not None and start <= seq:
            return None
        # Only numbers that the log claims to hold are given up: a hole is not an error of the read.
        end = self._held.contiguous_end(seq)
        if start is not None:
            end = min(end, start)
        if end <= seq:
            return None
        self.sent.add(seq, end)
        return seq, end

    def named_end(self) -> int:
        """Return the end of all numbers that the receiver holds or has in a notice or mark, and of those that the next
        message may name."""
        return max(self.sent.end, self._told.end, *(gap.end for gap in self._gaps))

    @property
    def told(self) -> RangeSet:
        """Return the gaps that this connection sent to the receiver."""
        return self._told_lost

    @property
    def has_gaps(self) -> bool:
        """Return whether gap notices wait to be sent."""
        return bool(self._gaps)

    def gap_frames(self, limit: int) -> list[Frame]:
        """Return the gap notices not sent on this connection yet, without the receiver's ranges."""
        frames: list[Frame] = []
        taken = 0
        while taken < len(self._gaps) and len(frames) < limit:
            gap = self._gaps[taken]
            taken += 1
            for first, end in self._told.missing(gap.first, gap.end):
                # Records that the receiver has are not reported as lost, even if this log has lost them since.
                missing = self.safe.missing(first, end)
                frames += [Gap(self.number, *part, gap.reason) for part in missing]
                self._told_lost.update(missing)
            self._told.add(gap.first, gap.end)
        del self._gaps[:taken]
        return frames

    def ends_with(self, mark: Mark) -> bool:
        """Return whether a mark covers all of a log that accepts no more records: only then is it a last word."""
        return self._latest.is_settled and mark == self._latest.mark and mark.seq >= self.end

    def take_mark(self, held_back: int | None) -> Mark | None:
        """Return the mark to send, when all records that it covers have been sent.

        While history is being sent, the newest mark stays ahead of the data. So one mark is kept until the data has
        reached it, and completeness advances during a backlog too.

        Args:
            held_back: the first record that was read and waits for the window, if any.
        """
        unsent = min((seq for seq in (self.wanted(), held_back) if seq is not None), default=None)
        # The newest first: if it can be sent, the awaited one adds nothing.
        for mark in (self._newest, self._awaited):
            if mark is not None and not self._gaps and (unsent is None or unsent >= mark.seq):
                self._awaited = None
                return mark
        self._awaited = self._awaited or self._newest
        return None
