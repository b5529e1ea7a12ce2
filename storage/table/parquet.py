"""Parquet files of tables: row groups, slices of them, bounds of their columns, and numbers of columns."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from hashlib import blake2b
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

# Rows into the bytes of one Parquet file, whole or in parts.

GROUP_ROWS_MAX = 128 << 10
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
        rows_max: int = GROUP_ROWS_MAX,
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


# Slices of a Parquet file: neighbouring row groups whose rows have one range of offsets.
#
# The hub sorts the rows of a slice, so that each of its row groups has some of the offsets of all of it. A file in
# the log's order has a slice for each row group.

OFFSET = "_offset"
SLICE_ROWS_MAX = 512 << 10
"""Rows after which a slice is cut: another engine may have sorted a whole file."""
SLICE_BYTES_MAX = 128 << 20
"""Bytes after which it is cut."""
_UNKNOWN = 1 << 63


class GroupSlice(NamedTuple):
    """Row groups ``[first, end)`` of a file."""

    first: int
    end: int
    rows: int
    bytes: int
    """Bytes of its columns in the file's encodings, without compression."""


def group_slices(metadata: pq.FileMetaData) -> Iterator[GroupSlice]:
    """Yield the slices of a file, in its order: up to each row group that no later row group has lower offsets than.

    Without bounds of offsets, each row group is a slice of its own.
    """
    bounds = list(_bounds(metadata))
    # The lowest offset of the row groups after each.
    after = [*accumulate((low for low, _ in reversed(bounds)), min)][::-1][1:]
    made, highest = GroupSlice(0, 0, 0, 0), -1
    for number, (_, high) in enumerate(bounds):
        group = metadata.row_group(number)
        rows, size = group.num_rows, group.total_byte_size
        if made.end > made.first and (made.rows + rows > SLICE_ROWS_MAX or made.bytes + size > SLICE_BYTES_MAX):
            yield made
            made = GroupSlice(number, number, 0, 0)
        made = GroupSlice(made.first, number + 1, made.rows + rows, made.bytes + size)
        highest = max(highest, high)
        if number + 1 == len(bounds) or highest < after[number]:
            yield made
            made = GroupSlice(number + 1, number + 1, 0, 0)


def parts_of(slice_: GroupSlice, metadata: pq.FileMetaData, bytes_max: int) -> Iterator[list[int]]:
    """Yield the row groups of a slice, in its order, in parts of at most ``bytes_max`` bytes, or of one row group.

    Neighbouring row groups can be read by one request.
    """
    part: list[int] = []
    size = 0
    for number in range(slice_.first, slice_.end):
        more = metadata.row_group(number).total_byte_size
        if part and size + more > bytes_max:
            yield part
            part, size = [], 0
        part.append(number)
        size += more
    if part:
        yield part


def _bounds(metadata: pq.FileMetaData) -> Iterator[tuple[int, int]]:
    """Yield the lowest and the highest offset of each row group; ever higher ones where they are unknown."""
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    at = names.index(OFFSET) if OFFSET in names else None
    for number in range(metadata.num_row_groups):
        known = metadata.row_group(number).column(at).statistics if at is not None else None
        yield (known.min, known.max) if known is not None and known.has_min_max else (_UNKNOWN + number,) * 2


# Bounds of a file's columns, in the form of the Delta protocol's "Per-file Statistics".
#
# Engines skip a file whose bounds rule a filter out, so a bound may be wider than the values and never narrower.

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


# Numbers of columns in Parquet files, by which a reader knows a column whatever its name is later.
#
# A number is for good: files of all releases have the same for a column. Delta tables without column mapping, as the
# hub's are, go by the names; formats such as Iceberg go by the numbers.

# Numbers in the files alone: Delta's column mapping would raise the reader's version of every table, and a number by
# position could mean two columns in two files.
FIELD_IDS = {
    "_offset": 1,
    "_shard": 2,
    "_edge": 3,
    "_log": 4,
    "_seq": 5,
    "_time": 6,
    "_clock": 7,
    "_received": 8,
    "_key": 9,
    "_resent": 10,
    "_headers": 11,
    "_edge_time": 14,
    "_origin": 15,
    "payload": 16,
    "_payload_bytes": 17,
    "_schema": 18,
    "_misfit": 19,
}
"""Numbers of the fixed columns. The next new column takes the lowest that was never used."""
MAP_IDS = {"_headers": (12, 13), "_misfit": (20, 21)}
"""Numbers of name and value inside the columns that are maps."""
LEVEL_IDS = range(1 << 16, 1 << 30)
"""Numbers of topic levels, of typed columns and of the elements of arrays, by a digest of the name: they depend neither
on the other columns nor on their order, unless two digests meet (in one of 10,000 tables with 512 levels); the later
column then takes the next number. Iceberg has numbers of its own from 2,147,483,447 on."""
_KEY = b"PARQUET:field_id"


def with_field_ids(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a table's rows with the number of each column, as pyarrow's Parquet writer takes it."""
    taken: set[int] = set()
    numbers = []
    for field in schema:
        numbers.append(FIELD_IDS.get(field.name) or _level_id(field.name, taken))
        taken.add(numbers[-1])
    # Behind all columns, whose numbers do not depend on the elements of arrays.
    return pa.schema(
        [
            _numbered(field.with_type(_with_ids(field.name, field.type, taken)), number)
            for field, number in zip(schema, numbers, strict=True)
        ]
    )


def digest_id(name: str) -> int:
    """Return the number of a column outside of ``FIELD_IDS``, or of what is inside a column, if no other one has it."""
    digest = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
    return LEVEL_IDS[digest % len(LEVEL_IDS)]


def _level_id(name: str, taken: set[int]) -> int:
    number = digest_id(name)
    while number in taken:
        number = LEVEL_IDS[(number + 1 - LEVEL_IDS.start) % len(LEVEL_IDS)]
    return number


def _with_ids(column: str, kind: pa.DataType, taken: set[int]) -> pa.DataType:
    if pa.types.is_list(kind):
        number = _level_id(f"{column}.element", taken)
        taken.add(number)
        return pa.list_(_numbered(kind.value_field, number))
    if not pa.types.is_map(kind):
        return kind
    name, value = MAP_IDS[column]
    return pa.map_(_numbered(kind.key_field, name), _numbered(kind.item_field, value))


def _numbered(field: pa.Field, number: int) -> pa.Field:
    return field.with_metadata({_KEY: str(number).encode()})
