"""Metrics of an edge node's sources, one of each for every source."""

from __future__ import annotations

from weft.config.metrics.metric import Metric

_LABELS = ("source",)

SOURCE_METRICS = (
    Metric("weft_edge_source_connected", "gauge", "1 while the source is connected to its broker.", _LABELS),
    Metric("weft_edge_source_messages_total", "counter", "Messages taken from the broker.", _LABELS),
    Metric("weft_edge_source_received_bytes_total", "counter", "Payload bytes of these messages.", _LABELS),
    Metric(
        "weft_edge_source_acknowledged_total",
        "counter",
        "Messages acknowledged to the broker, each after it was on disk.",
        _LABELS,
    ),
    Metric("weft_edge_source_unacknowledged_messages", "gauge", "Messages that wait for the disk.", _LABELS),
    Metric("weft_edge_source_duplicates_total", "counter", "Messages flagged as suspected duplicates.", _LABELS),
    Metric("weft_edge_source_refused_total", "counter", "Messages that cannot be stored and are not kept.", _LABELS),
    Metric("weft_edge_source_attempts_failed", "gauge", "Consecutive failed attempts to connect.", _LABELS),
    Metric("weft_edge_source_waiting_messages", "gauge", "Messages that wait at the broker, where it tells.", _LABELS),
)
