"""A stream as Spark's driver and its executors read it, without Spark, and a collector that deletes chunks."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from spark_sinks.source.options import CHUNKS
from spark_sinks.source.partitions import read_partition
from spark_sinks.source.readers import WeftStreamReader
from tests.spark_sinks.conftest import STREAM, Hub
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.shard.collector import GRACE_S, ShardCollector
from weft.storage.chunk_log import ShardLog, changed
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store
from weft.storage.table.rows import row_schema

SCHEMA = row_schema(["line", "machine"])
Record = tuple[str, int, bytes]
Place = dict[str, Any]
"""A position as Spark keeps it in its checkpoint."""


class Follower:
    """One driver process of a streaming query."""

    def __init__(self, hub: Hub, **options: object) -> None:
        given = {"store": hub.root, "stream": STREAM} | {name: str(value) for name, value in options.items()}
        self.reader = WeftStreamReader(given, from_arrow_schema(SCHEMA))

    def batch(self, start: Place, limit: ReadLimit | None = None) -> tuple[Place, list[Record]]:
        """Return the end of the next micro-batch, and (edge, seq, payload) of its records, sorted."""
        end = self.reader.latestOffset(start, limit or ReadAllAvailable())
        return end, self.rows(start, end)

    def rows(self, start: Place, end: Place) -> list[Record]:
        """Return (edge, seq, payload) of the records of a range, as executors read them. Rows that the driver sends
        with the plan are the same."""
        planned = self.reader.partitions(start, end)
        sent = self.reader.rows_with_plan(planned)
        tasks = pickle.loads(pickle.dumps(planned))
        found = _records(rows for task in tasks for rows in read_partition(task, SCHEMA))
        assert sent is None or _records(sent) == found
        return found

    def sleep(self) -> None:
        """Be suspended for so long that nothing is believed any more that was seen before."""
        for log in self.reader._opened()._logs.values():
            log._looked_at = None


def _records(batches: Iterable[pa.RecordBatch]) -> list[Record]:
    found: list[Record] = []
    for rows in batches:
        found += zip(*(rows.column(name).to_pylist() for name in ("_edge", "_seq", "payload")), strict=True)
    return sorted(found)


def offsets(place: Place) -> dict[str, int]:
    """Return the offsets of a position by shard, as an earlier release kept them."""
    return {shard: offset for shard, offset in place.items() if shard != CHUNKS}


def collect(hub: Hub) -> int:
    """Delete every chunk but the last of each shard, as a hub does long after they are in the table."""
    deleted = asyncio.run(_collect(hub))
    hub.read_on()  # the collector of a shard without edges writes a chunk, so that the last one can go
    return deleted


async def _collect(hub: Hub) -> int:
    store = open_store(hub.root)
    cluster = await open_cluster(store, None)
    deleted = 0
    for shard in range(cluster.shards):
        log = ShardLog(store, cluster, shard)
        state = await log.load()
        if state.n < 0:
            continue
        manifest, etag = await log.manifest()
        if manifest.snapshot_n >= state.n:
            continue  # collected before
        key = await log.put_snapshot(state.n, state.n, state.encode())
        assert await log.swap_manifest(changed(manifest, snapshot=key, snapshot_n=state.n), etag)
        now = 0

        async def tabled(_: int, n: int = state.n) -> int:
            return n + 1

        collector = ShardCollector(log, tabled, 0.0, clock=HubClock(lambda: 1 << 62, lambda: now))
        await collector.look()
        now = int(2 * GRACE_S * 1e9)
        await collector.look()
        deleted += collector.deleted
    return deleted
