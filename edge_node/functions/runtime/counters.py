"""Figures of a derived stream, for status and metrics."""

from __future__ import annotations

import msgspec


class FunctionCounters(msgspec.Struct):
    """Figures of one derived stream since the node started."""

    rows_in: int = 0
    """Rows of the inputs that the functions have seen. Rows that are read again after a failure count again."""
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
    """Payload bytes of the rows that came in."""
    bytes_out: int = 0
    """Payload bytes that were written to the stream itself."""
    steps: int = 0
    failures: int = 0
    """Times that the functions were made again because of an error."""
    lag: int = 0
    """Records of the inputs that the functions have not seen."""
    until: int = 0
    """Time up to which all rows were handled, ns since 1970."""
    state_bytes: int = 0
    """Bytes of the last copy of the states and of the changes since, in the log."""
    version: str = ""
    trouble: str = ""
    """Line about what keeps them from going on; empty when all is well."""
    refused: str = ""
    """Line about newer settings or files that they do not work by; empty when all is well."""
    warning: str = ""
    """Line about rows that they reject; empty where those are few."""
