"""Export of spans by OTLP over HTTP, in a thread of its own: nothing waits for the collector.

The library is imported by that thread, because this takes most of a second on a Pi. Spans that find no room are
dropped and counted, as are those that the collector does not take: a trace is no record, and nothing is sent twice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.config.log_lines.up_and_down import UpAndDown
from weft.network.tracing.settings import MISSING, ExportSettings, is_installed, read_headers
from weft.network.tracing.spans import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger(__name__)

CLOSE_S = 2.0
"""Time in which waiting spans may still go out when the node stops."""
_SCOPE = "weft"

NO_FIGURES: Mapping[str, int] = dict.fromkeys(
    ("spans_exported_total", "spans_failed_total", "spans_dropped_total", "spans_waiting"), 0
)
"""Figures of a node that exports nothing."""

Send = Callable[[Sequence[Span]], bool]
"""Sends spans; returns False if the collector did not take them. Blocks."""


class TraceExport:
    """A bounded queue of spans and the thread that sends them.

    ``offer`` belongs to one thread, the event loop's. Each figure has one writer, and any thread may read it.

    Args:
        monotonic: seconds.
    """

    def __init__(self, settings: ExportSettings, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._waiting: deque[Span] = deque()
        self._wake = threading.Condition()
        self._is_closing = False
        self._library: SpanExporter | None = None
        self._thread: threading.Thread | None = None
        self.dropped = 0
        """Spans that found the queue full."""
        self.exported = 0
        """Spans that the collector has taken."""
        self.failed = 0
        """Spans that it has not taken."""

    def start(self) -> None:
        """Begin to send."""
        self._thread = threading.Thread(target=self._run, name="weft-traces", daemon=True)
        self._thread.start()

    def offer(self, span: Span) -> None:
        """Queue a span; drop it if there is no room."""
        if len(self._waiting) >= self._settings.queue_max:
            self.dropped += 1
            return
        self._waiting.append(span)
        if len(self._waiting) == self._settings.batch_max:
            with self._wake:
                self._wake.notify()

    def close(self) -> None:
        """Send what waits, for ``CLOSE_S`` at most, and end. Blocks."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive() and self._library is not None:
                self._library.shutdown()

    def figures(self) -> Mapping[str, int]:
        """Return the figures of the export, by the last part of their metrics' names."""
        return {
            "spans_exported_total": self.exported,
            "spans_failed_total": self.failed,
            "spans_dropped_total": self.dropped,
            "spans_waiting": len(self._waiting),
        }

    # --- the thread

    def _run(self) -> None:
        try:
            send = self._sender()
        except Exception as error:
            logger.warning("no trace is exported until the next start: %s", error)
            send = _refuse
        state, url = UpAndDown(self._monotonic()), self._settings.url
        while True:
            with self._wake:
                if not self._is_closing and len(self._waiting) < self._settings.batch_max:
                    self._wake.wait(self._settings.interval_s)
                is_closing = self._is_closing
            while self._waiting:
                is_well = self._send(send)
                if send is _refuse:
                    continue
                _report(state, self._monotonic(), url, is_well=is_well)
                if not is_well:
                    break  # the library has tried for a while; further spans wait until the next round
            if is_closing:
                return

    def _send(self, send: Send) -> bool:
        spans = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._settings.batch_max))]
        try:
            is_taken = send(spans)
        except Exception:
            logger.exception("spans could not be exported")
            is_taken = False
        if is_taken:
            self.exported += len(spans)
        else:
            self.failed += len(spans)
        return is_taken

    def _sender(self) -> Send:
        """Import the library, and return what sends by it.

        Raises:
            ValueError, OSError: the library is missing, or the file with headers cannot be used.
        """
        settings = self._settings
        if not is_installed():
            raise ValueError(MISSING)
        headers = None if settings.headers_file is None else read_headers(settings.headers_file)
        from opentelemetry.exporter.otlp.proto.http import Compression
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult

        # Its lines would repeat with every batch, and ours say the same.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._library = library = OTLPSpanExporter(
            settings.url, certificate_file=settings.ca_file, headers=headers, timeout=settings.timeout_s,
            compression=Compression.Gzip,
        )  # fmt: skip
        converted = _converter(settings)
        return lambda spans: library.export(converted(spans)) is SpanExportResult.SUCCESS


def _converter(settings: ExportSettings) -> Callable[[Sequence[Span]], list[Any]]:
    """Return the converter of spans to the library's."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
    from opentelemetry.trace.status import Status, StatusCode

    own: Mapping[str, str] = {
        "service.name": settings.service,
        "service.version": settings.version,
        "service.instance.id": settings.instance,
    }
    resource = Resource({name: value for name, value in own.items() if value})
    scope, sampled = InstrumentationScope(_SCOPE, settings.version), TraceFlags(TraceFlags.SAMPLED)

    def converted(span: Span) -> ReadableSpan:
        context, parent = span.context, span.parent
        return ReadableSpan(
            span.name,
            SpanContext(context.trace_id, context.span_id, is_remote=False, trace_flags=sampled),
            parent and SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=sampled),
            resource,
            span.attributes,
            kind=SpanKind.CONSUMER,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
            start_time=span.start,
            end_time=span.end,
            instrumentation_scope=scope,
        )

    return lambda spans: list(map(converted, spans))


def _refuse(_: Sequence[Span]) -> bool:
    return False


def _report(state: UpAndDown, now: float, url: str, *, is_well: bool) -> None:
    if is_well:
        up = state.up(now)
        if up is not None and up.again:
            logger.info("the collector of traces %s answers again, after %.0f s", url, up.away_s)
        return
    down = state.down(url, now)
    if down is not None:
        logger.warning("the collector of traces %s takes no spans. They are dropped until it does", url)
