"""Tables at size: 1,000 streams in 16 shards, each with new records in every shard.

The log is made by hand in a directory store, and the table service of a hub makes its rounds over it. A round: the
first makes all tables, the second adds to them; what counts is processor time, since a directory's fsync costs what the
disk costs. Quiet streams: rounds at the interval of a bucket by a clock that is set, until each table was written
twice; what counts is the number of objects, each of which is a PUT.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

from crc32c import crc32c

from bench.hub.costs import MONTH_S, PRICES
from weft.commands.hub_settings import TABLE_INTERVAL_BUCKET_S
from weft.protocols import batch, chunk
from weft.protocols.chunk_index import LEVEL_MAX, ChunkHeader, LaneUpdate, Mark, StreamBlock, StreamSection, index_of
from weft.protocols.shard.fold import apply
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import Cluster, open_cluster
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.settings import TableSettings

SHARDS, STREAMS, CHUNKS, RECORDS = 16, 1000, 4, 10
"""Chunks of each shard between two rounds, and records of each stream in each of them."""
QUIET_INTERVALS = 2
"""Number of writes of each quiet stream while PUTs are counted."""
_TOPICS = ["plant/{line}/{machine}/#"]
NOW = 1_700_000_000_000_000_000


class Writer:
    """Writes chunks with records of every stream."""

    def __init__(self, store: ObjectStore, cluster: Cluster, streams: int) -> None:
        self._store, self._cluster, self._streams = store, cluster, streams
        self._states = [ShardState(cluster.cluster_id, shard) for shard in range(cluster.shards)]

    async def write(self, chunks: int) -> None:
        """Write some chunks to every shard."""
        for state in self._states:
            for _ in range(chunks):
                await self._chunk(state)

    async def _chunk(self, state: ShardState) -> None:
        n = state.n + 1
        header = ChunkHeader(self._cluster.cluster_id, n, NOW + n, state.shard, state.footer_crc, n)
        first = n * RECORDS
        times = struct.pack(f"<{RECORDS}q", *(NOW + (first + at) * 10**9 for at in range(RECORDS)))
        keys = [b"plant/a/press-3/telemetry"] * RECORDS
        payloads = [b'{"temperature": 21.%d, "pressure": 1013}' % at for at in range(RECORDS)]
        data = batch.encode(
            1,
            first,
            batch.columns_from_lists(times, keys, payloads),
            batch.ClockReading(1, NOW + first, batch.ClockState.SYNCED),
        )
        body = chunk.encode_entry_header(0, 0, RECORDS, len(data), NOW) + data
        sections, lanes = [], []
        for number in range(self._streams):
            stream = f"stream-{number:04d}"
            at = chunk.HEADER_BYTES + number * len(body)
            sections.append(
                StreamSection(
                    "default",
                    stream,
                    state.next_offset.get(("default", stream), 0),
                    RECORDS,
                    NOW,
                    NOW,
                    at,
                    len(body),
                    crc32c(body),
                )
            )
            edge = f"edge-{state.shard}"
            mark = Mark(NOW + n * 10**9, first + RECORDS)
            lanes.append(
                LaneUpdate(
                    "default", edge, 7, stream, 1, [(first, first + RECORDS)], [], mark, ["plant/{line}/{machine}/#"]
                )
            )
        tail, _ = chunk.encode_footer(index_of(header, LEVEL_MAX, sections, StreamBlock(lanes, [], [])))
        whole = b"".join([chunk.encode_header(header), body * self._streams, tail])
        await ShardLog(self._store, self._cluster, state.shard).create(n, whole)
        apply(state, chunk.decode(whole))


async def _rounds(folder: Path, streams: int, shards: int, chunks: int) -> dict[str, Any]:
    store = open_store(str(folder))
    cluster = await open_cluster(store, shards)
    writer = Writer(store, cluster, streams)
    await writer.write(chunks)
    service = TableService(
        store, cluster, settings=TableSettings(interval_s=3600.0, write_after_s=0.05)
    )  # nothing waits
    result: dict[str, Any] = {"streams": streams, "shards": shards, "chunks_per_shard": chunks}
    for name in ("first", "next"):
        began, cpu = time.perf_counter(), time.process_time()
        moved = await service.run_once()
        result[f"{name}_round_cpu_s"] = round(time.process_time() - cpu, 2)
        result[f"{name}_round_s"] = round(time.perf_counter() - began, 2)
        result[f"{name}_round_rows"] = moved
        await writer.write(chunks)
    result["files"] = len(list(folder.glob("tables/*/*/*.parquet")))
    return result


async def _quiet(folder: Path, streams: int, shards: int) -> dict[str, Any]:
    store, now = open_store(str(folder)), 1000.0
    cluster = await open_cluster(store, shards)
    writer = Writer(store, cluster, streams)
    service = TableService(
        store, cluster, settings=TableSettings(interval_s=TABLE_INTERVAL_BUCKET_S), monotonic=lambda: now
    )
    await writer.write(1)
    await service.catch_up()  # makes all tables
    rounds, puts, times = 0, _objects(folder), 0
    while times < QUIET_INTERVALS:
        now += TABLE_INTERVAL_BUCKET_S
        rounds += 1
        await writer.write(1)
        moved = await service.run_once()
        times += moved > 0
    puts = _objects(folder) - puts
    # A file and a version of 20 written ones are joins, once a table has so many small files.
    joins = puts / TableSettings.compact_files_min
    month = (puts + joins) * MONTH_S / (rounds * TABLE_INTERVAL_BUCKET_S)
    return {
        "streams": streams,
        "shards": shards,
        "rounds": rounds,
        "puts": puts,
        "minutes_between_writes": round(rounds * TABLE_INTERVAL_BUCKET_S / QUIET_INTERVALS / 60, 1),
        "usd_a_month": round(month * PRICES["write"], 2),
    }


def _objects(folder: Path) -> int:
    return sum(1 for each in folder.glob("tables/**/*") if each.is_file())


def quiet_streams(streams: int = STREAMS, shards: int = SHARDS) -> dict[str, Any]:
    """Count the PUTs of quiet streams' tables."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_quiet(Path(folder), streams, shards))


def table_round(streams: int = STREAMS, shards: int = SHARDS, chunks: int = CHUNKS) -> dict[str, Any]:
    """Make two rounds and measure them."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_rounds(Path(folder), streams, shards, chunks))
