"""Settings of the export of spans, and the file with the collector's headers."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from weft.config.intake.tracing import Collector

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
            endpoint=collector.endpoint, service=service, version=software.rpartition(" ")[2], instance=instance,
            headers_file=collector.headers_file, ca_file=collector.ca_file, queue_max=collector.queue,
        )  # fmt: skip

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
