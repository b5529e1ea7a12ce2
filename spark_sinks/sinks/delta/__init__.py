"""Rows into Delta tables: exactly once by log offsets, replaced by keys, or a partition at a time."""

from spark_sinks.sinks.delta.sink import DeltaSink

__all__ = ["DeltaSink"]
