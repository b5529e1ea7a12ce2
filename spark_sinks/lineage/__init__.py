"""Lineage: the records of devices that went into a row."""

from spark_sinks.lineage.columns import FROM_COLUMN, FROM_TYPE, joined, merged, of_record
from spark_sinks.lineage.tracing import trace

__all__ = ["FROM_COLUMN", "FROM_TYPE", "joined", "merged", "of_record", "trace"]
