"""Rules for an edge's configuration, and derived facts: sizes, derived streams, warnings."""

from weft.edge_node.check.derived import (
    carried_streams,
    configuring_link,
    inputs,
    intake,
    intake_patterns,
    is_derived,
    streams_of,
)
from weft.edge_node.check.flow import Flow, level_names
from weft.edge_node.check.notes import notes
from weft.edge_node.check.rules import check
from weft.edge_node.check.sizes import segment_bytes, topics_log_bytes, unrouted_bytes

__all__ = [
    "Flow",
    "carried_streams",
    "check",
    "configuring_link",
    "inputs",
    "intake",
    "intake_patterns",
    "is_derived",
    "level_names",
    "notes",
    "segment_bytes",
    "streams_of",
    "topics_log_bytes",
    "unrouted_bytes",
]
