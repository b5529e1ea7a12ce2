"""Statistics of a file's columns, as the Delta protocol's "Per-file Statistics" has them.

Engines skip a file when its bounds rule a filter out, so a bound may be wider than the values and never narrower.
Every column that the table's ``delta.dataSkippingStatsColumns`` names has both bounds and a null count in every
file: deltalake's own dataset takes a bound that is missing for one that no value meets, and loses rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

STATISTICS_PROPERTY = "delta.dataSkippingStatsColumns"
COLUMNS = ("_offset", "_shard", "_edge", "_seq", "_time")
"""The fixed columns that have statistics. The topic levels of the table come on top."""
EARLIER_COLUMNS = "_offset,_shard,_edge,_seq,_time"
"""The property as earlier releases wrote it. Their files have no statistics of ``_edge``."""
COMPLETE_EARLIER = ("_offset", "_shard", "_seq", "_time")
LEVELS_WITH_STATISTICS_MAX = 32
"""Maximum number of levels with bounds: each is in the table's log twice for every file. Delta's own default is 32
columns, too."""
LEVEL_CHARACTERS_MAX = 64
"""Length of a level's name above which it has no statistics, for the same reason."""
TEXT_CHARACTERS_MAX = 64
"""Longest bound of a text column: the name of an edge node is never cut. Delta's own writer cuts at 32."""
_CHARACTER_MAX = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def statistics_columns(levels: Sequence[str]) -> list[str]:
    """Return the columns of a table with these topic levels that have statistics."""
    short = [name for name in levels if len(name) <= LEVEL_CHARACTERS_MAX]
    return [*COLUMNS, *short[:LEVELS_WITH_STATISTICS_MAX]]


class FileStatistics:
    """Bounds and null counts of some columns over the rows of one file."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._nulls = dict.fromkeys(columns, 0)
        self._bounds: dict[str, tuple[Any, Any]] = {}
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add further rows to the statistics."""
        self._rows += batch.num_rows
        for name in self._nulls:
            column = batch.column(name)
            self._nulls[name] += column.null_count
            found = pc.min_max(column.cast(pa.int64()) if name == "_time" else column)
            low, high = found["min"].as_py(), found["max"].as_py()
            if low is not None:
                known = self._bounds.get(name, (low, high))
                # Python compares text by code points, which is the order of its UTF-8 bytes and Arrow's order.
                self._bounds[name] = min(low, known[0]), max(high, known[1])

    def bounds(self, name: str) -> tuple[Any, Any]:
        """Return the least and the greatest value of a column that has one."""
        return self._bounds[name]

    def to_json(self) -> str:
        """Return the statistics in the form of the table's log.

        A column that is null in every row has no bounds: its null count tells engines that no value is there.
        """
        low = {name: _lower(name, bounds[0]) for name, bounds in self._bounds.items()}
        high = {name: _upper(name, bounds[1]) for name, bounds in self._bounds.items()}
        stats = {"numRecords": self._rows, "minValues": low, "maxValues": high, "nullCount": self._nulls}
        return msgspec.json.encode(stats).decode()


def _lower(name: str, value: Any) -> Any:
    if name == "_time":
        return _milliseconds(value // 1000)
    return value[:TEXT_CHARACTERS_MAX] if isinstance(value, str) else value


def _upper(name: str, value: Any) -> Any:
    if name == "_time":
        # Statistics of times have milliseconds. Cut instead of rounded up, the last microseconds would be skipped.
        return _milliseconds(-(-value // 1000))
    return _upper_text(value) if isinstance(value, str) else value


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


def _milliseconds(value: int) -> str:
    return (_EPOCH + timedelta(milliseconds=value)).strftime("%Y-%m-%dT%H:%M:%S.") + f"{value % 1000:03d}Z"
