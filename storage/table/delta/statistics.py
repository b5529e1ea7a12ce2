"""Bounds of a file's columns, in the form of the Delta protocol's "Per-file Statistics".

Engines skip a file whose bounds rule a filter out, so a bound may be wider than the values and never narrower.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

TEXT_CHARACTERS_MAX = 64
"""Longest bound of a text column: the name of an edge node is never truncated. Delta's own writer truncates at 32."""
_CHARACTER_MAX = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENT_MAX = datetime.max.replace(tzinfo=UTC)
_MOMENTS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""First and last microsecond of the years 1 to 9999, which the text of a bound can express. Spark's times go
further."""
_DAYS = (-719_162, 2_932_896)
"""First and last day of these years, counted from 1970."""


class FileStatistics:
    """Bounds and null counts of some columns over the rows of one file."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.rows = 0
        self._nulls = dict.fromkeys(columns, 0)
        self._bounds: dict[str, tuple[Any, Any]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add further rows."""
        self.rows += batch.num_rows
        for name in self._nulls:
            column = batch.column(name)
            self._nulls[name] += column.null_count
            low, high = bounds_of(column)
            if low is not None:
                known = self._bounds.get(name, (low, high))
                # Python compares text by code points, which is the order of its UTF-8 bytes and Arrow's order.
                self._bounds[name] = min(low, known[0]), max(high, known[1])

    def bounds(self, name: str) -> tuple[Any, Any]:
        """Return the lowest and the highest value of a column with values."""
        return self._bounds[name]

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


def bounds_of(column: pa.Array | pa.ChunkedArray) -> tuple[Any, Any]:
    """Return the lowest and the highest value of a column, None without any.

    Times outside the years 1 to 9999 count as the nearest moment within them, so that a device's faulty timestamp does
    not end a query. Infinity and NaN count as the nearest numbers.
    """
    found = pc.min_max(column)
    low, high = found["min"], found["max"]
    if not low.is_valid:
        return None, None
    if pa.types.is_timestamp(column.type):
        return _moment(low), _moment(high)
    if pa.types.is_date32(column.type):
        return _day(low), _day(high)
    if pa.types.is_floating(column.type):
        return _finite(low.as_py(), high.as_py(), has_nan=pc.any(pc.is_nan(column)).as_py())
    return low.as_py(), high.as_py()


def after_cut(bound: datetime) -> datetime:
    """Return the latest value that a bound may stand for: engines truncate bounds of times to milliseconds."""
    return min(bound, _MOMENT_MAX.replace(tzinfo=bound.tzinfo) - _MILLISECOND) + _MILLISECOND


def _finite(low: float, high: float, *, has_nan: bool) -> tuple[float, float]:
    """Return bounds that JSON can express. NaN is above all numbers, as in Spark and DuckDB."""
    most = sys.float_info.max
    if math.isnan(low):  # no other value
        return most, most
    return min(max(low, -most), most), most if has_nan else max(min(high, most), -most)


def _moment(value: pa.TimestampScalar) -> datetime:
    epoch = _EPOCH if value.type.tz else _EPOCH.replace(tzinfo=None)
    return epoch + timedelta(microseconds=_within(_MOMENTS_US, value.value))


def _day(value: pa.Date32Scalar) -> date:
    return _EPOCH.date() + timedelta(days=_within(_DAYS, value.value))


def _within(limits: tuple[int, int], number: int) -> int:
    return min(max(number, limits[0]), limits[1])


def _lower(value: Any) -> Any:
    return value[:TEXT_CHARACTERS_MAX] if isinstance(value, str) else _time(value)


def _upper(value: Any) -> Any:
    if isinstance(value, str):
        return _upper_text(value)
    if isinstance(value, datetime) and value.microsecond % 1000:
        # Statistics of times have milliseconds. If the bound were truncated instead of rounded up, engines would skip
        # rows of the last microseconds.
        value = after_cut(value)
    return _time(value)


def _time(value: Any) -> Any:
    if isinstance(value, datetime):
        # By isoformat: strftime writes the year 1 without its zeros.
        return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    return value.isoformat() if isinstance(value, date) else value


def _upper_text(text: str) -> str:
    """Return a short text that is not below ``text``: its beginning, with the last possible character raised."""
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    for at in reversed(range(TEXT_CHARACTERS_MAX)):
        raised = ord(text[at]) + 1
        if raised <= _CHARACTER_MAX:
            # UTF-8 has no surrogates.
            return text[:at] + chr(_SURROGATES.stop if raised in _SURROGATES else raised)
    return text
