"""One shard's log as the source of a link to another region."""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from weft.protocols import chunk as chunks
from weft.protocols.batch import decode_header
from weft.protocols.chunk_index import Chunk, GapRange, LaneFlag, LaneUpdate, Mark, StreamKey, StreamSection
from weft.protocols.lane import ORIGINS_MAX, Lane, Origin, is_hubs_own, matches
from weft.protocols.link import Clock, RefuseCode
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import SEQ_END, Range, RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.lane_state import LaneState, lane_of
from weft.protocols.shard.shard_state import BOOTS_MAX, ShardState
from weft.replication.events import LaneEnded, LaneTaken
from weft.replication.source import LaneSnapshot, OfferedLane
from weft.storage.chunk_log import CollectedPast, ShardLog
from weft.storage.object_store import NotFound, StoreError

# The part of a shard's log that another region does not have yet, as far as it is read: a queue of chunks, by lane.


class Piece(NamedTuple):
    """Records of a lane in one chunk."""

    first: int
    end: int
    n: int


class RelayedLane:
    """A lane with something in the window, or with an open lane on the link."""

    def __init__(self, lane: Lane, number: int) -> None:
        self.lane = lane
        self.number = number
        """Its number on the link. A new one makes the region say again what it holds."""
        self.held = RangeSet()
        """Records in the window."""
        self.pieces: list[Piece] = []
        """The same by chunk, ascending by their numbers."""
        self.gaps: list[tuple[GapRange, int]] = []
        """Gaps in the window, each with its chunk."""
        self.end = 0
        """Number after the last one in the log so far."""
        self.mark: Mark | None = None
        """Newest mark in the log so far."""
        self.safe = RangeSet()
        """Numbers that the region has acknowledged, as records or as gaps that this link reported."""
        self.reported = RangeSet()
        """Those that the link reported as gaps, since the lane has its number."""
        self.offered: OfferedLane | None = None
        """None while it is not open on the link."""
        self.idle_since = 0.0
        """Monotonic seconds at which it was last used."""
        self.refusals = 0
        """Number of the region's refusals since it had all of it."""
        self.is_refused = False
        """True while it waits by itself, and the window does not wait for it."""
        self._origins: dict[int, Origin] = {}
        self._clocks: dict[int, Clock] = {}

    @property
    def is_idle(self) -> bool:
        """Return whether the window has neither records nor gaps of it."""
        return not self.pieces and not self.gaps

    @property
    def is_settled(self) -> bool:
        """Return whether the region has acknowledged all that the window has of it. Chunks before may lack others."""
        return all(self.safe.covers(piece.first, piece.end) for piece in self.pieces) and all(
            self.safe.covers(gap.first, gap.end) for gap, _ in self.gaps
        )

    def add(self, first: int, end: int, n: int) -> bool:
        """Add records of chunk ``n``. Return whether the link named some of them as gaps before."""
        self.held.add(first, end)
        self.end = max(self.end, end)
        insort(self.pieces, Piece(first, end, n))
        return bool(self.reported.within(first, end))

    def add_gap(self, gap: GapRange, n: int) -> None:
        """Add a gap notice of chunk ``n``."""
        self.gaps.append((gap, n))
        self.end = max(self.end, gap.end)

    def note_mark(self, mark: Mark) -> None:
        """Note a mark of the next chunk."""
        if self.mark is None or mark.time > self.mark.time:
            self.mark = mark

    def lacking(self, n: int) -> int | None:
        """Return how many records of chunk ``n`` the region lacks; None if it lacks no gap notice either."""
        missing = [part for piece in self.pieces if piece.n == n for part in self.safe.missing(piece.first, piece.end)]
        if not missing and all(self.safe.covers(gap.first, gap.end) for gap, at in self.gaps if at == n):
            return None
        return sum(end - first for first, end in missing)

    def empty(self) -> None:
        """Remove everything that is in the window."""
        self.held, self.pieces, self.gaps = RangeSet(), [], []

    def take_out(self, n: int) -> None:
        """Remove what is in chunk ``n``."""
        for piece in self.pieces:
            if piece.n == n:
                self.held.remove(piece.first, piece.end)
        self.pieces = [piece for piece in self.pieces if piece.n != n]
        self.gaps = [(gap, at) for gap, at in self.gaps if at != n]

    def missing(self) -> list[GapRange]:
        """Return the gaps of the window whose records are not in it either."""
        return [
            GapRange(first, end, gap.reason)
            for gap, _ in self.gaps
            for first, end in self.held.missing(gap.first, gap.end)
        ]

    def piece_at(self, seq: int) -> Piece | None:
        """Return the piece with ``seq``, or else the next one; None without one."""
        at = bisect_right(self.pieces, seq, key=lambda piece: piece.first) - 1
        if at >= 0 and self.pieces[at].end > seq:
            return self.pieces[at]
        return self.pieces[at + 1] if at + 1 < len(self.pieces) else None

    def renew(self, number: int) -> None:
        """Give the lane another number on the link, under which the region says what it holds."""
        self.number, self.safe, self.reported = number, RangeSet(), RangeSet()

    def explain(self, origins: Mapping[int, Origin], clocks: Mapping[int, Clock]) -> None:
        """Note what the batches of a chunk refer to."""
        self._origins.update(origins)
        self._clocks.update(clocks)
        while len(self._origins) > ORIGINS_MAX:
            del self._origins[next(iter(self._origins))]
        while len(self._clocks) > BOOTS_MAX:
            del self._clocks[next(iter(self._clocks))]

    def origin(self, number: int) -> Origin | None:
        """Return the origin that batches name, as of the chunk that was read last."""
        return self._origins.get(number)

    def clock(self, boot: int) -> Clock | None:
        """Return what corrects the times of a boot, as of the chunk that was read last."""
        return self._clocks.get(boot)


class Entry(NamedTuple):
    """A batch as it is stored, with the numbers of its records that count."""

    first: int
    end: int
    batch: memoryview


class WindowChunk:
    """One chunk of the window."""

    def __init__(self, chunk: Chunk, sections: Mapping[StreamKey, StreamSection]) -> None:
        self.chunk = chunk
        self.sections = sections
        """Those of streams that are relayed."""
        self.awaited: deque[tuple[RelayedLane, int, int]] = deque()
        """Records and gaps that the region has to acknowledge."""
        self.entries: dict[StreamKey, dict[Lane, list[Entry]]] = {}
        """The sections that were read."""
        self.bytes = sum(section.length for section in sections.values())
        """Bytes of the sections that are relayed."""
        self.records = sum(section.count for section in sections.values())
        self.weight = len(chunk.footer.lanes) + sum(len(lane.ranges) for lane in chunk.footer.lanes)
        """Size of the index, in lanes and ranges."""

    @property
    def n(self) -> int:
        """Return the chunk's number."""
        return self.chunk.header.n

    def is_done(self) -> bool:
        """Return whether the region has acknowledged everything of lanes that do not wait by themselves."""
        while self.awaited:
            lane, first, end = self.awaited[0]
            if not lane.is_refused and not lane.safe.covers(first, end):
                return False
            self.awaited.popleft()
        return True

    def lacking(self, looks: int) -> Iterable[StreamKey]:
        """Return the streams of which the region lacks something; all that the chunk has if that needs more than
        ``looks`` looks at ranges."""
        if len(self.awaited) > looks:
            return self.sections
        return {
            (lane.lane.tenant, lane.lane.stream)
            for lane, first, end in self.awaited
            if not lane.is_refused and not lane.safe.covers(first, end)
        }

    def lanes(self) -> Iterator[Lane]:
        """Iterate over the lanes that the chunk adds to."""
        for update in self.chunk.footer.lanes:
            yield Lane(update.tenant, update.edge, update.log_id, update.stream)


# Lanes that the other region refuses: each waits by itself, and the others continue.

LANES_MAX = 1024
"""Maximum number of lanes that wait by themselves. The window waits for one more."""
AGAIN_S, AGAIN_MAX_S = 10.0, 600.0
"""Time after which a lane is offered again. It doubles with each refusal in a row, up to the second one."""
NAMED_MAX = 3
"""Maximum number of lanes that ``RefusedLanes.sentence`` names."""
OVER_SOON = frozenset({RefuseCode.OVERLOADED, RefuseCode.CLOSED})
"""Reasons that may be over when the link offers the lane again: a lane has to be refused twice for one of them."""


@dataclass
class _Refused:
    lane: RelayedLane
    offer: OfferedLane
    """The next offer of it."""
    reason: str = ""
    """The region's, with advice."""
    again_at: float = 0.0
    """Monotonic seconds from which it is offered again."""
    is_taken: bool = False
    """True when the region takes it by now."""
    first: int | None = None
    """Number of the first chunk behind the window with anything that the region lacks of it."""
    created: int = 0
    """Time of that chunk, nanoseconds since 1970."""
    passed: int = 0
    """Records that the window had passed before that chunk."""
    records: int = 0
    """Records behind the window that the region lacks of it."""


class RefusedLanes:
    """The lanes that wait, and what the window has left behind of them. It remembers where that begins: the position
    stays there."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, _Refused] = {}
        self._oldest: _Refused | None = None

    def __contains__(self, name: Lane) -> bool:
        """Return whether a lane waits."""
        return name in self._lanes

    @property
    def first(self) -> int | None:
        """Return the number of the first chunk behind the window with anything that the region lacks; None if there
        is none."""
        return None if self._oldest is None else self._oldest.first

    @property
    def created(self) -> int | None:
        """Return the time of that chunk, nanoseconds since 1970."""
        return None if self._oldest is None else self._oldest.created

    @property
    def passed(self) -> int | None:
        """Return the records that the window had passed before that chunk."""
        return None if self._oldest is None else self._oldest.passed

    @property
    def records(self) -> int:
        """Return the records behind the window that the region lacks."""
        return sum(each.records for each in self._lanes.values())

    @property
    def are_taken(self) -> bool:
        """Return whether the region takes one of the lanes by now."""
        return any(each.is_taken for each in self._lanes.values())

    def behind(self) -> Iterator[tuple[StreamKey, int, int]]:
        """Iterate over what the window has left behind: stream, records, and time of the first chunk."""
        for name, each in self._lanes.items():
            if each.first is not None:
                yield (name.tenant, name.stream), each.records, each.created

    def sentence(self) -> str:
        """Return the lanes and the region's reasons for people; empty without any."""
        if not self._lanes:
            return ""
        named = [
            f"stream {name.stream} of {name.edge}, tenant {name.tenant}: {each.reason}"
            for name, each in list(self._lanes.items())[:NAMED_MAX]
        ]
        if len(self._lanes) > NAMED_MAX:
            named.append(f"{len(self._lanes) - NAMED_MAX} more")
        return f"lanes that the region refuses wait, and the others continue: {'. '.join(named)}"

    # -- what the region answers

    def refuse(self, lane: RelayedLane, ended: LaneEnded, now: float) -> bool:
        """Note that the region refuses an offered lane or closes it. Return whether the lane waits by itself now; the
        link offers any other again."""
        if lane.offered is None or ended.code == RefuseCode.UNAVAILABLE:  # of this hub node alone
            return False
        lane.refusals = min(lane.refusals + 1, 64)
        refused = self._lanes.get(lane.lane)
        if refused is None:
            if len(self._lanes) >= LANES_MAX or (lane.refusals == 1 and ended.code in OVER_SOON):
                return False
            refused = self._lanes[lane.lane] = _Refused(lane, lane.offered)
        refused.reason, refused.is_taken = f"{ended.message}; {ended.advice}", False
        refused.again_at = now + min(AGAIN_S * 2 ** (lane.refusals - 1), AGAIN_MAX_S)
        lane.is_refused = True
        return True

    def taken(self, name: Lane) -> bool:
        """Note that the region takes a lane. Return whether it had waited."""
        if name in self._lanes:
            self._lanes[name].is_taken = True
        return name in self._lanes

    def offer(self, offered: OfferedLane) -> None:
        """Note how a lane that waits is offered from now on."""
        assert offered.identity is not None
        self._lanes[offered.identity].offer = offered

    def due(self, now: float) -> Iterator[tuple[RelayedLane, OfferedLane]]:
        """Iterate over the lanes that are to be offered again."""
        for each in self._lanes.values():
            if each.lane.offered is None and now >= each.again_at:
                yield each.lane, each.offer

    # -- what the window passes

    def leave_behind(self, lane: RelayedLane, chunk: WindowChunk, passed: int) -> None:
        """Note that the window passes a chunk of a lane that waits, behind ``passed`` records."""
        refused, lacking = self._lanes[lane.lane], lane.lacking(chunk.n)
        if lacking is None:
            return
        refused.records += lacking
        if refused.first is None:
            refused.first, refused.created, refused.passed = chunk.n, chunk.chunk.header.created, passed
            self._oldest = self._oldest or refused

    def go_back(self) -> None:
        """Forget what was left behind, which comes again, and the lanes that the region takes."""
        for name, each in list(self._lanes.items()):
            each.first, each.records = None, 0
            if each.is_taken:
                self._remove(name)
        self._oldest = None

    def lose(self, end: int, front: int) -> int | None:
        """Note that the chunks before ``end`` were collected; the window begins at ``front``. Return the first of them
        with anything that the region lacks; None if there is none."""
        first = self.first
        if first is None or first >= end:
            return None
        for name, each in list(self._lanes.items()):
            if each.first is not None and each.first < end:
                # What it lacks of the rest is unknown, so all stays counted while there may be any.
                each.first, each.records = (end, each.records) if end < front else (None, 0)
            if each.first is None and each.lane.is_idle and each.lane.offered is None:
                self._remove(name)
        behind = [each for each in self._lanes.values() if each.first is not None]
        self._oldest = min(behind, key=lambda each: each.first or 0, default=None)
        return first

    def _remove(self, name: Lane) -> None:
        self._lanes.pop(name).lane.is_refused = False


LANES_OPEN_MAX = 2048
"""Maximum number of lanes that are open on a link: half of what a hub takes."""
IDLE_S = 30.0
"""Time for which an idle lane stays open at least while others wait: its mark is on its way."""
CHUNKS_MAX, BYTES_MAX, WEIGHT_MAX = 64, 16 << 20, 1 << 16
"""Bounds of the window: chunks, bytes of their sections, and lanes and ranges of their indexes. One chunk always has
room."""
AHEAD_MAX = 4
"""Maximum number of chunk indexes that are requested at once."""


LOOKS_MAX = 8192
"""Maximum number of ranges at which a look for streams that are behind looks one by one."""


class StreamBehind(NamedTuple):
    """A stream of which the region lacks records."""

    key: StreamKey
    records: int
    """Records of the log from the first one on that the region is not known to have."""
    oldest: int
    """Time of their first chunk, or of an earlier one, nanoseconds since 1970."""
    bytes: int | None
    """Approximate bytes of the records; None while unknown."""


@dataclass(frozen=True)
class Selection:
    """The part of a log that goes to another region."""

    tenant: str | None = None
    """None for all."""
    streams: tuple[str, ...] = ("*",)
    """Names of streams, with ``*`` for any characters."""
    forwards: bool = False
    """True to send on, too, what other regions relayed to this one."""

    def has_stream(self, key: StreamKey) -> bool:
        """Return whether records of a stream are relayed. The hub's own are about this cluster alone."""
        tenant, stream = key
        if self.tenant not in (None, tenant) or is_hubs_own(tenant, stream):
            return False
        return any(matches(pattern, stream) for pattern in self.streams)

    def has(self, update: LaneUpdate) -> bool:
        """Return whether a chunk's addition to a lane is relayed."""
        if update.flags & LaneFlag.RELAY and not self.forwards:
            return False
        return self.has_stream((update.tenant, update.stream))


class RegionSource:
    """The part of a shard's log from a position on, as lanes of one link (``replication.source.LogSource``). Event
    loop's thread only.

    It holds a bounded window of chunks, in the order of the log, and offers the lanes that occur there. The position
    follows the region's acknowledgements and never passes one that is missing.

    A lane that the region refuses waits by itself: the window continues, and the position stays. The lane is offered
    again after a while, with nothing. Once the region takes it, the window goes back to the position, so that its
    records come in order. Between two such ways back it reaches the end of the log: others come even if the region
    takes a lane and closes it at its records, again and again.

    Args:
        state: returns the shard's state at present.
        position: number of the first chunk that the region may lack.
        hub: returns the cluster id of the hub at the other end of the connection; empty before the first.
        peer: the cluster id that acknowledged everything before ``position``; empty if none did.
        now: monotonic seconds.
    """

    def __init__(
        self,
        log: ShardLog,
        state: Callable[[], ShardState],
        takes: Selection,
        position: int,
        *,
        hub: Callable[[], str],
        peer: str = "",
        now: Callable[[], float],
        lanes_open_max: int = LANES_OPEN_MAX,
    ) -> None:
        self._log, self._state, self._takes = log, state, takes
        self._hub, self.peer, self._now = hub, peer, now
        self._lanes_open_max = lanes_open_max
        self._next = position
        """Number of the first chunk behind the window."""
        self._chunks: deque[WindowChunk] = deque()
        self._bytes = self._weight = 0
        self._lanes: dict[Lane, RelayedLane] = {}
        self._by_number: dict[int, RelayedLane] = {}
        self._open: OrderedDict[Lane, None] = OrderedDict()
        """Lanes that are offered, the longest unused first."""
        self._waiting: dict[Lane, None] = {}
        """Lanes that are going to be offered, the longest waiting first."""
        self._ready: dict[Lane, OfferedLane] = {}
        """The offers of the lanes that wait."""
        self._offered: list[OfferedLane] | None = None
        self._offers_changed = False
        """True until the listeners know that open lanes are offered otherwise."""
        self._last_number = 0
        self._listeners: list[Callable[[Collection[int] | None], None]] = []
        self.moved = asyncio.Event()
        """Set when the position has moved: there is room for more."""
        self._passed = 0
        """Records in chunks that the window has passed since the start."""
        self._ends: dict[StreamKey, int] = {}
        """Offset after the last record of a stream in the window and before it, if there was one since the start."""
        self._refused = RefusedLanes()
        self._reads_again = False
        """True from a way back until the window has reached the end of the log."""
        self.lost: list[Range] = []
        """Chunks that were collected before the region had them, since the last look of the owner."""

    # -- the log

    @property
    def position(self) -> int:
        """Return the number of the first chunk that the region may lack something of."""
        first = self._refused.first
        return self._front if first is None else first

    @property
    def _front(self) -> int:
        """Return the number of the first chunk that the region may lack something of in lanes that it takes."""
        return self._chunks[0].n if self._chunks else self._next

    @property
    def passed(self) -> int:
        """Return the records in chunks that the position has passed since the start."""
        passed = self._refused.passed
        return self._passed if passed is None else passed

    @property
    def ahead(self) -> int:
        """Return the records behind the position that the window has passed, and the region has."""
        return self._passed - self.passed - self._refused.records

    @property
    def refusals(self) -> str:
        """Return a sentence for people about the lanes that the region refuses; empty without any."""
        return self._refused.sentence()

    @property
    def oldest(self) -> int | None:
        """Return the time of the chunk at the position, nanoseconds since 1970; None if none was read there."""
        if (created := self._refused.created) is not None:
            return created
        return self._chunks[0].chunk.header.created if self._chunks else None

    @property
    def mean_bytes(self) -> float | None:
        """Return the stored bytes of a record of the window on average; None without records."""
        records = sum(each.records for each in self._chunks)
        return sum(each.bytes for each in self._chunks) / records if records else None

    def behind(self) -> list[StreamBehind]:
        """Return the streams of which the region lacks records, the longest lag first.

        One that had nothing since the link began, and has something only behind the window, is not known yet.
        """
        looks, firsts = LOOKS_MAX, dict[StreamKey, tuple[int, int]]()
        sizes: dict[StreamKey, tuple[int, int]] = {}
        for chunk in self._chunks:
            for key in chunk.lacking(looks):
                if key in chunk.sections:  # not a gap alone
                    firsts.setdefault(key, (chunk.sections[key].base_offset, chunk.chunk.header.created))
            looks = max(0, looks - len(chunk.awaited))
            for key, section in chunk.sections.items():
                size, count = sizes.get(key, (0, 0))
                sizes[key] = size + section.length, count + section.count
        offsets, mean = self._state().next_offset, self.mean_bytes
        if self._chunks and self._next <= self._state().n:
            last = self._chunks[-1].chunk.header.created
            for key, end in self._ends.items():
                if offsets.get(key, 0) > end:
                    firsts.setdefault(key, (end, last))
        found = {key: (max(0, offsets.get(key, 0) - first), created) for key, (first, created) in firsts.items()}
        for key, records, created in self._refused.behind():
            before, oldest = found.get(key, (0, created))
            found[key] = before + records, min(oldest, created)

        def of(key: StreamKey, records: int, oldest: int) -> StreamBehind:
            size, count = sizes.get(key, (0, 0))
            each = size / count if count else mean
            return StreamBehind(key, records, oldest, None if each is None else int(records * each))

        return sorted((of(key, *each) for key, each in found.items()), key=lambda each: (each.oldest, each.key))

    @property
    def is_full(self) -> bool:
        """Return whether the window has no room for a further chunk."""
        full = len(self._chunks) >= CHUNKS_MAX or self._bytes >= BYTES_MAX or self._weight >= WEIGHT_MAX
        return full and bool(self._chunks)

    async def fill(self) -> bool:
        """Read on, as far as the log and the window allow. Return whether a chunk was read.

        Raises:
            StoreError, CodecError: it is tried again with the next call.
        """
        self.moved.clear()
        if self._refused.are_taken and not self._reads_again:
            self._go_back()
        before = self._next
        if self.position < min(self._front, self._log.watermark):
            self._lose(self._log.watermark)
        if self._next <= self._state().n and not self.is_full:
            try:
                async with aclosing(self._log.indexes(self._next, ahead_max=AHEAD_MAX)) as found:
                    async for chunk in found:
                        await self._take(chunk)
                        if self.is_full or self._next > self._state().n:
                            break
            except CollectedPast:
                self._lose(self._log.watermark)
        self._reads_again = self._reads_again and self._next <= self._state().n
        self._advance()
        self._offer_refused()
        self._admit()
        return self._next > before

    def _lose(self, end: int) -> None:
        """Continue after chunks that were collected."""
        while self._chunks and self._chunks[0].n < end:
            chunk = self._chunks[0]
            if not chunk.is_done():
                self.lost.append((chunk.n, chunk.n + 1))
            self._take_out(self._chunks.popleft())
        if (first := self._refused.lose(end, self._front)) is not None:
            self.lost.insert(0, (first, min(end, self._next)))
        if self._next < end:
            self.lost.append((self._next, end))
            self._next = end
        for lane in list(self._lanes.values()):
            self._forget(lane)
        self._report(None)

    async def _take(self, chunk: Chunk) -> None:
        """Add the next chunk to the window."""
        n = chunk.header.n
        sections = {
            (each.tenant, each.stream): each
            for each in chunk.footer.streams
            if self._takes.has_stream((each.tenant, each.stream))
        }
        updates = [update for update in chunk.footer.lanes if self._takes.has(update)]
        left = {lane: await self._left(lane) for lane in dict.fromkeys(map(lane_of, updates))}
        taken, touched = WindowChunk(chunk, sections), set[int]()
        for update in updates:
            lane = self._lane(lane_of(update))
            for first, end in update.ranges:
                if lane.add(first, end, n):
                    self._renew(lane)
                taken.awaited.append((lane, first, end))
            for gap in update.gaps:
                # What this hub only lacks, another may have: the region then says by itself that it waits for it.
                if gap.reason != GapReason.ABSENT:
                    lane.add_gap(gap, n)
                    taken.awaited.append((lane, gap.first, gap.end))
            if update.mark is not None:
                lane.note_mark(update.mark)
            self._offer(lane, left[lane.lane], update)
            touched.add(lane.number)
        self._chunks.append(taken)
        self._ends.update((key, section.base_offset + section.count) for key, section in sections.items())
        self._bytes, self._weight, self._next = self._bytes + taken.bytes, self._weight + taken.weight, n + 1
        self._report(touched)

    async def _left(self, lane: Lane) -> LaneState | None:
        """Return the last state of a lane that left the shard's state; None for any other."""
        state = self._state()
        if lane in state.lanes or lane in self._open or not state.drops:
            return None
        found = await self._log.ended(lane, state.n)
        return None if found is None else snapshots.lane_state(snapshots.decode_lane(found))

    def _advance(self) -> None:
        """Let the position follow the acknowledgements."""
        moved = False
        while self._chunks and self._chunks[0].is_done():
            self._take_out(self._chunks.popleft())
            moved = True
        if moved:
            self.moved.set()

    def _take_out(self, chunk: WindowChunk) -> None:
        self._bytes, self._weight = self._bytes - chunk.bytes, self._weight - chunk.weight
        before, self._passed = self._passed, self._passed + chunk.records
        for name in dict.fromkeys(chunk.lanes()):
            if (lane := self._lanes.get(name)) is not None:
                if lane.is_refused:
                    self._refused.leave_behind(lane, chunk, before)
                lane.take_out(chunk.n)
                if lane.is_idle and not lane.is_refused:
                    lane.refusals = 0
                self._forget(lane)

    def _forget(self, lane: RelayedLane) -> None:
        """Forget a lane that is neither in the window, nor open, nor about to be."""
        if lane.is_idle and lane.offered is None and lane.lane not in self._waiting and not lane.is_refused:
            self._lanes.pop(lane.lane, None)
            self._by_number.pop(lane.number, None)

    # -- lanes

    def _lane(self, name: Lane) -> RelayedLane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = RelayedLane(name, self._new_number())
            self._by_number[lane.number] = lane
        return lane

    def _new_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _renew(self, lane: RelayedLane) -> None:
        del self._by_number[lane.number]
        lane.renew(self._new_number())
        self._by_number[lane.number] = lane
        if lane.offered is not None:
            lane.offered = lane.offered._replace(lane=lane.number)
        self._offered, self._offers_changed = None, True

    def _offer(self, lane: RelayedLane, left: LaneState | None, update: LaneUpdate) -> None:
        """Offer a lane, or have it wait for room; an open one again if the region has to know it otherwise."""
        lane.idle_since = self._now()
        known = self._state().lanes.get(lane.lane) or left
        if known is None:  # its edge moved to another shard, whose link knows more
            partial = bool(update.flags & LaneFlag.PARTIAL)
            known = LaneState(topics=update.topics or [], payload=update.payload or 0, partial=partial)
        flags = LaneFlag.RELAY | (LaneFlag.PARTIAL if known.partial else LaneFlag(0))
        offered = OfferedLane(
            lane.number,
            lane.lane.stream,
            tuple(known.topics),
            _payload(known.payload),
            lane.lane,
            flags,
            origin=lane.origin,
            clock=lane.clock,
            continues_hub=True,
            answered=self._answered,
        )
        if lane.is_refused:
            self._refused.offer(offered)
            return
        if lane.offered is None:
            self._waiting[lane.lane] = None
            self._ready[lane.lane] = offered
            return
        self._open.move_to_end(lane.lane)
        if lane.offered != offered:
            lane.offered, self._offered, self._offers_changed = offered, None, True

    def _admit(self) -> None:
        """Open lanes that wait, in place of idle ones where too many are open."""
        # Not by ``_offered``: a look at the lanes since then has made the list again.
        changed, self._offers_changed = self._offers_changed, False
        until = self._now() - IDLE_S
        for name in list(self._waiting):
            if len(self._open) >= self._lanes_open_max and not self._close_one(until):
                break
            del self._waiting[name]
            lane = self._lanes[name]
            lane.offered = self._ready.pop(name)._replace(lane=lane.number)
            self._open[name] = None
            changed = True
        if changed:
            self._offered = None
            self._report(None)

    def _close_one(self, until: float) -> bool:
        """Close the lane that was idle for longest. Return False if none was for long enough."""
        for name in self._open:
            lane = self._lanes[name]
            if lane.idle_since <= until and lane.is_settled:
                del self._open[name]
                lane.offered = None
                self._forget(lane)
                return True
        return False

    # -- lanes that the region refuses

    def _answered(self, answer: LaneTaken | LaneEnded) -> None:
        """Note the region's answer to the offer of a lane, or that it closes it."""
        lane = self._by_number.get(answer.lane)
        if lane is None:
            return
        if isinstance(answer, LaneTaken):
            if self._refused.taken(lane.lane):
                self.moved.set()
        elif self._refused.refuse(lane, answer, self._now()):
            del self._open[lane.lane]
            lane.offered = self._offered = None
            self._advance()
            self.moved.set()
            self._report(None)

    def _offer_refused(self) -> None:
        for lane, offer in self._refused.due(self._now()):
            lane.idle_since = self._now()
            self._waiting[lane.lane], self._ready[lane.lane] = None, offer

    def _go_back(self) -> None:
        """Read again from the position on, for a lane that the region takes again.

        What the region has of other lanes is read once more and not sent: open lanes keep what it has said.
        """
        self._next, self._passed, self._reads_again = self.position, self.passed, True
        self._refused.go_back()
        self._chunks.clear()
        self._bytes = self._weight = 0
        for lane in list(self._lanes.values()):
            lane.empty()
            self._forget(lane)
        self._report(None)

    # -- the link's side

    def lanes(self) -> list[OfferedLane]:
        """Return the lanes that are open now."""
        if self._offered is None:
            self._offered = [lane.offered for name in self._open if (lane := self._lanes[name]).offered is not None]
        return self._offered

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        """Return the window's state of these lanes. One that is no longer offered has nothing."""
        return {number: self._snapshot(number) for number in lanes}

    def _snapshot(self, number: int) -> LaneSnapshot:
        lane = self._by_number.get(number)
        if lane is None or lane.is_refused:  # what comes before the window would come too late
            return LaneSnapshot(RangeSet(), 0, [], None)
        gaps = lane.missing()
        for gap in gaps:
            lane.reported.add(gap.first, gap.end)
        return LaneSnapshot(lane.held.copy(), lane.end, gaps, self._mark(lane))

    def _mark(self, lane: RelayedLane) -> Mark | None:
        """Return the lane's newest mark in the log so far, if this hub claims as much by itself."""
        held = self._state().lanes.get(lane.lane)
        if lane.mark is None or held is None or held.partial or held.conflict is not None:
            return None
        proven = held.whole_mark
        return lane.mark if proven is not None and proven.time >= lane.mark.time else None

    async def read(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        """Return batches of one chunk as they are stored.

        Raises:
            OSError: the store does not answer.
            Corrupt: the chunk is damaged.
        """
        relayed = self._by_number.get(lane)
        piece = None if relayed is None else relayed.piece_at(seq)
        if relayed is None or piece is None:
            return []
        chunk = next((each for each in self._chunks if each.n == piece.n), None)
        if chunk is None:
            return []
        try:
            entries = await self._entries(chunk, relayed.lane)
        except NotFound:
            await self._see_collected()
            return []
        except StoreError as error:
            raise OSError(str(error)) from error
        found, size = list[bytes](), 0
        for entry in entries:
            if entry.end <= seq:
                continue
            if found and size + len(entry.batch) > bytes_max:
                break
            found.append(bytes(entry.batch))
            size += len(entry.batch)
        self._explain(relayed, chunk)
        return found

    async def _see_collected(self) -> None:
        try:
            await self._log.manifest()
        except StoreError as error:
            raise OSError(str(error)) from error
        self._lose(self._log.watermark)

    async def _entries(self, chunk: WindowChunk, lane: Lane) -> list[Entry]:
        """Return a lane's batches in a chunk, ascending. A section is read once while the chunk is in the window."""
        key = lane.tenant, lane.stream
        if key not in chunk.entries:
            section = chunk.sections[key]
            data = await self._log.section(chunk.n, section)
            # Thousands of entries of a few bytes take long, and the event loop serves edges.
            found = await asyncio.to_thread(_by_lane, section, data, chunk.chunk.footer.lanes_of(section), self._takes)
            chunk.entries[key] = found
        return chunk.entries[key].get(lane, [])

    def _explain(self, relayed: RelayedLane, chunk: WindowChunk) -> None:
        lane, footer = relayed.lane, chunk.chunk.footer
        section = chunk.sections[lane.tenant, lane.stream]
        origins = {
            origin.number: origin
            for update in footer.lanes_of(section)
            if update.origins and lane_of(update) == lane
            for origin in update.origins
        }
        clocks = {
            each.boot_id: Clock(each.log_id, each.boot_id, each.monotonic, each.offset, each.error)
            for each in footer.clocks_of(section)
            if (each.tenant, each.edge, each.log_id) == lane[:3]
        }
        relayed.explain(origins, clocks)

    def high_watermark(self, hub: str, lane: int) -> int:  # noqa: ARG002
        """Return the end of all numbers: the region may have more of a lane than this hub, from its edge or others."""
        return SEQ_END

    async def prepare_to_send(self, hub: str, ends: Mapping[int, int]) -> None:  # noqa: ARG002
        """Return at once.

        Raises:
            OSError: the hub is of another cluster than the one whose acknowledgements count.
        """
        if not self._is_peer(hub):
            raise OSError(
                f"cluster {hub} answers at the URLs of this region, and {self.peer} is the one that has the log up to "
                f"chunk {self.position}. Give another cluster a name of its own under `regions`"
            )

    def _is_peer(self, hub: str) -> bool:
        self.peer = self.peer or hub
        return hub == self.peer

    def released(self, lane: int, ranges: RangeSet) -> None:
        """Note what the region has made durable; words of another cluster do not count."""
        relayed = self._by_number.get(lane)
        if relayed is None or not self._is_peer(self._hub()):
            return
        relayed.safe.update(ranges)
        relayed.idle_since = self._now()
        before = self.position
        self._advance()
        if self.position != before:
            self._report({lane})

    def listen(self, callback: Callable[[Collection[int] | None], None]) -> Callable[[], None]:
        """Call ``callback`` when lanes have changed; None for any lane, or the set of them."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    def _report(self, lanes: Collection[int] | None) -> None:
        for listener in list(self._listeners):
            listener(lanes)


def _payload(number: int) -> PayloadKind:
    try:
        return PayloadKind(number)
    except ValueError:
        return PayloadKind.BYTES  # of a later release


def _by_lane(
    section: StreamSection, data: bytes, lanes: Collection[LaneUpdate], takes: Selection
) -> dict[Lane, list[Entry]]:
    """Return the entries of a section by lane, each lane's ascending.

    Raises:
        Corrupt: the section is damaged.
    """
    updates = list(lanes)
    found: dict[Lane, list[Entry]] = {}
    for entry in chunks.section_entries(section, data, updates):
        update = updates[entry.lane]
        if takes.has(update):
            base = decode_header(entry.batch).base_seq + entry.skip
            found.setdefault(lane_of(update), []).append(Entry(base, base + entry.take, entry.batch))
    for entries in found.values():
        entries.sort(key=lambda each: each.first)
    return found
