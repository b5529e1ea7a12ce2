"""Reports of a running query to a hub, for people who look at its console."""

from __future__ import annotations

import contextlib
import json
import queue
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from spark_sinks.completeness.window_query import WindowQuery
from spark_sinks.pipelines.failure import sentence_of
from spark_sinks.pipelines.progress import Progress, Watcher, progress_of
from spark_sinks.source.hub.access import HubAccess
from spark_sinks.tables.query import TablesQuery

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
        told: called once with the reason when a report was not taken, and again after one that was.
    """

    def __init__(
        self, access: HubAccess, name: str, stream: str, *, tenant: str | None = None,
        told: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._access, self._stream, self._told, self._clock = access, stream, told, clock
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
        self._is_told = False
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
            "stream": self._stream, "state": state, "rate": rate, "idle_seconds": idle, "every_seconds": EVERY_S,
            "error": None if error is None else sentence_of(error)[:ERROR_CHARACTERS], **self._facts,
        }  # fmt: skip

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
            if why is not None and not self._is_told and self._told is not None:
                self._told(why)
            self._is_told = why is not None

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
        except Exception as error:  # whatever it is, the query goes on
            return f"{url} does not take reports of this pipeline: {_words(error)}"
        return None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows none: a token is for the hub that was named."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _words(error: Exception) -> str:
    if isinstance(error, urllib.request.HTTPError):
        with contextlib.suppress(Exception):
            told = json.loads(error.read(ANSWER_BYTES_MAX))
            return f"{told['detail']}; {told['advice']}"
    return str(error) or type(error).__name__
