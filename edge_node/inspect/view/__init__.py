"""View of a node's log from another process, while the node runs or later. Nothing is locked, nothing is written."""

from weft.edge_node.inspect.view.cursor import Commit, Cursor, DamagedBytes, LogPlace
from weft.edge_node.inspect.view.directory import LogDirectory, NoLog
from weft.edge_node.inspect.view.durability import Durability, is_locked
from weft.edge_node.inspect.view.next_start import NextStart, forecast
from weft.edge_node.inspect.view.segment_view import SegmentView
from weft.edge_node.inspect.view.summary import LogSummary, StreamSummary, summarise

__all__ = [
    "Commit",
    "Cursor",
    "DamagedBytes",
    "Durability",
    "LogDirectory",
    "LogPlace",
    "LogSummary",
    "NextStart",
    "NoLog",
    "SegmentView",
    "StreamSummary",
    "forecast",
    "is_locked",
    "summarise",
]
