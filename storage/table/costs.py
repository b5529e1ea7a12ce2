"""Bytes of a batch's records as table rows, computed before a row is made.

A batch has each key once, but each of its rows repeats it, and a level of the key is repeated in its column. So the
length of a batch does not bound the size of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from weft.protocols.batch import Columns
from weft.storage.table.typed_columns import typed_part

ROW_BYTES = 128
"""Bytes of a row's columns of fixed length, and of the names of its edge and log."""
LEVEL_BYTES = 16
"""Bytes of one topic level of one row, beside the text."""
TYPED_BYTES = 9
"""Bytes of one typed column of one row, beside text."""
PAIR_BYTES = 160
"""Bytes of one header pair while a row is made, beside the text."""


class RowCut(NamedTuple):
    """Records ``[first, first + rows)`` of a batch, and the bytes of their rows."""

    first: int
    rows: int
    bytes: int


class RowCosts:
    """Costs of rows of a schema.

    Args:
        fields: number of topic levels among the columns.
    """

    def __init__(self, schema: pa.Schema, fields: int) -> None:
        typed = typed_part(schema)
        self._row_bytes = ROW_BYTES + LEVEL_BYTES * fields + TYPED_BYTES * len(typed)
        self._payloads = 1 + sum(not pa.types.is_primitive(field.type) for field in typed)
        """Number of copies of its payload in a row: each field may have all of it."""
        self._keys = ("_key" in schema.names) + (fields > 0)
        """Number of copies of its key in a row."""
        self._has_headers = "_headers" in schema.names
        self._has_payloads = "payload" in schema.names
        self._has_origin = "_origin" in schema.names

    def cut(  # noqa: PLR0917
        self, columns: Columns, first: int, end: int, rows_max: int, bytes_max: int, origin: str | None = None
    ) -> Iterator[RowCut]:
        """Yield the records ``[first, end)`` in runs whose rows have at most ``bytes_max`` bytes, or in single records.

        Args:
            origin: text of the records' origin, which each row has.
        """
        text = len(origin.encode()) if origin is not None and self._has_origin else 0
        bound = self._bound(columns, first, end) + (end - first) * text
        if bound <= bytes_max:
            for at in range(first, end, rows_max):
                rows = min(rows_max, end - at)
                yield RowCut(at, rows, bound * rows // (end - first))
            return
        ends = np.cumsum(self._each(columns, first, end) + text)
        at, before = first, 0
        while at < end:
            fitting = int(np.searchsorted(ends, before + bytes_max, "right")) - (at - first)
            rows = min(max(1, fitting), rows_max, end - at)
            after = int(ends[at - first + rows - 1])
            yield RowCut(at, rows, after - before)
            at, before = at + rows, after

    def _bound(self, columns: Columns, first: int, end: int) -> int:
        """Return an upper bound of the bytes of the rows, without reading each."""
        total = (end - first) * (self._row_bytes + self._keys * max(map(len, columns.keys)))
        if self._has_payloads:
            offsets = _numbers(columns.payload_offsets)
            total += (int(offsets[end]) - int(offsets[first])) * self._payloads
        if self._has_headers and columns.headers:
            total += sum(map(_pairs_bytes, columns.headers.values()))
        return total

    def _each(self, columns: Columns, first: int, end: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        costs = np.full(end - first, self._row_bytes, np.int64)
        if self._keys:
            lengths = np.fromiter(map(len, columns.keys), np.int64, len(columns.keys))
            costs += self._keys * lengths[_numbers(columns.key_index)[first:end]]
        if self._has_payloads:
            ends = _numbers(columns.payload_offsets)[first : end + 1].astype(np.int64)
            costs += (ends[1:] - ends[:-1]) * self._payloads
        if self._has_headers:
            for index, pairs in columns.headers.items():
                if first <= index < end:
                    costs[index - first] += _pairs_bytes(pairs)
        return costs


def _numbers(column: Any) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.frombuffer(column, np.uint32)


def _pairs_bytes(pairs: Any) -> int:
    """Return the bytes of one record's headers: base64 is a third longer than the bytes, a number has at most 25
    digits."""
    texts = sum(len(name) + (len(value) if isinstance(value, str | bytes) else 25) for name, value in pairs)
    return PAIR_BYTES * len(pairs) + 2 * texts
