"""Reads a stream in every way that there is, and says how often each record came."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession

from spark_sinks import read
from tests.spark_sinks.cluster.jobs.start import run


def main(spark: SparkSession, reported: Any) -> Any:
    store, stream = reported["store"], reported["stream"]
    batch = spark.read.format("weft").option("store", store).option("stream", stream).load()
    before = psutil.Process().io_counters().read_chars
    results: dict[str, Any] = {
        "source": summary(batch),
        "read": summary(read(spark, stream, store=store)),
        "streaming": streamed(spark, store, stream, reported["checkpoint"]),
        "bytes": batch.selectExpr("sum(length(payload))").first()[0],
    }
    results["driver_bytes"] = psutil.Process().io_counters().read_chars - before
    return results


def summary(frame: DataFrame) -> dict[str, int]:
    """Return the number of rows, of distinct records, and a checksum over names and payloads."""
    row = frame.selectExpr("count(*)", "count(DISTINCT _edge, _log, _seq)", "sum(crc32(payload) + _seq)").first()
    return dict(zip(("rows", "records", "checksum"), row, strict=True))


def streamed(spark: SparkSession, store: str, stream: str, checkpoint: str) -> dict[str, int]:
    """Read the stream in micro-batches and return the sum of their summaries."""
    total: Counter[str] = Counter()
    query = (
        spark.readStream.format("weft")
        .option("store", store)
        .option("stream", stream)
        .option("max_records_per_trigger", 700)
        .load()
        .writeStream.foreachBatch(lambda frame, _number: total.update(summary(frame)))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return dict(total)


if __name__ == "__main__":
    run(main)
