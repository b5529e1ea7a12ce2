"""Rows into one Parquet file in memory, with the statistics by which readers find offsets."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cloud_hub.tables.delta import DataFile

ROW_GROUP_ROWS_MAX = 128 << 10
ROW_GROUP_BYTES_MAX = 64 << 20
COMPRESSION_LEVEL = 3
_COUNTERS = dict.fromkeys(("_offset", "_seq", "_time", "_received"), "DELTA_BINARY_PACKED")
"""Columns that mostly count up: a byte or two per value instead of eight."""
_PLAIN = {*_COUNTERS, "_shard", "_resent", "_headers", "payload"}
_STATISTICS = ("_offset", "_shard", "_seq", "_time")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ParquetFile:
    """Collects rows of one shard, offsets ascending, and becomes the bytes of a file. Its methods block."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=[name for name in schema.names if name not in _PLAIN],
            column_encoding=_COUNTERS,
        )
        self._group: list[pa.RecordBatch] = []
        self._group_rows = self._group_bytes = 0
        self._bounds: dict[str, tuple[int, int]] = {}
        self.rows = 0

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take rows of the schema. They are compressed a row group at a time."""
        for batch in batches:
            self._group.append(batch)
            self._group_rows += batch.num_rows
            self._group_bytes += batch.get_total_buffer_size()
            self.rows += batch.num_rows
            self._note_bounds(batch)
            if self._group_rows >= ROW_GROUP_ROWS_MAX or self._group_bytes >= ROW_GROUP_BYTES_MAX:
                self._flush()

    def finish(self) -> memoryview:
        """The file's bytes. Nothing can be added afterwards."""
        self._flush()
        self._writer.close()
        return memoryview(self._sink.getvalue()).cast("B")

    def data_file(self, path: str, size: int, now_ms: int) -> DataFile:
        """The file as a table's log names it."""
        first, last = self._bounds["_offset"]
        shard, _ = self._bounds["_shard"]
        return DataFile(path, size, self.rows, shard, first, last + 1, now_ms, self._stats())

    def _flush(self) -> None:
        if self._group:
            self._writer.write_table(pa.Table.from_batches(self._group, self._schema), ROW_GROUP_ROWS_MAX)
        self._group = []
        self._group_rows = self._group_bytes = 0

    def _note_bounds(self, batch: pa.RecordBatch) -> None:
        for name in _STATISTICS:
            column = batch.column(name)
            found = pc.min_max(column.cast(pa.int64()) if name == "_time" else column)
            low, high = found["min"].as_py(), found["max"].as_py()
            known = self._bounds.get(name, (low, high))
            self._bounds[name] = min(low, known[0]), max(high, known[1])

    def _stats(self) -> str:
        low: dict[str, Any] = {name: bounds[0] for name, bounds in self._bounds.items()}
        high: dict[str, Any] = {name: bounds[1] for name, bounds in self._bounds.items()}
        # Statistics of times have milliseconds, so they are widened to whole ones.
        low["_time"] = _milliseconds(low["_time"] // 1000)
        high["_time"] = _milliseconds(math.ceil(high["_time"] / 1000))
        stats = {
            "numRecords": self.rows,
            "minValues": low,
            "maxValues": high,
            "nullCount": dict.fromkeys(_STATISTICS, 0),
        }
        return msgspec.json.encode(stats).decode()


def _milliseconds(value: int) -> str:
    return (_EPOCH + timedelta(milliseconds=value)).strftime("%Y-%m-%dT%H:%M:%S.") + f"{value % 1000:03d}Z"
