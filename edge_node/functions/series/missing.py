"""Treatment of rows that a function cannot compare: the setting ``missing``."""

from __future__ import annotations

from typing import Any, Literal

from weft.edge_node.functions.contract import Out, Row
from weft.edge_node.functions.paths import MISSING

Missing = Literal["pass", "reject", "drop"]
_SHOWN_MAX = 40


def passes(row: Row, missing: Missing, reason: str, out: Out) -> bool:
    """Return whether a row is kept although it cannot be compared. Report the reason where it is not."""
    if missing == "pass":
        return True
    if missing == "reject":
        out.reject(row, reason)
    else:
        out.drop(row, reason.partition(": ")[2])  # the display names the function
    return False


def no_number(function: str, field: str, value: Any) -> str:
    """Return the reason for a field without a finite number."""
    if value is MISSING:
        return f"{function}: the payload has no field {field}"
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}..."
    return f"{function}: {field} is not a finite number of at most 64 bits: {shown}"
