"""The table through ``read``, turn by turn with Spark's own reader over the same files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from bench.spark.log import STREAM, Log
from bench.spark.measure import aggregate, in_turns, noop
from spark_sinks import read
from weft.storage.hub_keys import table_key
from weft.storage.object_store import open_store


def figures(spark: SparkSession, log: Log, runs: int) -> dict[str, Any]:
    """Return seconds of both; the ratio is theirs by ours."""
    uri, _ = open_store(log.root).location(table_key("default", STREAM))
    files = DeltaTable(uri).file_uris()
    ways: dict[str, Callable[[], DataFrame]] = {
        "read": lambda: read(spark, STREAM, store=log.root),
        "parquet": lambda: spark.read.parquet(*files),
    }
    found: dict[str, Any] = {"files": len(files)}
    for name, query in (("noop", noop), ("aggregate", aggregate)):
        seconds = in_turns({way: partial(_run, query, load) for way, load in ways.items()}, runs)
        found[name] = {f"{way}_seconds": median for way, median in seconds.items()}
        found[name]["records_per_second"] = round(log.records / seconds["read"])
        found[name]["ratio"] = round(seconds["parquet"] / seconds["read"], 3)
    return found


def _run(query: Callable[[DataFrame], None], load: Callable[[], DataFrame]) -> None:
    query(load())
