"""Bytes and seconds of filters on a table, in the log's order and sorted: DuckDB, Polars and Spark.

``python -m bench.clustering [--records N] [--runs N]``. 200 machines of 20 lines, an edge node for each line, send for
five days into one shard. The table is filled by steps of 200,000 rows and its files are joined: once in the order of
the log, as before decision 0145, and once sorted. Each query reads number, key, time and payload of its rows. Bytes are
those that the process reads of files, footers included. Results go to bench/results.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import psutil
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bench import payloads
from bench.common import encode_batch, write_results
from bench.log_writer import Delivery, LogWriter
from bench.spark.measure import noop
from spark_sinks import read, session
from weft.storage.cluster import open_cluster
from weft.storage.hub_keys import table_key
from weft.storage.object_store import open_store
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.parquet_file import Clustering
from weft.storage.table_writer.settings import TableSettings
from weft.storage.table_writer.shards import load_shards
from weft.storage.table_writer.tiering import Tierer

STREAM = "telemetry"
TOPIC = "plant/{line}/{machine}/telemetry"
LINES, MACHINES_OF_LINE = 20, 10
START_S = 1_700_006_400
DAYS = 5
CHUNK_RECORDS = 500
"""Records of an edge node in a chunk, which are one batch."""
STEP_ROWS = 200_000
SINCE = datetime.fromtimestamp(START_S, UTC) + timedelta(hours=60)
COLUMNS = ["_seq", "_key", "_time", "payload"]
QUERIES: dict[str, tuple[str, Any]] = {
    "machine": ("machine", "m077"),
    "edge": ("_edge", "line-07"),
    "key": ("_key", "plant/line-07/m077/telemetry"),
    "hour": ("_time", SINCE + timedelta(hours=1)),
    "day": ("_time", SINCE + timedelta(days=1)),
    "all": ("", None),
}
"""Query -> column and value; of a time, the value is the end of a range from ``SINCE`` on."""
Read = Callable[[str, Any], int]
"""Function that runs a query and returns the number of its rows."""


def make_log(root: str, records: int) -> None:
    """Write the log."""
    pool, writer = payloads.telemetry(), LogWriter(root, stream=STREAM)
    of_each = records // LINES
    interval_ns = DAYS * 86_400 * 10**9 // of_each
    keys = [
        [
            b"plant/line-%02d/m%03d/telemetry" % (line, line * MACHINES_OF_LINE + i % MACHINES_OF_LINE)
            for i in range(CHUNK_RECORDS)
        ]
        for line in range(LINES)
    ]
    for first in range(0, of_each, CHUNK_RECORDS):
        deliveries = []
        count = min(CHUNK_RECORDS, of_each - first)
        moment = START_S * 10**9 + first * interval_ns
        for line in range(LINES):
            readings = [pool[(first + i + 977 * line) % len(pool)] for i in range(count)]
            batch = encode_batch(first, moment, interval_ns, keys[line][:count], readings)
            deliveries.append(Delivery(f"line-{line:02d}", [batch], line + 1, topics=[TOPIC]))
        writer.write(*deliveries, received=START_S * 10**9 + (first + CHUNK_RECORDS) * interval_ns)


@contextmanager
def log_order() -> Iterator[None]:
    """Write files as before: a row group is the next 131,072 rows of the log."""
    with (
        patch("weft.storage.table_writer.parquet_file.SLICE_ROWS_MAX", 128 << 10),
        patch("weft.storage.table_writer.parquet_file.SLICE_BYTES_MAX", 64 << 20),
        patch.object(Clustering, "groups", lambda _, rows: iter((rows,))),
    ):
        yield


async def fill(root: str) -> dict[str, float]:
    """Fill the table and join its files. Return the processor seconds of both."""
    store = open_store(root)
    settings = TableSettings(file_rows_max=STEP_ROWS, join_seconds_max=600.0)
    cluster = await open_cluster(store, None)
    tierer = Tierer(store, cluster, "default", STREAM, await load_shards(store, cluster), settings=settings)
    began = time.process_time()
    while await tierer.step():
        pass
    filled = time.process_time()
    await Maintenance(store, tierer, settings=settings).maintain()
    return {"fill_cpu_seconds": round(filled - began, 1), "join_cpu_seconds": round(time.process_time() - filled, 1)}


def duckdb_read(files: Sequence[str]) -> Read:
    """Return DuckDB's reading."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET threads = 1; SET enable_external_file_cache = false; SET TimeZone = 'UTC'")

    def run(column: str, value: Any) -> int:
        where = "true"
        values: list[Any] = [files]
        if column == "_time":
            where, values = "_time >= ? AND _time < ?", [files, SINCE, value]
        elif column:
            where, values = f"{column} = ?", [files, value]
        query = f"SELECT {', '.join(COLUMNS)} FROM read_parquet(?) WHERE {where}"
        return int(sum(batch.num_rows for batch in connection.execute(query, values).to_arrow_reader()))

    return run


def polars_read(files: Sequence[str]) -> Read:
    """Return Polars' reading."""
    # Otherwise it maps local files into memory, and their bytes cannot be counted.
    os.environ["POLARS_FORCE_ASYNC"] = "1"
    import polars as pl

    def run(column: str, value: Any) -> int:
        frame = pl.scan_parquet(list(files))
        if column == "_time":
            frame = frame.filter((pl.col("_time") >= SINCE) & (pl.col("_time") < value))
        elif column:
            frame = frame.filter(pl.col(column) == value)
        return int(frame.select(COLUMNS).collect().height)

    return run


def spark_read(spark: SparkSession, root: str, column: str, value: Any) -> DataFrame:
    """Return the query as a DataFrame."""
    frame = read(spark, STREAM, store=root)
    if column == "_time":
        frame = frame.filter((F.col("_time") >= F.lit(SINCE)) & (F.col("_time") < F.lit(value)))
    elif column:
        frame = frame.filter(F.col(column) == value)
    return frame.select(COLUMNS)


def _read_so_far() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def _read_by_java() -> int:
    """Return the bytes that the Java machine has read, by the kernel's count as for the other engines.

    Hadoop's own statistics leave out vectored reads, which Spark makes unless told not to.
    """
    found = [each for each in psutil.Process().children(recursive=True) if each.name() == "java"]
    return sum(each.io_counters().read_chars for each in found)


def measured(work: Callable[[], Any], runs: int, size: Callable[[], int]) -> dict[str, Any]:
    """Return the median seconds of some runs after one that warms up, and the bytes of one run."""
    read_bytes, seconds = size(), []
    for _ in range(runs):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return {"bytes": read_bytes, "seconds": round(statistics.median(seconds), 3)}


def figures(spark: SparkSession, root: str, runs: int) -> dict[str, Any]:
    """Return the figures of one table."""
    uri, _ = open_store(root).location(table_key("default", STREAM))
    table = DeltaTable(uri)
    files = [file.removeprefix("file://") for file in table.file_uris()]
    found: dict[str, Any] = {"files": len(files), "bytes": sum(Path(file).stat().st_size for file in files)}
    for engine, run in (("duckdb", duckdb_read(files)), ("polars", polars_read(files))):
        for name, (column, value) in QUERIES.items():

            def size(run: Read = run, column: str = column, value: Any = value) -> int:
                before = _read_so_far()
                run(column, value)
                return _read_so_far() - before

            each = measured(lambda run=run, column=column, value=value: run(column, value), runs, size)  # type: ignore[misc]
            found.setdefault(engine, {})[name] = each | {"rows": run(column, value)}
    for name, (column, value) in QUERIES.items():

        def work(column: str = column, value: Any = value) -> None:
            noop(spark_read(spark, root, column, value))

        def size_of_java(work: Callable[[], None] = work) -> int:
            work()  # classes are read from their archives once
            before = _read_by_java()
            work()
            return _read_by_java() - before

        each = measured(work, runs, size_of_java)
        found.setdefault("spark", {})[name] = each | {"rows": spark_read(spark, root, column, value).count()}
    return found


@click.command(help=__doc__)
@click.option("--records", default=12_000_000, show_default=True)
@click.option("--runs", default=3, show_default=True)
def main(records: int, runs: int) -> None:
    """Run both and write the results."""
    pa.set_cpu_count(1)
    spark = session("local[2]")
    results: dict[str, Any] = {"records": records, "machines": LINES * MACHINES_OF_LINE, "edges": LINES, "runs": runs}
    with tempfile.TemporaryDirectory() as folder:
        root = f"{folder}/store"
        make_log(root, records)
        for name, way in (("log_order", log_order()), ("sorted", nullcontext())):
            with way:
                costs = asyncio.run(fill(root))
            results[name] = costs | figures(spark, root, runs)
            uri, _ = open_store(root).location(table_key("default", STREAM))
            shutil.rmtree(uri)
            for engine in ("duckdb", "polars", "spark"):
                for query, each in results[name][engine].items():
                    share = each["bytes"] / results[name]["bytes"]
                    print(
                        f"{name} {engine} {query}: {each['rows']:,} rows, {share:.1%}, {each['seconds']} s", flush=True
                    )
    spark.stop()
    print(write_results("clustering", results))


if __name__ == "__main__":
    main()
