"""Traces of messages for OpenTelemetry: where spans go, and which messages get some."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from weft.config.values import Count, Path, Section


class Collector(Section, frozen=True, kw_only=True):
    """Collector of traces, which takes OTLP over HTTP. Needs the extra `otel`."""

    endpoint: Annotated[
        str,
        Meta(
            pattern=r"^https?://[^/@\s?#]+(/[^\s?#]*)?$",
            max_length=2048,
            examples=["http://collector.example.com:4318"],
            description="URL of the collector. Without a path, spans go to `/v1/traces` there.",
        ),
    ]
    headers_file: Annotated[
        Path | None,
        Meta(
            description="File with headers of each request, such as `Authorization: Bearer ...`, one on each line. "
            "Only the node's user may be able to read it. Unset: those of the environment's "
            "`OTEL_EXPORTER_OTLP_HEADERS`, if it is set."
        ),
    ] = None
    ca_file: Annotated[
        Path | None,
        Meta(
            description="PEM file with the authorities that sign the collector's certificate. Unset: the usual public "
            "ones."
        ),
    ] = None
    queue: Annotated[
        Count,
        Meta(
            le=65_536,
            description="Maximum number of spans that wait for the collector, about 1 KiB each. Further ones are "
            "dropped, and counted.",
        ),
    ] = 4096


class Tracing(Collector, frozen=True, kw_only=True):
    """Traces of messages. A message with a sampled `traceparent` is traced, and one with an unsampled one is not."""

    sample_ratio: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Part of the messages without `traceparent` that are traced: `0.001` traces one in a thousand. "
            "`0` traces none of them.",
        ),
    ] = 0.0
    messages_per_second: Annotated[
        Count,
        Meta(
            le=100_000,
            description="Messages that are traced a second at most; a quarter of them for one client. Messages above "
            "it are stored like all others, and counted.",
        ),
    ] = 100
