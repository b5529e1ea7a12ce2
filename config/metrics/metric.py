"""An entry of the metric catalogue."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """One metric. Names follow the Prometheus conventions: base units, ``_total`` for counters."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """Return the names of the metric's series: three for a histogram, otherwise its own."""
        endings = ("_bucket", "_count", "_sum") if self.kind == "histogram" else ("",)
        return tuple(self.name + ending for ending in endings)


# Metrics of traces, of edge nodes and hubs.


def _export(prefix: str) -> tuple[Metric, ...]:
    return (
        Metric(f"{prefix}_trace_spans_exported_total", "counter", "Spans of traces that the collector accepted."),
        Metric(f"{prefix}_trace_spans_failed_total", "counter", "Spans that the collector has not accepted."),
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


# Metrics of a node's process.

PROCESS_METRICS = (
    Metric("process_resident_memory_bytes", "gauge", "Resident memory of the process."),
    Metric("process_virtual_memory_bytes", "gauge", "Address space of the process."),
    Metric("process_cpu_seconds_total", "counter", "CPU time of the process."),
    Metric("process_open_fds", "gauge", "Open files and sockets of the process."),
    Metric("process_max_fds", "gauge", "Maximum number of open files and sockets of the process."),
    Metric("process_start_time_seconds", "gauge", "Start time of the process, in seconds since 1970."),
)
"""Metrics of both kinds of node, under the names that Prometheus's clients share. Read from ``/proc``."""
