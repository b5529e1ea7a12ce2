"""Rows into one Parquet file in memory, with the statistics by which readers skip it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.protocols.payloads import PayloadKind
from weft.storage.payloads.decoder import MISFIT_COLUMN
from weft.storage.table.actions import DataFile
from weft.storage.table.parquet import FileStatistics, RowGroups, with_field_ids
from weft.storage.table.quality import FAILED_COLUMN
from weft.storage.table.rows import BYTES_COLUMN, FIXED_COLUMNS, LATER_COLUMNS, row_schema, usable_fields
from weft.storage.table.typed_columns import DeltaField, arrow_fields, bounded_names, is_typed, typed_names
from weft.storage.table_writer.settings import statistics_columns

# Columns of a stream's table beyond the fixed ones: one per named topic level (``storage.table.rows``), and typed
# ones of a schema (``storage.table.typed_columns``).


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


def new_columns(names: Sequence[str], found: Iterable[str]) -> list[str]:
    """Return the levels from edges that a table with the columns ``names`` lacks, in the order of declaration."""
    return usable_fields(found, names)


def lacking(names: Iterable[str]) -> list[str]:
    """Return those of ``LATER_COLUMNS`` that a table lacks and can get: Spark and Delta treat names that differ only in
    case as one."""
    taken = {name.casefold() for name in names}
    return [name for name in LATER_COLUMNS if name not in taken]


# Order of the rows within a table file: sorted by topic levels, edge node, key and time, a slice of the log at a
# time.
#
# A slice is a run of the log that fits into memory. It becomes some sixteen row groups, each with few machines, so
# that the bounds of row groups exclude nearly all of them for one machine, edge node or key. Within a row group, rows
# are in the order of time. Slices follow each other in the order of the log, so that a time or a range of offsets
# still takes one or two of them.

SLICE_ROWS_MAX = 128 << 10
"""Rows that are sorted together. More would read less for a machine, and more for an hour: with a million, an hour of
five days took a tenth of the table."""
SLICE_BYTES_MAX = 48 << 20
"""Bytes of rows that are sorted together. Sorting takes them a second time."""
GROUPS = 16
"""Number of row groups of a slice, if no edge node or machine fills more than one."""
GROUP_ROWS_MIN = 4 << 10
"""Rows of a row group of a small slice. Its entry in the footer has some 1.5 KB, a hundredth of the rows."""
GROUP_ROWS_MAX = 12 << 10
"""Maximum number of rows of a row group. Some more than a sixteenth of a slice, so that a large edge node is in few."""
GROUP_BYTES_MAX = GROUP_ROWS_MAX * SLICE_BYTES_MAX // SLICE_ROWS_MAX
LEVELS_SORTED_MAX = 8
"""Maximum number of topic levels that order rows; further ones hardly change it, and each costs time."""
_LAST = ("_edge", "_key", "_time")
Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


def sort_order(schema: pa.Schema, declared: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the columns that order a table's rows: the declared ones that it has and that can be compared, then those
    that it would have without a declaration.

    Topic levels come first, as topics name them, because keys and mostly edge nodes follow them; without levels, the
    edge node.
    """
    levels = [name for name in levels_of(schema) if name != FAILED_COLUMN][:LEVELS_SORTED_MAX]
    # A column that the table does not have yet orders nothing until it is there.
    wanted = [name for name in declared if name in schema.names and not pa.types.is_nested(schema.field(name).type)]
    return tuple(dict.fromkeys([*wanted, *levels, *_LAST]))


class Clustering:
    """Row groups of slices.

    Args:
        order: columns from ``sort_order``.
    """

    def __init__(self, order: Sequence[str]) -> None:
        self.order = tuple(order)
        self.has_sorted = False
        """True after a slice had more than one row group. The rows of smaller ones stay as they come."""

    def groups(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Yield the row groups of a slice. Blocks."""
        most = max(1, min(GROUP_ROWS_MAX, GROUP_BYTES_MAX * rows.num_rows // max(1, rows.nbytes)))
        if rows.num_rows <= most:
            yield rows
            return
        self.has_sorted = True
        # Taking rows of several chunks would make one of them each time.
        rows = rows.combine_chunks()
        order = pc.sort_indices(rows.select(self.order), sort_keys=[(name, "ascending") for name in self.order])
        changes = [_changes(rows.column(name), order) for name in self.order if name != "_time"]
        at = 0
        for end in _ends(changes, rows.num_rows, most):
            # A row group at a time: a sorted copy of the slice would take its memory again.
            yield rows.take(_by_time(rows, order[at:end]))
            at = end


def _by_time(rows: pa.Table, numbers: pa.Array) -> pa.Array:
    """Return numbers of rows in the order of their times, those of one moment in the order of the log.

    Readers of pages then read few of them for an hour. A key needs no order within a row group: it has few.
    """
    chosen = pa.table({"time": rows.column("_time").take(numbers), "number": numbers})
    return numbers.take(pc.sort_indices(chosen, sort_keys=[("time", "ascending"), ("number", "ascending")]))


def _ends(changes: Sequence[Numbers], rows: int, most: int) -> Iterator[int]:
    """Yield the ends of the row groups: where the first possible column changes, so that an edge node or a machine is
    in as few as its rows fill.

    Args:
        changes: for each column of the order, the rows at which its value changes.
        most: maximum number of rows of a row group.
    """
    wanted = min(most, max(GROUP_ROWS_MIN, rows // GROUPS))
    at = 0
    while rows - at > most:
        aim = wanted
        for found in changes:
            if (end := _nearest(found, at + wanted // 4, at + aim, at + most)) is not None:
                break
            # Its next change is too far: row groups of equal size up to there.
            step = _next(found, at + wanted // 4, rows) - at
            aim = min(most, -(-step // -(-step // most)))
        else:
            end = at + aim
        at = end
        yield at
    yield rows


def _changes(column: pa.ChunkedArray, order: pa.Array) -> Numbers:
    """Return the places in an order whose value of a column is another than that before."""
    codes = column.combine_chunks().dictionary_encode().indices.fill_null(-1).take(order).to_numpy()
    return np.flatnonzero(codes[1:] != codes[:-1]) + 1


def _nearest(ascending: Numbers, above: int, aim: int, up_to: int) -> int | None:
    """Return the number in ``(above, up_to]`` that is nearest to another one; None without any."""
    first, end = np.searchsorted(ascending, (above, up_to), "right")
    inside = ascending[first:end]
    return int(inside[np.abs(inside - aim).argmin()]) if len(inside) else None


def _next(ascending: Numbers, above: int, end: int) -> int:
    at = int(np.searchsorted(ascending, above, "right"))
    return int(ascending[at]) if at < len(ascending) else end


PAGE_ROWS_MAX = 2 << 10
"""Rows of a page. Readers with support for page indexes, such as Spark, read only the pages of a row group with their
time: of an edge node's hour in a slice of twelve, one page of six."""
_COUNTERS = dict.fromkeys(("_offset", "_seq", "_time", "_received"), "DELTA_BINARY_PACKED")
"""Columns that mostly count up: a byte or two per value instead of eight."""
_PLAIN = {*_COUNTERS, "_shard", "_resent", "_headers", "payload", BYTES_COLUMN, MISFIT_COLUMN}
_CONTENT = {"_headers", "payload", BYTES_COLUMN, MISFIT_COLUMN}
"""Columns that filters do not compare with bounds. Their statistics would only make the file's footer longer."""


class ParquetFile:
    """A collector of one shard's rows, offsets ascending, for the bytes of a file. Its methods block.

    Args:
        declared: columns by which an operator wants rows to be sorted (``clustering``).
    """

    def __init__(self, schema: pa.Schema, declared: Sequence[str] = ()) -> None:
        self._schema = schema
        self._clustering = Clustering(sort_order(schema, declared))
        self.groups = RowGroups(
            with_field_ids(schema),
            SLICE_BYTES_MAX,
            rows_max=SLICE_ROWS_MAX,
            cut=self._clustering.groups,
            use_dictionary=[name for name in schema.names if name not in _PLAIN],
            column_encoding=_COUNTERS,
            max_rows_per_page=PAGE_ROWS_MAX,
            write_page_index=True,
            write_statistics=[name for name in schema.names if name not in _CONTENT],
        )
        """The file's bytes, for who takes them. Rows come by ``add``."""
        self._statistics = FileStatistics(statistics_columns(levels_of(schema), bounded_names(schema)))
        self.rows = 0

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the rows."""
        return self._schema

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add rows of the schema. They are sorted and compressed a slice at a time."""
        for batch in batches:
            self.groups.add(batch)
            self.rows += batch.num_rows
            self._statistics.add(batch)

    def data_file(self, path: str, size: int, now_ms: int) -> DataFile:
        """Return the file's entry for a table's log."""
        first, last = self._statistics.bounds("_offset")
        shard, _ = self._statistics.bounds("_shard")
        order = self._clustering.order if self._clustering.has_sorted else ()
        return DataFile(path, size, self.rows, shard, first, last + 1, now_ms, self._statistics.to_json(), order)
