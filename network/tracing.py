"""Export of spans by OTLP over HTTP, in a thread of its own: nothing waits for the collector.

The library is imported by that thread, because this takes most of a second on a Pi. Spans that find no room are
dropped and counted, as are those that the collector does not take: a trace is no record, and nothing is sent twice.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from weft.config.errors import Finding, KeyPath
from weft.config.log_lines import UpAndDown
from weft.config.machine import too_readable, why_unreadable
from weft.config.sources import Collector
from weft.config.units import Address
from weft.protocols.batch import HeaderValue

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter


# Trace contexts by W3C Trace Context, level 1 (https://www.w3.org/TR/trace-context/).

TRACEPARENT: Final = "traceparent"
"""Name of the header in HTTP, of the user property in MQTT 5.0, and of the application property in AMQP."""
TRACESTATE: Final = "tracestate"
TRACESTATE_CHARACTERS_MAX = 512
"""Longest value that is kept: section 3.3.1.5 asks for at least that much."""
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_CHARACTERS_MAX = 256
"""Longest value that is parsed; later versions may append fields."""
_SAMPLED = 1


class TraceContext(NamedTuple):
    """Identity of a span, as others name it as their parent."""

    trace_id: int
    """128 bits, not 0."""
    span_id: int
    """64 bits, not 0."""
    is_sampled: bool = True

    def __str__(self) -> str:
        """Return the value of ``traceparent``."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.is_sampled:02x}"


def parse(value: HeaderValue) -> TraceContext | None:
    """Return the context in a value of ``traceparent``; None if it is not valid, and must be ignored (section 4.3).

    A later version counts as far as version 00 goes (section 3.2.4).
    """
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    if not isinstance(value, str) or len(value) > _CHARACTERS_MAX:
        return None
    match = _FORM.fullmatch(value.strip())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(match[4], 16) & _SAMPLED))


def found_in(headers: Iterable[tuple[str, HeaderValue]]) -> TraceContext | None:
    """Return the context in the headers of a record; None without a valid one. Of several the first counts."""
    for name, value in headers:
        if name == TRACEPARENT:
            return parse(value)
    return None


# Spans of messages: plain values, which the exporter's thread converts.

Attribute = str | int


class Span(NamedTuple):
    """One step of a message's way. Times are nanoseconds since 1970."""

    name: str
    context: TraceContext
    parent: TraceContext | None
    """None for the first span of a trace."""
    start: int
    end: int
    attributes: Mapping[str, Attribute]
    error: str = ""
    """Reason why the step failed; empty if it succeeded."""


# Settings of the export of spans, and the file with the collector's headers.

HEADERS_BYTES_MAX = 16 << 10
"""Longest file with headers."""
HEADERS_MAX = 32
MISSING = "OpenTelemetry's library is not installed. Install it with: pip install 'weft-fabric[otel]'"
_LIBRARIES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_TRACES_PATH = "/v1/traces"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """Settings of one exporter."""

    endpoint: str
    """URL of the collector; ``url`` is what spans are posted to."""
    service: str
    """``service.name`` of the spans."""
    version: str = ""
    instance: str = ""
    """``service.instance.id``: name of the node."""
    headers_file: str | None = None
    """File with further headers of the requests; None takes those of ``OTEL_EXPORTER_OTLP_HEADERS``, if it is set."""
    ca_file: str | None = None
    """Authorities for the URL; None for the library's."""
    queue_max: int = 4096
    """Maximum number of spans that wait for the collector, about 1 KiB each."""
    batch_max: int = 128
    """Maximum number of spans in one request: converting them holds the interpreter for some milliseconds."""
    interval_s: float = 1.0
    """Time for which spans gather."""
    timeout_s: float = 10.0
    """Maximum time of one request, with the library's retries."""

    @classmethod
    def of(cls, collector: Collector, service: str, software: str, instance: str) -> ExportSettings:
        """Return the settings of a configuration.

        Args:
            software: name and version of the program.
        """
        return cls(
            endpoint=collector.endpoint,
            service=service,
            version=software.rpartition(" ")[2],
            instance=instance,
            headers_file=collector.headers_file,
            ca_file=collector.ca_file,
            queue_max=collector.queue,
        )

    @property
    def url(self) -> str:
        """Return the URL for requests: a URL without a path gets the one of OTLP."""
        return self.endpoint.rstrip("/") + ("" if urlsplit(self.endpoint).path.strip("/") else _TRACES_PATH)


def is_installed() -> bool:
    """Return whether the extra `otel` is installed. Imports nothing of it but namespaces."""
    try:
        return all(importlib.util.find_spec(name) is not None for name in _LIBRARIES)
    except ModuleNotFoundError:
        return False


def read_headers(path: str) -> dict[str, str]:
    """Return the headers in a file, one ``Name: value`` on each line. Blocks.

    Raises:
        OSError: the file cannot be read.
        ValueError: it has something else. The message does not have the line, which may hold a secret.
    """
    with open(path, "rb") as file:
        data = file.read(HEADERS_BYTES_MAX + 1)
    if len(data) > HEADERS_BYTES_MAX:
        raise ValueError(f"{path} has more than {HEADERS_BYTES_MAX} bytes: expected one `Name: value` on each line")
    headers: dict[str, str] = {}
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        name, value = name.strip(), value.strip()
        if not colon or not _NAME.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise ValueError(f"{path}:{number}: expected `Name: value`, such as `Authorization: Bearer ...`")
        headers[name.lower()] = value
    if not headers or len(headers) > HEADERS_MAX:
        raise ValueError(f"{path}: expected 1 to {HEADERS_MAX} headers, one `Name: value` on each line")
    return headers


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
            settings.url,
            certificate_file=settings.ca_file,
            headers=headers,
            timeout=settings.timeout_s,
            compression=Compression.Gzip,
        )
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
        logger.warning("the collector of traces %s refuses spans. They are dropped until it accepts them", url)


# Checks of the settings of traces against this machine. Nothing is sent to the collector.


class TracingFindings(NamedTuple):
    """Findings, by their effect: a node takes and keeps messages in any case."""

    unfit: list[Finding]
    """Findings with which nothing is exported."""
    doubtful: list[Finding]


def look_at(collector: Collector | None) -> TracingFindings:
    """Open what the section ``tracing`` names. Blocks."""
    found = TracingFindings([], [])
    if collector is None:
        return found
    section: KeyPath = ("tracing",)
    if not is_installed():
        found.unfit.append(Finding(section, MISSING))
    if collector.ca_file is not None:
        try:
            with open(collector.ca_file, "rb"):
                pass
        except OSError as error:
            found.unfit.append(Finding((*section, "ca_file"), f"{collector.ca_file}: {why_unreadable(error)}"))
    file, place = collector.headers_file, (*section, "headers_file")
    if file is None:
        return found
    try:
        read_headers(file)
    except OSError as error:
        found.unfit.append(Finding(place, f"{file}: {why_unreadable(error)}"))
    except ValueError as error:
        found.unfit.append(Finding(place, str(error)))
    else:
        if problem := too_readable(file):
            found.doubtful.append(Finding(place, problem))
    url = urlsplit(collector.endpoint)
    if url.scheme == "http" and not Address(url.hostname or "", 0).is_loopback:
        message = f"the headers of {file} cross the network in clear text to {collector.endpoint}. Use https"
        found.doubtful.append(Finding((*section, "endpoint"), message))
    return found
