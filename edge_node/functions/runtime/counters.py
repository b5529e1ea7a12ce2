"""Figures of a derived stream, for status and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

import msgspec

from weft.config.metrics.exposition import Sample


class FunctionCounters(msgspec.Struct):
    """Figures of one derived stream since the node started."""

    rows_in: int = 0
    """Rows of the inputs that the functions have seen. Rows read again after a failure count again."""
    rows_out: int = 0
    """Rows that were written to the stream itself."""
    rows_rejected: int = 0
    """Rows that were written to its stream of errors."""
    rows_routed: int = 0
    """Rows that were written to other streams."""
    alerts: int = 0
    gaps: int = 0
    """Stretches of missing records between the rows."""
    bytes_in: int = 0
    """Payload bytes of the rows read."""
    bytes_out: int = 0
    """Payload bytes that were written to the stream itself."""
    steps: int = 0
    failures: int = 0
    """Number of times that the functions were created again because of an error."""
    lag: int = 0
    """Records of the inputs that the functions have not seen."""
    until: int = 0
    """Time up to which all rows were handled, ns since 1970."""
    state_bytes: int = 0
    """Bytes of the last copy of the states and of the changes since, in the log."""
    version: str = ""
    trouble: str = ""
    """Line about a problem that stops them; empty when there is none."""
    refused: str = ""
    """Line about newer settings or files that are not in use; empty when there are none."""
    warning: str = ""
    """Line about rejected rows; empty where they are few."""


class FunctionFacts(TypedDict):
    """Facts about the functions of a stream, since the node started."""

    version: str
    """Name of the running version, as in ``_origin`` of its rows."""
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
    """Number of times that they restarted after an error."""
    lag_records: int
    lag_seconds: float
    """Age of the time up to which the stream is complete; 0 before the first."""
    state_bytes: int
    trouble: str
    """Sentence about a problem that stops them; empty when there is none."""
    refused: str
    """Sentence about newer settings or files that are not in use; empty when there are none."""
    warning: str
    """Sentence about rejected rows; empty where they are less than one in a hundred."""


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


def function_samples(name: str, facts: FunctionFacts) -> Iterator[Sample]:
    """Yield the values of every metric of a derived stream."""
    prefix = "weft_edge_function_"
    yield Sample(f"{prefix}rows_in_total", facts["rows_in"], (name,))
    yield Sample(f"{prefix}rows_out_total", facts["rows_out"], (name,))
    yield Sample(f"{prefix}rows_rejected_total", facts["rows_rejected"], (name,))
    yield Sample(f"{prefix}rows_routed_total", facts["rows_routed"], (name,))
    yield Sample(f"{prefix}alerts_total", facts["alerts"], (name,))
    yield Sample(f"{prefix}gaps_total", facts["gaps"], (name,))
    yield Sample(f"{prefix}in_bytes_total", facts["bytes_in"], (name,))
    yield Sample(f"{prefix}out_bytes_total", facts["bytes_out"], (name,))
    yield Sample(f"{prefix}failures_total", facts["failures"], (name,))
    yield Sample(f"{prefix}lag_records", facts["lag_records"], (name,))
    yield Sample(f"{prefix}lag_seconds", facts["lag_seconds"], (name,))
    yield Sample(f"{prefix}state_bytes", facts["state_bytes"], (name,))
    yield Sample(f"{prefix}in_trouble", bool(facts["trouble"]), (name,))
    yield Sample(f"{prefix}version_refused", bool(facts["refused"]), (name,))
    yield Sample(f"{prefix}info", 1, (name, facts["version"]))
