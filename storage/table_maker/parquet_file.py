"""Rows into one Parquet file in memory, with the statistics by which readers skip it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from weft.storage.payloads.decoder import MISFIT_COLUMN
from weft.storage.table.delta.entries import DataFile
from weft.storage.table.delta.row_groups import RowGroups
from weft.storage.table.delta.statistics import FileStatistics
from weft.storage.table.field_ids import with_field_ids
from weft.storage.table.payload_columns import BYTES_COLUMN
from weft.storage.table.typed_columns import bounded_names
from weft.storage.table_maker.clustering import SLICE_BYTES_MAX, SLICE_ROWS_MAX, Clustering, sort_order
from weft.storage.table_maker.columns import levels_of
from weft.storage.table_maker.statistics import statistics_columns

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
        self._groups = RowGroups(
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
        self._statistics = FileStatistics(statistics_columns(levels_of(schema), bounded_names(schema)))
        self.rows = 0

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the rows."""
        return self._schema

    def keep_together(self, rows: int, size: int) -> None:
        """Announce a slice of another file, of about ``size`` bytes: it stays within one slice of this file."""
        self._groups.keep_together(rows, size)

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add rows of the schema. They are sorted and compressed a slice at a time."""
        for batch in batches:
            self._groups.add(batch)
            self.rows += batch.num_rows
            self._statistics.add(batch)

    @property
    def ready(self) -> int:
        """Return the compressed bytes that were not taken yet."""
        return self._groups.ready

    def take(self) -> memoryview:
        """Return the compressed bytes that were not taken yet: the next part of the file."""
        return self._groups.take()

    def finish(self) -> memoryview:
        """Return the rest of the file's bytes. No rows can be added afterwards."""
        return self._groups.finish()

    def data_file(self, path: str, size: int, now_ms: int) -> DataFile:
        """Return the file's entry for a table's log."""
        first, last = self._statistics.bounds("_offset")
        shard, _ = self._statistics.bounds("_shard")
        order = self._clustering.order if self._clustering.has_sorted else ()
        return DataFile(path, size, self.rows, shard, first, last + 1, now_ms, self._statistics.to_json(), order)
