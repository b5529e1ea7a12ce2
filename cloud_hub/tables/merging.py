"""Rows of a bucket with newer ones, and rows as files. All of it blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weft.cloud_hub.tables.keys import Key
from weft.cloud_hub.tables.newest import newest, of_keys
from weft.protocols.batch import Buffer
from weft.storage.table.columns import TOMBSTONE_COLUMN
from weft.storage.table_maker.parquet_file import ParquetFile

CHANGE_COLUMN = "_change_type"
"""Column of a change feed."""


class Keyed(NamedTuple):
    """Rows that may count, and the number of records without a key among those that they were chosen from."""

    rows: pa.Table
    unkeyed: int


class Merged(NamedTuple):
    """Rows of a bucket after a change."""

    visible: pa.Table
    hidden: pa.Table
    """Hidden rows of the keys that the change was about."""
    is_changed: bool
    """True if the visible rows are others than before."""
    removed: pa.Table
    """Visible rows that are no more."""
    added: pa.Table
    """Visible rows that are new."""


def with_tombstones(schema: pa.Schema) -> pa.Schema:
    """Return the schema of rows in memory: that of a table, and the column of tombstones."""
    return schema.append(pa.field(TOMBSTONE_COLUMN, pa.bool_(), nullable=False))


def reduced(rows: pa.Table, key: Key, now_us: int) -> Keyed:
    """Return the rows that may count among others, with the columns of the key; ``now_us`` as of ``newest``."""
    rows = key.filled(rows)
    has_key = key.is_complete(rows)
    found = newest(rows, key.columns, now_us)
    return Keyed(rows.take(np.concatenate([found.visible, found.hidden])), int(rows.num_rows - has_key.sum()))


def merged(there: pa.Table, rows: pa.Table, keys: Sequence[str], now_us: int) -> Merged:
    """Return a bucket's rows with others.

    Args:
        there: rows of the bucket's file.
        rows: others of the bucket, with the hidden rows of their keys.
        now_us: as of ``newest``.
    """
    is_concerned = of_keys(there, rows, keys)
    before = there.filter(pa.array(is_concerned))
    both = pa.concat_tables([before, rows]).combine_chunks()
    found = newest(both, keys, now_us)
    is_same = len(found.visible) == before.num_rows and bool((found.visible < before.num_rows).all())
    if is_same:
        nothing = there.slice(0, 0)
        return Merged(there, both.take(found.hidden), is_changed=False, removed=nothing, added=nothing)
    gone = np.setdiff1d(np.arange(before.num_rows), found.visible)
    came = found.visible[found.visible >= before.num_rows]
    visible = pa.concat_tables([there.filter(pa.array(~is_concerned)), both.take(found.visible)])
    hidden, removed, added = both.take(found.hidden), before.take(gone), both.take(came)
    return Merged(visible.combine_chunks(), hidden, is_changed=True, removed=removed, added=added)


def changes(parts: Sequence[Merged], keys: Sequence[str]) -> pa.Table:
    """Return the changes of buckets as the rows of a change feed (Delta protocol, "Change Data Files")."""
    removed, added = (pa.concat_tables([getattr(each, name) for each in parts]) for name in ("removed", "added"))
    replaced, replacing = of_keys(removed, added, keys), of_keys(added, removed, keys)
    return pa.concat_tables([
        _typed(removed.filter(pa.array(~replaced)), "delete"),
        _typed(removed.filter(pa.array(replaced)), "update_preimage"),
        _typed(added.filter(pa.array(replacing)), "update_postimage"),
        _typed(added.filter(pa.array(~replacing)), "insert"),
    ])  # fmt: skip


def _typed(rows: pa.Table, change: str) -> pa.Table:
    rows = rows.drop_columns([TOMBSTONE_COLUMN])
    return rows.append_column(CHANGE_COLUMN, pa.array([change] * rows.num_rows, pa.string()))


def bucket_file(rows: pa.Table) -> tuple[Buffer, ParquetFile]:
    """Return the bytes of a file with rows, and what it says of itself."""
    rows = rows.drop_columns([TOMBSTONE_COLUMN])
    out = ParquetFile(rows.schema)
    out.add(rows.to_batches())
    return out.finish(), out


def plain_file(rows: pa.Table) -> Buffer:
    """Return the bytes of a file with hidden rows, or with changes."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    return memoryview(sink.getvalue())


def read_file(data: Buffer, schema: pa.Schema) -> pa.Table:
    """Return the rows of a file in a later schema: columns that it lacks are null, and none of its rows is a tombstone
    unless it says so."""
    found = pq.read_table(pa.BufferReader(data), use_threads=False)
    return in_schema(found, schema)


def in_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema; those that they lack are null, and false for tombstones."""
    columns = []
    for field in schema:
        if field.name in rows.schema.names:
            columns.append(rows.column(field.name).cast(field.type))
        elif field.name == TOMBSTONE_COLUMN:
            columns.append(pa.array(np.zeros(rows.num_rows, np.bool_)))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
    return pa.Table.from_arrays(columns, schema=schema)
