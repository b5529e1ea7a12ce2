"""The lineage column: which records went into a row."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_sinks import ReadError, read
from spark_sinks.lineage import FROM_TYPE, merged, of_record, trace
from tests.spark_sinks.conftest import Hub

pytestmark = pytest.mark.spark

ROWS = "machine string, _edge string, _log string, _seq bigint"
Range = tuple[str, str, int, int, int]


def ranges(value: object) -> list[Range]:
    return [tuple(each) for each in value]  # type: ignore[attr-defined]


def test_a_row_of_the_source_names_its_record(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("m1", "press-1", "a1", 7)], ROWS).select(of_record().alias("_from"))
    assert frame.schema["_from"].dataType.simpleString() == FROM_TYPE
    assert ranges(frame.first()["_from"]) == [("press-1", "a1", 7, 7, 1)]


@pytest.mark.slow
@pytest.mark.java
def test_a_group_names_one_range_for_each_lane(spark: SparkSession) -> None:
    shuffled = random.Random(5)
    rows = [
        (f"m{shuffled.randrange(3)}", f"press-{shuffled.randrange(2)}", f"{shuffled.randrange(2):x}", seq)
        for seq in range(2000)
    ]
    shuffled.shuffle(rows)
    frame = spark.createDataFrame(rows, ROWS).repartition(2)
    found = frame.select("machine", of_record().alias("_from")).groupBy("machine").agg(merged("_from").alias("_from"))
    assert found.schema["_from"].dataType.simpleString() == FROM_TYPE
    assert {row["machine"]: ranges(row["_from"]) for row in found.collect()} == expected(rows)
    # Rows of groups again: the hours of a day.
    day = found.agg(merged().alias("_from")).first()
    assert ranges(day["_from"]) == expected([("", *row[1:]) for row in rows])[""]


def expected(rows: list[tuple[str, str, str, int]]) -> dict[str, list[Range]]:
    numbers: dict[str, dict[tuple[str, str], list[int]]] = defaultdict(lambda: defaultdict(list))
    for machine, edge, log, seq in rows:
        numbers[machine][edge, log].append(seq)
    return {
        machine: [(*lane, min(used), max(used), len(used)) for lane, used in sorted(lanes.items())]
        for machine, lanes in numbers.items()
    }


def test_rows_without_lineage_count_for_nothing(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("m1", None), ("m2", []), ("m1", [("e", "1", 3, 9, 2)])], f"m string, f {FROM_TYPE}")
    found = {row["m"]: ranges(row["f"]) for row in frame.groupBy("m").agg(merged("f").alias("f")).collect()}
    assert found == {"m1": [("e", "1", 3, 9, 2)], "m2": []}
    assert ranges(frame.where("m = 'm3'").agg(merged("f").alias("f")).first()["f"]) == []


@pytest.mark.slow
@pytest.mark.java
def test_a_streaming_aggregate_carries_it(spark: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "in")
    for first in (0, 50):
        rows = [("m1", "press-1", "1", seq) for seq in range(first, first + 50)]
        spark.createDataFrame(rows, ROWS).coalesce(1).write.mode("append").parquet(source)
    batches: list[list[Range]] = []

    def keep(frame: DataFrame, _: int) -> None:
        batches.extend(ranges(row["_from"]) for row in frame.collect())

    stream = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).parquet(source)
    totals = stream.groupBy("machine").agg(F.count("*").alias("n"), merged(of_record()).alias("_from"))
    query = totals.writeStream.outputMode("update").foreachBatch(keep)
    query = query.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(each[0][4] for each in batches) == [50, 100]
    assert [("press-1", "1", 0, 99, 100)] in batches


# --- From rows of a table back to the records of devices, for many rows at once


SECONDS = 3


def windows(frame: DataFrame) -> DataFrame:
    """Rows of a pipeline: machines of each line, in windows of a few seconds."""
    window = F.window("_time", f"{SECONDS} seconds")
    return (
        frame.groupBy("line", "machine", window.alias("window"))
        .agg(F.count("*").alias("n"), merged(of_record()).alias("_from"))
        .where("line = 'press'")
    )


@pytest.mark.slow
def test_each_window_gets_back_the_records_it_was_made_of(spark: SparkSession, hub: Hub) -> None:
    hub.write(6)
    hub.tier()
    hub.write(2)
    rows = windows(read(spark, "telemetry", store=hub.root))
    found = trace(spark, rows, "telemetry", store=hub.root, on=["line", "machine"])
    counts = found.groupBy("_row.machine", "_row.window", "_row.n").agg(
        F.count("*").alias("found"), F.countDistinct("_edge", "_seq").alias("distinct")
    )
    wrong = counts.where("n != found OR found != distinct").collect()
    assert wrong == []
    assert counts.count() == rows.count() > 4
    outside = found.where("_time < _row.window.start OR _time >= _row.window.end OR machine != _row.machine")
    assert outside.count() == 0
    assert bytes(found.where("_edge = 'press-1' AND _seq = 71").first()["payload"]) == b"press-1:71"


@pytest.mark.slow
def test_mistakes_are_explained(spark: SparkSession, hub: Hub) -> None:
    hub.write(1)
    rows = spark.createDataFrame([("m1",)], "machine string")
    with pytest.raises(ReadError, match="expected a column _from of type"):
        trace(spark, rows, "telemetry", store=hub.root)
    lineage = read(spark, "telemetry", store=hub.root).select("machine", of_record().alias("_from"))
    with pytest.raises(ReadError, match="on: rows has no column line; it has machine, _from"):
        trace(spark, lineage, "telemetry", store=hub.root, on=["line"])
    with pytest.raises(ReadError, match="on: the stream has no column n; it has"):
        trace(spark, lineage.withColumn("n", F.lit(1)), "telemetry", store=hub.root, on=["n"])
    assert trace(spark, lineage.where("machine = 'm7'"), "telemetry", store=hub.root).count() == 0
