"""Several streams read as one, without Spark: as its driver and its executors do it."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from bench.log_writer import Delivery, LogWriter
from spark_sinks import read
from spark_sinks.errors import ReadError
from spark_sinks.source.data_source import SeveralReader, SeveralStreamReader, columns_of_several, named_streams
from tests.spark_sinks.conftest import Hub
from tests.spark_sinks.source.following import Place
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.settings import TableSettings
from weft.storage.table_writer.shards import load_shards
from weft.storage.table_writer.tiering import Tierer

Row = tuple[str, str, int, str | None]
"""Stream, edge, number, and the topic level that only one stream has."""
OVEN = "plant/{oven}/{machine}/telemetry"


class Reader:
    """One driver process of a streaming query of several streams."""

    def __init__(self, hub: Hub, *names: str) -> None:
        given = named_streams({"store": hub.root, "streams": ",".join(names)})
        assert given is not None
        self.schema = from_arrow_schema(columns_of_several(given))
        self.reader = SeveralStreamReader(given, self.schema)

    def batch(self, start: Place, limit: int | None = None) -> tuple[Place, list[Row]]:
        """The end of the next micro-batch, as Spark keeps it, and its rows."""
        end = self.reader.latestOffset(start, ReadAllAvailable() if limit is None else ReadMaxRows(limit))
        end = json.loads(json.dumps(end))
        return end, self.rows(start, end)

    def rows(self, start: Place, end: Place) -> list[Row]:
        found: list[Row] = []
        there = pickle.loads(pickle.dumps(self.reader))
        for task in self.reader.partitions(start, end):
            for rows in there.read(pickle.loads(pickle.dumps(task))):
                assert rows.schema.names == self.schema.names
                columns = [rows.column(name).to_pylist() for name in ("_stream", "_edge", "_seq")]
                ovens = rows.column("oven").to_pylist() if "oven" in rows.schema.names else [None] * rows.num_rows
                found += zip(*columns, ovens, strict=True)
        return sorted(found, key=str)


def expected(*hubs: Hub) -> list[Row]:
    return sorted(
        (
            (hub.stream, edge, seq, edge[:5] if hub.stream == "ovens" else None)
            for hub in hubs
            for edge, seq, _ in hub.expected()
        ),
        key=str,
    )


@pytest.fixture
def ovens(hub: Hub) -> Hub:
    """Two streams: telemetry, half of it in its table, and ovens with a topic level of its own."""
    found = hub.another("ovens")
    hub.write(1)
    hub.tier()
    hub.write(1)
    found.write(1, topic=OVEN)
    return found


def test_each_record_of_each_stream_is_a_row_once_within_the_limit_of_all(hub: Hub, ovens: Hub) -> None:
    reader = Reader(hub, "telemetry", "ovens")
    at = reader.reader.initialOffset()
    rows: list[Row] = []
    for _ in range(12):
        until, found = reader.batch(at, 25)
        assert len(found) <= 25
        assert found == reader.rows(at, until), "the same offsets give the same rows"
        at, rows = until, rows + found
    assert sorted(rows, key=str) == expected(hub, ovens)
    ovens.write(1, topic=OVEN)
    _, found = Reader(hub, "ovens", "telemetry").batch(at)
    assert {row[:1] for row in found} == {("ovens",)}, "the order of the names means nothing"
    assert sorted(rows + found, key=str) == expected(hub, ovens)


def test_a_stream_that_is_named_later_begins_at_its_first_record(hub: Hub, ovens: Hub) -> None:
    alone = Reader(hub, "telemetry")
    at, first = alone.batch(alone.reader.initialOffset())
    assert first == expected(hub)
    at, second = Reader(hub, "telemetry", "ovens").batch(at)
    assert second == expected(ovens)
    hub.write(1)
    at, third = Reader(hub, "ovens").batch(at)
    assert third == []
    _, fourth = Reader(hub, "ovens", "telemetry").batch(at)
    assert sorted(first + fourth, key=str) == expected(hub), "it continues where it was"


def test_a_batch_read_has_the_rows_of_all(hub: Hub, ovens: Hub) -> None:
    given = named_streams({"store": hub.root, "streams": "telemetry,ovens", "columns": "_stream,oven"})
    assert given is not None
    schema = columns_of_several(given)
    assert schema.names == ["_stream", "oven"]
    reader = SeveralReader(given, from_arrow_schema(schema))
    rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert sorted((row["_stream"], row["oven"]) for row in rows if row["oven"]) == sorted(
        (row[0], row[3]) for row in expected(ovens)
    )
    assert sum(row["_stream"] == "telemetry" for row in rows) == len(expected(hub))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"streams": "a,a"}, "each once"),
        ({"streams": "a,b", "stream": "a"}, "leave one of the two out"),
        ({"streams": "a,b", "hub": "http://127.0.0.1:8090"}, "the option hub reads one stream"),
        ({"streams": "a,b", "starting": '{"0": 1}'}, "offsets are those of one stream"),
    ],
)
def test_what_has_a_meaning_for_one_stream_only_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(ReadError, match=said):
        named_streams({"store": "hub", **options})


def test_a_checkpoint_of_one_stream_is_not_taken_for_that_of_several(hub: Hub, ovens: Hub) -> None:
    with pytest.raises(ReadError, match="expected offsets of several streams, got"):
        Reader(hub, "telemetry", "ovens").batch({"0": 3})


# --- Bytes that a read of one edge and one hour takes, beside those of the whole table


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


@pytest.mark.spark
@pytest.mark.slow
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


@pytest.mark.spark
@pytest.mark.slow
def test_one_key_of_forty_takes_a_sixth_of_a_table_of_short_payloads(
    spark: SparkSession, five_days: str, bytes_read: Callable[[Callable[[], Any]], int]
) -> None:
    machine = read(spark, "telemetry", store=five_days).where("_key = 'plant/press-2/m3/telemetry'")
    found: list[int] = []
    of_machine = bytes_read(lambda: found.append(len(machine.select("_seq", "payload").collect())))
    of_all = sum(Path(file.removeprefix("file://")).stat().st_size for file in machine.inputFiles())
    assert found == [DAYS * 86_400 // STEP_S * RECORDS // 10]
    assert of_all / of_machine >= 6, (of_all, of_machine)
