"""Audits of a stream, counted by executors."""

from spark_sinks.audit.job import audit

__all__ = ["audit"]
