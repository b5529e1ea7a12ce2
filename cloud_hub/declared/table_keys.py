"""Parts of the key of a latest table, of a choice of rows, or of an order of rows: columns, and fields of payloads."""

from __future__ import annotations

import re
from collections.abc import Sequence

PARTS_MAX = SORT_COLUMNS_MAX = 8
PART = re.compile(r"payload(\.[A-Za-z_][A-Za-z0-9_-]{0,63}){1,8}|[A-Za-z_][A-Za-z0-9_-]{0,63}")
_CONTENT = ("payload", "_headers")
_FIXED = ("_key", "_edge", "_log")
"""Columns of every table that a key may have; others that begin with `_` are of one record alone."""


def wrong_part(parts: Sequence[str], what: str = "key") -> str | None:
    """Return what is wrong with the parts of a key, as a sentence; None if nothing is.

    Args:
        what: name of the whole.
    """
    if not 1 <= len(parts) <= PARTS_MAX:
        return f"a {what} has 1 to {PARTS_MAX} parts, and {len(parts)} are named"
    if len({part.replace(".", "_").casefold() for part in parts}) < len(parts):
        return f"two parts of the {what} are the same, or differ in case, or by `.` and `_`, alone"
    for part in parts:
        if not PART.fullmatch(part) or (part.startswith("_") and part not in _FIXED) or part == "payload":
            return (
                f"{part!r} cannot be part of a {what}: name `_key`, `_edge`, a topic level such as `machine`, or a "
                "field of JSON payloads such as `payload.order.id`"
            )
    return None


def wrong_columns(columns: Sequence[str]) -> str | None:
    """Return what is wrong with the columns of an order of rows, as a sentence; None if nothing is."""
    if len(columns) > SORT_COLUMNS_MAX:
        return f"rows are sorted by at most {SORT_COLUMNS_MAX} columns, and {len(columns)} are named"
    if len(set(columns)) < len(columns):
        return "rows are sorted by each column once"
    for column in columns:
        if not PART.fullmatch(column) or "." in column or column in _CONTENT:
            return (
                f"rows cannot be sorted by {column!r}: name `_key`, `_edge`, a topic level such as `machine`, or a "
                "typed column such as `order_id`"
            )
    return None
