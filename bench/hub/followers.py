"""Readers that follow the log of a large fleet: the cost of a chunk, for one stream and for all.

A shard of 16 at 10,000 edges with 20 streams each, a chunk a second in which every lane has a batch and a mark: 12,500
lanes a chunk. The chunks are made at both levels of the log, and read by the real readers from a store in memory, so
the network's part is missing. Sections are zeros: followers do not read them.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from statistics import median
from typing import Any, NamedTuple

from spark_sinks.source.options import ReadOptions
from spark_sinks.source.partitions import RECENT_LANES_MAX
from spark_sinks.source.stream_log import StreamLog
from weft.protocols.chunk import encode_header
from weft.protocols.chunk_index import (
    LEVEL_MAX,
    Chunk,
    ChunkHeader,
    ChunkIndex,
    LaneUpdate,
    Mark,
    StreamBlock,
    StreamKey,
    StreamSection,
    encode_footer,
    index_of,
)
from weft.protocols.shard.fold import fold
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import Cluster, open_cluster
from weft.storage.object_store.directory import MemoryStore

SHARDS, EDGES, STREAMS, CHUNKS = 16, 10_000, 20, 12
SECTION_BYTES = 1000
TENANT = "default"
NOW = 1_700_000_000_000_000_000


class CountedStore(MemoryStore):
    """Counts requests and bytes of what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = self.bytes = 0

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        """Return a name: no table is opened."""
        return key, {}

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return bytes of an object."""
        data = await super().get_range(key, start, length)
        self.requests += 1
        self.bytes += len(data)
        return data


class Followed(NamedTuple):
    """The cost of a chunk for one reader: medians of processor time in seconds, and means of what it read."""

    read_s: float
    fold_s: float
    bytes: float
    requests: float
    state: ShardState
    chunks: list[Chunk]


class FleetLog(NamedTuple):
    """The log of one of ``SHARDS`` shards."""

    store: CountedStore
    cluster: Cluster
    chunks: int

    @classmethod
    async def make(cls, edges: int = EDGES, streams: int = STREAMS, chunks: int = CHUNKS) -> FleetLog:
        """Write chunks of a fleet with so many edges in all shards."""
        store = CountedStore()
        cluster = await open_cluster(store, SHARDS)
        log, crc = ShardLog(store, cluster, 0), 0
        for n in range(chunks):
            header = ChunkHeader(cluster.cluster_id, n, NOW + n, 0, crc, n)
            tail, crc = encode_footer(_index(header, edges // SHARDS, streams))
            await log.create(n, encode_header(header) + bytes(SECTION_BYTES * streams) + tail)
        return cls(store, cluster, chunks)

    async def follow(self, only: frozenset[StreamKey] | None) -> Followed:
        """Read and fold the chunks one after the other, as a follower does that is at the head."""
        log = ShardLog(self.store, self.cluster, 0)
        state = ShardState(self.cluster.cluster_id, 0, only=only)
        reads, folds, chunks = [], [], []
        await log.manifest()
        requests, read = self.store.requests, self.store.bytes
        for n in range(self.chunks):
            began = time.process_time()
            chunk = await log.index(n, only)
            assert chunk is not None
            between = time.process_time()
            state.accept(fold(state, chunk))
            folds.append(time.process_time() - between)
            reads.append(between - began)
            chunks.append(chunk)
        bytes_each = (self.store.bytes - read) / self.chunks
        # Lanes are opened once; a follower meets known ones.
        return Followed(
            median(reads[1:]),
            median(folds[1:]),
            bytes_each,
            (self.store.requests - requests) / self.chunks,
            state,
            chunks,
        )


def _index(header: ChunkHeader, edges: int, streams: int) -> ChunkIndex:
    lanes = [
        LaneUpdate(
            TENANT,
            f"press-shop-{edge:05d}",
            0xABCDEF0123456789 + edge,
            name_of(stream),
            1,
            [(header.n * 10, header.n * 10 + 10)],
            [],
            Mark(NOW + header.n * 10**9, header.n * 10 + 10),
            None,
        )
        for stream in range(streams)
        for edge in range(edges)
    ]
    sections = [
        StreamSection(
            TENANT,
            name_of(stream),
            header.n * edges * 10,
            edges * 10,
            NOW,
            NOW,
            56 + stream * SECTION_BYTES,
            SECTION_BYTES,
            0,
        )
        for stream in range(streams)
    ]
    return index_of(header, LEVEL_MAX, sections, StreamBlock(lanes, [], []))


def name_of(stream: int) -> str:
    """Return the name of a stream by its number."""
    return f"stream-{stream:04d}"


def driver_bytes(log: FleetLog, found: Followed, stream: str) -> int:
    """Return the memory in bytes of what a Spark driver keeps of one shard: its state, and the slices of the last
    chunks up to their bounds."""
    gc.collect()
    tracemalloc.start()
    only = frozenset({(TENANT, stream)})
    reader = StreamLog(ReadOptions("memory", stream), log.store, log.cluster)
    state = ShardState(log.cluster.cluster_id, 0, only=only)
    for chunk in found.chunks:
        state.accept(fold(state, chunk))
    lanes = len(found.chunks[0].footer.lanes_of(found.chunks[0].footer.streams[0]))
    for _ in range(RECENT_LANES_MAX // lanes // len(found.chunks) + 1):
        reader.remember(0, found.chunks)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return kept


def followers() -> dict[str, Any]:
    """Follow one stream and all."""
    result: dict[str, Any] = {"shards": SHARDS, "lanes_per_chunk": EDGES // SHARDS * STREAMS}
    one = frozenset({(TENANT, name_of(3))})
    gc.collect()
    gc.freeze()
    gc.disable()  # as a service has it while it folds
    try:
        log = asyncio.run(FleetLog.make())
        for name, only in (("all", None), ("one", one)):
            found = asyncio.run(log.follow(only))
            lanes = len(found.state.lanes)
            result[f"{name}_cores"] = round(SHARDS * (found.read_s + found.fold_s), 3)
            result[f"{name}_mb_per_s"] = round(SHARDS * found.bytes / 1e6, 2)
            result[f"{name}_requests_per_chunk"] = round(found.requests, 2)
            result[f"{name}_decode_us_per_lane"] = round(found.read_s / lanes * 1e6, 2)
            result[f"{name}_fold_us_per_lane"] = round(found.fold_s / lanes * 1e6, 2)
            if only is not None:
                result[f"{name}_driver_mb"] = round(SHARDS * driver_bytes(log, found, name_of(3)) / 1e6, 1)
    finally:
        gc.enable()
        gc.unfreeze()
    return result
