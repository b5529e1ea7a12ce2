"""Metrics of traces, of edge nodes and hubs."""

from __future__ import annotations

from weft.config.metrics.metric import Metric


def _export(prefix: str) -> tuple[Metric, ...]:
    return (
        Metric(f"{prefix}_trace_spans_exported_total", "counter", "Spans of traces that the collector has taken."),
        Metric(f"{prefix}_trace_spans_failed_total", "counter", "Spans that the collector has not taken."),
        Metric(
            f"{prefix}_trace_spans_dropped_total", "counter", "Spans dropped because `tracing.queue` others waited."
        ),
        Metric(f"{prefix}_trace_spans_waiting", "gauge", "Spans that wait for the collector."),
    )


EDGE_TRACE_METRICS = (
    Metric("weft_edge_traced_messages_total", "counter", "Messages that were traced."),
    Metric(
        "weft_edge_trace_rate_exceeded_total",
        "counter",
        "Messages that were not traced because of `tracing.messages_per_second`.",
    ),
    *_export("weft_edge"),
)
HUB_TRACE_METRICS = _export("weft_hub")
