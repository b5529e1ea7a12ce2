"""Sinks with their guarantees: Delta tables, streams, PostgreSQL and Kafka."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_sinks.sinks.delta.sink import DeltaSink
    from spark_sinks.sinks.jdbc import JdbcSink
    from spark_sinks.sinks.kafka import KafkaSink
    from spark_sinks.sinks.stream.sink import SourceStream, StreamSink, TargetStream

_PLACES = {
    "DeltaSink": "spark_sinks.sinks.delta.sink",
    "JdbcSink": "spark_sinks.sinks.jdbc",
    "KafkaSink": "spark_sinks.sinks.kafka",
    "SourceStream": "spark_sinks.sinks.stream.sink",
    "StreamSink": "spark_sinks.sinks.stream.sink",
    "TargetStream": "spark_sinks.sinks.stream.sink",
}
"""Name -> module, imported on first use: each needs libraries that the others do not need."""
__all__ = ["DeltaSink", "JdbcSink", "KafkaSink", "SourceStream", "StreamSink", "TargetStream"]


def __getattr__(name: str) -> Any:
    """Return a sink, or an argument of one, by its name."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
