"""Reads a stream and copies it into a table and into another stream, in a session of a Spark Connect server."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_sinks import complete_until, lanes, read
from spark_sinks.sinks import DeltaSink, SourceStream, StreamSink, TargetStream
from tests.spark_sinks.cluster.jobs.start import run

RECORDS_PER_BATCH = 100


def main(spark: SparkSession, reported: Any) -> Any:
    store, stream, place = reported["store"], reported["stream"], reported["into"]
    whole = read(spark, stream, store=store)
    source = spark.read.format("weft").option("store", store).option("stream", stream).load()
    table = DeltaSink(f"{place}/copied", store=store, stream=stream, name="copied")
    back = StreamSink(TargetStream(reported["hub"], "back", store), "back", source=SourceStream(stream))
    for sink, checkpoint in ((table, "of-table"), (back, "of-stream"), (back, "of-stream-lost")):
        _copy(spark, store, stream, sink, f"{place}/checkpoint-{checkpoint}")
    return {
        "read": whole.count(),
        "source": source.selectExpr("count(DISTINCT _edge, _log, _seq)").first()[0],
        "lanes": lanes(spark, stream, store=store).count(),
        "complete": complete_until(spark, stream, store=store).moment is not None,
    }


def _copy(spark: SparkSession, store: str, stream: str, sink: Any, checkpoint: str) -> None:
    source = spark.readStream.format("weft").option("store", store).option("stream", stream)
    frame: DataFrame = source.option("max_records_per_trigger", RECORDS_PER_BATCH).load()
    rows = frame.selectExpr("_shard", "_offset", "_edge", "_seq", "_time", "_key AS key", "payload")
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    run(main)
