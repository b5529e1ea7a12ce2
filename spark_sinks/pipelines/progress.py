"""Progress of a running pipeline."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from pyspark.sql.streaming import StreamingQuery

from spark_sinks.completeness.window_query import WindowQuery
from spark_sinks.source.several import STREAMS
from spark_sinks.tables.query import TablesQuery


class Progress(NamedTuple):
    """One micro-batch."""

    batch: int
    records: int
    """Records read."""
    seconds: float
    """Duration of the micro-batch."""
    behind: int | None
    """Records of the log that are still unread, as last seen; None if the source does not report it."""

    @property
    def rate(self) -> float:
        """Return the records read in a second."""
        return self.records / self.seconds if self.seconds else 0.0


def progress_of(facts: dict[str, Any]) -> Progress:
    """Return the progress of one micro-batch from Spark's report of it."""
    seconds = facts.get("durationMs", {}).get("triggerExecution", 0) / 1000
    (source, *_) = facts.get("sources") or [{}]
    start, end, latest = (_offsets(source.get(name)) for name in ("startOffset", "endOffset", "latestOffset"))
    # By offsets: Spark counts a row once for each time that a sink or a step reads it.
    records = _between(start or {}, end or {})
    behind = None if end is None or latest is None else _between(end, latest)
    return Progress(int(facts["batchId"]), records, seconds, behind)


def _between(start: dict[str, int], end: dict[str, int]) -> int:
    return sum(max(0, offset - start.get(shard, 0)) for shard, offset in end.items())


def _offsets(value: Any) -> dict[str, int] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if isinstance(value, dict) and isinstance(value.get(STREAMS), dict):
        several = ((name, _offsets(each) or {}) for name, each in value[STREAMS].items())
        return {f"{name}/{shard}": at for name, offsets in several for shard, at in offsets.items()}
    # Offsets also have a key for chunks, which are not numbers of records.
    return {shard: at for shard, at in value.items() if isinstance(at, int)} if isinstance(value, dict) else None


class WindowProgress(NamedTuple):
    """One step of a query of windows."""

    given: int
    """Windows written."""
    pending: int
    """Windows with records that are not written yet."""
    complete_until: str | None
    """Moment up to which the stream is complete, ISO 8601; None when that is not known."""
    held_back_by: tuple[str, ...]
    """Edge nodes that hold the moment back, with the reason."""
    late: int
    """Windows of event time with records that came after the declared bound."""
    rejected: dict[str, int]
    """Number of records without a usable time, which no window counts, by reason."""
    seconds: float


def window_progress_of(facts: dict[str, Any]) -> WindowProgress:
    """Return the progress of a query of windows from its own report of the last step."""
    return WindowProgress(
        int(facts.get("windowsGiven", 0)),
        int(facts.get("windowsPending", 0)),
        facts.get("completeUntil"),
        tuple(facts.get("heldBackBy", ())),
        int(facts.get("windowsLate", 0)),
        dict(facts.get("rejected", {})),
        facts.get("durationMs", 0) / 1000,
    )


RUNNING_S = 30.0
"""Time between two lines about a micro-batch that goes on."""
_AT_WORK = "Processing new data"
"""Spark's message about a query whose micro-batch is under way."""


class Watcher:
    """Progress of a query: each micro-batch once, and each step that changed something."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to watch.

        Args:
            clock: monotonic seconds.
        """
        self._seen = -1
        self._last: WindowProgress | None = None
        self._clock = clock
        self._began: float | None = None
        """Time at which the present micro-batch was first seen."""
        self._told = 0.0
        """Seconds of it at the last line about it."""

    def running(self, query: StreamingQuery | WindowQuery | TablesQuery) -> float | None:
        """Return for how many seconds the present micro-batch runs, once for each ``RUNNING_S`` of it; else None."""
        if isinstance(query, WindowQuery | TablesQuery) or not query.isActive:
            return None
        if query.status.get("message") != _AT_WORK:
            self._began = None
            return None
        if self._began is None:
            self._began, self._told = self._clock(), 0.0
        seconds = self._clock() - self._began
        if seconds - self._told < RUNNING_S:
            return None
        self._told = seconds
        return seconds

    def new(self, query: StreamingQuery | WindowQuery | TablesQuery) -> list[Progress] | list[WindowProgress]:
        """Return the progress since the last call, in its order: micro-batches with records, or the last step."""
        if isinstance(query, TablesQuery):
            return self._fresh([Progress(*each) for each in query.rounds])
        if not isinstance(query, WindowQuery):
            return self._batches(query)
        facts = query.lastProgress
        found = window_progress_of(facts) if facts else None
        if found is None or (self._last is not None and found[:-1] == self._last[:-1]):
            return []
        self._last = found
        return [found]

    def _batches(self, query: StreamingQuery) -> list[Progress]:
        return self._fresh([progress_of(json.loads(each.json)) for each in query.recentProgress])

    def _fresh(self, reports: list[Progress]) -> list[Progress]:
        fresh = [each for each in reports if each.batch > self._seen and each.records]
        if fresh:
            self._began = None
            self._seen = fresh[-1].batch
        return fresh
