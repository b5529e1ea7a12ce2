"""Rows a second that a query writes into a hub of two processes, and each process's part of the work, by its spread.

``python -m bench.spark.spread [--rows N] [--runs N]``. Four processes send as four Spark tasks do, without Spark: rows
of 16 source shards, of 100 bytes, each task those of its edges. The hub has 16 shards in a folder. What counts on a
machine with few cores is the share: with one shard one process has all of the work, however many there are.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import click
import psutil
import pyarrow as pa

from bench.common import PAYLOAD_BYTES
from examples.demo.fabric import DemoHub
from spark_sinks.sinks.stream.link import ProducerSettings
from spark_sinks.sinks.stream.sink import SendTask

SOURCE_SHARDS, TASKS, PROCESSES = 16, 4, 2
PIECE_ROWS = 10_000
REPLACED = {"processes: 1": f"processes: {PROCESSES}", "shards: 2": "shards: 16", "interval: 1s": "interval: 1h"}
"""Settings of the hub. Tables are made apart from it: they are the same work under each spread."""


def send(settings: ProducerSettings, task: int, first: int, rows: int, together: Barrier) -> None:
    """Send ``rows`` rows of each source shard of a core's tasks, one after the other as Spark runs them."""
    together.wait()
    shards = range(task, SOURCE_SHARDS, TASKS)
    for edge in dict.fromkeys(map(settings.edge_of, shards)):
        batches = (
            batch_of(shard, at, min(PIECE_ROWS, first + rows - at))
            for shard in shards
            for at in range(first, first + rows, PIECE_ROWS)
            if settings.edge_of(shard) == edge
        )
        list(SendTask(settings).run(batches))


def batch_of(shard: int, first: int, count: int) -> pa.RecordBatch:
    """Return rows as ``rows.ordered`` gives them to a task."""
    offsets = pa.array(range(first, first + count), pa.int64())
    columns = {
        "_shard": pa.array([shard] * count, pa.int32()),
        "_offset": offsets,
        "_ordinal": pa.nulls(count, pa.int32()),
        "_time": pa.array(range(first, first + count), pa.int64()),
        "_key": pa.array([b"plant/line-07/m077/telemetry"] * count),
        "_payload": pa.array([b"%0*d" % (PAYLOAD_BYTES, first + at) for at in range(count)]),
        "_headers": pa.nulls(count, pa.map_(pa.string(), pa.string())),
        "_lineage": pa.nulls(count, pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns)


def seconds(hub: DemoHub) -> dict[int, float]:
    """Return the processor time of each process of the hub, by process id."""
    root = psutil.Process(hub.pid)
    family = [root, *root.children(recursive=True)]
    return {each.pid: sum(each.cpu_times()[:2]) for each in family}


def figures(rows: int, runs: int, spread: int) -> dict[str, Any]:
    """Measure a spread with a hub of its own."""
    with tempfile.TemporaryDirectory() as directory:
        hub = DemoHub(Path(directory))
        text = hub.config_path.read_text()
        for now, wanted in REPLACED.items():
            assert now in text
            text = text.replace(now, wanted)
        hub.config_path.write_text(text)
        hub.start()
        try:
            settings = ProducerSettings((hub.url,), "derived", "bench", hub.store, spread=spread)
            sent(settings, 0, 10)  # makes the lanes
            found = []
            for run in range(runs):
                before = seconds(hub)
                took = sent(settings, 10 + run * rows, rows)
                spent = sorted((now - before.get(pid, 0.0) for pid, now in seconds(hub).items()), reverse=True)
                found.append((rows * SOURCE_SHARDS / took, spent))
        finally:
            hub.stop()
    return {
        "rows_per_second": round(statistics.median(rate for rate, _ in found)),
        "cpu_seconds": [[round(each, 2) for each in spent] for _, spent in found],
        "busiest_process_percent": round(100 * statistics.median(spent[0] / sum(spent) for _, spent in found)),
        "busiest_us_a_row": round(statistics.median(1e6 * spent[0] / (rows * SOURCE_SHARDS) for _, spent in found), 2),
    }


def sent(settings: ProducerSettings, first: int, rows: int) -> float:
    """Send rows of every source shard. Return the seconds that it took."""
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(TASKS + 1)
    tasks = [context.Process(target=send, args=(settings, task, first, rows, together)) for task in range(TASKS)]
    for task in tasks:
        task.start()
    together.wait()
    started = time.perf_counter()
    for task in tasks:
        task.join()
        if task.exitcode:
            raise SystemExit("a task failed")
    return time.perf_counter() - started


@click.command(help=__doc__)
@click.option("--rows", default=20_000, show_default=True, help="Rows of each source shard.")
@click.option("--runs", default=3, show_default=True)
def main(rows: int, runs: int) -> None:
    """Measure spreads of 1, 4 and 16."""
    print(json.dumps({f"spread {spread}": figures(rows, runs, spread) for spread in (1, 4, 16)}, indent=2))


if __name__ == "__main__":
    main()
