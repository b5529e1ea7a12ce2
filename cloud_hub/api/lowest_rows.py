"""Rows of a table file for an answer: those with the lowest offsets, as dictionaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weft.cloud_hub.api.views import View


class LowestRows:
    """The rows with the lowest offsets, of those that were offered.

    Args:
        end: rows from this offset on are not wanted.
    """

    def __init__(self, end: int, limit: int, bytes_max: int) -> None:
        self.end = end
        self._limit, self._bytes_max = limit, bytes_max
        self.rows: dict[int, View] = {}
        self._bytes = 0

    def add(self, rows: Sequence[View]) -> None:
        """Add rows. Those beyond a bound leave, and ``end`` is the lowest of them."""
        for row in rows:
            self.rows[row["offset"]] = row
            self._bytes += _size(row)
        if len(self.rows) > self._limit or self._bytes > self._bytes_max:
            self._cut_to_bounds()
        if len(self.rows) == self._limit or self._bytes >= self._bytes_max:
            self.end = min(self.end, max(self.rows) + 1)

    def _cut_to_bounds(self) -> None:
        """Drop the highest rows, all at once: the sort takes time."""
        ordered = sorted(self.rows)
        kept = size = 0
        for offset in ordered[: self._limit]:
            size += _size(self.rows[offset])
            if kept and size > self._bytes_max:
                break
            kept += 1
        if kept < len(ordered):
            self.cut(ordered[kept])

    def offer(self, offsets: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Leave out rows that the lowest ones of these offsets make superfluous."""
        if len(offsets) > self._limit:
            self.cut(int(np.partition(offsets, self._limit)[self._limit]))

    def cut(self, end: int) -> None:
        """Drop the rows from an offset on."""
        self.end = min(self.end, end)
        for offset in [offset for offset in self.rows if offset >= end]:
            self._bytes -= _size(self.rows.pop(offset))


def _size(row: View) -> int:
    return int(row["_bytes"]) + len(row["key"])


def bounds(file: pq.ParquetFile, column: str) -> Iterator[tuple[Any, Any]]:
    """Yield lowest and highest value of a column for each row group; None where they are unknown."""
    # A nested column has several leaves.
    leaves = [file.schema.column(leaf).path for leaf in range(len(file.schema))]
    at = leaves.index(column)
    for group in range(file.num_row_groups):
        told = file.metadata.row_group(group).column(at).statistics
        yield (told.min, told.max) if told is not None and told.has_min_max else (None, None)


def may_have(known: tuple[Any, Any], first: int, end: int) -> bool:
    """Return whether bounds may have a value from ``first`` to before ``end``."""
    low, high = known
    return (low is None or low < end) and (high is None or high >= first)


def microseconds(time: Any) -> int:
    """Return a time of a table in microseconds since 1970."""
    return int(pa.scalar(time, pa.timestamp("us", "UTC")).value)


def plain_rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Return rows as dictionaries, with times in microseconds since 1970."""
    columns = {
        name: column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    found: list[dict[str, Any]] = pa.table(columns).to_pylist()
    return found
