"""Rows that replace those with the same keys, and whole partitions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_sinks.errors import SinkError
from spark_sinks.replaced import Replaced
from spark_sinks.sinks.delta import DeltaSink, merge
from tests.spark_sinks.conftest import STREAM, Hub
from tests.spark_sinks.sinks.delta.tables import files, rows

pytestmark = pytest.mark.spark
SCHEMA = "machine string, hour int, mean double, n long"


def hours(spark: SparkSession, *values: tuple[Any, ...], schema: str = SCHEMA) -> DataFrame:
    return spark.createDataFrame(list(values), schema).coalesce(1)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "hours"


def test_an_older_row_never_replaces_a_newer_one(spark: SparkSession, table: Path) -> None:
    sink = DeltaSink(table, keys="machine, hour", order_by="n")
    sink(hours(spark, ("m1", 1, 1.0, 10), ("m2", 1, 2.0, 10), (None, 1, 0.5, 1), ("m1", 1, 1.1, 11)), 0)
    sink(hours(spark, ("m1", 1, 1.5, 20), ("m1", 2, 3.0, 1), (None, 1, 0.6, 2)), 1)
    expected = [(None, 1, 0.6), ("m1", 1, 1.5), ("m1", 2, 3.0), ("m2", 1, 2.0)]
    assert rows(table, "machine", "hour", "mean") == sorted(expected, key=repr)
    # A query that lost its checkpoint begins again with what it said first.
    sink(hours(spark, ("m1", 1, 1.0, 10), ("m2", 1, 2.0, 10), (None, 1, 0.5, 1)), 0)
    assert rows(table, "machine", "hour", "mean") == sorted(expected, key=repr)


def test_large_files_are_rewritten_by_tasks_and_only_where_keys_can_be(
    spark: SparkSession, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "SMALL_FILE_BYTES", 0)
    sink = DeltaSink(table, keys=["machine", "hour"], order_by="n", partition_by="machine")
    sink(hours(spark, *[("m1", hour, 1.0, 1) for hour in range(5)], ("m 2/ü", 0, 1.0, 1)), 0)
    sink(hours(spark, *[("m1", hour, 1.0, 1) for hour in range(5, 9)]), 1)
    untouched = set(files(table))
    sink(hours(spark, ("m1", 6, 2.0, 2), ("m1", 9, 2.0, 1), ("m1", 7, 9.0, 0)), 2)
    assert len(untouched & set(files(table))) == 2, "the other machine and the earlier hours stay as they are"
    found = rows(table, "machine", "hour", "mean")
    expected = [("m1", hour, 2.0 if hour in {6, 9} else 1.0) for hour in range(10)] + [("m 2/ü", 0, 1.0)]
    assert found == sorted(expected, key=repr)


@pytest.mark.slow
def test_rows_of_the_log_replace_by_position(spark: SparkSession, hub: Hub, table: Path) -> None:
    """The last record of each key; the records of an edge node stay in one shard."""
    sink = DeltaSink(table, store=hub.root, stream=STREAM, keys="_edge, _key")
    hub.write(2)
    early = hub.load(spark)
    sink(early, 0)
    hub.write(1)
    sink(hub.load(spark), 0)
    found = hub.load(spark).groupBy("_edge", "_key").max("_seq").collect()
    newest = sorted(map(tuple, found), key=repr)
    assert rows(table, "_edge", "_key", "_seq") == newest
    version = DeltaTable(str(table)).version()
    sink(early, 0)
    assert (DeltaTable(str(table)).version(), rows(table, "_edge", "_key", "_seq")) == (version, newest)


@pytest.mark.slow
def test_small_files_are_joined_on_the_way(spark: SparkSession, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "SMALL_FILES_MAX", 3)
    sink = DeltaSink(table, keys="machine, hour", order_by="n")
    for hour in range(5):
        sink(hours(spark, ("m1", hour, 1.0, 1)), hour)
    assert rows(table, "hour") == [(hour,) for hour in range(5)]
    assert len(files(table)) < 4


def test_a_batch_replaces_the_partitions_that_it_names(spark: SparkSession, table: Path) -> None:
    sink = DeltaSink(table, replace_partitions=True, partition_by="hour")
    sink(hours(spark, ("m1", 1, 1.0, 1), ("m2", 1, 1.0, 1), ("m1", 2, 1.0, 1), ("m1", None, 1.0, 1)), 0)
    for _ in range(2):
        sink(hours(spark, ("m3", 1, 2.0, 1), ("m4", None, 1.0, 1)), 1)
        expected = [("m1", 2), ("m3", 1), ("m4", None)]
        assert rows(table, "machine", "hour") == sorted(expected, key=repr)


def test_tables_are_widened_and_refuse_other_types(spark: SparkSession, table: Path) -> None:
    sink = DeltaSink(table, keys="machine", order_by="n")
    sink(hours(spark, ("m1", 1, 1.0, 1)), 0)
    wide = (
        hours(spark, ("m2", 2, 1.0, 1)).withColumn("unit", F.lit("C")).withColumn("hour", F.col("hour").cast("short"))
    )
    sink(wide.drop("mean"), 1)
    assert rows(table, "machine", "hour", "mean", "unit") == [("m1", 1, 1.0, None), ("m2", 2, None, "C")]
    version = DeltaTable(str(table)).version()
    for frame, sentence in (
        (wide.withColumn("unit", F.lit(1)), "column unit is int in the rows and string in the table: cast it"),
        (wide.withColumn("hour", F.lit(1).cast("long")), "column hour is bigint in the rows and int in the table"),
        (wide.withColumnRenamed("unit", "Unit"), "the table has it as unit; rename"),
        (wide.withColumn("a b", F.lit(1)), "column 'a b'.*rename it"),
        (wide.withColumn("nothing", F.lit(None)), "column nothing: it is null without a type; cast it"),
        (wide.drop("machine"), "keys: the rows have no column machine; they have hour, mean, n, unit"),
    ):
        with pytest.raises(SinkError, match=sentence):
            sink(frame, 2)
    assert DeltaTable(str(table)).version() == version
    with pytest.raises(SinkError, match="partitioned by nothing, not by hour; give partition_by as the table has it"):
        DeltaSink(table, keys="machine", order_by="n", partition_by="hour")(wide, 3)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "store and stream: missing"),
        ({"store": "/hub"}, "store and stream go together"),
        ({"store": "/hub", "stream": "Tele metry"}, "stream: expected lower-case letters"),
        ({"keys": []}, "keys: expected one column or more"),
        ({"keys": "a", "replace_partitions": True}, "exclude each other"),
        ({"replace_partitions": True}, "name the columns of the partitions"),
        ({"order_by": "a"}, "only rows with keys have an order"),
        ({"keys": "a, a", "order_by": "b"}, "keys: expected names of columns, each once; got 'a, a'"),
        ({"keys": "a", "order_by": "b", "name": "Ä"}, "name: expected lower-case letters"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SinkError, match=sentence):
        DeltaSink("/lake/table", **settings)


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("hdfs://lake/table", r"expected a path, file:///path, s3://bucket/prefix"),
        ("s3://bucket", "it names a bucket alone; add a folder"),
        ("/lake/my table", "choose another name for the folder"),
    ],
)
def test_places_that_hold_no_table_are_refused(uri: str, sentence: str) -> None:
    with pytest.raises(SinkError, match=sentence):
        DeltaSink(uri, keys="a", order_by="b")


HOUR_US = 3_600_000_000
WINDOW = "window_start timestamp, machine string, mean double, _log_end long"


def windows(spark: SparkSession, *values: tuple[int, str | None, float, int]) -> DataFrame:
    found = [(datetime.fromtimestamp(3600 * hour, UTC), *rest) for hour, *rest in values]
    return spark.createDataFrame(found, WINDOW).coalesce(1)


def given_out(table: Path) -> list[tuple[Any, ...]]:
    found = rows(table, "window_start", "machine", "mean")
    return sorted(((start.timestamp() // 3600, machine, mean) for start, machine, mean in found), key=repr)


def hours_of(*ranges: tuple[int, int], log_end: int) -> Replaced:
    within = tuple((first * HOUR_US, end * HOUR_US) for first, end in ranges)
    return Replaced("window_start", within, "_log_end", log_end)


@pytest.mark.parametrize(
    "small_bytes", [merge.SMALL_FILE_BYTES, pytest.param(0, marks=pytest.mark.slow)], ids=["by the driver", "by tasks"]
)
def test_ranges_are_replaced_whole_but_for_newer_rows(
    spark: SparkSession, table: Path, small_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "SMALL_FILE_BYTES", small_bytes)
    sink = DeltaSink(table, keys=["window_start", "machine"])
    sink(windows(spark, (1, "m1", 1.0, 10), (2, "m1", 1.0, 10), (2, None, 1.0, 10), (3, "m1", 1.0, 10)), 0)
    sink(windows(spark, (7, "m1", 1.0, 10), (8, "m2", 1.0, 10)), 1)
    sink(windows(spark, (2, "newer", 1.0, 30)), 2)
    untouched = set(files(table))
    sink.replace(windows(spark, (2, "m2", 2.0, 20), (2, "newer", 2.0, 20)), 3, hours_of((2, 3), log_end=20))
    expected = [(1, "m1", 1.0), (2, "m2", 2.0), (2, "newer", 1.0), (3, "m1", 1.0), (7, "m1", 1.0), (8, "m2", 1.0)]
    assert given_out(table) == sorted(expected, key=repr)
    assert untouched & set(files(table)), "files of other windows stay as they are"
    version = DeltaTable(str(table)).version()
    sink.replace(windows(spark), 4, hours_of((0, 2), (3, 4), (8, 9), log_end=21))
    assert given_out(table) == sorted(expected[1:3] + expected[4:5], key=repr)
    assert DeltaTable(str(table)).version() == version + 1, "rows and removals are one version"
    sink.replace(windows(spark), 4, hours_of((0, 2), (3, 4), (8, 9), log_end=21))
    assert DeltaTable(str(table)).version() == version + 1, "repeated, it changes nothing"


def test_sinks_that_would_replace_more_than_ranges_refuse(spark: SparkSession, table: Path) -> None:
    frame = windows(spark, (1, "m1", 1.0, 10))
    whole = DeltaSink(table, replace_partitions=True, partition_by="machine")
    with pytest.raises(SinkError, match="it must be among the keys"):
        whole.replace(frame, 0, hours_of((1, 2), log_end=1))
    with pytest.raises(SinkError, match="the rows have no column _log_end"):
        sink_of_windows(table).replace(frame.drop("_log_end"), 0, hours_of((1, 2), log_end=1))
    with pytest.raises(SinkError, match="order_by: expected _log_end, or nothing; got mean"):
        sink_of_windows(table, order_by="mean").replace(frame, 0, hours_of((1, 2), log_end=1))
    sink_of_windows(table, order_by="_log_end").replace(frame, 0, hours_of((1, 2), log_end=1))


def sink_of_windows(table: Path, order_by: str | None = None) -> DeltaSink:
    return DeltaSink(table, keys=["window_start", "machine"], order_by=order_by)
