"""Columns of a stream's table beyond the fixed ones: one per named topic level (``storage.table.rows``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa

from weft.storage.table.rows import FIXED_COLUMNS, usable_fields


def level_columns(columns: Iterable[tuple[str, str]]) -> list[str]:
    """Return the columns for topic levels, from (name, Delta type) of all columns of a table, in the table's order.

    A column of another type is not ours: it is left alone, and null in new rows.
    """
    return [name for name, kind in columns if name not in FIXED_COLUMNS and kind == "string"]


def levels_of(schema: pa.Schema) -> list[str]:
    """Return the columns for topic levels of a schema that ``row_schema`` made."""
    return [name for name in schema.names if name not in FIXED_COLUMNS]


def new_columns(names: Collection[str], told: Iterable[str]) -> list[str]:
    """Return the levels from edges that a table with the columns ``names`` lacks, in the order of declaration."""
    return usable_fields(told, names)
