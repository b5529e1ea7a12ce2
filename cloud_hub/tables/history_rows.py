"""Rows of the table of all rows, for a latest table whose chunks the collector deleted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from weft.cloud_hub.tables.merging import in_schema
from weft.cloud_hub.tables.newest import Mask
from weft.storage.table.columns import TOMBSTONE_COLUMN
from weft.storage.table.delta.versions import open_table
from weft.storage.table.errors import TableError
from weft.storage.table.payload_columns import BYTES_COLUMN

BATCH_ROWS = 64 << 10


class HistoryRows:
    """Rows of some offsets of a version, in portions. Its methods block.

    Args:
        wanted: (shard, first offset, offset after the last).
        schema: columns of the rows, with that of tombstones: the table has none, so rows without a payload are such.
        rows_max: rows of a portion, about.
    """

    def __init__(  # noqa: PLR0917
        self,
        uri: str,
        options: dict[str, str],
        version: int,
        wanted: Sequence[tuple[int, int, int]],
        schema: pa.Schema,
        rows_max: int,
    ) -> None:
        self._uri, self._options, self._version = uri, options, version
        self._wanted, self._schema, self._rows_max = wanted, schema, rows_max
        self._batches: Iterator[pa.RecordBatch] | None = None

    def next(self) -> pa.Table | None:
        """Return the next portion; None after the last.

        Raises:
            TableError: the version is no longer there.
        """
        if self._batches is None:
            self._batches = self._opened()
        found: list[pa.RecordBatch] = []
        while sum(batch.num_rows for batch in found) < self._rows_max:
            batch = next(self._batches, None)
            if batch is None:
                break
            found.append(batch)
        return self._rows(pa.Table.from_batches(found)) if found else None

    def _opened(self) -> Iterator[pa.RecordBatch]:
        table = open_table(self._uri, self._options, self._version)
        if table is None:
            raise TableError(f"{self._uri}: the table is no longer there")
        dataset: Any = table.to_pyarrow_dataset()
        parts = [
            (pc.field("_shard") == shard) & (pc.field("_offset") >= first) & (pc.field("_offset") < end)
            for shard, first, end in self._wanted
        ]
        names = [name for name in self._schema.names if name in dataset.schema.names]
        scanner = dataset.scanner(
            columns=names, filter=reduce(or_, parts), batch_size=BATCH_ROWS, batch_readahead=1, fragment_readahead=1,
            use_threads=False,
        )  # fmt: skip
        return iter(scanner.to_batches())

    def _rows(self, rows: pa.Table) -> pa.Table:
        found = in_schema(rows, self._schema)
        is_empty = _is_empty(found.column("payload"))
        if BYTES_COLUMN in found.schema.names:
            is_empty &= ~pc.is_valid(found.column(BYTES_COLUMN)).to_numpy()
        at = found.schema.get_field_index(TOMBSTONE_COLUMN)
        return found.set_column(at, self._schema.field(at), pa.array(is_empty))


def _is_empty(column: pa.ChunkedArray) -> Mask:
    found: Mask = pc.equal(pc.fill_null(pc.binary_length(column), 0), 0).to_numpy()
    return found
