"""Progress of a running pipeline."""

from __future__ import annotations

import contextlib
import json
import queue
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

from pyspark.sql.streaming import StreamingQuery

from spark_sinks.completeness.windows import WindowQuery
from spark_sinks.pipelines.steps import sentence_of
from spark_sinks.source.data_source import STREAMS
from spark_sinks.source.options import HubAccess
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
"""Time between two lines about a micro-batch that continues."""
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
        self._reported_at = 0.0
        """Seconds of it at the last line about it."""

    def running(self, query: StreamingQuery | WindowQuery | TablesQuery) -> float | None:
        """Return for how many seconds the present micro-batch runs, once for each ``RUNNING_S`` of it; else None."""
        if isinstance(query, WindowQuery | TablesQuery) or not query.isActive:
            return None
        if query.status.get("message") != _AT_WORK:
            self._began = None
            return None
        if self._began is None:
            self._began, self._reported_at = self._clock(), 0.0
        seconds = self._clock() - self._began
        if seconds - self._reported_at < RUNNING_S:
            return None
        self._reported_at = seconds
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


# Reports of a running query to a hub, for people who look at its console.

EVERY_S = 10.0
"""Time between two reports."""
TIMEOUT_S = 5.0
"""Longest time that a report may take, and the end of a query waits for its last one."""
ERROR_CHARACTERS = 500
ANSWER_BYTES_MAX = 64 << 10


class Reporter:
    """Reports of one query, for ``await_termination(query, reporter)``.

    A thread sends them, one at a time; one that the hub did not take is replaced by the next. So a hub that is away or
    slow costs the query nothing.

    Args:
        name: that of the pipeline, as names of streams are.
        stream: the stream that it reads; ``*`` for several.
        tenant: that of the token by default.
        on_failure: called once with the reason when a report was not taken, and again after one that was.
    """

    def __init__(
        self,
        access: HubAccess,
        name: str,
        stream: str,
        *,
        tenant: str | None = None,
        on_failure: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access, self._stream, self._on_failure, self._clock = access, stream, on_failure, clock
        query = f"?tenant={quote(tenant)}" if tenant else ""
        self._path = f"/v1/pipelines/{quote(name, safe='')}{query}"
        self._watcher = Watcher(clock)
        self._facts: dict[str, Any] = {}
        """Facts of the last micro-batch, or step of windows."""
        self._records = 0
        """Records since the last report."""
        self._batch_at: float | None = None
        self._reported_at: float | None = None
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(1)
        self._has_reported = False
        self._thread = threading.Thread(target=self._send_all, name="weft-pipeline-report", daemon=True)
        self._thread.start()

    def __call__(self, query: Any) -> None:
        """Look at the query, and report it if that is due. The last report, of its end, is waited for."""
        now, is_active = self._clock(), query.isActive
        if is_active and self._reported_at is not None and now - self._reported_at < EVERY_S:
            return
        self._look(query)
        self._offer(self._report(query, now, is_active=is_active))
        self._reported_at = now
        if not is_active:
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=TIMEOUT_S)
            self._thread.join(TIMEOUT_S)

    def _look(self, query: Any) -> None:
        for each in self._watcher.new(query):
            if isinstance(each, Progress):
                self._records += each.records
                self._facts |= {"batch": each.batch, "records": each.records, "seconds": each.seconds}
                self._batch_at = self._clock()
            else:
                self._facts |= {"seconds": each.seconds, "complete_until": each.complete_until}
        if not isinstance(query, WindowQuery | TablesQuery) and (last := query.lastProgress) is not None:
            self._facts["lag"] = progress_of(json.loads(last.json)).behind

    def _report(self, query: Any, now: float, *, is_active: bool) -> dict[str, Any]:
        error = None if is_active else query.exception()
        state = "running" if is_active else "failed" if error is not None else "ended"
        since = None if self._reported_at is None else now - self._reported_at
        rate = self._records / since if since else None
        self._records = 0
        idle = None if self._batch_at is None else max(0.0, now - self._batch_at)
        return {
            "stream": self._stream,
            "state": state,
            "rate": rate,
            "idle_seconds": idle,
            "every_seconds": EVERY_S,
            "error": None if error is None else sentence_of(error)[:ERROR_CHARACTERS],
            **self._facts,
        }

    def _offer(self, report: dict[str, Any]) -> None:
        """Put a report into the place of one that waits."""
        with contextlib.suppress(queue.Empty):
            self._waiting.get_nowait()
        self._waiting.put_nowait(report)

    def _send_all(self) -> None:
        context = ssl.create_default_context(cadata=self._access.ca)
        opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=context))
        while (report := self._waiting.get()) is not None:
            why = None
            for url in self._access.urls:
                why = self._send(opener, url, report)
                if why is None:
                    break
            if why is not None and not self._has_reported and self._on_failure is not None:
                self._on_failure(why)
            self._has_reported = why is not None

    def _send(self, opener: urllib.request.OpenerDirector, url: str, report: dict[str, Any]) -> str | None:
        """Send a report. Return why it was not taken; None if it was."""
        headers = {"Content-Type": "application/json"}
        token = self._access.renewed().token
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(  # noqa: S310  (the scheme was checked)
            url + self._path, json.dumps(report).encode(), headers, method="PUT"
        )
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                answer.read(ANSWER_BYTES_MAX)
        except Exception as error:  # whatever it is, the query continues
            return f"{url} rejects reports of this pipeline: {_words(error)}"
        return None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows none: a token is for the hub that was named."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _words(error: Exception) -> str:
    if isinstance(error, urllib.request.HTTPError):
        with contextlib.suppress(Exception):
            problem = json.loads(error.read(ANSWER_BYTES_MAX))
            return f"{problem['detail']}; {problem['advice']}"
    return str(error) or type(error).__name__
