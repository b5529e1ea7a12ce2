"""Spans of messages: plain values, which the exporter's thread converts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from weft.network.tracing.context import TraceContext

Attribute = str | int


class Span(NamedTuple):
    """One step of a message's way. Times are nanoseconds since 1970."""

    name: str
    context: TraceContext
    parent: TraceContext | None
    """None for the first span of a trace."""
    start: int
    end: int
    attributes: Mapping[str, Attribute]
    error: str = ""
    """Reason why the step failed; empty if it succeeded."""
