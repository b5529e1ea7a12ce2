"""A log of machines' readings, and shipped pipelines run over it in other cuts."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from msgspec.structs import replace
from pyspark.sql import SparkSession

from bench.log_writer import Delivery, LogWriter
from spark_sinks.pipelines.catalog import located
from spark_sinks.pipelines.job import start
from weft.config.pipelines import DeltaTable as DeltaTarget
from weft.config.pipelines import PipelineSink
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState

START = datetime(2026, 3, 1, 6, tzinfo=UTC)
TOPIC = "plant/{line}/{machine}/telemetry"
Reading = tuple[float, str, float]
"""Seconds after START, machine, value."""


class Machines:
    """Readings of machines in a log of two shards, and tables of pipelines over it."""

    def __init__(self, folder: Path, spark: SparkSession | None = None) -> None:
        """Make an empty log. Without a session there are no runs."""
        self.folder, self.spark = folder, spark
        self.store = str(folder / "store")
        self._writer = LogWriter(self.store, shards=2, stream="telemetry")
        self._next: dict[tuple[str, int], int] = {}

    def write(self, edge: str, readings: Sequence[Reading], *, log_id: int = 1, chunk: int = 1000) -> None:
        """Append readings of an edge node in their order; chunks have at most so many."""
        for at in range(0, len(readings), chunk):
            part = readings[at : at + chunk]
            first = self._next.get((edge, log_id), 0)
            self._next[edge, log_id] = first + len(part)
            times = [round((START.timestamp() + seconds) * 1e6) * 1000 for seconds, _, _ in part]
            columns = batch.columns_from_lists(
                struct.pack(f"<{len(part)}q", *times),
                [f"plant/l1/{machine}/telemetry".encode() for _, machine, _ in part],
                [json.dumps({"temperature": value}).encode() for _, _, value in part],
            )
            made = batch.encode(log_id, first, columns, ClockReading(1, first, ClockState.SYNCED))
            self._writer.write(Delivery(edge, [made], log_id, [TOPIC]), received=max(times))

    def run(
        self, name: str, table: str, *settings: str, records_max: int = 100_000, options: dict[str, Any] | None = None
    ) -> None:
        """Run a shipped pipeline over what there is, with its table and its checkpoint in ``table``."""
        path = str(self.folder / table)
        named = [f"source.store={self.store}", f"source.max_records_per_trigger={records_max}"]
        named += [f"checkpoint={self.checkpoint(table)}", *settings]
        pipeline = located(name, named).config
        kept = pipeline.sink.delta or DeltaTarget(path=path)
        sink = PipelineSink(delta=replace(kept, path=path))
        steps = [
            replace(each, options=each.options | (options or {})) if each.python else each for each in pipeline.steps
        ]
        assert self.spark is not None
        query = start(replace(pipeline, sink=sink, steps=tuple(steps)), self.spark, once=True)
        query.awaitTermination()

    def checkpoint(self, table: str) -> Path:
        return self.folder / f"checkpoint-of-{table}"

    def rows(self, table: str, key: str = "_offset") -> list[dict[str, Any]]:
        """All rows of a table, sorted."""
        found = DeltaTable(str(self.folder / table)).to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: (row["_shard"], row[key]))


@pytest.fixture
def machines(tmp_path: Path, spark: SparkSession) -> Machines:
    return Machines(tmp_path, spark)
