"""Spark over a stream: history against plain Parquet, the tail, an hour, micro-batches, Kafka, typed columns and sinks.

``python -m bench.spark [--records N] [--runs N] [CASE...]`` makes a log of a mixed plant's messages, five days of four
edge nodes in batches of 5,000, and runs the cases on local[2]: all of them in about ten minutes on an idle machine.
Where Maven has no Kafka, or the machine no PostgreSQL, that comparison is left out with a word. Each figure is a
median. Results of all cases together go to bench/results.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import click
from pyspark.sql import SparkSession

from bench.common import write_results
from bench.spark import history, hour, kafka, microbatch, sinks, tail, typed
from bench.spark.log import BATCH_RECORDS, Log, make_log, tiered
from spark_sinks import session

Case = Callable[[SparkSession, Log, int], dict[str, Any]]
ON_LOG: dict[str, Case] = {
    "tail": tail.figures,
    "microbatch": microbatch.figures,
    "kafka": kafka.figures,
    "typed": typed.figures,
    "sinks": sinks.figures,
}
"""Cases over a log that no table has, by the names of their results."""
ON_TABLE: dict[str, Case] = {"history": history.figures, "hour": hour.figures}
"""Cases over the table of the same log."""


@click.command(help=__doc__)
@click.argument("names", nargs=-1, metavar="[CASE...]", type=click.Choice([*ON_LOG, *ON_TABLE]))
@click.option("--records", default=5_000_000, show_default=True)
@click.option("--runs", default=5, show_default=True)
def main(names: tuple[str, ...], records: int, runs: int) -> None:
    """Run the cases and write the results."""
    wanted = set(names or (*ON_LOG, *ON_TABLE))
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as root:
        log = make_log(root, records)
        # The connector's jars have to be there when Java starts.
        spark = session("local[2]", **(kafka.connector_conf() if "kafka" in wanted else {}))
        results: dict[str, Any] = {
            "spark": spark.version,
            "master": "local[2]",
            "records": log.records,
            "batch_records": BATCH_RECORDS,
            "log_bytes": log.bytes,
            "runs": runs,
            "load_before": load_before,
        }
        results |= _measured(ON_LOG, wanted, spark, log, runs)
        if wanted & ON_TABLE.keys():
            started = time.perf_counter()
            rows = tiered(root)
            results["tier"] = {"rows": rows, "rows_per_second": round(rows / (time.perf_counter() - started))}
        results |= _measured(ON_TABLE, wanted, spark, log, runs)
        spark.stop()
    print(json.dumps(results, indent=2))
    if not names:
        if "kafka" in results:
            print(write_results("spark_kafka", results.pop("kafka") | {"load_before": load_before}))
        print(write_results("spark", results))


def _measured(cases: dict[str, Case], wanted: set[str], spark: SparkSession, log: Log, runs: int) -> dict[str, Any]:
    """Return the results of the wanted cases. A case whose server cannot be had here has none."""
    found: dict[str, Any] = {}
    for name in (name for name in cases if name in wanted):
        started = time.perf_counter()
        try:
            found[name] = cases[name](spark, log, runs)
        except LookupError as missing:
            print(f"{name}: left out: {missing}", flush=True)
        else:
            print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    return found


if __name__ == "__main__":
    main()
