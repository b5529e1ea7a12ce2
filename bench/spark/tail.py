"""The log's tail through ``format("weft")``, the load included."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.spark.log import STREAM, Log
from bench.spark.measure import aggregate, noop, rates

FEW = "_offset,_time,_key,payload"


def figures(spark: SparkSession, log: Log, runs: int) -> dict[str, Any]:
    """Return records per second with few columns, with all, and grouped."""

    def load(**options: str) -> DataFrame:
        return spark.read.format("weft").options(store=log.root, stream=STREAM, **options).load()

    return {
        "few_columns": rates(lambda: noop(load(columns=FEW)), log.records, runs),
        "noop": rates(lambda: noop(load()), log.records, runs),
        "aggregate": rates(lambda: aggregate(load()), log.records, runs),
    }
