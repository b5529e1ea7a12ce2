"""A collector of traces: takes OTLP over HTTP, and decodes it by OpenTelemetry's own definitions."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from tests.support.waiting import PATIENCE_S


class Got(NamedTuple):
    """A span as it arrived; identifiers in hexadecimal digits."""

    name: str
    trace: str
    span: str
    parent: str
    start: int
    end: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    error: str


class Collector:
    """The spans that came, and the heads of their requests."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.spans: list[Got] = []
        self.heads: list[dict[str, str]] = []
        self.status = 200
        self._news = threading.Condition()

    def take(self, head: dict[str, str], spans: list[Got]) -> None:
        with self._news:
            self.heads.append(head)
            self.spans += spans
            self._news.notify_all()

    def wait(self, *names: str, count: int = 1) -> list[Got]:
        """Wait until so many spans of each name came; return all of these names, in the order of the names."""

        def found() -> list[Got] | None:
            by_name = [[span for span in self.spans if span.name == name] for name in names]
            return [span for each in by_name for span in each] if all(len(each) >= count for each in by_name) else None

        with self._news:
            assert self._news.wait_for(found, PATIENCE_S), f"only {[span.name for span in self.spans]} came"
            return found() or []


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port; the test skips where OpenTelemetry is not installed."""
    pytest.importorskip("opentelemetry.sdk", reason="needs the extra `otel`")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            if collector.status == 200:
                collector.take({name.lower(): value for name, value in self.headers.items()}, list(_spans(body)))
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _spans(body: bytes) -> Iterator[Got]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = _values(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield Got(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    _values(span.attributes),
                    resource,
                    span.status.message if span.status.code == 2 else "",
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
