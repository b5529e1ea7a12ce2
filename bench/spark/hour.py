"""One edge node and one hour of five days, beside the whole table: bytes and seconds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.spark.log import EDGES, START_S, STREAM, Log
from bench.spark.measure import in_turns, noop
from spark_sinks import read

VECTORED = "parquet.hadoop.vectored.io.enabled"


def figures(spark: SparkSession, log: Log, runs: int) -> dict[str, Any]:
    """Return bytes and seconds of both, and how many times less the hour takes."""
    since = datetime.fromtimestamp(START_S, UTC) + timedelta(hours=60)
    until = since + timedelta(hours=1)

    def hour() -> DataFrame:
        return read(spark, STREAM, store=log.root, edges=EDGES[:1], since=since, until=until)

    ways: dict[str, Callable[[], None]] = {
        "hour": lambda: noop(hour()),
        "all": lambda: noop(read(spark, STREAM, store=log.root)),
    }
    seconds = in_turns(ways, runs)
    size = {way: bytes_read(spark, work) for way, work in ways.items()}
    return {
        "rows": hour().count(),
        "seconds": seconds,
        "bytes": size,
        "bytes_ratio": round(size["all"] / size["hour"], 1),
        "seconds_ratio": round(seconds["all"] / seconds["hour"], 1),
    }


def bytes_read(spark: SparkSession, work: Callable[[], None]) -> int:
    """Return the bytes that Spark reads of files, footers and indexes included.

    Hadoop does not count vectored reads; without them the same pages are read one after the other.
    """
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set(VECTORED, "false")

    def so_far() -> int:
        found = spark._jvm.org.apache.hadoop.fs.FileSystem.getAllStatistics()
        return sum(found[at].getBytesRead() for at in range(found.size()) if found[at].getScheme() == "file")

    before = so_far()
    work()
    hadoop.unset(VECTORED)
    return so_far() - before
