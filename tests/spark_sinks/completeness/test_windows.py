"""Complete windows: equal to the batch query over everything, whatever came late and whatever was killed."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from spark_sinks import Checkpoint, ReadError, complete_windows, read
from spark_sinks.completeness import windows as window_query
from spark_sinks.completeness.window_state import StateFile
from spark_sinks.completeness.windows import WindowQuery
from spark_sinks.errors import SinkError
from spark_sinks.sinks import DeltaSink
from tests.spark_sinks.completeness.conftest import EDGES, HOUR, MIDNIGHT, PER_HOUR, SECOND, STREAM, Fleet
from weft.protocols.chunk_index import Mark

VALUE = "CAST(CAST(payload AS STRING) AS BIGINT)"
AGGREGATE = {"records": "count(*)", "mean": f"avg({VALUE})", "edges": "sort_array(collect_set(_edge))"}
OUTAGE = range(5, 53)
"""Hours in which paint-1 is offline: two days."""
OUTAGE_END = MIDNIGHT // SECOND + OUTAGE.stop * 3600
WAIT_S = 120.0
Key = tuple[datetime, str]


class Table:
    """A sink that upserts into memory, and remembers each write."""

    def __init__(self) -> None:
        self.rows: dict[Key, Row] = {}
        self.writes: list[list[Row]] = []
        self.fail: Callable[[], None] = lambda: None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.fail()
        found = frame.collect()
        self.writes.append(found)
        self.rows |= {(row.window_start, row.machine): row for row in found}

    @property
    def complete(self) -> set[bool]:
        return {row._complete for row in self.rows.values()}

    def values(self) -> list[tuple[Any, ...]]:
        return sorted((row.window_start, row.machine, row.records, row.mean, row.edges) for row in self.rows.values())


def in_local(seconds: int) -> datetime:
    """A time as PySpark's rows have it: without a zone, of this machine's."""
    return datetime.fromtimestamp(seconds)  # noqa: DTZ006


def windows(spark: SparkSession, fleet: Fleet, sink: Any, checkpoint: Any, **options: Any) -> WindowQuery:
    named = {"every": "1h", "by": ["machine"], "aggregate": AGGREGATE, "trigger": None, **options}
    return complete_windows(spark, STREAM, store=fleet.root, sink=sink, checkpoint=checkpoint, **named)


def recomputed(spark: SparkSession, fleet: Fleet) -> list[tuple[Any, ...]]:
    """The batch query over all that the log has, by Spark's own window function."""
    frame = read(spark, STREAM, store=fleet.root).groupBy(F.window("_time", "1 hour"), "machine")
    made = frame.agg(*(F.expr(value).alias(name) for name, value in AGGREGATE.items()))
    return sorted((row.window.start, row.machine, row.records, row.mean, row.edges) for row in made.collect())


def spark_own(spark: SparkSession, fleet: Fleet, checkpoint: Path) -> DataFrame:
    """Run Spark's watermark with a delay of ten minutes over what is new, into a table of appended windows."""
    frame = spark.readStream.format("weft").options(store=fleet.root, stream=STREAM).load()
    grouped = frame.withWatermark("_time", "10 minutes").groupBy(F.window("_time", "1 hour"), "machine").count()
    out = str(checkpoint / "out")
    query = (
        grouped.writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint / "checkpoint"))
        .trigger(availableNow=True)
        .start(out)
    )
    query.awaitTermination()
    return spark.read.parquet(out)


@pytest.mark.slow
def test_an_outage_of_two_days_neither_blocks_windows_nor_loses_its_data(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    table = Table()

    def look() -> dict[str, Any]:
        query = windows(spark, fleet, table, tmp_path / "state")
        query.awaitTermination()
        return query.lastProgress

    fleet.hours(0, OUTAGE.start)
    look()
    assert table.complete == {True}
    fleet.hours(OUTAGE.start, OUTAGE.stop, ["press-1", "press-2"])
    progress = look()
    assert "paint-1" in progress["heldBackBy"][0]
    during = {key: row for key, row in table.rows.items() if row.window_start.day == 16}
    assert len(during) == 48, "both machines, each hour of the 16th"
    assert {row._complete for row in during.values()} == {False}
    assert {tuple(row.edges) for row in during.values()} == {("press-1", "press-2")}

    fleet.deliver(fleet.records("paint-1", OUTAGE.stop * PER_HOUR), hour=OUTAGE.stop)
    fleet.hours(OUTAGE.stop, OUTAGE.stop + 4)
    look()
    assert table.complete == {True}
    assert table.values() == recomputed(spark, fleet)


@pytest.mark.slow
def test_sparks_own_watermark_loses_what_comes_after_the_outage(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    """The same input, looked at by both at the same moments."""
    table = Table()
    fleet.hours(0, OUTAGE.start)
    fleet.hours(OUTAGE.start, OUTAGE.stop, ["press-1", "press-2"])
    windows(spark, fleet, table, tmp_path / "state").awaitTermination()
    spark_own(spark, fleet, tmp_path / "own")
    fleet.deliver(fleet.records("paint-1", OUTAGE.stop * PER_HOUR), hour=OUTAGE.stop)
    fleet.hours(OUTAGE.stop, OUTAGE.stop + 4)
    windows(spark, fleet, table, tmp_path / "state").awaitTermination()
    own = spark_own(spark, fleet, tmp_path / "own").where(F.col("window.end") <= F.timestamp_seconds(F.lit(OUTAGE_END)))
    expected = OUTAGE.stop * PER_HOUR * len(EDGES)
    assert sum(row.records for row in table.rows.values() if row.window_start < in_local(OUTAGE_END)) == expected
    # Spark had continued without paint-1 and drops what comes behind. Only the last hour of the outage was still open.
    assert expected - own.agg(F.sum("count")).first()[0] == (len(OUTAGE) - 1) * PER_HOUR


class Killed(Exception):
    """The process ended here."""


@pytest.mark.slow
def test_a_query_that_dies_anywhere_and_loses_its_checkpoint_ends_with_the_same_table(
    spark: SparkSession, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, folder = Table(), tmp_path / "state"

    def die() -> None:
        raise Killed

    def look() -> None:
        windows(spark, fleet, table, folder).awaitTermination()

    fleet.hours(0, 2)
    look()
    fleet.hours(2, 4, ["press-1", "press-2"])
    table.fail = die
    with pytest.raises(Killed):
        look()  # before the table's commit
    table.fail = lambda: None
    with monkeypatch.context() as patch:
        patch.setattr(StateFile, "save", lambda *_: die())
        with pytest.raises(Killed):
            look()  # after it, before the state was kept
    writes = len(table.writes)
    look()
    assert len(table.writes) == writes + 1, "the state was not kept, so the same rows are upserted again"
    look()
    assert len(table.writes) == writes + 1, "and now it was"
    shutil.rmtree(folder)
    fleet.deliver(fleet.records("paint-1", 4 * PER_HOUR), hour=4)
    fleet.hours(4, 5)
    look()
    assert table.complete == {True}
    assert table.values() == recomputed(spark, fleet)


@pytest.mark.slow
def test_a_running_query_closes_a_window_by_a_mark_alone(spark: SparkSession, fleet: Fleet) -> None:
    """An idle edge says how far it is, and no record comes with it: Spark's engine would not begin a batch for that."""
    table, written = Table(), threading.Event()
    table.fail = written.set
    fleet.hours(0, 1)
    fleet.deliver(*(fleet.records(edge, PER_HOUR + 3) for edge in EDGES), hour=1.5)
    query = windows(spark, fleet, table, None, trigger="100ms")
    try:
        assert written.wait(WAIT_S)
        written.clear()
        fleet.deliver(*(fleet.records(edge, PER_HOUR + 3) for edge in EDGES), hour=2)
        assert written.wait(WAIT_S), query.exception()
        assert query.isActive
    finally:
        query.stop()
    assert not query.isActive
    assert query.awaitTermination()
    assert query.exception() is None
    assert table.values() == recomputed(spark, fleet)
    assert {row.records for row in table.rows.values()} == {9, 6, 3}


@pytest.mark.slow
def test_few_records_over_many_windows_take_few_commits(
    spark: SparkSession, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record each ten minutes, in windows of a second."""
    monkeypatch.setattr(window_query, "WINDOWS_MAX", 5)
    monkeypatch.setattr(window_query, "READS_MAX", 1)
    table = Table()

    def look() -> int:
        before = len(table.writes)
        windows(spark, fleet, table, tmp_path, every="1s", complete={"grace": "10d"}).awaitTermination()
        return len(table.writes) - before

    fleet.hours(0, 1)
    fleet.hours(1, 3, ["press-1", "press-2"])
    assert look() == 2, "the six windows of the first hour"
    fleet.deliver(fleet.records("paint-1", 3 * PER_HOUR), hour=3)
    assert look() == 3, "the twelve of the others"
    assert [row.records for row in table.rows.values()] == [len(EDGES)] * 3 * PER_HOUR
    assert table.complete == {True}


@pytest.mark.slow
def test_sql_and_functions_make_windows_of_selected_edges(spark: SparkSession, fleet: Fleet) -> None:
    fleet.hours(0, 2)
    fleet.hours(2, 3, ["press-1"])
    sql = "SELECT window_start, window_end, machine, count(*) AS records FROM {rows} GROUP BY ALL"
    made: list[Table] = [Table(), Table()]
    windows(spark, fleet, made[0], None, aggregate=sql, edges=["press-1"]).awaitTermination()
    windows(
        spark,
        fleet,
        made[1],
        None,
        prepare=lambda rows: rows.where("_edge = 'press-1'"),
        aggregate=lambda rows: rows.groupBy("window_start", "window_end", "machine").agg(F.count("*").alias("records")),
        complete={"edges": ["press-1"]},
    ).awaitTermination()
    assert made[0].rows == made[1].rows
    assert len(made[0].rows) == 6
    assert made[0].complete == {True}


@pytest.mark.slow
def test_typed_columns_are_there_to_aggregate(spark: SparkSession, fleet: Fleet) -> None:
    fleet.hours(0, 1)
    table = Table()
    typed = {
        "schema": "missing float",
        "aggregate": {"records": "count(*)", "wrong": "count(_misfit)", "n": "avg(missing)"},
    }
    windows(spark, fleet, table, None, **typed).awaitTermination()
    assert {(row.records, row.wrong, row.n) for row in table.rows.values()} == {(9, 9, None)}


@pytest.mark.slow
def test_windows_carry_the_records_that_they_are_made_of(spark: SparkSession, fleet: Fleet) -> None:
    fleet.hours(0, 2)
    table = Table()
    windows(spark, fleet, table, None).awaitTermination()
    row = table.rows[in_local(MIDNIGHT // SECOND + 3600), "m0"]
    assert [(each.edge, each["first"], each["last"], each["count"]) for each in row["_from"]] == [
        (edge, 6, 10, 3) for edge in sorted(EDGES)
    ]


@pytest.mark.slow
def test_an_edge_that_is_back_after_it_was_given_up_opens_its_windows_again(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    table = Table()

    def look() -> set[int]:
        windows(spark, fleet, table, tmp_path, complete={"retired_after": "8h"}).awaitTermination()
        first = in_local(MIDNIGHT // SECOND)
        return {(start - first).seconds // 3600 for (start, _), row in table.rows.items() if not row._complete}

    fleet.hours(0, 2)
    fleet.hours(2, 11, ["press-1", "press-2"])
    assert look() == set(range(2, 10)), "paint-1 is not waited for, and what it took in until then is unknown"
    fleet.deliver(fleet.records("paint-1", 5 * PER_HOUR, Mark(MIDNIGHT + 3 * HOUR, 3 * PER_HOUR)), hour=11)
    assert look() == set(range(3, 10)), "it has delivered five hours, and said that three are whole"
    fleet.deliver(fleet.records("paint-1", 11 * PER_HOUR), hour=11)
    assert look() == set()
    assert table.values() == recomputed(spark, fleet)


def hours_table(folder: Path) -> list[tuple[Any, ...]]:
    found = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    return sorted((int(row["window_start"].timestamp() - MIDNIGHT // SECOND) // 3600, row["machine"]) for row in found)


def delta(folder: Path, **options: Any) -> DeltaSink:
    return DeltaSink(folder, keys=["window_start", "machine"], order_by="_log_end", **options)


@pytest.mark.slow
def test_a_window_that_is_given_out_again_has_no_row_of_groups_that_it_lost(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    """The edges change what they call a machine while one of them is offline: its return heals the late windows."""
    table = tmp_path / "hours"

    def look() -> None:
        windows(spark, fleet, delta(table), tmp_path / "state").awaitTermination()

    fleet.hours(0, 1)
    fleet.hours(1, 3, ["press-1", "press-2"])
    look()
    before = [(hour, machine) for hour in (0, 1) for machine in ("m0", "m1")]
    assert hours_table(table) == before, "the grace of the last hour is not over"
    fleet.topic = "plant/{machine}/{line}/telemetry"
    fleet.hours(3, 4)
    look()
    expected = [*before[:2], (1, "a"), (2, "a"), (3, "a")]
    assert hours_table(table) == expected, "hour 0 is as it was until its records change"
    whole = tmp_path / "whole"
    windows(spark, fleet, delta(whole), None).awaitTermination()
    assert hours_table(whole) == [(0, "a"), *expected[2:]]


@pytest.mark.slow
def test_a_table_that_is_gone_beside_the_state_is_not_made_with_a_hole(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    table, away = tmp_path / "hours", tmp_path / "away"

    def look() -> None:
        windows(spark, fleet, delta(table), tmp_path / "state").awaitTermination()

    fleet.hours(0, 3)
    look()
    table.rename(away)
    look()  # Nothing is due, so nothing is written.
    fleet.hours(3, 5)
    with pytest.raises(SinkError, match=r"hours is gone, or was never there, .* Put the table back"):
        look()
    assert not table.exists()
    away.rename(table)
    look()
    assert {hour for hour, _ in hours_table(table)} == set(range(5))


@pytest.mark.slow
def test_windows_of_another_definition_are_refused_kept_or_computed_again(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    table, state = tmp_path / "hours", tmp_path / "state"

    def look(if_changed: Any = "refuse", **options: Any) -> None:
        checkpoint = Checkpoint(state, if_changed=if_changed)
        windows(spark, fleet, delta(table), checkpoint, **options).awaitTermination()

    fleet.hours(0, 2)
    look()
    with pytest.raises(ReadError, match="if_changed: expected refuse, recompute, keep; got 'continue'"):
        look("continue")
    by_edge: dict[str, Any] = {"edges": ["press-1"], "prepare": odd_hours}
    with pytest.raises(ReadError, match=r"edges and prepare changed .* if_changed='recompute'"):
        look(**by_edge)
    look("keep", **by_edge)
    fleet.hours(2, 3)
    look(**by_edge)
    assert [hour for hour, _ in hours_table(table)] == [0, 0, 1, 1], "hour 2 is even"
    look("recompute")
    assert [hour for hour, _ in hours_table(table)] == [0, 0, 1, 1, 2, 2]
    look("recompute", **by_edge)
    assert [hour for hour, _ in hours_table(table)] == [1, 1]


def odd_hours(rows: DataFrame) -> DataFrame:
    return rows.where("hour(window_start) % 2 = 1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"every": "500ms"}, "every: expected a duration of 1s or more"),
        ({"every": "1 hour"}, "every: expected a duration such as"),
        ({"by": ["line", "nothing"]}, "by: the result has no column nothing"),
        ({"aggregate": "SELECT machine, count(*) FROM {rows} GROUP BY ALL"}, "no column window_start, window_end"),
        ({"aggregate": lambda rows: None}, "returned NoneType"),
        ({"complete": {"grace": "10m", "edge": "all"}}, "complete: no such setting edge"),
        ({"complete": {"grace": "a while"}}, "grace: expected a duration"),
        ({"trigger": "now"}, "trigger: expected a duration"),
        ({"checkpoint": "ftp://bucket/x"}, "checkpoint: 'ftp://bucket/x' is not a store"),
    ],
)
def test_mistakes(spark: SparkSession, fleet: Fleet, options: dict[str, Any], problem: str) -> None:
    fleet.hours(0, 1)
    with pytest.raises(ReadError, match=problem):
        windows(spark, fleet, Table(), options.pop("checkpoint", None), **options).awaitTermination()


def before(rows: DataFrame) -> DataFrame:
    return rows.withColumn("n", F.lag("_seq").over(Window.partitionBy("machine").orderBy("_time")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prepare": lambda rows: rows.alias("a").join(rows, "machine").select("a.*")}, "prepare: joins rows"),
        ({"prepare": lambda rows: rows.withColumn("window_start", F.date_trunc("day", "_time"))}, "a window_start"),
        ({"prepare": lambda rows: rows.where("_seq > (SELECT 1)").limit(3)}, "prepare: takes a number of rows"),
        ({"prepare": lambda rows: rows.where(F.col("_seq") < rows.count())}, "prepare: it asks for rows"),
        ({"prepare": lambda rows: rows.where(F.rand() < 0.5)}, "prepare: uses `rand`"),
        ({"prepare": before}, "prepare: looks at other rows"),
        ({"aggregate": {"n": "count_if(_time < now())"}}, "aggregate: uses `now`"),
        (
            {"aggregate": lambda rows: before(rows).groupBy("window_start", "window_end", "machine").sum("n")},
            "aggregate: looks at other rows",
        ),
    ],
)
def test_rows_and_windows_that_depend_on_what_is_read_are_refused(
    spark: SparkSession, fleet: Fleet, options: dict[str, Any], said: str
) -> None:
    fleet.hours(0, 1)
    table = Table()
    with pytest.raises(ReadError, match=re.escape(said)):
        windows(spark, fleet, table, None, **options).awaitTermination()
    assert not table.writes


@pytest.mark.slow
def test_what_looks_at_its_own_window_alone_is_no_other_row(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    """Rows without a window of their own get it by their time; a function may rank and join within a window."""

    def aggregate(rows: DataFrame) -> DataFrame:
        within = Window.partitionBy("window_start", "machine").orderBy("_time")
        steps = rows.withColumn("step", F.col("_seq") - F.lag("_seq").over(within))
        made = steps.groupBy("window_start", "window_end", "machine").agg(F.count("*").alias("records"), F.max("step"))
        most = rows.groupBy("window_start").agg(F.max("_seq").alias("mean"), F.lit(1).alias("edges"))
        return made.join(most, "window_start")

    def prepare(rows: DataFrame) -> DataFrame:
        return rows.select("_time", "_seq", "machine")

    many, one = Table(), Table()
    for hour, edges in enumerate((EDGES, EDGES[:2], EDGES)):
        fleet.hours(hour, hour + 1, edges)
        windows(spark, fleet, many, tmp_path, aggregate=aggregate, prepare=prepare).awaitTermination()
    windows(spark, fleet, one, None, aggregate=aggregate, prepare=prepare).awaitTermination()
    assert many.values() == one.values()
    assert many.complete == {True}


@pytest.mark.slow
def test_two_queries_with_one_state_are_told_apart(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    fleet.hours(0, 1)
    late = StateFile(str(tmp_path))
    assert late.load() is None
    windows(spark, fleet, Table(), tmp_path).awaitTermination()
    with pytest.raises(ReadError, match="another query has written"):
        late.save("{}")
    with pytest.raises(ReadError, match="windows of 3600 s, and this query makes windows of 60 s"):
        windows(spark, fleet, Table(), tmp_path, every="1m").awaitTermination()
