"""From rows of a table back to the records of devices, for many rows at once."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_sinks import ReadError, read
from spark_sinks.lineage import merged, of_record, trace
from tests.spark_sinks.conftest import Hub

pytestmark = pytest.mark.spark

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
