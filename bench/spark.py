"""Spark over a stream: history against plain Parquet, and the tail in records per second.

``python -m bench.spark [--records N] [--runs N]`` makes a log of 100-byte JSON payloads in batches of 5,000, reads it
through ``format("weft")`` on local[2], folds it into a table, and reads that through ``spark_sinks.read`` and, turn by
turn, through ``spark.read.parquet`` over the same files. Where Maven has a Kafka, its topic is read beside the tail
(``bench.spark_kafka``). Each figure is a median. Results go to bench/results.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import click
import psutil
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bench.common import PAYLOAD_BYTES, encode_batch, write_results
from bench.log_writer import Delivery, LogWriter
from spark_sinks import read, session
from weft.cloud_hub.tables.shards import load_shards
from weft.cloud_hub.tables.tierer import Tierer
from weft.storage.chunk_log import open_cluster, table_key
from weft.storage.object_store import open_store

BATCH_RECORDS = 5_000
BATCHES_PER_CHUNK = 16
MACHINES = 200
START = 1_700_000_000 * 10**9
INTERVAL_NS = 100_000
TOPIC = "plant/{line}/{machine}/telemetry"
STREAM = "telemetry"


def payloads(rng: random.Random, count: int) -> list[bytes]:
    """Return JSON readings of exactly ``PAYLOAD_BYTES``."""
    found = []
    for _ in range(count):
        reading = {"temperature": round(rng.gauss(60, 5), 3), "vibration": rng.random(), "n": rng.randrange(10**6)}
        found.append(json.dumps(reading)[:-1].ljust(PAYLOAD_BYTES - 1).encode() + b"}")
    return found


def make_log(root: str, records: int) -> int:
    """Write a log; returns its bytes."""
    rng = random.Random(1)
    pool = payloads(rng, 20_000)
    writer = LogWriter(root, stream=STREAM)
    keys = [f"plant/{i % 4}/m{i % MACHINES}/telemetry".encode() for i in range(BATCH_RECORDS)]
    size = 0
    for first in range(0, records, BATCH_RECORDS * BATCHES_PER_CHUNK):
        end = min(records, first + BATCH_RECORDS * BATCHES_PER_CHUNK)
        batches = []
        for seq in range(first, end, BATCH_RECORDS):
            readings = rng.choices(pool, k=min(BATCH_RECORDS, end - seq))
            batches.append(encode_batch(seq, START + seq * INTERVAL_NS, INTERVAL_NS, keys[: len(readings)], readings))
        size += sum(map(len, batches))
        writer.write(Delivery("press-shop-7", batches, topics=[TOPIC]), received=START + end * INTERVAL_NS)
    return size


async def tier(root: str) -> int:
    """Fold the whole log into the table; returns the rows."""
    store = open_store(root)
    cluster = await open_cluster(store, None)
    tierer = Tierer(store, cluster, "default", STREAM, await load_shards(store, cluster))
    rows = 0
    while moved := await tierer.step():
        rows += moved
    return rows


def noop(frame: DataFrame) -> None:
    """Read every column of every row."""
    frame.write.format("noop").mode("overwrite").save()


def aggregate(frame: DataFrame) -> None:
    """Run a query as people write them: a few columns, grouped."""
    grouped = frame.groupBy("line", "machine").agg(
        F.count("*"), F.max("_time"), F.sum(F.length("payload")), F.countDistinct("_edge")
    )
    grouped.collect()


def timed(work: Callable[[], None]) -> float:
    """Return seconds that ``work`` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def cpu_seconds() -> float:
    """Processor time of the Java machine and the Python workers: what a busy machine does not distort."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def tail_figures(spark: SparkSession, root: str, records: int, runs: int) -> dict[str, Any]:
    """Return records per second of chunks through ``format("weft")``, the load included."""

    def load() -> DataFrame:
        return spark.read.format("weft").option("store", root).option("stream", STREAM).load()

    noop(load())
    figures: dict[str, Any] = {}
    for name, query in (("noop", noop), ("aggregate", aggregate)):
        seconds, cpu = [], []
        for _ in range(runs):
            before = cpu_seconds()
            seconds.append(timed(lambda query=query: query(load())))  # type: ignore[misc]
            cpu.append(cpu_seconds() - before)
        median = statistics.median(seconds)
        figures[name] = {
            "seconds": round(median, 3),
            "records_per_second": round(records / median),
            "records_per_cpu_second": round(records / statistics.median(cpu)),
        }
    return figures


def history_figures(spark: SparkSession, root: str, records: int, runs: int) -> dict[str, Any]:
    """Compare ``read`` with Spark's own reader over the same files, turn by turn; the ratio is theirs by ours."""
    uri, _ = open_store(root).location(table_key("default", STREAM))
    files = DeltaTable(uri).file_uris()
    ways: dict[str, Callable[[], DataFrame]] = {
        "read": lambda: read(spark, STREAM, store=root),
        "parquet": lambda: spark.read.parquet(*files),
    }
    figures: dict[str, Any] = {"files": len(files)}
    for name, query in (("noop", noop), ("aggregate", aggregate)):
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(runs + 1):
            for way, load in ways.items():
                took = timed(lambda query=query, load=load: query(load()))  # type: ignore[misc]
                if turn:
                    seconds[way].append(took)
        medians = {way: statistics.median(times) for way, times in seconds.items()}
        figures[name] = {f"{way}_seconds": round(median, 3) for way, median in medians.items()}
        figures[name]["records_per_second"] = round(records / medians["read"])
        figures[name]["ratio"] = round(medians["parquet"] / medians["read"], 3)
    return figures


@click.command(help=__doc__)
@click.option("--records", default=5_000_000, show_default=True)
@click.option("--runs", default=5, show_default=True)
def main(records: int, runs: int) -> None:
    """Run it all and write the results."""
    from bench import spark_kafka  # which uses the parts above

    with tempfile.TemporaryDirectory() as root:
        log_bytes = make_log(root, records)
        # The connector's jars have to be there when Java starts.
        spark = session("local[2]", **spark_kafka.connector_conf())
        results: dict[str, Any] = {
            "spark": spark.version,
            "master": "local[2]",
            "records": records,
            "payload_bytes": PAYLOAD_BYTES,
            "batch_records": BATCH_RECORDS,
            "log_bytes": log_bytes,
            "runs": runs,
            "tail": tail_figures(spark, root, records, runs),
        }
        with contextlib.suppress(LookupError):
            write_results("spark_kafka", spark_kafka.figures(spark, root, records, runs))
        started = time.perf_counter()
        rows = asyncio.run(tier(root))
        results["tier"] = {"rows": rows, "rows_per_second": round(rows / (time.perf_counter() - started))}
        results["history"] = history_figures(spark, root, records, runs)
        spark.stop()
    print(json.dumps(results, indent=2))
    print(write_results("spark", results))


if __name__ == "__main__":
    main()
