"""The shards of a cluster, each with the last read state of its log."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import NamedTuple

from weft.protocols import chunk as chunks
from weft.protocols.chunk_index import Chunk, LaneUpdate, StreamKey, StreamSection
from weft.protocols.errors import CodecError, Corrupt
from weft.protocols.lane import Lane
from weft.protocols.payloads import PayloadKind, strictest
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog, apply_in_steps, first_logs, load_every_shard
from weft.storage.cluster import Cluster
from weft.storage.hub_keys import chunk_key
from weft.storage.object_store import ObjectStore

# Whole chunks of a shard in memory: one GET for each, even if many streams have records in it.

READ_AHEAD = 4
"""Maximum number of whole chunks requested at once."""
INDEXES_AHEAD = 16
"""Maximum number of indexes requested at once."""
LANE_BYTES = 512
"""Memory of a lane or a section in an index."""


class HeldChunk(NamedTuple):
    """A chunk with its records, and its index by stream, so that a round of many streams looks at each once."""

    chunk: Chunk
    data: memoryview
    """Empty if only the index is in memory."""
    sections: dict[StreamKey, StreamSection]
    payloads: dict[StreamKey, list[LaneUpdate]]
    """The lanes of each stream whose edges say what the payloads are."""

    @property
    def cost(self) -> int:
        """Return the bytes of memory that it takes, about."""
        return len(self.data) or LANE_BYTES * (1 + len(self.chunk.footer.lanes) + len(self.sections))

    @classmethod
    def of(cls, chunk: Chunk, data: memoryview) -> HeldChunk:
        """Return a chunk with its index."""
        payloads: dict[StreamKey, list[LaneUpdate]] = {}
        for lane in chunk.footer.lanes:
            if lane.payload is not None:
                payloads.setdefault((lane.tenant, lane.stream), []).append(lane)
        return cls(chunk, data, {(each.tenant, each.stream): each for each in chunk.footer.streams}, payloads)


class OfStream(NamedTuple):
    """Statements of a chunk about one stream."""

    chunk: Chunk
    section: StreamSection | None
    payloads: Sequence[LaneUpdate]
    """The lanes whose edges say what the payloads are."""


class ChunkCache:
    """The last read chunks of one shard. Serves any number of tasks of one event loop.

    Args:
        bytes_max: chunks beyond this are dropped, the longest unused first; the newest remains.
        whole: False keeps the indexes alone, and requests each section.
    """

    def __init__(self, log: ShardLog, bytes_max: int, *, whole: bool = True) -> None:
        self._log = log
        self._whole = whole
        self.bytes_max = bytes_max
        """Bound of the kept chunks."""
        self._chunks: OrderedDict[int, HeldChunk] = OrderedDict()
        self._bytes = 0
        self._reading: dict[int, asyncio.Task[Chunk | None]] = {}
        self._extending = asyncio.Lock()
        self.seen: Callable[[Chunk], None] = lambda _: None
        """Called with each chunk by which the state grows."""

    def indexes(self, first_n: int, last_n: int | None = None) -> AsyncIterator[Chunk]:
        """Yield indexes as ``ShardLog.indexes``, and keep their chunks in memory.

        Args:
            last_n: last chunk that the caller knows to exist: later ones are not requested.
        """

        async def read(n: int) -> Chunk | None:
            return None if last_n is not None and n > last_n else await self._read(n)

        return self._log.indexes(first_n, read, READ_AHEAD if self._whole else INDEXES_AHEAD)

    async def of_stream(self, stream: StreamKey, first_n: int, last_n: int) -> AsyncIterator[OfStream]:
        """Yield what chunks ``first_n`` to ``last_n`` say about a stream, without those that say nothing.

        Raises:
            Corrupt, CollectedPast: as ``ShardLog.indexes``.
        """
        n = first_n
        while n <= last_n and (held := self._chunks.get(n)) is not None:  # a round's chunks, for each of its streams
            if stream in held.sections or stream in held.payloads:
                yield OfStream(held.chunk, held.sections.get(stream), held.payloads.get(stream, ()))
            n += 1
        if n > last_n:
            return
        async for chunk in self.indexes(n, last_n):
            known = self._chunks.get(chunk.header.n) or HeldChunk.of(chunk, memoryview(b""))
            yield OfStream(chunk, known.sections.get(stream), known.payloads.get(stream, ()))

    async def section(self, n: int, section: StreamSection) -> memoryview | bytes:
        """Return the bytes of one stream in chunk n, checked. Raises as ``ShardLog.section``."""
        if self._whole and n not in self._chunks:
            await self._read(n)
        if not self._whole or n not in self._chunks:
            return await self._log.section(n, section)
        data = self._chunks[n].data[section.position : section.position + section.length]
        try:
            chunks.check_section(data, section)
        except CodecError as error:
            key = chunk_key(self._log.shard, n)
            raise Corrupt(f"{key} is damaged: {error}; restore this object from a backup of the store") from error
        return data

    async def extend(self, state: ShardState) -> bool:
        """Apply the chunks after ``state.n``, as many as fit into memory together. Return whether there may be more.

        Raises:
            Corrupt, CollectedPast: as ``ShardLog.extend``.
        """
        taken = 0
        async with self._extending:
            async for chunk in self.indexes(state.n + 1):
                await apply_in_steps(state, chunk)
                self.seen(chunk)
                taken += self._chunks[state.n].cost if state.n in self._chunks else self.bytes_max
                # Half of the room is left for chunks that are read ahead.
                if 2 * taken >= self.bytes_max:
                    return True
        return False

    def resize(self, bytes_max: int) -> None:
        """Change the bound, and drop chunks beyond it."""
        self.bytes_max = bytes_max
        self._evict()

    def clear(self) -> None:
        """Drop every chunk."""
        self._chunks.clear()
        self._bytes = 0

    async def _read(self, n: int) -> Chunk | None:
        if n in self._chunks:
            self._chunks.move_to_end(n)
            return self._chunks[n].chunk
        reading = self._reading.get(n)
        if reading is None:
            reading = self._reading[n] = asyncio.create_task(self._fetch(n))
            reading.add_done_callback(lambda task: self._fetched(n, task))
        return await asyncio.shield(reading)

    def _fetched(self, n: int, task: asyncio.Task[Chunk | None]) -> None:
        del self._reading[n]
        if not task.cancelled():
            task.exception()  # the waiting tasks get the error

    async def _fetch(self, n: int) -> Chunk | None:
        found = await self._log.whole(n) if self._whole else await self._index(n)
        if found is None:
            return None
        held = self._chunks[n] = HeldChunk.of(*found)
        self._bytes += held.cost
        self._evict()
        return held.chunk

    def _evict(self) -> None:
        while self._bytes > self.bytes_max and len(self._chunks) > 1:
            self._bytes -= self._chunks.popitem(last=False)[1].cost

    async def _index(self, n: int) -> tuple[Chunk, memoryview] | None:
        chunk = await self._log.index(n)
        return None if chunk is None else (chunk, memoryview(b""))


CHUNK_BYTES_MAX = 256 << 20
"""Bytes of the chunks of all shards that are kept in memory for the streams with records in them."""


class ShardView(NamedTuple):
    """A shard's log, its state and its last read chunks. The state is extended in place."""

    log: ShardLog
    state: ShardState
    chunks: ChunkCache

    @property
    def shard(self) -> int:
        """Return the shard's number."""
        return self.log.shard


async def load_shard(log: ShardLog, *, whole: bool = True) -> ShardView:
    """Return a shard with its log read to the head, and its share of the memory for chunks.

    Args:
        whole: keep whole chunks in memory; otherwise their indexes.

    Raises:
        StoreError: the store did not answer.
        Corrupt: the log is damaged.
    """
    return ShardView(log, await log.load(), ChunkCache(log, CHUNK_BYTES_MAX // log.cluster.tree.count, whole=whole))


def share_memory(views: Sequence[ShardView]) -> None:
    """Divide the memory for chunks equally among shards: a split has made one more, or one was loaded."""
    for view in views:
        view.chunks.resize(CHUNK_BYTES_MAX // len(views))


async def load_shards(store: ObjectStore, cluster: Cluster) -> list[ShardView]:
    """Return every shard with its log read to the head. Raises as ``load_shard``."""
    return [await load_shard(log) for log, _ in await load_every_shard(first_logs(store, cluster))]


# Declarations of edges about a stream: topic levels, topic patterns and the payload kind.

_logger = logging.getLogger(__name__)


class Declared:
    """A reader of the declarations in the states of the shards, which the caller refreshes."""

    def __init__(self, tenant: str, stream: str, views: Sequence[ShardView]) -> None:
        self._tenant, self._stream = tenant, stream
        self._views = views
        self._warned: set[PayloadKind] = set()

    def levels(self) -> list[str]:
        """Return the named topic levels, in the order of their first appearance in the log."""
        return [name for view in self._views for name in view.state.stream_fields(self._tenant, self._stream)]

    def payload(self) -> PayloadKind:
        """Return the payload kind that a new table would get: the strictest kind that an edge declares."""
        lanes = (view.state.stream_lanes(self._tenant, self._stream).values() for view in self._views)
        return strictest(held.payload for shard in lanes for held in shard)

    def topics(self, view: ShardView) -> Callable[[Lane], Sequence[str]]:
        """Return a look-up of topic patterns as last declared for the lane.

        Args:
            view: the shard of the records. A split may have moved the lane to another shard since.
        """

        def topics(lane: Lane) -> Sequence[str]:
            for each in (view, *self._views):
                held = each.state.lanes.get(lane)
                if held is not None:
                    return held.topics
            return ()

        return topics

    def all_topics(self) -> dict[Lane, Sequence[str]]:
        """Return the topic patterns of all lanes that have some."""
        lanes = (view.state.stream_lanes(self._tenant, self._stream).items() for view in self._views)
        return {lane: held.topics for found in lanes for lane, held in found if held.topics}

    def compare(self, lanes: Iterable[LaneUpdate], made_for: PayloadKind) -> None:
        """Warn once about each payload kind that differs from the table's.

        An edge declares its kind in the chunk that opens its session, so the lanes of the state need not be checked
        here.

        Args:
            lanes: those of a chunk's lanes of the stream that declare one.
        """
        for lane in lanes:
            if lane.payload is None:
                continue
            named = strictest([lane.payload])
            if named is not made_for and named not in self._warned:
                self._warned.add(named)
                _logger.warning(
                    "the table of %s/%s has payloads as %s and keeps them; edge %s has payload: %s. To change "
                    "the table, move it away: the hub makes it again from the log",
                    self._tenant,
                    self._stream,
                    made_for.label,
                    lane.edge,
                    named.label,
                )
