"""One shard's log as the source of a link to another region."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from weft.cloud_hub.regions.refused import RefusedLanes
from weft.cloud_hub.regions.window import Entry, RelayedLane, WindowChunk
from weft.cloud_hub.shard.message_lanes import is_hubs_own
from weft.protocols import chunk as chunks
from weft.protocols.batch import decode_header
from weft.protocols.chunk import Chunk, LaneFlag, LaneUpdate, Mark, StreamSection
from weft.protocols.chunk_index.footer import StreamKey
from weft.protocols.lane import Lane
from weft.protocols.link import Clock
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import SEQ_END, Range, RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.completeness import matches
from weft.protocols.shard.lane_state import LaneState, lane_of
from weft.protocols.shard.shard_state import ShardState
from weft.replication.events import LaneEnded, LaneTaken
from weft.replication.source import LaneSnapshot, OfferedLane
from weft.storage.chunk_log import CollectedPast, ShardLog
from weft.storage.object_store import NotFound, StoreError

LANES_OPEN_MAX = 2048
"""Maximum number of lanes that are open on a link: half of what a hub takes."""
IDLE_S = 30.0
"""Time for which an idle lane stays open at least while others wait: its mark is on its way."""
CHUNKS_MAX, BYTES_MAX, WEIGHT_MAX = 64, 16 << 20, 1 << 16
"""Bounds of the window: chunks, bytes of their sections, and lanes and ranges of their indexes. One chunk always has
room."""
AHEAD_MAX = 4
"""Maximum number of chunk indexes that are requested at once."""


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

    A lane that the region refuses waits by itself: the window goes on, and the position stays. The lane is offered
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
        """True until the listeners have been told that open lanes are offered otherwise."""
        self._last_number = 0
        self._listeners: list[Callable[[Collection[int] | None], None]] = []
        self.moved = asyncio.Event()
        """Set when the position has moved: there is room for more."""
        self._passed = 0
        """Records in chunks that the window has passed since the start."""
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
        """Go on behind chunks that were collected."""
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
        self._tell(None)

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
        self._bytes, self._weight, self._next = self._bytes + taken.bytes, self._weight + taken.weight, n + 1
        self._tell(touched)

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
            lane.number, lane.lane.stream, tuple(known.topics), _payload(known.payload), lane.lane, flags,
            origin=lane.origin, clock=lane.clock, continues_hub=True, answered=self._answered,
        )  # fmt: skip
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
            self._tell(None)

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
            self._tell(None)

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
        self._tell(None)

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
            lane.told.add(gap.first, gap.end)
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
            self._tell({lane})

    def listen(self, callback: Callable[[Collection[int] | None], None]) -> Callable[[], None]:
        """Call ``callback`` when lanes have changed; None for any lane, or the set of them."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    def _tell(self, lanes: Collection[int] | None) -> None:
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
