"""One lane of one link: its epoch, and its uncommitted items."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from weft.protocols.batch import BatchHeader
from weft.protocols.chunk_index import ClockUpdate, GapRange, LaneFlag, Mark
from weft.protocols.lane import ORIGINS_MAX, Lane, Origin, by_number
from weft.protocols.link import RefuseCode
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.shard.lane_state import GapSet, LaneState
from weft.protocols.shard.shard_state import BOOTS_MAX, ShardState

# Notices of the clocks of one log's boots from a link, until the shard's log has them.


class ClockNotices:
    """Notices of a log's clocks that no chunk has yet. A link's sessions with lanes of the log share them, so that the
    cost of a notice does not depend on their number."""

    __slots__ = ("_settled_at", "by_boot")

    def __init__(self) -> None:
        self.by_boot: dict[int, ClockUpdate] = {}
        """The notices that wait, by boot."""
        self._settled_at = -2
        """Number of the state's chunk at the last ``settle``."""

    def __bool__(self) -> bool:
        """Return whether a notice waits."""
        return bool(self.by_boot)

    def add(self, clock: ClockUpdate) -> None:
        """Add a notice; the latest of a boot counts, and of too many boots the latest ones."""
        self._settled_at = -2
        self.by_boot.pop(clock.boot_id, None)
        self.by_boot[clock.boot_id] = clock
        if len(self.by_boot) > BOOTS_MAX:
            del self.by_boot[next(iter(self.by_boot))]

    def of(self, boot_id: int) -> ClockUpdate | None:
        """Return the notice of a boot."""
        return self.by_boot.get(boot_id)

    def news(self, state: ShardState) -> list[ClockUpdate]:
        """Return the notices that a state lacks."""
        return [clock for clock in self.by_boot.values() if not state.knows_clock(clock)]

    def settle(self, state: ShardState) -> None:
        """Remove the notices that a state has."""
        if self._settled_at == state.n:
            return
        self._settled_at = state.n
        self.by_boot = {clock.boot_id: clock for clock in self.news(state)}


GAP_BYTES = 64
"""Bytes of a gap notice for the bounds on pending bytes."""
GAPS_PENDING_MAX = 1024
"""Maximum number of gap notices of a session that wait for a commit; with more, the link stops reading. The bounds on
gaps count only the state's, so they can be exceeded by this number."""
SETTLED_MAX = 8192
"""Maximum number of items settled in one call: a sender may repeat stored records at will, which then takes several
calls."""
RECOUNTED_MAX = 256
"""Maximum number of items that are checked for being one run again, after others were settled."""

_RELAY = int(LaneFlag.RELAY)
Acknowledge = Callable[[RangeSet], None]
Refuse = Callable[[RefuseCode, str, str], None]


class SessionRefused(Exception):
    """The error with which ``LaneSession.opened`` ends if the session does not get its lane."""

    def __init__(self, code: RefuseCode, message: str, advice: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.advice = advice


class ReceivedBatch(NamedTuple):
    """A verified batch, as received."""

    header: BatchHeader
    data: memoryview
    received: int
    """Nanoseconds since 1970 by the hub's clock."""


PendingItem = ReceivedBatch | GapRange


def bounds(item: PendingItem) -> tuple[int, int]:
    """Return the sequence numbers that an item accounts for, half-open."""
    return (item.first, item.end) if isinstance(item, GapRange) else (item.header.base_seq, item.header.end_seq)


def weight(item: PendingItem) -> int:
    """Return the counted bytes of an item."""
    return GAP_BYTES if isinstance(item, GapRange) else len(item.data)


class LaneClaim:
    """A connection's claim to a lane. Sessions of one connection share it: a lane that was closed and opened again must
    not be fenced by the epoch that the same connection made durable before."""

    __slots__ = ("began_late", "epoch", "granted", "is_over", "offered_end")

    def __init__(self, epoch: int, offered_end: int | None = None) -> None:
        self.epoch = epoch
        self.offered_end = offered_end
        """Number after the last record of the sender's log when it opened the lane; None if unknown."""
        self.began_late = False
        """True if the lane was another's already, as the shard knew it, when the session began."""
        self.granted = False
        """True when a chunk of this node has made ``epoch`` the lane's: the sessions may write until a higher one
        comes."""
        self.is_over = False
        """True when an operator has decided about the lane: its next session needs another epoch, so the link ends."""

    @property
    def compared_end(self) -> int | None:
        """Return ``offered_end`` as far as it says something about the sender's log; None if it does not. A sender that
        had the lane may have left since for another node, and made more records: that is no old copy of its log."""
        return self.offered_end if self.began_late else None


class LaneSession:
    """One lane of one link session. Items are committed in the order in which they came.

    Args:
        claim: the lane's epoch.
        acknowledge: called with the lane's ranges after each commit with an item of the session.
        payload: the kind of the stream's payloads, declared by the edge.
        origins: meanings of the numbers of origins in the lane's batches.
        flags: ``LaneFlag`` bits.
        clocks: the link's notices of the clocks of the lane's log.
        refuse: called when the session must end after it was opened; before that, ``opened`` raises.
    """

    __slots__ = (
        "acknowledge",
        "bytes",
        "claim",
        "clocks",
        "closed",
        "flags",
        "gaps_pending",
        "gaps_reported",
        "gaps_seen",
        "gaps_unreported",
        "is_relay",
        "items",
        "known",
        "lane",
        "mark",
        "opened",
        "origins",
        "payload",
        "refuse",
        "registered",
        "renamed_to",
        "run_end",
        "run_first",
        "said",
        "sends_last_word",
        "topics",
        "trails",
    )

    def __init__(
        self,
        lane: Lane,
        claim: LaneClaim,
        topics: list[str],
        acknowledge: Acknowledge,
        refuse: Refuse,
        *,
        payload: int = 0,
        origins: Sequence[Origin] = (),
        flags: int = 0,
        clocks: ClockNotices | None = None,
    ) -> None:
        self.lane = lane
        self.claim = claim
        self.topics = topics
        self.payload = payload
        self.origins: dict[int, Origin] = {}
        """Origins of the lane's batches by number, ascending."""
        self.add_origins(origins)
        self.flags = flags
        self.is_relay = bool(flags & _RELAY)
        """True when the session relays another node's lane: it claims no epoch and is not fenced."""
        self.acknowledge = acknowledge
        self.refuse = refuse
        self.items: deque[PendingItem] = deque()
        self.bytes = 0
        """Weight of the items."""
        self.run_first = 0
        self.run_end = -1
        """Bounds of the items if they are records of one run, each beginning at the end of the previous one; otherwise
        the end is -1."""
        self.gaps_pending = 0
        """Gap notices among the items."""
        self.mark: Mark | None = None
        self.said = -1 << 63
        """Time of the latest mark that came over the link."""
        self.sends_last_word = False
        """True when the mark is the edge's last word."""
        self.renamed_to = ""
        """The name under which the edge's log continues after its last word; empty while it keeps its name."""
        self.trails = False
        """True when the mark covers new records, or is the lane's first: it waits less long."""
        self.known = RangeSet()
        """Ranges that the shard held when the session began, or received since: they count the holes that the sender
        leaves."""
        self.gaps_reported = RangeSet()
        """Numbers that the sender itself reported as gaps, and that are accounted for. Gaps from others are never
        acknowledged to it: it may have the records, and would forget them."""
        self.gaps_seen: GapSet | None = None
        """Gaps of the lane at the last search for those that the sender did not report."""
        self.gaps_unreported: list[Range] = []
        self.clocks = clocks if clocks is not None else ClockNotices()
        self.opened: asyncio.Future[RangeSet] = asyncio.get_running_loop().create_future()
        self.registered = False
        """True while the shard has the session."""
        self.closed = False
        """True when the link has ended. Its items are still committed, unless a higher epoch comes first."""

    def add_origins(self, origins: Iterable[Origin]) -> None:
        """Add origins; the last definition of a number counts, and of too many the highest numbers."""
        known = self.origins | by_number(origins)
        self.origins = {number: known[number] for number in sorted(known)[-ORIGINS_MAX:]}

    def append(self, item: PendingItem) -> None:
        """Append an item."""
        first, end = bounds(item)
        if isinstance(item, GapRange):
            self.run_end = -1
            self.gaps_pending += 1
        elif not self.items:
            self.run_first, self.run_end = first, end
        else:
            self.run_end = end if self.run_end == first else -1
        self.items.append(item)
        self.bytes += weight(item)

    def append_batches(self, batches: Iterable[tuple[BatchHeader, memoryview]], received: int) -> int:
        """Append batches, as ``append`` without a call for each. Return their bytes."""
        items, known, size = self.items, self.known, 0
        for header, data in batches:
            first = header.base_seq
            end = first + header.count
            known.add(first, end)
            if not items:
                self.run_first, self.run_end = first, end
            else:
                self.run_end = end if self.run_end == first else -1
            items.append(tuple.__new__(ReceivedBatch, (header, data, received)))
            size += len(data)
        self.bytes += size
        return size

    def drop_items(self) -> int:
        """Drop all items. Return the freed bytes."""
        freed = self.bytes
        self.items.clear()
        self.bytes = self.gaps_pending = 0
        return freed

    @property
    def epoch(self) -> int:
        """Return the epoch that the session claims; 0 for a relay."""
        return self.claim.epoch

    @property
    def granted(self) -> bool:
        """Return whether the session may write: its epoch is the lane's, or it is a relay, which needs none."""
        return self.claim.granted or self.is_relay

    @property
    def opening(self) -> bool:
        """Return whether the link still waits for the answer that the epoch is accepted."""
        return not self.opened.done()

    @property
    def ungranted(self) -> bool:
        """Return whether no chunk has made the epoch the lane's yet."""
        return not self.granted and self.opening

    def must_declare(self, held: LaneState) -> bool:
        """Return whether the next chunk with items of the session includes its topics and kind of payloads."""
        # A relay declares them only for an edge from which the hub has never heard.
        return self.ungranted or (self.is_relay and not held.epoch)

    @property
    def pending(self) -> bool:
        """Return whether the session has something to commit."""
        return bool(self.items) or self.mark is not None or self.opening or bool(self.clocks)

    @property
    def urgent(self) -> bool:
        """Return whether more than a mark, which can wait, is pending."""
        return bool(self.items) or self.opening or (self.sends_last_word and self.mark is not None)

    def settle(self, held: LaneState | None) -> int:
        """Remove the items and the mark that the state accounts for.

        Returns:
            The freed bytes; more than 0 requires an acknowledgement.
        """
        if held is None:
            return 0
        newest = held.newest_mark
        if self.mark is not None and newest is not None and newest.time >= self.mark.time:
            self.mark, self.trails = None, False
        if not self.items:
            return 0
        if self.run_end >= 0 and held.holds(self.run_first, self.run_end):  # as after most commits
            return self.drop_items()
        if self.run_end > held.ranges.end and not held.gaps.items:
            return self._settle_start(held)
        return self._settle_one_by_one(held)

    def _settle_one_by_one(self, held: LaneState) -> int:
        """Remove the items that the state accounts for, up to the first other one: they are in order."""
        items, freed = self.items, 0
        for _ in range(min(len(items), SETTLED_MAX)):
            item = items[0]
            if isinstance(item, GapRange):
                if not held.accounts_for(item):
                    break
                self.gaps_reported.add(item.first, item.end)
                self.gaps_seen = None
                self.gaps_pending -= 1
            elif not held.holds(*bounds(item)):
                break
            items.popleft()
            freed += weight(item)
        self.bytes -= freed
        if items and self.run_end >= 0:
            self.run_first = bounds(items[0])[0]
        elif not self.gaps_pending and len(items) <= RECOUNTED_MAX:
            self._find_run()
        return freed

    def _find_run(self) -> None:
        """Note whether the items, all of them records, are one run."""
        self.run_first, self.run_end = 0, -1
        for index, item in enumerate(self.items):
            first, end = bounds(item)
            if index == 0:
                self.run_first = first
            elif first != self.run_end:
                self.run_end = -1
                return
            self.run_end = end

    def _settle_start(self, held: LaneState) -> int:
        """Remove the state's part of a longer run: more records came while the chunk was written."""
        end, freed, items = held.ranges.contiguous_end(self.run_first), 0, self.items
        while bounds(items[0])[1] <= end:  # ends at the last item, which is beyond ``end``
            freed += weight(items.popleft())
        self.run_first = bounds(items[0])[0]
        self.bytes -= freed
        return freed

    def acknowledged(self, held: LaneState) -> RangeSet:
        """Return the numbers that the sender may forget: held records, and its own gaps. Without other gaps, the set is
        the state's own: the caller must not change it."""
        if not held.gaps.items:
            return held.ranges
        if self.gaps_seen is not held.gaps:  # a chunk replaces a state's gaps when it changes them
            reported = self.gaps_reported
            unreported = [part for gap in held.gaps for part in reported.missing(gap.first, gap.end)]
            self.gaps_seen, self.gaps_unreported = held.gaps, unreported
        return held.ranges.minus(self.gaps_unreported) if self.gaps_unreported else held.ranges

    def is_late(self, held: LaneState) -> bool:
        """Return whether the session lost its lane: a higher epoch came, or another session has the same one."""
        epoch = self.claim.epoch
        return held.epoch >= epoch and not self.is_relay and (held.epoch > epoch or not self.claim.granted)
