"""The demo's pipeline: the shipped *machine hours*, and what a reader of its table sees while one edge is cut off."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.demo.fabric import STREAM, FabricError

if TYPE_CHECKING:
    from spark_sinks.completeness.window_query import WindowQuery

PIPELINE = "machine-hours"
HOUR_S = 2
"""Length of a window in seconds. The devices' day is replayed in less than 20 seconds, so two stand for some hours."""
GRACE_S = 2
"""Seconds after which a window is written without what is missing."""
LOOK_S = 0.5
"""Time between two looks at the table."""
COMPLETE_TIMEOUT_S = 120.0
STOP_S_MAX = 3.0
"""Longest wait for the end of a pipeline that is stopped: a person who pressed Ctrl-C waits for it."""
FIGURES = {"mean": "avg", "lowest": "min", "highest": "max", "deviation": "stddev_samp"}
"""Columns of the table with a measured value -> Spark's function that makes it. The median is an approximation, and
may differ from one computation to the next."""
_COUNTS = ("records", "readings")
Key = tuple[datetime, str]
"""(start of the window, device)."""


class Seen(NamedTuple):
    """A window as the table had it at a moment."""

    start: datetime
    at: datetime
    records: int
    devices: int

    def __str__(self) -> str:
        """Return the figures as text."""
        return f"{self.records:,} records of {self.devices} devices"


@dataclass(frozen=True)
class Comparison:
    """The pipeline's table beside a batch job over the whole stream."""

    windows: int
    rows: int
    records: int
    incomplete: int
    """Rows that are not complete."""
    different: int
    """Rows of one of the two that the other has not, or has with other figures."""


class MachineHours:
    """The pipeline, started as ``weft spark run`` does it, and its table as any reader sees it."""

    def __init__(self, directory: Path, store: str, edges: Iterable[str]) -> None:
        """Take the store, and the names of the edges whose word a complete window needs."""
        self.table = str(directory / PIPELINE)
        self.settings = [
            f"source.store={store}",
            f"source.stream={STREAM}",
            "source.schema.fields={machine: {type: string, from: device}, temperature: {type: float, from: data.temp}}",
            f"steps[1].window.every={HOUR_S}s",
            f"complete.edges=[{', '.join(edges)}]",
            f"complete.grace={GRACE_S}s",
            f"sink.delta.path={self.table}",
            "trigger=1s",
            f"checkpoint={self.table}-checkpoint",
        ]
        self.early: Seen | None = None
        """First window after the cut, as it was written without the edge that is cut off."""
        self.whole: Seen | None = None
        """The same window once it was complete."""
        self.late: set[datetime] = set()
        """Windows that were seen incomplete."""
        self._query: WindowQuery | None = None
        self._version = -1
        self._look_at = 0.0

    @property
    def is_started(self) -> bool:
        """Return whether ``start`` was called."""
        return self._query is not None

    def start(self, spark: Any) -> None:
        """Start the pipeline. The hub must have the stream by now."""
        from spark_sinks.completeness.window_query import WindowQuery
        from spark_sinks.pipelines.catalog import located
        from spark_sinks.pipelines.job import start

        query = start(located(PIPELINE, self.settings).config, spark)
        assert isinstance(query, WindowQuery)
        self._query = query

    def look(self, cut_at: datetime | None) -> Seen | None:
        """Read the table again if it has changed. Return the moment that was waited for, once, when it has come.

        Args:
            cut_at: time since when an edge is cut off; None before.

        Raises:
            FabricError: the pipeline has ended with an error.
        """
        self._need_running()
        if self._query is None or time.monotonic() < self._look_at:
            return None
        self._look_at = time.monotonic() + LOOK_S
        windows = self._changed()
        incomplete = [start for start in windows if not all(row["_complete"] for row in windows[start])]
        self.late.update(incomplete)
        if self.early is None:
            chosen = min((start for start in incomplete if cut_at is not None and start >= cut_at), default=None)
            if chosen is not None:
                self.early = _seen(chosen, windows[chosen])
                return self.early
        elif self.whole is None and self.early.start in windows and self.early.start not in incomplete:
            self.whole = _seen(self.early.start, windows[self.early.start])
            return self.whole
        return None

    def is_done(self, records: int) -> bool:
        """Return whether all windows of a log with this number of records are written and complete."""
        self._need_running()
        progress = {} if self._query is None else self._query.lastProgress
        return bool(progress) and not progress["windowsPending"] and sum(progress["offsets"].values()) == records

    def stop(self) -> None:
        """End the pipeline, and wait for its end as long as ``STOP_S_MAX``."""
        if self._query is not None:
            stopping = threading.Thread(target=self._query.stop, name="demo-stop", daemon=True)
            stopping.start()
            stopping.join(STOP_S_MAX)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table; none before there is one."""
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self.table):
            return []
        table = DeltaTable(self.table)
        self._version = table.version()
        columns = ["window_start", "machine", "_complete", *_COUNTS, *FIGURES]
        return list(table.to_pyarrow_table(columns=columns).to_pylist())

    def _changed(self) -> dict[datetime, list[dict[str, Any]]]:
        """Return the rows of the table by window if it has changed, and none otherwise."""
        before = self._version
        windows: dict[datetime, list[dict[str, Any]]] = {}
        for row in self.rows():
            windows.setdefault(row["window_start"], []).append(row)
        return windows if self._version != before else {}

    def _need_running(self) -> None:
        error = None if self._query is None else self._query.exception()
        if error is not None:
            raise FabricError(f"the pipeline {PIPELINE} failed: {error}") from error


def _seen(start: datetime, rows: list[dict[str, Any]]) -> Seen:
    return Seen(start, datetime.now(UTC), sum(row["records"] for row in rows), len(rows))


def recomputed(frame: Any) -> dict[Key, dict[str, Any]]:
    """Compute the windows once more, by one batch job of Spark's own functions over all rows of the stream."""
    from pyspark.sql import functions as f

    payload = f.col("payload").cast("string")
    value = f.get_json_object(payload, "$.data.temp").cast("double")
    window = f.unix_micros(f.window("_time", f"{HOUR_S} seconds")["start"])
    figures = [getattr(f, function)("value").alias(name) for name, function in FIGURES.items()]
    counts = [f.count("*").alias("records"), f.count("value").alias("readings")]
    found = frame.select(window.alias("start"), "device", value.alias("value")).groupBy("start", "device")
    rows = found.agg(*counts, *figures).collect()
    return {(datetime.fromtimestamp(row.start / 1e6, UTC), row.device): row.asDict() for row in rows}


def compare_rows(table: list[dict[str, Any]], batch: Mapping[Key, Mapping[str, Any]]) -> Comparison:
    """Compare the table with the batch job, row by row."""
    rows = {(row["window_start"], row["machine"]): row for row in table}
    return Comparison(
        windows=len({start for start, _ in rows}),
        rows=len(table),
        records=sum(row["records"] for row in table),
        incomplete=sum(not row["_complete"] for row in table),
        different=len(rows.keys() ^ batch.keys())
        + sum(not _agree(rows[key], batch[key]) for key in rows.keys() & batch.keys()),
    )


def _agree(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether counts are equal, and figures but for the order in which doubles were added."""
    if any(row[name] != other[name] for name in _COUNTS):
        return False
    return all(
        row[name] == other[name]
        or (None not in (row[name], other[name]) and math.isclose(row[name], other[name], rel_tol=1e-9, abs_tol=1e-9))
        for name in FIGURES
    )
