"""Columns of a stream's table beyond the fixed ones: one per named topic level (``storage.table.rows``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa

from weft.protocols.payloads import PayloadKind
from weft.storage.table.columns import ORIGIN_COLUMN
from weft.storage.table.rows import FIXED_COLUMNS, row_schema, usable_fields


def table_schema(columns: Collection[tuple[str, str]], payload: PayloadKind) -> pa.Schema:
    """Return the columns of ours that a table has, from (name, Delta type) of all of them.

    A table of an earlier release has none for origins, or one of its owner's by that name.
    """
    schema = row_schema(level_columns(columns), payload)
    has_origin = (ORIGIN_COLUMN, "string") in columns
    return schema if has_origin else schema.remove(schema.get_field_index(ORIGIN_COLUMN))


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


def lacks_origin(names: Iterable[str]) -> bool:
    """Return whether a table lacks the column of origins and can get it: Spark and Delta take names that differ in case
    only for one."""
    return ORIGIN_COLUMN not in {name.casefold() for name in names}
