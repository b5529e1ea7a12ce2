"""Bounds of a file's columns, as the Delta protocol's "Per-file Statistics" has them.

Engines skip a file whose bounds rule a filter out, so a bound may be wider than the values and never narrower.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

TEXT_CHARACTERS_MAX = 64
_CHARACTER_MAX = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_MILLISECOND = timedelta(milliseconds=1)


class FileStatistics:
    """Bounds and null counts of some columns over the rows of one file."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.rows = 0
        self._nulls = dict.fromkeys(columns, 0)
        self._bounds: dict[str, tuple[Any, Any]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Take further rows."""
        self.rows += batch.num_rows
        for name in self._nulls:
            column = batch.column(name)
            self._nulls[name] += column.null_count
            found = pc.min_max(column)
            low, high = found["min"].as_py(), found["max"].as_py()
            if low is not None:
                known = self._bounds.get(name, (low, high))
                self._bounds[name] = min(low, known[0]), max(high, known[1])

    def to_json(self) -> str:
        """Return the statistics in the form of the table's log.

        A column that is null in every row has no bounds: its null count tells engines that no value is there.
        """
        if not self._nulls:
            return msgspec.json.encode({"numRecords": self.rows}).decode()
        low = {name: _lower(bounds[0]) for name, bounds in self._bounds.items()}
        high = {name: _upper(bounds[1]) for name, bounds in self._bounds.items()}
        stats = {"numRecords": self.rows, "minValues": low, "maxValues": high, "nullCount": self._nulls}
        return msgspec.json.encode(stats).decode()


def _lower(value: Any) -> Any:
    return value[:TEXT_CHARACTERS_MAX] if isinstance(value, str) else _time(value)


def _upper(value: Any) -> Any:
    if isinstance(value, str):
        return _upper_text(value)
    if isinstance(value, datetime) and value.microsecond % 1000:
        # Statistics of times have milliseconds. Cut instead of rounded up, the last microseconds would be skipped.
        value += _MILLISECOND
    return _time(value)


def _time(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
    return value.isoformat() if isinstance(value, date) else value


def _upper_text(text: str) -> str:
    """Return a short text that is not below ``text``: its beginning, with the last character that can be raised."""
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    for at in reversed(range(TEXT_CHARACTERS_MAX)):
        raised = ord(text[at]) + 1
        if raised <= _CHARACTER_MAX:
            # UTF-8 has no surrogates.
            return text[:at] + chr(_SURROGATES.stop if raised in _SURROGATES else raised)
    return text
