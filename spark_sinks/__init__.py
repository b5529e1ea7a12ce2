"""PySpark over Weft's streams: ``read``, ``table``, ``session``, and the source behind ``format("weft")``."""

from spark_sinks.errors import ReadError
from spark_sinks.read import read, table
from spark_sinks.session import session

__all__ = ["ReadError", "read", "session", "table"]
