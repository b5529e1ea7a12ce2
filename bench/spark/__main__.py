"""Spark over a stream: history against plain Parquet, the tail, an hour, and the overhead of micro-batches.

``python -m bench.spark [--records N] [--runs N] [CASE...]`` makes a log of a mixed plant's messages, five days of four
edge nodes in batches of 5,000, and runs the cases on local[2]. Where Maven has a Kafka, its topic is read beside the
tail (``bench.spark_kafka``). Each figure is a median. Results of all cases together go to bench/results.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable
from typing import Any

import click
from pyspark.sql import SparkSession

from bench import spark_kafka
from bench.common import write_results
from bench.spark import history, hour, microbatch, tail
from bench.spark.log import BATCH_RECORDS, Log, make_log, tiered
from spark_sinks import session

Case = Callable[[SparkSession, Log, int], dict[str, Any]]
ON_LOG: dict[str, Case] = {"tail": tail.figures, "microbatch": microbatch.figures}
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
    with tempfile.TemporaryDirectory() as root:
        log = make_log(root, records)
        # The connector's jars have to be there when Java starts.
        spark = session("local[2]", **spark_kafka.connector_conf())
        results: dict[str, Any] = {
            "spark": spark.version,
            "master": "local[2]",
            "records": log.records,
            "batch_records": BATCH_RECORDS,
            "log_bytes": log.bytes,
            "runs": runs,
        }
        results |= {name: case(spark, log, runs) for name, case in ON_LOG.items() if name in wanted}
        with contextlib.suppress(LookupError):
            if not names:
                write_results("spark_kafka", spark_kafka.figures(spark, root, log.records, runs))
        if wanted & ON_TABLE.keys():
            started = time.perf_counter()
            rows = tiered(root)
            results["tier"] = {"rows": rows, "rows_per_second": round(rows / (time.perf_counter() - started))}
        results |= {name: case(spark, log, runs) for name, case in ON_TABLE.items() if name in wanted}
        spark.stop()
    print(json.dumps(results, indent=2))
    if not names:
        print(write_results("spark", results))


if __name__ == "__main__":
    main()
