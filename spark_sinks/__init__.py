"""PySpark over Weft's streams: ``read``, ``table``, sessions, and the source behind ``format("weft")``."""

from spark_sinks.errors import ReadError
from spark_sinks.read import read, table
from spark_sinks.runtime.session import register, session
from spark_sinks.runtime.waiting import await_termination

__all__ = ["ReadError", "await_termination", "read", "register", "session", "table"]
