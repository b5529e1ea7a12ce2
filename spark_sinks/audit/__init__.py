"""Audits of a stream, counted by executors."""

from spark_sinks.audit.job import audit, check

__all__ = ["audit", "check"]
