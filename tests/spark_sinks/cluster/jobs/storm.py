"""Copies a stream into two tables, one appended to and one with the newest row of each key, in small micro-batches.

It prints a line when a micro-batch begins, so that the test can kill executors in the middle of it, and kills itself
before or after a commit when the test asks for that.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_sinks.sinks import DeltaSink
from tests.spark_sinks.cluster.jobs.start import run
from tests.spark_sinks.sinks.killed_jobs import arm

RECORDS_PER_BATCH = 50


def main(spark: SparkSession, reported: Any) -> Any:
    store, stream, place = reported["store"], reported["stream"], reported["place"]
    append = DeltaSink(f"{place}/rows", store=store, stream=stream)
    newest = DeltaSink(f"{place}/newest", store=store, stream=stream, keys="_edge, _key", order_by="_seq")

    def write(frame: DataFrame, batch: int) -> None:
        print(f"batch {batch}", flush=True)
        append(frame.select("_shard", "_offset", "_edge", "_log", "_seq", "_time", "_key", "payload"), batch)
        newest(frame.select("_shard", "_offset", "_edge", "_key", "_seq"), batch)

    source = spark.readStream.format("weft").option("store", store).option("stream", stream)
    source = source.option("max_records_per_trigger", RECORDS_PER_BATCH)
    writer = source.load().writeStream.foreachBatch(write).trigger(availableNow=True)
    writer.option("checkpointLocation", reported["checkpoint"]).start().awaitTermination()
    return "done"


if __name__ == "__main__":
    arm()
    run(main)
