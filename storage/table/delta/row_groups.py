"""Rows into the bytes of one Parquet file, whole or in parts."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_MAX = 128 << 10
COMPRESSION_LEVEL = 3


class _Sink(io.RawIOBase):
    """The bytes that a writer has made, until they are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[bytes] = []
        self.bytes = 0
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        self.held.append(bytes(data))
        count = len(self.held[-1])
        self.bytes, self._at = self.bytes + count, self._at + count
        return count

    def take(self) -> bytes:
        data, self.held, self.bytes = b"".join(self.held), [], 0
        return data


class RowGroups:
    """A Parquet file in memory, compressed a slice at a time: a run of rows that becomes one row group, or several. Its
    methods block.

    Args:
        bytes_max: bytes of rows in memory at which a slice is complete; ``rows_max`` rows complete one as well.
        cut: function that returns the row groups of a slice; None makes one of each.
        options: further arguments of pyarrow's writer.
    """

    def __init__(
        self,
        schema: pa.Schema,
        bytes_max: int,
        *,
        rows_max: int = ROWS_MAX,
        cut: Callable[[pa.Table], Iterable[pa.Table]] | None = None,
        **options: Any,
    ) -> None:
        self._schema = schema
        self._bytes_max, self._rows_max = bytes_max, rows_max
        self._cut = cut or (lambda rows: (rows,))
        self._sink = _Sink()
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            compression_level=COMPRESSION_LEVEL,
            # Without a checksum, a flipped bit in a page mostly reads as another value, without an error.
            write_page_checksum=True,
            **options,
        )
        self._slice: list[pa.RecordBatch] = []
        self._slice_rows = self._slice_bytes = 0
        self._together = 0
        """Rows that are still to come of a run that is not cut."""

    @property
    def written(self) -> int:
        """Return the compressed bytes so far."""
        return self._sink.tell()

    @property
    def bytes(self) -> int:
        """Return the bytes in memory: those that were not taken, and the unfinished slice."""
        return self._sink.bytes + self._slice_bytes

    @property
    def ready(self) -> int:
        """Return the compressed bytes that were not taken yet."""
        return self._sink.bytes

    def keep_together(self, rows: int, size: int) -> None:
        """Begin a new slice unless the next rows fit into this one, and do not cut them, up to twice the bytes of a
        slice: they were a slice of another file.

        Args:
            size: bytes of the rows, at least approximately.
        """
        if self._slice_rows + rows > self._rows_max or self._slice_bytes + size > self._bytes_max:
            self._flush()
        self._together = rows

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of the schema."""
        while batch.num_rows:
            bytes_max = 2 * self._bytes_max if self._together > 0 else self._bytes_max
            fitting = (bytes_max - self._slice_bytes) * batch.num_rows // max(1, batch.nbytes)
            taken = batch.slice(0, max(1, min(fitting, self._rows_max - self._slice_rows)))
            self._slice.append(taken)
            self._slice_rows += taken.num_rows
            self._slice_bytes += taken.nbytes
            self._together -= taken.num_rows
            if self._slice_rows >= self._rows_max or self._slice_bytes >= bytes_max:
                self._flush()
            batch = batch.slice(taken.num_rows)

    def take(self) -> memoryview:
        """Return the compressed bytes that were not taken yet: the next part of the file."""
        return memoryview(self._sink.take())

    def finish(self) -> memoryview:
        """Return the rest of the file's bytes, all of them if none was taken. No rows can be added afterwards."""
        self._flush()
        self._writer.close()
        return memoryview(self._sink.take())

    def _flush(self) -> None:
        if self._slice:
            for group in self._cut(self._taken()):
                self._writer.write_table(group, group.num_rows)

    def _taken(self) -> pa.Table:
        """Return the slice, which is not kept: a sorted copy may take its place."""
        rows = pa.Table.from_batches(self._slice, self._schema)
        self._slice = []
        self._slice_rows = self._slice_bytes = 0
        return rows
