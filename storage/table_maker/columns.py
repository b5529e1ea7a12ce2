"""Columns of a stream's table beyond the fixed ones: one per named topic level (``storage.table.rows``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa

from weft.protocols.payloads import PayloadKind
from weft.storage.table.columns import LATER_COLUMNS
from weft.storage.table.rows import FIXED_COLUMNS, row_schema, usable_fields


def table_schema(columns: Collection[tuple[str, str]], payload: PayloadKind) -> pa.Schema:
    """Return Weft's own columns of a table, from (name, Delta type) of all its columns.

    A table of an earlier release lacks ``LATER_COLUMNS``, or has a column of its owner with such a name.
    """
    schema = row_schema(level_columns(columns), payload)
    for name in LATER_COLUMNS:
        if (name, "string") not in columns:
            schema = schema.remove(schema.get_field_index(name))
    return schema


def level_columns(columns: Iterable[tuple[str, str]]) -> list[str]:
    """Return the columns for topic levels, from (name, Delta type) of all columns of a table, in the table's order.

    A column of another type is its owner's: it is not changed, and null in new rows.
    """
    return [name for name, kind in columns if name not in FIXED_COLUMNS and kind == "string"]


def levels_of(schema: pa.Schema) -> list[str]:
    """Return the columns for topic levels of a schema from ``row_schema``."""
    return [name for name in schema.names if name not in FIXED_COLUMNS]


def new_columns(names: Collection[str], told: Iterable[str]) -> list[str]:
    """Return the levels from edges that a table with the columns ``names`` lacks, in the order of declaration."""
    return usable_fields(told, names)


def lacking(names: Iterable[str]) -> list[str]:
    """Return those of ``LATER_COLUMNS`` that a table lacks and can get: Spark and Delta treat names that differ only in
    case as one."""
    taken = {name.casefold() for name in names}
    return [name for name in LATER_COLUMNS if name not in taken]
