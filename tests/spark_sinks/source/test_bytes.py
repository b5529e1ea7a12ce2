"""Bytes that a read of one edge and one hour takes, beside those of the whole table."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bench.log_writer import Delivery, LogWriter
from spark_sinks import read
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.settings import TableSettings
from weft.storage.table_writer.shards import load_shards
from weft.storage.table_writer.tiering import Tierer

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECOND = 1_000_000_000
START = 1_700_006_400 * SECOND
DAYS = 5
EDGES = ("press-1", "press-2", "press-3", "paint-1")
STEP_S = 600
"""Each chunk has so many seconds of every edge node."""
VECTORED = "parquet.hadoop.vectored.io.enabled"
RECORDS = 300
"""Records of an edge node in a chunk."""


@pytest.fixture(scope="module")
def five_days(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table as a hub makes it of four edge nodes in one shard: steps of half a day, then maintenance."""
    root = str(tmp_path_factory.mktemp("five-days"))
    chance = random.Random(1)
    writer = LogWriter(root)
    settings = TableSettings(compact_files_min=4)
    steps = DAYS * 86_400 // STEP_S

    async def tier() -> None:
        views = await load_shards(writer.store, writer.cluster)
        tierer = Tierer(writer.store, writer.cluster, "default", "telemetry", views, settings=settings)
        while await tierer.step():
            pass
        await Maintenance(writer.store, tierer, settings=settings).maintain()

    for step in range(steps):
        first = START + step * STEP_S * SECOND
        deliveries = [Delivery(edge, [_encoded(edge, step, first, chance)], at) for at, edge in enumerate(EDGES, 1)]
        writer.write(*deliveries, received=first + STEP_S * SECOND)
        if step % 72 == 71:
            asyncio.run(tier())
    return root


def _encoded(edge: str, step: int, first: int, chance: random.Random) -> bytes:
    times = struct.pack(f"<{RECORDS}q", *(first + i * STEP_S * SECOND // RECORDS for i in range(RECORDS)))
    keys = [f"plant/{edge}/m{i % 10}/telemetry".encode() for i in range(RECORDS)]
    payloads = [b'{"temp":%.6f,"n":%d}' % (chance.gauss(60, 5), chance.randrange(10**9)) for _ in range(RECORDS)]
    columns = batch.columns_from_lists(times, keys, payloads)
    return batch.encode(1, step * RECORDS, columns, ClockReading(1, step, ClockState.SYNCED))


@pytest.fixture
def bytes_read(spark: SparkSession) -> Iterator[Callable[[Callable[[], Any]], int]]:
    """From work to the bytes that Spark reads of files for it, footers and indexes included."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    # Hadoop does not count vectored reads. Without them the same pages are read one after the other.
    hadoop.set(VECTORED, "false")

    def so_far() -> int:
        found = spark._jvm.org.apache.hadoop.fs.FileSystem.getAllStatistics()
        return sum(found[at].getBytesRead() for at in range(found.size()) if found[at].getScheme() == "file")

    def count(work: Callable[[], Any]) -> int:
        before = so_far()
        work()
        return so_far() - before

    yield count
    hadoop.unset(VECTORED)


def test_one_edge_and_one_hour_take_a_twentieth_of_the_table(
    spark: SparkSession, five_days: str, bytes_read: Callable[[Callable[[], Any]], int]
) -> None:
    since, until = (datetime.fromtimestamp(START // SECOND + hours * 3600, UTC) for hours in (60.3, 61.3))

    def hour() -> list[int]:
        frame = read(spark, "telemetry", store=five_days, edges=["press-2"], since=since, until=until)
        return sorted(row[0] for row in frame.select("_seq", "payload", "_key", "_edge").collect())

    found: list[list[int]] = []
    of_hour = bytes_read(lambda: found.append(hour()))
    whole = read(spark, "telemetry", store=five_days)
    of_all = bytes_read(lambda: whole.write.format("noop").mode("overwrite").save())
    first = int(60.3 * 3600 * RECORDS / STEP_S)
    assert found[-1] == list(range(first, first + 3600 * RECORDS // STEP_S))
    assert of_all >= 0.9 * sum(Path(file.removeprefix("file://")).stat().st_size for file in whole.inputFiles())
    assert of_all / of_hour >= 20, (of_all, of_hour)


def test_one_key_of_forty_takes_a_sixth_of_a_table_of_short_payloads(
    spark: SparkSession, five_days: str, bytes_read: Callable[[Callable[[], Any]], int]
) -> None:
    machine = read(spark, "telemetry", store=five_days).where("_key = 'plant/press-2/m3/telemetry'")
    found: list[int] = []
    of_machine = bytes_read(lambda: found.append(len(machine.select("_seq", "payload").collect())))
    of_all = sum(Path(file.removeprefix("file://")).stat().st_size for file in machine.inputFiles())
    assert found == [DAYS * 86_400 // STEP_S * RECORDS // 10]
    assert of_all / of_machine >= 6, (of_all, of_machine)
