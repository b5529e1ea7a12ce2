"""Rows appended to a Delta table: each exactly once, by log offsets alone."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_sinks.errors import SinkError
from spark_sinks.sinks.delta import DeltaSink
from spark_sinks.sinks.delta.table import DurableTable
from tests.spark_sinks.conftest import EDGES, STREAM, Hub, records
from tests.spark_sinks.sinks.delta.tables import rows
from tests.spark_sinks.source.following import collect
from tests.storage.object_store.buckets import S3Endpoint, s3_endpoint
from weft.storage.object_store.directory import DirectoryStore

pytestmark = pytest.mark.spark


class Job:
    """A streaming query into a table, which can be run again from its checkpoint or without it."""

    def __init__(self, spark: SparkSession, hub: Hub, folder: Path) -> None:
        self.spark, self.hub = spark, hub
        self.table = folder / "lake" / "readings"
        self.checkpoint = folder / "checkpoint"

    def sink(self, **settings: Any) -> DeltaSink:
        return DeltaSink(self.table, store=self.hub.root, stream=STREAM, **settings)

    def drain(self, sink: DeltaSink | None = None, **options: object) -> None:
        named = {"store": self.hub.root, "stream": STREAM, **options}
        frame = self.spark.readStream.format("weft").options(**named).load()
        writer = frame.writeStream.foreachBatch(sink or self.sink()).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self.checkpoint)).start().awaitTermination()

    def lose_checkpoint(self) -> None:
        shutil.rmtree(self.checkpoint)

    def undo_last_commit(self) -> None:
        """What a kill between the table's commit and Spark's leaves: the batch is planned and comes again."""
        commits = sorted(self.checkpoint.glob("commits/[0-9]*"), key=lambda path: int(path.name))
        commits[-1].unlink()
        (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(rows(self.table, "_edge", "_seq", "payload"))


@pytest.fixture(scope="module")
def s3_store() -> Iterator[S3Endpoint]:
    with s3_endpoint() as running:
        yield running


@pytest.fixture
def job(spark: SparkSession, hub: Hub, tmp_path: Path) -> Job:
    return Job(spark, hub, tmp_path)


def test_a_repeated_batch_and_a_lost_checkpoint_change_nothing(job: Job) -> None:
    job.hub.write(2)
    job.drain(max_records_per_trigger=50)
    assert job.rows() == job.hub.expected()
    job.undo_last_commit()
    job.drain()
    version = DeltaTable(str(job.table)).version()
    job.hub.write(1)
    job.lose_checkpoint()
    job.drain(max_records_per_trigger=70)
    assert job.rows() == job.hub.expected()
    job.lose_checkpoint()
    job.drain()
    assert job.rows() == job.hub.expected()
    assert DeltaTable(str(job.table)).version() > version


@pytest.mark.slow
@pytest.mark.parametrize("is_put_back", [True, False])
def test_a_table_that_is_gone_beside_the_checkpoint_is_not_made_with_a_hole(job: Job, is_put_back: bool) -> None:
    """Deleted by a person, or on a disk that is not mounted."""
    job.hub.write(1)
    job.drain()
    away = job.table.rename(job.table.with_name("away"))
    job.hub.write(1)
    with pytest.raises(StreamingQueryException, match=r"is gone, or was never there, .* checkpoint away, too"):
        job.drain()
    assert not job.table.exists()
    if is_put_back:
        away.rename(job.table)
    else:
        job.lose_checkpoint()
    job.drain()
    assert job.rows() == job.hub.expected()


@pytest.mark.slow
def test_two_streams_and_their_filters_in_one_table(job: Job) -> None:
    """Exploded and filtered rows, a union by one query, and another query's rows under a name of its own."""
    job.hub.write(1)
    sink = job.sink()
    source = job.hub.load(job.spark)
    twice = source.withColumn("copy", F.explode(F.array(F.lit(1), F.lit(2)))).where("_seq % 2 = 0")
    for _ in range(2):
        sink(twice, 0)
    job.sink(name="odd")(source.where("_seq % 2 = 1").withColumn("copy", F.lit(0)), 0)
    expected = {0: [odd for odd in job.hub.expected() if odd[1] % 2], 1: [], 2: []}
    expected[1] = expected[2] = [even for even in job.hub.expected() if not even[1] % 2]
    assert job.rows() == sorted([*expected[0], *expected[1], *expected[2]])
    sink(source.where("false").withColumn("copy", F.lit(0)), 1)
    union = DeltaSink(job.table, store=job.hub.root, stream=[STREAM, "other"], name="both")
    with pytest.raises(PythonException, match="column _stream names third; the sink was made for telemetry, other"):
        union(twice.withColumn("_stream", F.lit("third")), 0)
    both = twice.withColumn("_stream", F.lit(STREAM)).unionByName(twice.withColumn("_stream", F.lit("other")))
    for _ in range(2):
        union(both, 0)
    assert len(job.rows()) == len(job.hub.expected()) * 3 // 2 + 2 * len(job.hub.expected())


def test_a_table_of_another_store_is_refused(job: Job, tmp_path: Path) -> None:
    job.hub.write(1)
    job.sink()(job.hub.load(job.spark), 0)
    other = Hub(str(tmp_path / "other"))
    other.write(1)
    with pytest.raises(SinkError, match="rows of stream telemetry of another hub's store, under the name default"):
        DeltaSink(job.table, store=other.root, stream=STREAM)(other.load(job.spark), 0)
    with pytest.raises(SinkError, match=r"no column _offset.*keep _shard, _offset"):
        job.sink()(job.hub.load(job.spark).drop("_offset"), 0)
    with pytest.raises(PythonException, match=r"\d+ rows have no _offset"):
        job.sink()(job.hub.load(job.spark).withColumn("_offset", F.lit(None).cast("long")), 0)
    assert job.rows() == job.hub.expected()


@pytest.mark.slow
def test_a_log_that_was_restored_from_a_backup_is_refused(job: Job) -> None:
    """As long as it is shorter than the table, and when it has grown past it with other records: none is left out."""
    job.hub.write(1)
    restore = job.hub.backup()
    job.hub.write(1)
    job.drain()
    table = job.rows()
    restore()
    with pytest.raises(SinkError, match=r"rows up to offset \d+ of shard \d of telemetry, and the log lacks chunk 1"):
        job.sink()(job.hub.load(job.spark), 0)
    job.hub.payload = lambda edge, seq: b"since the restore"
    job.hub.write(3)
    with pytest.raises(SinkError, match=r"and the log has another chunk 1: .*Move the table and the"):
        job.sink()(job.hub.load(job.spark), 0)
    latest = DeltaSink(job.table.parent / "latest", store=job.hub.root, stream=STREAM, keys="_edge")
    latest(job.hub.load(job.spark), 0)
    assert job.rows() == table
    job.table.rename(job.table.parent / "away")
    job.lose_checkpoint()
    job.drain()
    assert job.rows() == records(job.hub.load(job.spark))
    restore()
    with pytest.raises(SinkError, match="restored to an earlier state"):
        pickle.loads(pickle.dumps(latest))(job.hub.load(job.spark), 0)


@pytest.mark.slow
@pytest.mark.parametrize("of_the_end", [True, False])
def test_chunks_that_the_hub_deleted_are_not_missed(job: Job, of_the_end: bool) -> None:
    """Of a position in chunks that are gone, only the end of the log can be compared."""
    job.hub.write(2)
    if not of_the_end:
        job.drain()
    job.hub.tier()
    collect(job.hub)
    job.drain()
    job.hub.write(1)
    job.lose_checkpoint()
    job.drain()
    assert job.rows() == job.hub.expected()


@pytest.mark.slow
def test_other_writers_change_nothing(job: Job) -> None:
    """Another engine joins files between reading and commit, a sink of the same name writes the same rows, and one of
    another name adds a column."""
    job.hub.write(1)
    source = job.hub.load(job.spark)
    late, early = job.sink(), job.sink()
    late(source.where("_offset < 3"), 0)
    meanwhile: list[Callable[[], object]] = [
        DeltaTable(str(job.table)).optimize.compact,
        lambda: early(source.where("_offset < 7"), 0),
        lambda: job.sink(name="other")(source.limit(1).withColumn("unit", F.lit("C")), 0),
    ]
    commit = DurableTable.commit

    def interrupted(self: DurableTable, *given: Any) -> int:
        if meanwhile:
            meanwhile.pop()()
        return commit(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DurableTable, "commit", interrupted)
        late(source, 0)
    assert not meanwhile
    found = rows(job.table, "_edge", "_seq", "unit")
    assert sorted(row[:2] for row in found if row[2] is None) == [row[:2] for row in job.hub.expected()]
    assert len(found) == len(job.hub.expected()) + 1


def test_other_engines_read_the_table(job: Job) -> None:
    job.hub.write(2)
    frame = job.hub.load(job.spark).withColumn("day", F.to_date("_time"))
    job.sink(partition_by="day")(frame, 0)
    expected = (len(job.hub.expected()), sum(row[1] for row in job.hub.expected()))
    table = DeltaTable(str(job.table))
    duck = duckdb.connect()
    duck.register("readings", table.to_pyarrow_dataset())
    query = "SELECT count(*), sum(_seq) FROM readings WHERE day = DATE '2023-11-14' AND _seq >= 0 AND _edge > ''"
    assert duck.sql(query).fetchall() == [expected]
    assert polars.scan_delta(str(job.table)).select(polars.len(), polars.col("_seq").sum()).collect().row(0) == expected
    assert table.metadata().partition_columns == ["day"]


def test_what_is_committed_is_on_the_disk_before_it_is_claimed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry of the table's log that a power cut left half written is taken away, and its rows are written again."""
    job.hub.write(1)
    synced: list[str] = []
    sync = DirectoryStore._sync

    def noted(self: DirectoryStore, key: str) -> None:
        synced.append(key)
        sync(self, key)

    monkeypatch.setattr(DirectoryStore, "_sync", noted)
    sink = job.sink()
    sink(job.hub.load(job.spark).where("_offset < 3"), 0)
    sink(job.hub.load(job.spark), 0)
    versions = range(DeltaTable(str(job.table)).version() + 1)
    assert synced == [f"readings/_delta_log/{version:020d}.json" for version in versions]
    entry = job.table / "_delta_log" / f"{versions[-1]:020d}.json"
    entry.write_bytes(entry.read_bytes()[:-30])
    job.sink()(job.hub.load(job.spark), 0)
    assert job.rows() == job.hub.expected()


@pytest.mark.slow
@pytest.mark.s3
def test_a_table_in_a_bucket(job: Job, s3_store: S3Endpoint) -> None:
    bucket, options = s3_store.new_bucket(), s3_store.options
    hub = Hub(f"{bucket}/weft", options)
    hub.write(1)
    named = {f"store.{name}": value for name, value in options.items()}
    frame = hub.load(job.spark, **named).withColumn("even", F.col("_seq") % 2)
    uri = f"{bucket}/lake/readings"
    sink = DeltaSink(uri, store=hub.root, stream=STREAM, partition_by="even", storage_options=options)
    assert "SECRET" not in repr(sink)
    for _ in range(2):
        sink(frame, 0)
    latest = DeltaSink(f"{bucket}/lake/latest", store=hub.root, stream=STREAM, keys="_edge", storage_options=options)
    for _ in range(2):
        latest(frame, 0)
    found = DeltaTable(uri, storage_options={**options, "AWS_ALLOW_HTTP": "true"})
    assert found.to_pyarrow_dataset().count_rows() == len(hub.expected())
    newest = DeltaTable(f"{bucket}/lake/latest", storage_options={**options, "AWS_ALLOW_HTTP": "true"})
    assert newest.to_pyarrow_table(columns=["_seq"]).column(0).to_pylist() == [9] * len(EDGES)
