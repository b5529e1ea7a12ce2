"""What another engine, a lost answer or odd values do to a table: no row doubled, lost or left out in silence."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_sinks.errors import SinkError
from spark_sinks.sinks.delta import DeltaSink
from spark_sinks.sinks.delta import sink as sink_module
from spark_sinks.sinks.delta.table import TableReading, guarded, last_of_each, later, match, place_of
from tests.spark_sinks.conftest import STREAM, Hub
from tests.spark_sinks.sinks.delta.tables import rows
from weft.storage.table.actions import TableConflict


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "hours"


@pytest.mark.spark
@pytest.mark.slow
def test_a_commit_whose_answer_was_lost_loses_no_partition(
    spark: SparkSession, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store repeats a request whose answer was lost, and says that the version exists."""
    frame = spark.createDataFrame([("m1", 1), ("m2", 2)], "machine string, hour int")
    sink = DeltaSink(table, replace_partitions=True, partition_by="hour")
    sink(frame, 0)
    commit, lost = TableReading.commit, [True]

    def unanswered(self: TableReading, *given: Any) -> int:
        version = commit(self, *given)
        if lost:
            lost.pop()
            raise TableConflict("the version exists")
        return version

    monkeypatch.setattr(TableReading, "commit", unanswered)
    sink(frame.withColumn("machine", F.lit("new")), 1)
    assert not lost
    assert rows(table, "machine", "hour") == [("new", 1), ("new", 2)]


@pytest.mark.spark
@pytest.mark.slow
def test_an_empty_text_and_null_are_one_partition_and_one_key(spark: SparkSession, table: Path) -> None:
    """Delta cannot tell them apart in a column of partitions, so no key may rest on the difference."""
    sink = DeltaSink(table, keys="machine", order_by="n", partition_by="machine")
    schema = "machine string, n int"
    sink(spark.createDataFrame([("", 1), (None, 0), ("m1", 1)], schema), 0)
    sink(spark.createDataFrame([("", 2), ("m1", 2)], schema), 1)
    assert rows(table, "machine", "n") == sorted([(None, 2), ("m1", 2)], key=repr)


@pytest.mark.spark
@pytest.mark.slow
def test_keys_are_found_in_files_that_another_engine_wrote(spark: SparkSession, table: Path) -> None:
    """Bounds of times are cut to milliseconds, those of long texts to their beginning."""
    sink = DeltaSink(table, keys="at, machine", order_by="n")
    long = "m" * 300
    frame = spark.sql(
        "SELECT timestamp'2026-11-01 12:00:00.123456' AS at, repeat('m', 300) AS machine, id AS n FROM range(1)"
    )
    sink(frame, 0)
    sink(frame.withColumn("machine", F.lit("a")), 1)
    DeltaTable(str(table)).optimize.compact()
    sink(frame.withColumn("n", F.lit(5).cast("long")), 2)
    assert rows(table, "machine", "n") == [("a", 0), (long, 5)]


@pytest.mark.spark
@pytest.mark.slow
def test_times_that_no_calendar_has_end_no_query(spark: SparkSession, table: Path) -> None:
    """.NET's first and last moments, and what a faulty stamp in seconds is when it is read as milliseconds."""
    stamps = [-62_135_596_800_000_000, 253_402_300_799_999_999, -(1 << 60), 1 << 60, 0, -1, None]
    frame = spark.createDataFrame([(each, 0) for each in stamps], "us long, n long").repartition(1)
    frame = frame.select(
        F.timestamp_micros("us").alias("at"),
        F.expr("date_from_unix_date(CAST(us / 86400000000 AS INT))").alias("day"),
        "n",
    )
    sink = DeltaSink(table, keys="at", order_by="n")
    sink(frame, 0)
    for again in range(1, 3):
        sink(frame.withColumn("n", F.lit(again).cast("long")), again)
    found = spark.read.parquet(*DeltaTable(str(table)).file_uris())
    assert sorted(row[0] or 0 for row in found.select(F.unix_micros("at")).collect()) == sorted(
        each or 0 for each in stamps
    )
    assert {row["n"] for row in found.select("n").collect()} == {2}
    by_bounds = polars.scan_delta(str(table)).filter(polars.col("at") < datetime(2000, 1, 1, tzinfo=UTC))
    assert by_bounds.select(polars.len()).collect().item() == 4


@pytest.mark.spark
def test_a_disk_that_fails_is_told_with_its_reason(tmp_path: Path) -> None:
    """deltalake tells the reason, such as a full disk, in a tree of causes behind the first line."""
    (tmp_path / "hours").write_text("a file where the table is to be")
    place = place_of(tmp_path / "hours", {})
    with pytest.raises(SinkError, match=r"Not a directory \(os error 20\)\. See to its disk or object") as raised:
        guarded(lambda: DeltaTable.is_deltatable(place.uri), place)
    assert "\x1b" not in str(raised.value)


@pytest.mark.spark
@pytest.mark.slow
def test_nan_is_the_highest_value_however_batches_are_cut(spark: SparkSession, table: Path) -> None:
    sink = DeltaSink(table, keys="machine", order_by="n")
    nan = spark.createDataFrame([("m1", float("nan"))], "machine string, n double")
    five = spark.createDataFrame([("m1", 5.0)], "machine string, n double")
    sink(nan, 0)
    sink(five, 1)
    assert repr(rows(table, "n")) == "[(nan,)]"
    sink(five.withColumn("machine", F.lit("m2")), 2)
    sink(nan.withColumn("machine", F.lit("m2")), 3)
    sink(nan.union(five).withColumn("machine", F.lit("m3")), 4)
    assert repr(rows(table, "n")) == "[(nan,), (nan,), (nan,)]"
    with pytest.raises(SinkError, match="order_by: n is a array<int>"):
        sink(five.withColumn("n", F.array(F.lit(1))), 5)


@pytest.mark.spark
def test_rows_without_a_true_place_are_refused(spark: SparkSession, hub: Hub, table: Path) -> None:
    hub.write(1)
    frame = hub.load(spark)
    sink = DeltaSink(table, store=hub.root, stream=STREAM)
    with pytest.raises(PythonException, match="_offset -1"):
        sink(frame.withColumn("_offset", F.lit(-1).cast("long")), 0)
    with pytest.raises(SinkError, match="shard 7, and the hub's store has"):
        sink(frame.withColumn("_shard", F.lit(7)), 0)
    assert rows(table, "_seq") == []


@pytest.mark.spark
@pytest.mark.slow
def test_rows_that_come_behind_are_told_and_not_left_out(spark: SparkSession, hub: Hub, table: Path) -> None:
    """A stateful step gives out a row late, under the offset of a record of an earlier micro-batch."""
    hub.write(2)
    frame = hub.load(spark)
    sink = DeltaSink(table, store=hub.root, stream=STREAM)
    sink(frame.where("_offset < 10"), 0)
    with pytest.raises(PythonException, match="comes after rows of an earlier micro-batch"):
        sink(frame.where("_offset >= 9"), 1)
    sink(frame.where("_offset >= 10"), 1)
    sink(frame, 0)
    assert sorted(rows(table, "_edge", "_seq", "payload")) == hub.expected()


@pytest.mark.spark
def test_a_table_that_forgets_transactions_is_refused(spark: SparkSession, hub: Hub, table: Path) -> None:
    hub.write(1)
    sink = DeltaSink(table, store=hub.root, stream=STREAM)
    sink(hub.load(spark), 0)
    DeltaTable(str(table)).alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 7 days"}, raise_if_not_exists=False
    )
    with pytest.raises(SinkError, match=r"forgets transactions after a while \(delta\.setTransactionRetention"):
        sink(hub.load(spark), 1)


@pytest.mark.spark
def test_rows_that_the_driver_cannot_hold_stop_in_the_task(
    spark: SparkSession, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "UPSERT_BYTES_MAX", 1 << 20)
    frame = spark.range(40_000).selectExpr("id AS n", "repeat('x', 100) AS text")
    sink = DeltaSink(table, keys="n", order_by="n")
    with pytest.raises(PythonException, match="lower max_records_per_trigger"):
        sink(frame, 0)


# --- Equality of rows by keys, with nulls and several types


ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, "", "a", "b"]),
        st.sampled_from([None, -1, 0, 2**40]),
        st.one_of(st.none(), st.integers(0, 3)),
    ),
    max_size=30,
)


def keys_table(rows: list[tuple[Any, ...]], chunks: int = 1) -> pa.Table:
    schema = pa.schema([("m", pa.string()), ("w", pa.int64()), ("n", pa.int32())])
    parts = [rows[at::chunks] for at in range(chunks)]
    batches = [
        pa.RecordBatch.from_pylist([dict(zip("mwn", row, strict=True)) for row in part], schema) for part in parts
    ]
    return pa.Table.from_batches(batches, schema)


def order(row: tuple[Any, ...]) -> tuple[bool, Any]:
    return row[2] is not None, row[2]


@given(ROWS)
def test_the_last_row_of_each_key_is_kept(rows: list[tuple[Any, ...]]) -> None:
    expected: dict[tuple[Any, Any], tuple[Any, ...]] = {}
    for row in rows:
        if row[:2] not in expected or order(row) >= order(expected[row[:2]]):
            expected[row[:2]] = row
    found = last_of_each(keys_table(rows), ["m", "w"], ["n"])
    assert sorted(map(tuple, (row.values() for row in found.to_pylist())), key=repr) == sorted(
        expected.values(), key=repr
    )


@given(ROWS, ROWS)
def test_rows_find_the_row_with_their_key(found: list[tuple[Any, ...]], rows: list[tuple[Any, ...]]) -> None:
    wanted = last_of_each(keys_table(rows), ["m", "w"], [])
    keys = [(row["m"], row["w"]) for row in wanted.to_pylist()]
    at = match(keys_table(found), wanted, ["m", "w"]).tolist()
    assert at == [keys.index(row[:2]) if row[:2] in keys else -1 for row in found]


@given(ROWS)
def test_later_is_lexicographic_with_nulls_lowest(rows: list[tuple[Any, ...]]) -> None:
    def place(row: tuple[Any, ...]) -> list[tuple[bool, Any]]:
        return [(value is not None, value) for value in row[1:]]

    other = rows[::-1]
    found = later(keys_table(rows), keys_table(other), ["w", "n"]).tolist()
    assert found == [
        tuple((known, value if known else 0) for known, value in place(a))
        > tuple((known, value if known else 0) for known, value in place(b))
        for a, b in zip(rows, other, strict=True)
    ]
