"""Rows from the tail into sinks: appended to a Delta table, and upserted into PostgreSQL by keys."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.spark.log import STREAM, Log
from bench.spark.measure import timed
from spark_sinks.sinks import DeltaSink, JdbcSink
from tests.support.postgresql import PostgreSql, postgresql, why_not

BATCH_RECORDS_MAX = 1_000_000
"""Records of a micro-batch into Delta: the default of a pipeline."""
UPSERT_RECORDS_MAX = 200_000
"""Records of a micro-batch into PostgreSQL, whose rows go through the driver's memory."""
RUNS_MAX = 3
UPSERT_COLUMNS = "_edge,_log,_seq,_time,_key,payload"
KEYS = ("_edge", "_log", "_seq")
Sink = Callable[[DataFrame, int], None]


def figures(spark: SparkSession, log: Log, runs: int) -> dict[str, Any]:
    """Return records per second of each; without a PostgreSQL, of Delta alone."""
    found: dict[str, Any] = {"delta_append": _delta(spark, log, min(runs, RUNS_MAX))}
    if missing := why_not():
        print(f"sinks: PostgreSQL left out: {missing}", flush=True)
        return found
    with postgresql(durable=True) as server:
        return found | {"postgresql_upsert": _postgresql(spark, log, server, min(runs, RUNS_MAX))}


def _delta(spark: SparkSession, log: Log, runs: int) -> dict[str, Any]:
    """Return the rate of a query that catches up with the whole log, all columns, from its start to its end."""
    seconds = []
    for _ in range(runs + 1):
        with tempfile.TemporaryDirectory() as folder:
            sink = DeltaSink(Path(folder, "table"), store=log.root, stream=STREAM)
            work = _query(spark, log, sink, Path(folder, "checkpoint"))
            seconds.append(timed(work))
    median = statistics.median(seconds[1:])
    return {"seconds": round(median, 3), "records": log.records, "records_per_second": round(log.records / median)}


def _query(spark: SparkSession, log: Log, sink: Sink, checkpoint: Path) -> Callable[[], None]:
    options = {"store": log.root, "stream": STREAM, "max_records_per_trigger": str(BATCH_RECORDS_MAX)}
    rows = spark.readStream.format("weft").options(**options).load()
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))

    def run() -> None:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()

    return run


def _postgresql(spark: SparkSession, log: Log, server: PostgreSql, runs: int) -> dict[str, Any]:
    """Return the rates of one micro-batch: its rows new, and the same rows replaced."""
    records = min(log.records, UPSERT_RECORDS_MAX)
    options = {"store": log.root, "stream": STREAM, "columns": UPSERT_COLUMNS, "ending": json.dumps({"0": records})}
    rows = spark.read.format("weft").options(**options).load()
    seconds: dict[str, list[float]] = {"inserted": [], "replaced": []}
    for turn in range(runs + 1):
        sink = JdbcSink(server.url, f"readings_{turn}", keys=KEYS, password_file=str(server.password_file))
        for times in seconds.values():
            times.append(timed(partial(sink, rows, turn)))
    rates = {way: round(records / statistics.median(times[1:])) for way, times in seconds.items()}
    return {"records": records} | {f"{way}_per_second": rate for way, rate in rates.items()}
