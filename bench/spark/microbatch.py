"""Overhead of a micro-batch beside Spark's own rate source: small batches, one right after the other."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamReader

from bench.common import encode_batch
from bench.log_writer import Delivery, LogWriter
from bench.spark.log import EDGES, STREAM, TOPIC, Log

RECORDS = 100
"""Records of an edge node in a round."""
PARTS = ("triggerExecution", "addBatch", "latestOffset", "queryPlanning", "walCommit", "commitOffsets")
BATCHES = 40
SECONDS_MAX = 60.0
POLL_S = 0.02
AGAIN_S = 2.0


def figures(spark: SparkSession, log: Log, runs: int) -> dict[str, Any]:
    """Return median milliseconds of both, turn by turn; the ratio is ours by theirs."""
    del log  # It makes its own, which grows.
    with tempfile.TemporaryDirectory() as root:
        rounds = _Rounds(root)
        rounds.write()
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", len(EDGES) * RECORDS)
        ours = spark.readStream.format("weft").options(store=root, stream=STREAM, starting="latest")
        found: dict[str, list[dict[str, float]]] = {"weft": [], "rate": []}
        for _ in range(min(runs, 3) + 1):
            found["rate"].append(_progress(rate, lambda: None))
            found["weft"].append(_progress(ours, rounds.write))
    medians = {
        way: {part: statistics.median(turn[part] for turn in turns[1:]) for part in PARTS}
        for way, turns in found.items()
    }
    ratio = medians["weft"]["triggerExecution"] / medians["rate"]["triggerExecution"]
    return medians | {"records": len(EDGES) * RECORDS, "ratio": round(ratio, 2)}


class _Rounds:
    """A log of four shards that grows by a small batch of every edge node."""

    def __init__(self, root: str) -> None:
        self._writer = LogWriter(root, shards=4, stream=STREAM)
        self._seq = 0

    def write(self) -> None:
        keys, payloads = [b"plant/a/m1/telemetry"] * RECORDS, [b"%0100d" % i for i in range(RECORDS)]
        batch = encode_batch(self._seq, time.time_ns(), 1000, keys, payloads)
        self._seq += RECORDS
        deliveries = [Delivery(edge, [batch], at, [TOPIC]) for at, edge in enumerate(EDGES, 1)]
        self._writer.write(*deliveries, received=time.time_ns())


def _progress(reader: DataStreamReader, step: Callable[[], None]) -> dict[str, float]:
    """Return the medians of the later half of some micro-batches with rows."""
    with tempfile.TemporaryDirectory() as folder:
        writer = reader.load().writeStream.format("noop").trigger(processingTime="0 seconds")
        query = writer.option("checkpointLocation", folder).start()
        until = time.monotonic() + SECONDS_MAX
        batches: dict[int, dict[str, float]] = {}
        wrote, written_for = 0.0, -1
        while len(batches) < BATCHES and time.monotonic() < until:
            # The writer shares the cores: it must not write while its last round is read. The first round may come
            # before the query looks where the log ends.
            if len(batches) > written_for or time.monotonic() - wrote > AGAIN_S:
                wrote, written_for = time.monotonic(), len(batches)
                step()
            time.sleep(POLL_S)
            progress = query.lastProgress
            if progress is not None and progress.numInputRows:
                batches[progress.batchId] = progress.durationMs
        query.stop()
    late = list(batches.values())[len(batches) // 2 :]
    return {part: statistics.median(durations.get(part, 0) for durations in late) for part in PARTS}
