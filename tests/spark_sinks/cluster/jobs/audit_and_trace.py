"""Audits a stream, and traces windows of it back to its records."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_sinks import read
from spark_sinks.audit import audit
from spark_sinks.lineage import merged, of_record, trace
from tests.spark_sinks.cluster.jobs.start import run


def main(spark: SparkSession, reported: Any) -> Any:
    store, stream = reported["store"], reported["stream"]
    report = audit(spark, stream, store=store)
    rows = (
        read(spark, stream, store=store)
        .groupBy("line", "machine", F.window("_time", "3 seconds").alias("window"))
        .agg(F.count("*").alias("n"), merged(of_record()).alias("_from"))
    )
    found = trace(spark, rows, stream, store=store, on=["line", "machine"])
    return {
        "agrees": report.agrees,
        "records": report.total("records"),
        "waiting": report.total("waiting"),
        "traced": found.count(),
        "distinct": found.select("_edge", "_log", "_seq").distinct().count(),
    }


if __name__ == "__main__":
    run(main)
