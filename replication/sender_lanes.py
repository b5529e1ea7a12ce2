"""The lanes of one connection at its sending end: what each has still to send, which is next, and when their marks
are due.

It knows lanes and the log, and makes frames of single lanes. The connection, its window and the order of frames in a
message are ``sender``'s."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from weft.protocols.chunk_index import GapRange, LaneFlag, Mark
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane
from weft.protocols.link import Clock, Frame, Gap, LaneClosed, LaneOpen, LaneOrigins, LastWords, Marks, RefuseCode
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.segment import GapReason
from weft.replication.flow_control import RANGES_MAX
from weft.replication.liveness import SECOND
from weft.replication.policy import HOLES_MAX, Order, SendPolicy
from weft.replication.source import LaneSnapshot, OfferedLane

# One lane at its sender: the log's ranges, the receiver's ranges, and the ranges still to send.


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
        # A relay passes on what another wrote, and must not fence the owner of the log.
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
        self._reported = RangeSet()
        """Gaps of the log that need no notice on this connection: sent, or the receiver has the records."""
        self._reported_lost = RangeSet()
        self._origins_sent: set[int] = set()
        self._origins_named: list[int] = []
        self._clocks_sent: dict[int, Clock] = {}
        self._clocks_named: dict[int, Clock] = {}
        self._awaited: Mark | None = None

    def offer(self, state: LaneSnapshot) -> None:
        """Update the log's state."""
        self._latest = state
        self._held = state.held
        self.end = max(self.end, state.end)
        self._newest = state.mark
        # Every gap goes out once on each connection: the hub may be another node, or have been restored since.
        self._gaps = [gap for gap in state.gaps if not self._reported.covers(gap.first, gap.end)]

    def open(self, number: int) -> LaneOpen:
        """Start over under a number of the link, and return the LANE_OPEN frame."""
        self._reset()
        self.offer(self._latest)
        self.number = number
        self.state = LinkLaneState.OPENING
        offered = self.offered
        return LaneOpen(
            number,
            *self.identity,
            self._epoch,
            list(self._held)[:RANGES_MAX],
            list(offered.topics),
            offered.payload,
            offered.flags,
            acknowledged=offered.acknowledged(),
        )

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
        if number not in self._origins_sent:
            self._origins_sent.add(number)
            self._origins_named.append(number)

    def name_boot(self, boot: int) -> None:
        """Note that a batch to be sent has times of a boot whose clock was not set."""
        clock = self.offered.clock(boot)
        if clock is not None and self._clocks_sent.get(boot) != clock:
            self._clocks_sent[boot] = self._clocks_named[boot] = clock

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
        return max(self.sent.end, self._reported.end, *(gap.end for gap in self._gaps))

    @property
    def reported(self) -> RangeSet:
        """Return the gaps that this connection sent to the receiver."""
        return self._reported_lost

    @property
    def has_gaps(self) -> bool:
        """Return whether gap notices wait to be sent."""
        return bool(self._gaps)

    def gap_frames(self, limit: int, waiting: RangeSet) -> list[Frame]:
        """Return the gap notices not sent on this connection yet, without the receiver's ranges.

        Args:
            waiting: records that were read and follow on this connection.
        """
        frames: list[Frame] = []
        taken = 0
        while taken < len(self._gaps) and len(frames) < limit:
            gap = self._gaps[taken]
            taken += 1
            if self.offered.tells_safe and gap.reason == GapReason.ABSENT:
                frames += self._safe_elsewhere(gap, waiting)
                continue
            for first, end in self._reported.missing(gap.first, gap.end):
                # Records that the receiver has, or gets behind this message, are not reported as lost, even if this log
                # has lost them since. If the connection ends before, the next one tells all gaps again.
                missing = [part for run in self.safe.missing(first, end) for part in waiting.missing(*run)]
                frames += [Gap(self.number, *part, gap.reason) for part in missing]
                self._reported_lost.update(missing)
            self._reported.add(gap.first, gap.end)
        del self._gaps[:taken]
        return frames

    def _safe_elsewhere(self, gap: GapRange, waiting: RangeSet) -> Iterator[Frame]:
        """Yield the notices of numbers that the receiver need not keep, also of those that it has."""
        unsaid = self._reported.missing(gap.first, gap.end)
        # A record that was read would arrive behind its notice, and be kept: its notice goes out later.
        for part in [part for run in unsaid for part in waiting.missing(*run)]:
            self._reported.add(*part)
            yield Gap(self.number, *part, gap.reason)

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
            # A mark says that everything before it has come. It leaves only when every record and gap below it has been
            # sent on this connection.
            if mark is not None and not self._gaps and (unsent is None or unsent >= mark.seq):
                self._awaited = None
                return mark
        # On a busy lane the newest mark is never sendable, since records keep coming. The oldest unsent one is kept
        # until it is.
        self._awaited = self._awaited or self._newest
        return None


# Turns of lanes that share a link in proportion to their weights (stride scheduling).


class FairTurns:
    """Lanes that wait, the one that had least for its weight first. Every lane gets its turn: others pass it only until
    they had as much for their weight.

    Each call costs the logarithm of the number of waiting lanes.
    """

    def __init__(self) -> None:
        self._passes: dict[int, float] = {}
        """Lane -> bytes that it had for each unit of its weight."""
        self._waiting: dict[int, int] = {}
        """Waiting lane -> its weight."""
        self._heap: list[tuple[float, int, int]] = []
        """(pass, serial, lane). An entry counts while the lane waits with that serial."""
        self._serials: dict[int, int] = {}
        self._serial = 0
        self._at = 0.0
        """Pass of the lane that was served last."""

    def add(self, key: int, weight: int) -> None:
        """Let a lane wait, if it does not yet. One that comes back has no claim to what it left to others."""
        if key not in self._waiting:
            self._waiting[key] = weight
            # A lane that had nothing to send has saved nothing up: it begins at the present pass. Otherwise it would
            # have the link for itself until it had caught up.
            self._push(key, max(self._passes.get(key, 0.0), self._at))

    def _push(self, key: int, at: float) -> None:
        self._serial += 1
        self._passes[key], self._serials[key] = at, self._serial
        heapq.heappush(self._heap, (at, self._serial, key))

    def first(self) -> int | None:
        """Return the lane whose turn it is; None if none waits."""
        while self._heap:
            _, serial, key = self._heap[0]
            if key in self._waiting and self._serials[key] == serial:
                return key
            heapq.heappop(self._heap)
        return None

    def charge(self, key: int, size: int) -> None:
        """Note that a lane had ``size`` bytes; it waits on, if it waited."""
        before = self._passes.get(key)
        if before is None:
            return
        # Charged after the read, by what was really read: a lane of long records pays for them.
        self._at = max(self._at, before)
        if key in self._waiting:
            self._push(key, before + size / self._waiting[key])

    def drop(self, key: int) -> None:
        """Let a lane wait no longer."""
        self._waiting.pop(key, None)

    def forget(self, key: int) -> None:
        """Drop a lane that is gone."""
        self.drop(key)
        self._passes.pop(key, None)
        self._serials.pop(key, None)


# The lane and record that a connection reads next, by order and priorities.

FRESH_NS = 10 * SECOND
"""Age from which a new record counts as history, so that still newer ones go before it."""
BALANCE_BYTES = 256 << 10
"""Bytes that history or new records may owe each other: what one of them left while it had nothing to send is gone."""


@dataclass
class _Cursor:
    """Place of a lane from which on records count as new."""

    number: int
    """Number of the lane on the link: one that is opened again has another."""
    tip: int
    looked_at: int
    """Time of the last look at the age of new records."""
    end_then: int
    """End of the lane at that time."""


class LaneChoice:
    """The choice on one connection. With ``fresh_first`` a lane may wait twice: with its new records, and with those
    before them."""

    def __init__(self, policy: SendPolicy, get_open: Callable[[int], SenderLane | None]) -> None:
        self._policy = policy
        self._get_open = get_open
        self._fresh, self._old = FairTurns(), FairTurns()
        self._cursors: dict[int, _Cursor] = {}
        self._shut: set[int] = set()
        """Lanes with work whose streams the schedule shuts."""
        self._version = 0
        self._balance = 0.0
        """Bytes that history may send before new records; below 0, those that new records may send before history."""
        self._last: tuple[SenderLane, int, FairTurns] | None = None
        """The lane chosen last, its bytes before, and the turns that it was in."""

    def add(self, lane: SenderLane) -> None:
        """Note that an open lane may have records to read."""
        if lane.key in self._shut:
            return
        weight = self._policy.priority(lane.identity.stream)
        self._old.add(lane.key, weight)
        if self._policy.rules.order is Order.FRESH_FIRST:
            self._fresh.add(lane.key, weight)
            self._cursor(lane)  # what comes from now on is new

    def forget(self, key: int) -> None:
        """Drop a lane that is closed."""
        self._fresh.forget(key)
        self._old.forget(key)
        self._shut.discard(key)
        self._cursors.pop(key, None)

    def follow(self, lanes: Callable[[], Iterable[int]]) -> None:
        """Queue all open ``lanes`` again if the policy has changed."""
        # Rules change with the clock or by the hub's word; until they do, the queues stay as they are.
        if self._version == self._policy.version:
            return
        self._version = self._policy.version
        self._settle()
        self._fresh, self._old = FairTurns(), FairTurns()
        self._shut.clear()
        for key in lanes():
            lane = self._get_open(key)
            if lane is not None:
                self.add(lane)

    def next(self) -> tuple[SenderLane, int] | None:
        """Return the next lane and the number to read from; None if nothing may be read."""
        self._settle()
        while True:
            fresh = self._wanted(self._fresh, is_fresh=True)
            # The backlog gets its share even while new records come without a pause, or an outage would never be made
            # up for.
            if fresh is not None and self._balance <= 0:
                return self._take(fresh, self._fresh)
            old = self._wanted(self._old, is_fresh=False)
            if old is not None:
                return self._take(old, self._old)
            if fresh is not None:
                return self._take(fresh, self._fresh)
            return None

    def _take(self, found: tuple[SenderLane, int], turns: FairTurns) -> tuple[SenderLane, int]:
        self._last = found[0], found[0].read_bytes, turns
        return found

    def _settle(self) -> None:
        """Charge what the lane chosen last has read since."""
        if self._last is None:
            return
        lane, before, turns = self._last
        self._last = None
        size = max(1, lane.read_bytes - before)
        turns.charge(lane.key, size)
        share = self._policy.rules.history_share
        # Bytes and not turns are balanced, since records of both kinds differ in length.
        change = size * share if turns is self._fresh else -size * (1 - share)
        # Bounded, so that an hour without a backlog gives the next one no hour of precedence.
        self._balance = max(-BALANCE_BYTES, min(BALANCE_BYTES, self._balance + change))

    def _wanted(self, turns: FairTurns, *, is_fresh: bool) -> tuple[SenderLane, int] | None:
        while (key := turns.first()) is not None:
            lane = self._get_open(key)
            if lane is not None and self._policy.shuts(lane.identity.stream):
                self._shut.add(key)
                self._fresh.drop(key)
                self._old.drop(key)
                continue
            seq = self._seq(lane, is_fresh=is_fresh) if lane is not None else None
            if lane is not None and seq is not None:
                return lane, seq
            turns.drop(key)
        return None

    def _seq(self, lane: SenderLane, *, is_fresh: bool) -> int | None:
        oldest = lane.wanted()
        if oldest is None or self._policy.rules.order is Order.STRICT:
            return oldest
        cursor = self._cursor(lane)
        if is_fresh:
            return oldest if oldest >= cursor.tip else lane.wanted(cursor.tip)
        return oldest if oldest < cursor.tip else None

    def _cursor(self, lane: SenderLane) -> _Cursor:
        now, cursor = self._policy.now, self._cursors.get(lane.key)
        if cursor is None or cursor.number != lane.number:
            cursor = self._cursors[lane.key] = _Cursor(lane.number, 0, now, lane.end)
            self._move(cursor, lane)
        # New records that are still unsent after this time have become backlog themselves. The border moves up, so that
        # "fresh" stays a promise about age.
        elif now - cursor.looked_at >= max(FRESH_NS, 2 * self._policy.rules.every):
            fresh = lane.wanted(cursor.tip)
            if fresh is not None and fresh < cursor.end_then:
                self._move(cursor, lane)
            cursor.looked_at, cursor.end_then = now, lane.end
        return cursor

    @staticmethod
    def _move(cursor: _Cursor, lane: SenderLane) -> None:
        """Let new records begin at the lane's end, if that makes no hole too many; else with the newest hole."""
        holes = lane.holes()
        cursor.tip = lane.end if len(holes) <= HOLES_MAX else holes[-1][0]


# The lanes of one connection at its sending end: their numbers on the link, and queues of lanes with work.
#
# The cost of a commit or a message depends on the lanes that it touches, not on the lanes that are idle.


class SenderLanes:
    """All lanes of a connection, by the source's numbers."""

    def __init__(self, policy: SendPolicy | None = None) -> None:
        self._policy = policy
        self._choice: LaneChoice | None = None
        """Set while the policy has another order than plain turns."""
        self._lanes: dict[int, SenderLane] = {}
        self._numbers: dict[int, SenderLane] = {}
        """Lanes that are opening or open, by the link's numbers."""
        self._next_number = 1
        self._unanswered: dict[int, None] = {}
        self._retries: dict[int, int] = {}
        """Closed lane -> time of its next offer."""
        self._turn: deque[int] = deque()
        """Lanes that may have records to read, each once."""
        self._background: deque[int] = deque()
        """Lanes that may have records to read when no other lane has."""
        self._queued: set[int] = set()
        self._with_gaps: dict[int, None] = {}
        self._unnamed: dict[int, None] = {}
        """Lanes for which the next message may name higher numbers than the last ``named_ends``."""

    def __getitem__(self, key: int) -> SenderLane:
        """Return an added lane."""
        return self._lanes[key]

    def __contains__(self, key: int) -> bool:
        """Return whether a lane was added and not removed."""
        return key in self._lanes

    @property
    def all_closed(self) -> bool:
        """Return whether no lane is opening or open."""
        return not self._numbers

    @property
    def opening(self) -> list[int]:
        """Return the lanes that the receiver has not answered."""
        return list(self._unanswered)

    def open(self) -> Iterator[int]:
        """Iterate over the lanes that the receiver has accepted."""
        return (lane.key for lane in self._numbers.values() if lane.state is LinkLaneState.OPEN)

    def get_open(self, key: int) -> SenderLane | None:
        """Return a lane if it is open."""
        lane = self._lanes.get(key)
        return lane if lane is not None and lane.state is LinkLaneState.OPEN else None

    def numbered(self, number: int) -> SenderLane | None:
        """Return the lane with a number of the link; None if it was closed while an answer was in flight.

        Raises:
            Corrupt: no lane ever had the number.
        """
        if not 0 < number < self._next_number:
            raise Corrupt(f"lane {number} was never offered")
        return self._numbers.get(number)

    # -- from closed to open and back

    def add(self, lane: SenderLane) -> LaneOpen:
        """Add a lane and return the frame that offers it.

        Raises:
            ValueError: it was added already.
        """
        if lane.key in self._lanes:
            raise ValueError(f"lane {lane.key} is offered already")
        self._lanes[lane.key] = lane
        return self._offer(lane)

    def _offer(self, lane: SenderLane) -> LaneOpen:
        # A number is used only once: frames of a closed lane that are still in flight must not count for another lane.
        number, self._next_number = self._next_number, self._next_number + 1
        self._numbers[number] = lane
        self._unanswered[lane.key] = None
        return lane.open(number)

    def opened(self, lane: SenderLane, held: RangeSet) -> None:
        """Note that the receiver accepted a lane, of which it holds ``held``."""
        lane.opened(held)
        self._unanswered.pop(lane.key, None)
        self.names_more(lane)
        self.touch(lane)

    def close(self, lane: SenderLane, retry_at: int) -> None:
        """Note that a lane is closed; ``offer_again`` returns it from ``retry_at`` on."""
        self._numbers.pop(lane.number, None)
        lane.state = LinkLaneState.CLOSED
        self._unanswered.pop(lane.key, None)
        self._with_gaps.pop(lane.key, None)
        self._unnamed.pop(lane.key, None)
        self._retries[lane.key] = retry_at
        if self._choice is not None:
            self._choice.forget(lane.key)

    def remove(self, key: int) -> Frame | None:
        """Remove a lane; return the frame for the receiver, unless the lane is closed already."""
        lane = self._lanes[key]
        was_open = lane.state is not LinkLaneState.CLOSED
        self.close(lane, 0)
        del self._lanes[key], self._retries[key]
        return LaneClosed(lane.number, RefuseCode.CLOSED, "the sender withdraws the lane", "") if was_open else None

    def offer_again(self, now: int) -> list[Frame]:
        """Return the frames that offer closed lanes again, if it is time."""
        due = [key for key, time in self._retries.items() if now >= time]
        for key in due:
            del self._retries[key]
        return [self._offer(self._lanes[key]) for key in due]

    @property
    def next_retry(self) -> int | None:
        """Return the time from which ``offer_again`` returns a frame."""
        return min(self._retries.values(), default=None)

    # -- work

    def touch(self, lane: SenderLane) -> None:
        """Note that an open lane may have something to send."""
        if lane.offered.is_background:
            if lane.key not in self._background:
                self._background.append(lane.key)
        elif self._choice is not None:
            self._choice.add(lane)
        elif lane.key not in self._queued:
            self._queued.add(lane.key)
            self._turn.append(lane.key)
        if lane.has_gaps:
            self._with_gaps[lane.key] = None
            self.names_more(lane)

    def names_more(self, lane: SenderLane) -> None:
        """Note that the next message may name new numbers of a lane."""
        self._unnamed[lane.key] = None

    def take_named_ends(self) -> dict[int, int]:
        """Return the ends of the lanes with ``names_more`` since the last call."""
        ends = {key: self._lanes[key].named_end() for key in self._unnamed}
        self._unnamed.clear()
        return ends

    def next_wanted(self) -> tuple[SenderLane, int] | None:
        """Return the next lane with records to read, and the first number; None also while the policy lets data
        wait."""
        policy = self._policy
        if policy is None:
            # Background lanes, such as an imported old disk or a pull, go only when no live lane has anything.
            return self._next_in_turn() or self._next_of_background()
        # Nothing is read that may not be sent: batches in memory would be as old as the hold when it ends.
        if policy.is_held:
            return None
        if policy.chooses or self._choice is not None:
            self._follow(policy)
        found = self._choice.next() if self._choice is not None else self._next_in_turn()
        found = found or self._next_of_background()
        if found is None:
            policy.is_drained()
        return found

    def _next_of_background(self) -> tuple[SenderLane, int] | None:
        for _ in range(len(self._background)):
            lane = self.get_open(self._background[0])
            seq = lane.wanted() if lane is not None else None
            if lane is not None and seq is not None:
                if self._policy is not None and self._policy.shuts(lane.identity.stream):
                    self._background.rotate(-1)
                    continue
                return lane, seq
            self._background.popleft()
        return None

    def _follow(self, policy: SendPolicy) -> None:
        """Choose lanes as the policy does now."""
        if not policy.chooses:
            self._choice = None
            for key in self._chosen():
                self.touch(self._lanes[key])
            return
        if self._choice is None:
            self._choice = LaneChoice(policy, self.get_open)
            self._turn.clear()
            self._queued.clear()
        self._choice.follow(self._chosen)

    def _chosen(self) -> Iterator[int]:
        return (key for key in self.open() if not self._lanes[key].offered.is_background)

    @property
    def hold_ends(self) -> int | None:
        """Return the time at which the policy may let data continue."""
        return self._policy.deadline() if self._policy is not None else None

    def _next_in_turn(self) -> tuple[SenderLane, int] | None:
        while self._turn:
            key = self._turn[0]
            lane = self.get_open(key)
            seq = lane.wanted() if lane is not None else None
            if lane is not None and seq is not None:
                # One read for each lane in turn: a lane with a backlog of days must not keep the others from being
                # current.
                self._turn.rotate(-1)
                return lane, seq
            self._turn.popleft()
            self._queued.discard(key)
        return None

    def take_gap_frames(self, limit: int, waiting: Callable[[int], RangeSet], reading: int | None) -> Iterator[Frame]:
        """Return up to ``limit`` gap notices; lanes with more keep their place. None while data waits.

        Args:
            waiting: returns the records of a lane that were read and follow on this connection.
            reading: lane whose records are being read: which of them follow is not known yet.
        """
        if self._policy is not None and self._policy.is_held:
            return
        for key in list(self._with_gaps):
            if key == reading:
                continue
            for frame in self._lanes[key].gap_frames(limit, waiting(key)):
                limit -= 1
                yield frame
            if self._lanes[key].has_gaps:
                return
            del self._with_gaps[key]


# Times at which the marks of a link's lanes are due.

WITH_DATA = SECOND
"""Minimum time between two messages with marks of lanes that send data: their completeness is at most this late."""


class MarkSchedule:
    """Lanes whose marks are due: lanes with data soon after the data, idle lanes once an interval, all together.

    All times are monotonic nanoseconds.
    """

    def __init__(self, interval: int, now: int) -> None:
        self._interval = interval
        self._all_at = now + interval
        self._with_data_at = now
        self._sent_data: dict[int, None] = {}
        """Lanes that sent data since their last mark."""
        self.due: dict[int, None] = {}
        """Lanes whose marks are sent as soon as all records that they cover were sent."""
        self._ends = False
        self._renamed_to = ""

    @property
    def deadline(self) -> int:
        """Return the time from which ``stale`` and ``begin`` have something to do."""
        return min(self._all_at, self._with_data_at) if self._sent_data else self._all_at

    def sent_data(self, lane: int) -> None:
        """Note that a lane's data is sent now."""
        self._sent_data[lane] = None

    def opened(self, lane: int) -> None:
        """Note that a lane was opened: the receiver has no mark of this connection."""
        self.due[lane] = None

    def forget(self, lane: int) -> None:
        """Note that a lane is closed."""
        self._sent_data.pop(lane, None)
        self.due.pop(lane, None)

    def make_all_due(self) -> None:
        """Make the marks of all lanes due."""
        self._all_at = self._with_data_at

    def stale(self, lanes: Iterable[int], now: int, *, all_due: bool = False) -> list[int]:
        """Return the open lanes whose marks become due at ``now``; arguments as for ``begin``."""
        if self._all_go(now, all_due):
            return list(lanes)
        return list(self._sent_data) if now >= self._with_data_at else []

    def _all_go(self, now: int, early: bool) -> bool:
        # With a PING that goes anyway the marks cost no packet of their own, so they may go half an interval early.
        return now >= self._all_at - (self._interval // 2 if early else 0)

    def begin(self, lanes: Iterable[int], now: int, *, all_due: bool = False) -> None:
        """Collect the lanes whose marks are due at ``now``.

        Args:
            lanes: all open lanes.
            all_due: another message is sent now, so it takes along the marks of all lanes whose interval is half over.
        """
        if self._all_go(now, all_due):
            self._all_at = now + self._interval
            self.due.update(dict.fromkeys(lanes))
            self._sent_data.clear()
        elif self._sent_data and now >= self._with_data_at:
            self.due.update(self._sent_data)
            self._sent_data.clear()
            self._with_data_at = now + WITH_DATA

    def end(self, lanes: Iterable[int], renamed_to: str) -> bool:
        """Make a last mark of each lane due, once; return whether all of them were sent."""
        if not self._ends:
            self._ends, self._renamed_to = True, renamed_to
            self.due.update(dict.fromkeys(lanes))
        return not self.due

    def take_frames(self, lanes: SenderLanes, first_waiting: Callable[[int], int | None]) -> list[Frame]:
        """Return the due marks of lanes whose data has reached them, one frame for all lanes with one time.

        Args:
            first_waiting: the first record of a lane that was read and waits for the window, if any.
        """
        found: dict[tuple[int, bool], list[tuple[int, int]]] = {}
        for key in list(self.due):
            lane = lanes[key]
            mark = lane.take_mark(first_waiting(key))
            if mark is not None:
                last = self._ends and lane.ends_with(mark)
                # Lanes whose marks have one time share a frame: twenty idle streams cost one packet.
                found.setdefault((mark.time, last), []).append((lane.number, mark.seq))
                del self.due[key]
        return [
            LastWords(time, pairs, self._renamed_to) if last else Marks(time, pairs)
            for (time, last), pairs in found.items()
        ]
