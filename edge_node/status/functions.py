"""Facts about a derived stream, for the status and the metrics."""

from __future__ import annotations

from typing import TypedDict

from weft.edge_node.functions.runtime.counters import FunctionCounters


class FunctionFacts(TypedDict):
    """Facts about the functions of a stream, since the node started."""

    version: str
    """Name of what runs, as ``_origin`` of its rows has it."""
    rows_in: int
    rows_out: int
    rows_rejected: int
    """Rows in the stream of errors."""
    rows_routed: int
    alerts: int
    gaps: int
    bytes_in: int
    bytes_out: int
    failures: int
    """Times that they started again after an error."""
    lag_records: int
    lag_seconds: float
    """Age of the moment up to which the stream has all that will come; 0 before the first."""
    state_bytes: int
    trouble: str
    """Sentence about what keeps them from going on; empty when all is well."""
    refused: str
    """Sentence about newer settings or files that they do not work by; empty when all is well."""
    warning: str
    """Sentence about rows that they reject; empty where those are less than one in a hundred."""


def function_facts(counters: FunctionCounters, now: int) -> FunctionFacts:
    """Return the facts about the functions of a stream.

    Args:
        now: ns since 1970.
    """
    return FunctionFacts(
        version=counters.version,
        rows_in=counters.rows_in,
        rows_out=counters.rows_out,
        rows_rejected=counters.rows_rejected,
        rows_routed=counters.rows_routed,
        alerts=counters.alerts,
        gaps=counters.gaps,
        bytes_in=counters.bytes_in,
        bytes_out=counters.bytes_out,
        failures=counters.failures,
        lag_records=counters.lag,
        lag_seconds=max(0, now - counters.until) / 1e9 if counters.until > 0 else 0.0,
        state_bytes=counters.state_bytes,
        trouble=counters.trouble,
        refused=counters.refused,
        warning=counters.warning,
    )
