"""Queries, seconds and processor time."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import psutil
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


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
    """Return the processor time of the Java machine and the Python workers: what a busy machine distorts least."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def rates(work: Callable[[], None], records: int, runs: int) -> dict[str, Any]:
    """Return the records per second of the median run, after one that warms up."""
    work()
    seconds, cpu = [], []
    for _ in range(runs):
        before = cpu_seconds()
        seconds.append(timed(work))
        cpu.append(cpu_seconds() - before)
    median = statistics.median(seconds)
    return {
        "seconds": round(median, 3),
        "records_per_second": round(records / median),
        "records_per_cpu_second": round(records / statistics.median(cpu)),
    }


def in_turns(ways: dict[str, Callable[[], None]], runs: int) -> dict[str, float]:
    """Return the median seconds of each way, run turn by turn so that a busy machine is busy for all."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(runs + 1):
        for way, work in ways.items():
            took = timed(work)
            if turn:
                seconds[way].append(took)
    return {way: round(statistics.median(times), 3) for way, times in seconds.items()}
