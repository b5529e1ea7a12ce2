"""PySpark over Weft's streams: reads, tables, sessions, completeness, and the source behind ``format("weft")``."""

from spark_sinks.completeness.watermark import Complete, CompleteUntil, complete_until, lanes
from spark_sinks.completeness.window_frame import EventTime
from spark_sinks.completeness.window_state import Checkpoint
from spark_sinks.completeness.windows import complete_windows
from spark_sinks.errors import ReadError
from spark_sinks.read import read, table
from spark_sinks.runtime.session import session
from spark_sinks.runtime.waiting import await_termination
from spark_sinks.views import register

__all__ = [
    "Checkpoint",
    "Complete",
    "CompleteUntil",
    "EventTime",
    "ReadError",
    "await_termination",
    "complete_until",
    "complete_windows",
    "lanes",
    "read",
    "register",
    "session",
    "table",
]
