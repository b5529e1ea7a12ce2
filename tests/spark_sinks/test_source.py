"""``format("weft")`` in batch reads: every record once, wherever it is stored, and errors that say what to do."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from spark_sinks import read, table
from tests.spark_sinks.conftest import EDGES, START, STREAM, Hub, records
from tests.spark_sinks.source.following import offsets
from weft.protocols.lane import Origin, OriginKind
from weft.storage.table.rows import row_schema

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("tiered", "more"),
    [
        pytest.param(0, 5, id="tail only", marks=pytest.mark.slow),
        pytest.param(5, 0, id="table only", marks=pytest.mark.slow),
        pytest.param(3, 3, id="both"),
    ],
)
def test_every_record_once(spark: SparkSession, hub: Hub, tiered: int, more: int) -> None:
    hub.write(tiered)
    if tiered:
        assert hub.tier() == tiered * 10 * len(EDGES)
    hub.write(more)
    frame = hub.load(spark)
    assert records(frame) == hub.expected()
    per_shard = frame.groupBy("_shard").agg(
        F.min("_offset"), F.max("_offset"), F.countDistinct("_offset"), F.count("*")
    )
    for _, first, last, distinct, count in per_shard.collect():
        assert (first, last + 1) == (0, count)
        assert distinct == count


def test_a_table_of_the_catalog_is_refused_with_what_serves_instead(spark: SparkSession, hub: Hub) -> None:
    """Spark reads such a table without its options."""
    hub.write(1)
    options = f"USING weft OPTIONS (store '{hub.root}', stream '{STREAM}')"
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW NAME USING weft"):
        spark.sql(f"CREATE TABLE readings {options}")
    assert not spark.catalog.tableExists("readings")
    spark.sql(f"CREATE TEMPORARY VIEW readings {options}")
    try:
        assert records(spark.table("readings")) == hub.expected()
    finally:
        spark.catalog.dropTempView("readings")


def test_a_small_stream_is_broadcast_by_a_hint_and_a_table_by_its_size(spark: SparkSession, hub: Hub) -> None:
    """Spark knows no size of a source in Python; the page names these two ways."""
    hub.write(1)
    hub.tier()
    large = spark.range(10_000_000).selectExpr("id AS _seq", "id * 2 AS other")

    def plan(small: DataFrame) -> str:
        return str(large.join(small, "_seq")._jdf.queryExecution().executedPlan().toString())

    assert "BroadcastHashJoin" not in plan(hub.load(spark))
    assert "BroadcastHashJoin" in plan(F.broadcast(hub.load(spark)))
    assert "BroadcastHashJoin" in plan(read(spark, STREAM, store=hub.root))


def test_a_row_is_the_same_from_the_log_and_from_the_table(spark: SparkSession, hub: Hub) -> None:
    hub.write(2)
    before = hub.load(spark).orderBy("_shard", "_offset").collect()
    hub.tier()
    after = hub.load(spark).orderBy("_shard", "_offset").collect()
    assert after == before
    first = next(row for row in before if row._edge == "press-1" and row._seq == 0)
    assert (first.line, first.machine, first._key) == ("press", "m0", "plant/press/m0/telemetry")
    assert (first._log, first._clock, first._resent, first._headers) == ("0000000000000001", "synced", False, None)
    # PySpark hands out naive local times; the machine's zone must not matter here.
    assert first._time.astimezone(UTC) == datetime.fromtimestamp(START // 10**9, UTC)


@pytest.mark.parametrize(
    "tiered",
    [pytest.param(0, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)],
    ids=["tail only", "both", "table only"],
)
def test_rows_say_which_version_of_a_function_made_them(spark: SparkSession, hub: Hub, tiered: int) -> None:
    """In each round the same number means something else, as after a log has forgotten it."""
    versions = [
        None,
        *(Origin(3, OriginKind.FUNCTION, "calm", str(number), b"\x0a\xbc\xde\xf0") for number in (1, 2, 3)),
    ]
    for number, version in enumerate(versions):
        hub.origin = version
        hub.write()
        if number + 1 == tiered:
            hub.tier()
    expected = {None: 40, "calm@1#0abcdef0": 40, "calm@2#0abcdef0": 40, "calm@3#0abcdef0": 40}
    for frame in (hub.load(spark), hub.load(spark, columns="_origin"), read(spark, STREAM, store=hub.root)):
        assert dict(frame.groupBy("_origin").count().collect()) == expected
    assert records(hub.load(spark)) == hub.expected()


@pytest.mark.slow
def test_a_table_of_an_earlier_release_is_read_with_its_tail(
    spark: SparkSession, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.write()
    with monkeypatch.context() as earlier:
        schema = row_schema(["line", "machine"])
        earlier.setattr(
            "weft.storage.table_writer.tiering.row_schema", lambda *_: schema.remove(schema.get_field_index("_origin"))
        )
        earlier.setattr("weft.storage.table_writer.tiering.lacking", lambda _: [])
        hub.tier()
    hub.origin = Origin(3, OriginKind.FUNCTION, "calm", "1", b"")
    hub.write()
    for frame in (hub.load(spark), read(spark, STREAM, store=hub.root)):
        assert dict(frame.groupBy("_origin").count().collect()) == {None: 40, "calm@1": 40}
    hub.tier()
    for frame in (hub.load(spark), read(spark, STREAM, store=hub.root), table(spark, STREAM, store=hub.root)):
        assert dict(frame.groupBy("_origin").count().collect()) == {None: 40, "calm@1": 40}


def test_a_range_of_offsets_across_the_tables_end(spark: SparkSession, hub: Hub) -> None:
    hub.write(2)
    hub.tier()
    hub.write(2)
    ends = hub.heads()
    starting = {shard: min(3, end) for shard, end in ends.items()}
    ending = {shard: max(starting[shard], end - 4) for shard, end in ends.items()}
    frame = hub.load(spark, starting=json.dumps(starting), ending=json.dumps(ending))
    found = sorted((row._shard, row._offset) for row in frame.select("_shard", "_offset").collect())
    assert found == [(int(shard), at) for shard in sorted(ends) for at in range(starting[shard], ending[shard])]


@pytest.mark.parametrize("tiered", [False, True], ids=["from the log", "from the table"])
def test_a_time_as_start_and_end_leaves_out_no_record_between_them(spark: SparkSession, hub: Hub, tiered: bool) -> None:
    for _ in range(6):
        hub.write()
        if tiered:
            hub.tier()
    since = datetime.fromtimestamp(START // 10**9 + 2, UTC).isoformat()
    until = datetime.fromtimestamp(START // 10**9 + 4, UTC).isoformat()
    assert records(hub.load(spark, starting=since, ending=until)) == hub.expected(range(2, 4))


@pytest.mark.slow
def test_edges_and_keys_select(spark: SparkSession, hub: Hub) -> None:
    hub.write()
    hub.tier()
    hub.write()
    some = hub.load(spark, edges="press-1, paint-1")
    assert records(some) == [row for row in hub.expected() if row[0] in {"press-1", "paint-1"}]
    by_filter = hub.load(spark, keys="plant/paint/+/telemetry")
    assert records(by_filter) == [row for row in hub.expected() if row[0] == "paint-1"]
    by_key = hub.load(spark, keys='["plant/paint/m1/telemetry"]')
    assert records(by_key) == [row for row in hub.expected() if row[0] == "paint-1" and row[1] % 2]


@pytest.mark.slow
def test_columns_by_option_and_by_schema(spark: SparkSession, hub: Hub) -> None:
    hub.write()
    hub.tier()
    hub.write()
    by_option = hub.load(spark, columns="payload,_seq")
    assert by_option.columns == ["payload", "_seq"]
    assert by_option.count() == 2 * 10 * len(EDGES)
    reader = spark.read.format("weft").option("store", hub.root).option("stream", STREAM)
    by_schema = reader.schema("_seq long, machine string").load()
    found = sorted((row._seq, row.machine) for row in by_schema.collect())
    assert found == sorted((row[1], f"m{row[1] % 2}") for row in hub.expected())
    # The keys are needed to select by, though they are not to be shown.
    assert hub.load(spark, columns="_seq", keys="plant/paint/#").count() == 20


def test_sql_finds_the_source_without_registration(spark: SparkSession, hub: Hub) -> None:
    hub.write()
    spark.sql(f"create or replace temporary view v using weft options (store '{hub.root}', stream '{STREAM}')")
    assert spark.sql("select count(distinct _edge, _seq) from v where machine = 'm0'").collect()[0][0] == 20


@pytest.mark.slow
def test_a_filtered_query_does_not_change_later_ones(spark: SparkSession, hub: Hub) -> None:
    """What goes wrong, silently, in a source that lets Spark push filters down."""
    hub.write()
    frame = hub.load(spark)
    assert frame.where("_edge = 'press-1'").count() == 10
    assert frame.count() == 10 * len(EDGES)


@pytest.mark.slow
def test_a_dataframe_is_a_snapshot_and_a_new_load_sees_more(spark: SparkSession, hub: Hub) -> None:
    hub.write()
    frame = hub.load(spark)
    assert frame.count() == 10 * len(EDGES)
    hub.write()
    hub.tier()
    assert frame.count() == 10 * len(EDGES)
    assert hub.load(spark).count() == 20 * len(EDGES)


@pytest.mark.java
def test_errors_reach_the_person(spark: SparkSession, hub: Hub) -> None:
    hub.write()
    with pytest.raises(
        PySparkException, match="the store has no stream 'telemetri' of tenant 'default'; it has telemetry"
    ):
        hub.load(spark, stream="telemetri")
    reader = spark.read.format("weft").option("store", hub.root).option("stream", STREAM)
    with pytest.raises(PySparkException, match="column payload has the type binary, not string"):
        reader.schema("payload string").load().count()


# --- Streaming reads: limits, restarts, and checkpoints that outlive the move from chunks to table


class Job:
    """A streaming query that appends what it reads to Parquet files, and can be run again from its checkpoint."""

    def __init__(self, spark: SparkSession, hub: Hub, folder: Path) -> None:
        self._spark, self._hub, self._folder = spark, hub, folder

    def drain(self, **options: object) -> list[dict[str, Any]]:
        """Read what is there; the progress of every micro-batch."""
        query = self.start(**options)
        query.awaitTermination()
        progress = [json.loads(p.json) for p in query.recentProgress]
        return [p for p in progress if p["numInputRows"]]

    def start(self, **options: object) -> StreamingQuery:
        named = {"store": self._hub.root, "stream": STREAM, **options}
        frame = self._spark.readStream.format("weft").options(**named).load()
        writer = frame.writeStream.format("parquet").trigger(availableNow=True)
        return writer.option("checkpointLocation", str(self._folder / "checkpoint")).start(str(self._folder / "out"))

    def output(self) -> DataFrame:
        return self._spark.read.parquet(str(self._folder / "out"))


@pytest.fixture
def job(spark: SparkSession, hub: Hub, tmp_path: Path) -> Job:
    return Job(spark, hub, tmp_path / "job")


@pytest.mark.slow
def test_a_checkpoint_stays_valid_when_chunks_become_table_rows(hub: Hub, job: Job) -> None:
    hub.write(2)
    job.drain()
    hub.write(2)
    hub.tier()
    hub.write(1)
    job.drain()
    assert records(job.output()) == hub.expected()
    hub.tier()
    assert job.drain() == []
    assert records(job.output()) == hub.expected()


@pytest.mark.slow
def test_a_checkpoint_stays_valid_when_the_store_moves(hub: Hub, job: Job) -> None:
    hub.write(2)
    hub.tier()
    hub.write(1)
    before = f"{hub.root}-before"
    shutil.copytree(hub.root, before)
    job.drain(store=before)
    shutil.rmtree(before)
    hub.write(2)
    hub.tier()
    job.drain()
    assert records(job.output()) == hub.expected()


@pytest.mark.slow
def test_an_unfinished_batch_is_read_again_from_the_table(hub: Hub, job: Job, tmp_path: Path) -> None:
    """The offsets of a batch that a crash cut short are in the checkpoint; by the restart the rows were tiered."""
    hub.write(3)
    job.drain()
    commits = tmp_path / "job" / "checkpoint" / "commits"
    last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    metadata = tmp_path / "job" / "out" / "_spark_metadata"
    for path in (metadata / last.name, metadata / f".{last.name}.crc"):
        path.unlink(missing_ok=True)
    hub.tier()
    job.drain()
    assert records(job.output()) == hub.expected()


@pytest.mark.slow
def test_a_rate_limit_shares_the_batch_among_shards(hub: Hub, job: Job) -> None:
    hub.write(3)
    total = 3 * 10 * len(EDGES)
    batches = job.drain(max_records_per_trigger=50)
    assert [progress["numInputRows"] for progress in batches] == [50, 50, total - 100]
    assert records(job.output()) == hub.expected()
    (source,) = batches[-1]["sources"]
    assert offsets(source["endOffset"]) == hub.heads(), "the checkpoint has the log's own offsets"


@pytest.mark.slow
def test_a_query_that_starts_at_the_latest_reads_only_what_comes_after(hub: Hub, job: Job) -> None:
    hub.write(2)
    assert job.drain(starting="latest") == []
    hub.write(1)
    job.drain(starting="latest")
    assert records(job.output()) == hub.expected(range(2, 3))


def test_a_running_query_follows_the_log(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    hub.write()
    frame = spark.readStream.format("weft").options(store=hub.root, stream=STREAM).load()
    writer = frame.writeStream.format("memory").queryName("follow").trigger(processingTime="0 seconds")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        hub.write()
        query.processAllAvailable()
        hub.tier()
        hub.write()
        query.processAllAvailable()
        assert records(spark.table("follow")) == hub.expected()
    finally:
        query.stop()


@pytest.mark.slow
def test_the_sentence_of_a_refusal_comes_last(hub: Hub, job: Job) -> None:
    hub.write()
    with pytest.raises(
        PySparkException, match=r"a streaming read has no end; use \.trigger\(availableNow=True\)"
    ) as caught:
        job.drain(ending="latest")
    assert "During handling of the above exception" not in str(caught.value)
