"""Complete windows: equal to the batch query over everything, whatever came late and whatever was killed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from spark_sinks import complete_windows, read
from spark_sinks.completeness.window_query import WindowQuery
from tests.spark_sinks.completeness.conftest import EDGES, MIDNIGHT, PER_HOUR, SECOND, STREAM, Fleet

VALUE = "CAST(CAST(payload AS STRING) AS BIGINT)"
AGGREGATE = {"records": "count(*)", "mean": f"avg({VALUE})", "edges": "sort_array(collect_set(_edge))"}
OUTAGE = range(5, 53)
"""Hours in which paint-1 is offline: two days."""
OUTAGE_END = MIDNIGHT // SECOND + OUTAGE.stop * 3600
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


def windows(spark: SparkSession, fleet: Fleet, sink: Any, checkpoint: Path | None, **options: Any) -> WindowQuery:
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
    spark_own(spark, fleet, tmp_path / "own")
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

    # The same input through Spark's own watermark: it had gone on without paint-1, and drops what comes behind it. Only
    # the last hour of the outage was still open.
    own = spark_own(spark, fleet, tmp_path / "own").where(F.col("window.end") <= F.timestamp_seconds(F.lit(OUTAGE_END)))
    expected = OUTAGE.stop * PER_HOUR * len(EDGES)
    assert sum(row.records for row in table.rows.values() if row.window_start < in_local(OUTAGE_END)) == expected
    assert expected - own.agg(F.sum("count")).first()[0] == (len(OUTAGE) - 1) * PER_HOUR
