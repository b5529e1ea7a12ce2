"""Columns of a stream's table beyond the fixed ones: one per named topic level (``storage.table.rows``), and typed
ones of a schema (``storage.table.typed_columns``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from weft.protocols.payloads import PayloadKind
from weft.storage.table.columns import LATER_COLUMNS
from weft.storage.table.rows import FIXED_COLUMNS, row_schema, usable_fields
from weft.storage.table.typed_columns import DeltaField, arrow_fields, is_typed, typed_names


def table_schema(fields: Sequence[DeltaField], payload: PayloadKind) -> pa.Schema:
    """Return Weft's own columns of a table, from all columns of its Delta schema.

    A table of an earlier release lacks ``LATER_COLUMNS``, or has a column of its owner with such a name.
    """
    schema = row_schema(level_columns(fields), payload)
    texts = {field["name"] for field in fields if field["type"] == "string"}
    for name in LATER_COLUMNS:
        if name not in texts:
            schema = schema.remove(schema.get_field_index(name))
    for field in arrow_fields(fields):
        schema = schema.append(field)
    return schema


def level_columns(fields: Iterable[DeltaField]) -> list[str]:
    """Return the columns for topic levels, in the table's order.

    A column of another type is its owner's: it is not changed, and null in new rows.
    """
    return [
        field["name"]
        for field in fields
        if field["name"] not in FIXED_COLUMNS and field["type"] == "string" and not is_typed(field)
    ]


def levels_of(schema: pa.Schema) -> list[str]:
    """Return the columns for topic levels of a schema from ``table_schema``."""
    others = FIXED_COLUMNS.union(typed_names(schema))
    return [name for name in schema.names if name not in others]


def new_columns(names: Sequence[str], told: Iterable[str]) -> list[str]:
    """Return the levels from edges that a table with the columns ``names`` lacks, in the order of declaration."""
    return usable_fields(told, names)


def lacking(names: Iterable[str]) -> list[str]:
    """Return those of ``LATER_COLUMNS`` that a table lacks and can get: Spark and Delta treat names that differ only in
    case as one."""
    taken = {name.casefold() for name in names}
    return [name for name in LATER_COLUMNS if name not in taken]
