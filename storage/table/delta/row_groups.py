"""Rows into the bytes of one Parquet file, whole or in parts."""

from __future__ import annotations

import io
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
    """A Parquet file in memory, compressed a row group at a time. Its methods block.

    Args:
        bytes_max: bytes of rows in memory at which a row group is complete; ``ROWS_MAX`` rows complete one as well.
        options: further arguments of pyarrow's writer.
    """

    def __init__(self, schema: pa.Schema, bytes_max: int, **options: Any) -> None:
        self._schema = schema
        self._bytes_max = bytes_max
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
        self._group: list[pa.RecordBatch] = []
        self._group_rows = self._group_bytes = 0

    @property
    def written(self) -> int:
        """Return the compressed bytes so far."""
        return self._sink.tell()

    @property
    def bytes(self) -> int:
        """Return the bytes in memory: those that were not taken, and the unfinished row group."""
        return self._sink.bytes + self._group_bytes

    @property
    def ready(self) -> int:
        """Return the compressed bytes that were not taken yet."""
        return self._sink.bytes

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of the schema."""
        self._group.append(batch)
        self._group_rows += batch.num_rows
        self._group_bytes += batch.nbytes
        if self._group_rows >= ROWS_MAX or self._group_bytes >= self._bytes_max:
            self._flush()

    def take(self) -> memoryview:
        """Return the compressed bytes that were not taken yet: the next part of the file."""
        return memoryview(self._sink.take())

    def finish(self) -> memoryview:
        """Return the rest of the file's bytes, all of them if none was taken. No rows can be added afterwards."""
        self._flush()
        self._writer.close()
        return memoryview(self._sink.take())

    def _flush(self) -> None:
        if self._group:
            self._writer.write_table(pa.Table.from_batches(self._group, self._schema), ROWS_MAX)
        self._group = []
        self._group_rows = self._group_bytes = 0
