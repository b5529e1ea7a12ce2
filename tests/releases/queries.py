"""The Spark queries whose checkpoints, tables and window state are kept of each release."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from spark_sinks import complete_windows
from spark_sinks.sinks.delta import DeltaSink


def run_queries(spark: SparkSession, folder: Path) -> None:
    """Bring both tables up to the end of the log, each from where its checkpoint says."""
    store = str(folder / "store")
    source = spark.readStream.format("weft").option("store", store).option("stream", "telemetry").load()
    rows = source.select("_shard", "_offset", "_seq", "machine", source.payload.cast("string").alias("payload"))
    sink = DeltaSink(str(folder / "lake/rows"), store=store, stream="telemetry")
    query = rows.writeStream.foreachBatch(sink).trigger(availableNow=True)
    query.option("checkpointLocation", str(folder / "checkpoints/rows")).start().awaitTermination()
    complete_windows(
        spark,
        "telemetry",
        store=store,
        every="1s",
        by=["machine"],
        schema="temperature float",
        aggregate={"records": "count(*)", "mean": "avg(temperature)"},
        sink=DeltaSink(str(folder / "lake/windows"), keys=["window_start", "machine"], order_by="_log_end"),
        complete={"edges": "all", "grace": "1m"},
        checkpoint=str(folder / "checkpoints/windows"),
        trigger=None,
    ).awaitTermination()
