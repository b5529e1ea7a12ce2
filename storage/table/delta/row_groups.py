"""Rows into the bytes of one Parquet file."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_MAX = 128 << 10
COMPRESSION_LEVEL = 3


class RowGroups:
    """A Parquet file in memory, compressed a row group at a time. Its methods block.

    Args:
        bytes_max: bytes of rows in memory at which a row group is complete; ``ROWS_MAX`` rows complete one as well.
        options: further arguments of pyarrow's writer.
    """

    def __init__(self, schema: pa.Schema, bytes_max: int, **options: Any) -> None:
        self._schema = schema
        self._bytes_max = bytes_max
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            compression_level=COMPRESSION_LEVEL,
            # Without a checksum, a flipped bit in a page mostly reads as another value, without an error.
            write_page_checksum=True,
            **options,
        )
        self._group: list[pa.RecordBatch] = []
        self._group_rows = self._group_bytes = 0

    @property
    def written(self) -> int:
        """Return the compressed bytes so far."""
        return int(self._sink.tell())

    @property
    def bytes(self) -> int:
        """Return the bytes of the file in memory, including the unfinished row group."""
        return self.written + self._group_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of the schema."""
        self._group.append(batch)
        self._group_rows += batch.num_rows
        self._group_bytes += batch.nbytes
        if self._group_rows >= ROWS_MAX or self._group_bytes >= self._bytes_max:
            self._flush()

    def finish(self) -> memoryview:
        """Return the file's bytes. No rows can be added afterwards."""
        self._flush()
        self._writer.close()
        return memoryview(self._sink.getvalue()).cast("B")

    def _flush(self) -> None:
        if self._group:
            self._writer.write_table(pa.Table.from_batches(self._group, self._schema), ROWS_MAX)
        self._group = []
        self._group_rows = self._group_bytes = 0
