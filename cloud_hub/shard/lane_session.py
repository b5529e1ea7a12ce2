"""One lane of one link: its epoch, and what was handed over and is not committed yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from weft.cloud_hub.shard.clock_notices import ClockNotices
from weft.protocols.batch import BatchHeader
from weft.protocols.chunk import GapRange, LaneFlag, Mark
from weft.protocols.lane import Lane
from weft.protocols.link import RefuseCode
from weft.protocols.origin import ORIGINS_MAX, Origin, by_number
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.shard.gap_set import GapSet
from weft.protocols.shard.lane_state import LaneState

GAP_BYTES = 64
"""Bytes that a gap notice counts as against the bounds on pending bytes."""
GAPS_PENDING_MAX = 1024
"""Gap notices of a session that wait for a commit. The link reads no further with more: against the bounds on gaps
count those of the state, so this is how far they can be passed."""
SETTLED_MAX = 8192
"""Items that one look at the state settles: a sender may repeat what is there at will, which takes several looks."""
RECOUNTED_MAX = 256
"""Items among which a run of records is looked for again, after others were settled."""

_RELAY = int(LaneFlag.RELAY)
Acknowledge = Callable[[RangeSet], None]
Refuse = Callable[[RefuseCode, str, str], None]


class SessionRefused(Exception):
    """The session does not get its lane: ``LaneSession.opened`` ends with this."""

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
    """Return the bytes that an item counts as."""
    return GAP_BYTES if isinstance(item, GapRange) else len(item.data)


class LaneClaim:
    """A connection's claim to a lane. Sessions of one connection share it: a lane that was closed and opened again must
    not be fenced by the epoch that the same connection made durable before."""

    __slots__ = ("epoch", "granted", "is_over", "offered_end")

    def __init__(self, epoch: int, offered_end: int | None = None) -> None:
        self.epoch = epoch
        self.offered_end = offered_end
        """Number after the last record that the sender's log had when it opened the lane; None when that is unknown."""
        self.granted = False
        """True once a chunk of this node has made ``epoch`` the lane's: the sessions may write until a higher one
        comes."""
        self.is_over = False
        """True once an operator has decided about the lane: its next session needs another epoch, so the link ends."""


class LaneSession:
    """One lane of one link session. Items are committed in the order in which they came.

    Args:
        claim: the lane's epoch.
        acknowledge: called with the lane's ranges after each commit that took an item from here.
        payload: the kind of the stream's payloads as the edge told it.
        origins: meanings of the numbers of origins in the lane's batches.
        flags: ``LaneFlag`` bits.
        clocks: what the link has told of the clocks of the lane's log.
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
        "gaps_seen",
        "gaps_told",
        "gaps_untold",
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
        "run_end",
        "run_first",
        "says_last_word",
        "topics",
        "trails",
    )  # fmt: skip

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
        """True when the session passes on another node's lane: it claims no epoch and is not fenced."""
        self.acknowledge = acknowledge
        self.refuse = refuse
        self.items: deque[PendingItem] = deque()
        self.bytes = 0
        """Weight of the items."""
        self.run_first = 0
        self.run_end = -1
        """Bounds of the items when they are records of one run, each where the one before ends; otherwise the end is
        -1."""
        self.gaps_pending = 0
        """Gap notices among the items."""
        self.mark: Mark | None = None
        self.says_last_word = False
        """True once the mark is the edge's last word."""
        self.trails = False
        """True when the mark says something of records, or is the lane's first: it waits less long."""
        self.known = RangeSet()
        """Ranges that the shard held when the session began, or that were handed over since: counts the holes that the
        sender leaves."""
        self.gaps_told = RangeSet()
        """Numbers that the sender itself said it lacks, and that are accounted for. Others' gaps are never acknowledged
        to it: it may have the records, and would forget them."""
        self.gaps_seen: GapSet | None = None
        """Gaps of the lane when those that the sender did not tell were last sought among them."""
        self.gaps_untold: list[Range] = []
        self.clocks = clocks if clocks is not None else ClockNotices()
        self.opened: asyncio.Future[RangeSet] = asyncio.get_running_loop().create_future()
        self.registered = False
        """True while the shard has the session."""
        self.closed = False
        """True when the link is gone. Its items are still committed, unless a higher epoch comes first."""

    def add_origins(self, origins: Iterable[Origin]) -> None:
        """Take in origins; of one number the last told counts, and of too many those with the highest numbers."""
        known = self.origins | by_number(origins)
        self.origins = {number: known[number] for number in sorted(known)[-ORIGINS_MAX:]}

    def append(self, item: PendingItem) -> None:
        """Take an item behind the others."""
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
        """Take batches behind the other items: ``append``, without a call for each. Return their bytes."""
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
        """Drop all items. Return the bytes that this freed."""
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
        """Return whether the link still waits to hear that the epoch is taken."""
        return not self.opened.done()

    @property
    def ungranted(self) -> bool:
        """Return whether a chunk has yet to make the epoch the lane's."""
        return self.opening and not self.granted

    def tells(self, held: LaneState) -> bool:
        """Return whether the next chunk that has something of the session tells its topics and kind of payloads."""
        # A relay only fills in for an edge that the hub has never heard.
        return self.ungranted or (self.is_relay and not held.epoch)

    @property
    def pending(self) -> bool:
        """Return whether a commit has something to do here."""
        return bool(self.items) or self.mark is not None or self.opening or bool(self.clocks)

    @property
    def urgent(self) -> bool:
        """Return whether there is more than a mark, which can wait."""
        return bool(self.items) or self.opening or (self.says_last_word and self.mark is not None)

    def settle(self, held: LaneState | None) -> int:
        """Remove the items and the mark that the state accounts for.

        Returns:
            The bytes that this freed; more than 0 calls for an acknowledgement.
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
        if self.run_end > held.ranges.end and not held.gaps:
            return self._settle_start(held)
        return self._settle_one_by_one(held)

    def _settle_one_by_one(self, held: LaneState) -> int:
        """Remove the items that the state accounts for, up to the first that it does not: they come in order."""
        items, freed = self.items, 0
        for _ in range(min(len(items), SETTLED_MAX)):
            item = items[0]
            if isinstance(item, GapRange):
                if not held.accounts_for(item):
                    break
                self.gaps_told.add(item.first, item.end)
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
        """Note whether the items, all of records, are one run."""
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
        """Remove what the state has of a run that goes on behind it: more came while the chunk was written."""
        end, freed, items = held.ranges.contiguous_end(self.run_first), 0, self.items
        while bounds(items[0])[1] <= end:  # at the latest the last item lies behind it
            freed += weight(items.popleft())
        self.run_first = bounds(items[0])[0]
        self.bytes -= freed
        return freed

    def acknowledged(self, held: LaneState) -> RangeSet:
        """Return what the sender may forget: records that are held, and gaps that it told itself. The set is the
        state's own when there is no other gap: do not change it."""
        if not held.gaps:
            return held.ranges
        if self.gaps_seen is not held.gaps:  # a state's gaps are replaced where a chunk changes them
            told = self.gaps_told
            untold = [part for gap in held.gaps for part in told.missing(gap.first, gap.end)]
            self.gaps_seen, self.gaps_untold = held.gaps, untold
        return held.ranges.minus(self.gaps_untold) if self.gaps_untold else held.ranges

    def is_late(self, held: LaneState) -> bool:
        """Return whether the session lost its lane: a higher epoch came, or another session took the same one."""
        epoch = self.claim.epoch
        return held.epoch >= epoch and not self.is_relay and (held.epoch > epoch or not self.claim.granted)
