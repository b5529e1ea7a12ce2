"""A shard of a running hub splits: a query, its table, completeness, the audit, traces and the API continue."""

from __future__ import annotations

import asyncio
import random
import struct
import subprocess
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_sinks import complete_until, read
from spark_sinks.completeness.watermark import LanesAt, open_at, open_at_head
from spark_sinks.sinks.stream import recovery
from spark_sinks.source.moving import moved_position
from spark_sinks.source.options import CHUNKS, ReadOptions
from tests.cloud_hub.fabric import CLOCK
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.cloud_hub.regions.fabric import stored, to
from tests.end_to_end.test_hub_processes import SPLIT_NAMES, make_edge, make_hub
from tests.end_to_end.test_kills import STREAM, Load
from tests.spark_sinks.source.following import Follower
from tests.support import forked
from tests.support.waiting import until
from weft.cloud_hub import splits
from weft.cloud_hub.hub import Hub
from weft.proofs.audit.audit import audit
from weft.proofs.trace import Tracer, Used
from weft.protocols import batch
from weft.protocols.batch import BatchHeader
from weft.protocols.lane import Lane
from weft.protocols.shard.placement import digest_of
from weft.replication.runner import LinkIdentity
from weft.storage.chunk_log import log_of_edge
from weft.storage.cluster import open_cluster
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table_writer.service import TableService

NAMES = [next(f"press-{n}" for n in range(99) if digest_of("default", f"press-{n}") & 1 == bit) for bit in (0, 1)]
"""An edge that stays in shard 0, and one that moves to shard 1."""
LANES = [Lane("default", name, number, "telemetry") for number, name in enumerate(NAMES, 1)]


KEY = b"plant/a/m1/telemetry"


def made(lane: Lane, first: int, end: int) -> tuple[BatchHeader, bytes]:
    """Records [first, end) of a lane; each payload says which record it is."""
    times = struct.pack(f"<{end - first}q", *range(first, end))
    payloads = [f"{lane.edge} {lane.log_id} {seq}".encode() for seq in range(first, end)]
    data = batch.encode(1, first, batch.columns_from_lists(times, [KEY] * (end - first), payloads), CLOCK)
    return batch.verify(data), data


class Fleet:
    """Two edges that are linked to a hub."""

    def __init__(self) -> None:
        self.logs = [EdgeLog() for _ in LANES]
        self.ends = [0, 0]

    async def send(self, count: int) -> None:
        """Each edge appends records, and has them acknowledged."""
        for number, (lane, log) in enumerate(zip(LANES, self.logs, strict=True)):
            for _ in range(count):
                log.append(*made(lane, self.ends[number], self.ends[number] + 5))
                self.ends[number] += 5
            await log.until_released(self.ends[number])

    @property
    def records(self) -> list[tuple[str, int, bytes]]:
        return sorted(
            (lane.edge, seq, f"{lane.edge} {lane.log_id} {seq}".encode())
            for lane, end in zip(LANES, self.ends, strict=True)
            for seq in range(end)
        )


async def split(store: ObjectStore, shard: int = 0) -> int:
    cluster = await open_cluster(store, None)
    parts = await splits.look(store, cluster, shard)
    assert parts.moving == [("default", NAMES[1])]
    hub_time = lambda: 0  # noqa: E731 - chunks take the time of those before
    return await splits.split(store, cluster, shard, wall_clock=hub_time, random_bits=random.Random(1).getrandbits)


def follower(root: Path) -> Follower:
    log: Any = SimpleNamespace(root=str(root))
    return Follower(log)


async def completeness(hub: Hub) -> Any:
    status, answer = await get(hub, "/v1/streams/telemetry/completeness")
    assert status == 200
    return answer


@pytest.mark.slow
async def test_readers_go_on_across_a_split(tmp_path: Path) -> None:
    store, fleet = open_store(str(tmp_path)), Fleet()
    options = ReadOptions(str(tmp_path), "telemetry")
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(running_hub(store, shards=1))
        for lane, log in zip(LANES, fleet.logs, strict=True):
            identity = LinkIdentity("default", lane.edge, lane.log_id, "test")
            await stack.enter_async_context(running_link(hub, log, identity))
        await fleet.send(4)
        query = follower(tmp_path)
        start = await asyncio.to_thread(query.reader.initialOffset)
        first, rows = await asyncio.to_thread(query.batch, {"0": 0}, None)
        assert start == {"0": 0}
        assert rows == fleet.records
        tables = TableService(store, await open_cluster(store, None))

        assert await split(store) == 1
        await fleet.send(6)
        second, more = await asyncio.to_thread(query.batch, first, None)
        assert {key for key in second if key != CHUNKS} == {"0", "1"}
        assert sorted([*rows, *more]) == fleet.records
        again = follower(tmp_path)  # a driver that starts from the checkpoint
        assert await asyncio.to_thread(again.rows, first, second) == more

        await tables.catch_up()
        tiered = follower(tmp_path)
        assert (await asyncio.to_thread(tiered.batch, {"0": 0}, None))[1] == fleet.records
        rows_of_table = await asyncio.to_thread(_table_rows, store)
        assert {row["line"] for row in rows_of_table} == {"a"}, "also of records from before the edge moved"

        await until(lambda: _is_complete(hub))
        answer = await completeness(hub)
        assert [lane["edge"] for lane in answer["lanes"]] == sorted(NAMES)
        assert "missing_shards" not in answer
        at = await open_at(options, {0: 40})  # all of before the split
        assert ranges(at) == {lane: [(0, 20)] for lane in LANES}
        assert at.shards == {LANES[0]: 0, LANES[1]: 1}
        early = await open_at(options, {0: 20})  # some of it, while the new shard has more
        assert early.shards == {LANES[0]: 0, LANES[1]: 0}
        assert sum(held.ranges.count() for held in early.lanes.values()) == 20
        head = await open_at_head(options)
        assert head.shards == {LANES[0]: 0, LANES[1]: 1}

        report = await audit(store, "default", "telemetry")
        assert report.agrees, report.problems
        assert report.total("records") == report.total("table_records") == len(fleet.records)
        lane, shard_log = LANES[1], await log_of_edge(store, await open_cluster(store, None), "default", NAMES[1])
        state = await shard_log.load()
        found = [await recovery._in_logs(shard_log, state, lane, seq) is not None for seq in (3, 19, 20, 49, 50)]
        assert found == [True, True, True, True, False]
        tracer = Tracer(store, await open_cluster(store, None), "default", ["telemetry"], 100)
        used = Used(NAMES[1], f"{LANES[1].log_id:016x}", 18, 24, 7)
        traced = await tracer.trace({}, [used])
        assert [record.seq for record in traced.made_of[0].records] == list(range(18, 25)), "of both shards"


async def test_a_query_moves_between_regions_although_their_shards_were_split(tmp_path: Path) -> None:
    """What it has not read is on both sides of the split."""
    stores, fleet = [open_store(str(tmp_path / name)) for name in ("west", "east")], Fleet()
    async with AsyncExitStack() as stack:
        east = await stack.enter_async_context(running_hub(stores[1], shards=1))
        west = await stack.enter_async_context(running_hub(stores[0], shards=1, regions=to(east.url)))
        for lane, log in zip(LANES, fleet.logs, strict=True):
            identity = LinkIdentity("default", lane.edge, lane.log_id, "test")
            await stack.enter_async_context(running_link(west, log, identity))
        await fleet.send(4)
        await until(lambda: stored(east) == 40)
        for store in stores:
            assert await split(store) == 1
        await fleet.send(2)
        await until(lambda: stored(east) == 60)
    at, rows = await asyncio.to_thread(follower(tmp_path / "west").batch, {"0": 0}, ReadMaxRows(30))
    options = [ReadOptions(str(tmp_path / name), "telemetry") for name in ("west", "east")]
    found = await asyncio.to_thread(moved_position, at, *options)
    assert (found.read, found.unread, found.coming) == (30, 30, 0)
    _, rest = await asyncio.to_thread(follower(tmp_path / "east").batch, found.position, None)
    assert sorted([*rows, *rest]) == fleet.records


def ranges(at: LanesAt) -> dict[Lane, list[tuple[int, int]]]:
    return {lane: list(held.ranges) for lane, held in at.lanes.items()}


async def _is_complete(hub: Hub) -> bool:
    return (await completeness(hub))["complete_up_to"] is not None


def _table_rows(store: ObjectStore) -> list[dict[str, Any]]:
    from tests.cloud_hub.tables.logs import table

    rows: list[dict[str, Any]] = table(store).to_pyarrow_table(columns=["_edge", "_seq", "line"]).to_pylist()
    return rows


# --- A Spark query and claims of completeness, while a shard of a hub under load splits


LOOKS = 8


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.search(turns=4)
@pytest.mark.timeout(600)
def test_a_running_query_goes_on_and_nothing_is_claimed_early(spark: SparkSession, tmp_path: Path) -> None:
    hub = make_hub(tmp_path)
    edges = [make_edge(tmp_path, name, hub) for name in SPLIT_NAMES]
    loads: list[Load] = []
    claims: list[tuple[datetime, int]] = []
    try:
        for service in (hub, *edges):
            service.start()
        loads = [Load(edge.mqtt_port, options=["--prefix", edge.name, "--devices", "2"]) for edge in edges]
        time.sleep(3.0)
        query = (
            spark.readStream.format("weft")
            .option("store", hub.store)
            .option("stream", STREAM)
            .load()
            .select("_edge", "_seq", "_shard")
            .writeStream.format("parquet")
            .trigger(processingTime="1 second")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start(str(tmp_path / "out"))
        )
        for look in range(LOOKS):
            if look == LOOKS // 2:
                forked.run(
                    [sys.executable, "-m", "weft", "hub", "split", str(hub.config_path), "0", "--yes"],
                    stdout=subprocess.PIPE,
                    check=True,
                )
            claims += claim(spark, hub.store)
        for load in loads:
            load.finish()
        total = sum(edge.status()["streams"][STREAM]["durable_end"] for edge in edges)
        deadline = time.monotonic() + 120
        while read(spark, STREAM, store=hub.store).count() < total:
            assert time.monotonic() < deadline
        claims += claim(spark, hub.store)
        query.processAllAvailable()
        assert query.exception() is None
        query.stop()
        final = read(spark, STREAM, store=hub.store)
        rows = [
            (row["_edge"], row["_seq"], row["_shard"]) for row in spark.read.parquet(str(tmp_path / "out")).collect()
        ]
        held = [final.where(F.col("_time") < moment).count() for moment, _ in claims]
    finally:
        for load in loads:
            load.kill()
        for service in (*edges, hub):
            service.stop()
    assert len(rows) == total == len({row[:2] for row in rows}), "each record once"
    shards = Counter(shard for edge, _, shard in rows if edge == SPLIT_NAMES[2])
    assert shards.keys() == {0, 2}, "some records of the edge came before the split, and some after it"
    moments = [moment for moment, _ in claims]
    assert len(moments) > LOOKS // 2
    assert moments == sorted(moments), "a claim was taken back"
    assert held == [count for _, count in claims], "records came later that a claim had covered"


def claim(spark: SparkSession, store: str) -> list[tuple[datetime, int]]:
    """What is claimed to be complete, and how many records of before that moment there are."""
    moment = complete_until(spark, STREAM, store=store).moment
    rows = read(spark, STREAM, store=store)
    return [] if moment is None else [(moment, rows.where(F.col("_time") < moment).count())]
