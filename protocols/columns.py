"""The body of a batch: columns of many records as bytes (docs/reference/formats/batch.md, "Body").

They are laid out from lists and decoded in passes that run in C. Columns that do not fit are refused here.
"""

from __future__ import annotations

import base64
import math
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, Any, NamedTuple

import msgspec

from weft.protocols.errors import Corrupt
from weft.protocols.fields import PackedHeaders, pack, unpack

Buffer = bytes | bytearray | memoryview

HEADER_PAIRS_MAX = 1024
"""Maximum number of header pairs of one record."""
HeaderValue = str | bytes | int | float | bool | None
"""Value of a header, as in the record's protocol. Integers have 64 signed bits."""
HeaderPairs = tuple[tuple[str, HeaderValue], ...]
"""A record's headers: names may repeat and their order is kept (MQTT 5.0 section 3.3.2.3.7)."""
RESERVED_HEADER_PREFIXES = ("weft.", "mqtt.", "amqp.", "http.", "kafka.", "sparkplug.")
"""Prefixes of the headers that Weft itself writes. A device's own name with such a prefix is stored escaped."""
_INT64 = range(-(1 << 63), 1 << 63)

KEY_BYTES_MAX = 65_535
"""Longest key of a record, the limit of an MQTT topic."""
EXPANDED_BYTES_MAX = 128 << 20
"""Maximum bytes of a batch's records as rows (``expanded_bytes``). Records share keys in a batch but not in a table, so
a batch of some hundred bytes could otherwise expand to terabytes."""
ROW_BYTES = 64
"""Bytes charged for a row, beside its key, payload and headers."""
HEADER_PAIR_BYTES = 64
"""Bytes charged for a header, including its name and value as text."""


class Columns(NamedTuple):
    """The columns of a batch as raw little-endian bytes, ready to be joined or wrapped by Arrow."""

    times: Buffer
    """Times, i64 x count."""
    key_index: Buffer
    """Key indexes, u32 x count, into ``keys``."""
    keys: Sequence[bytes]
    payload_offsets: Buffer
    """Payload offsets, u32 x (count + 1)."""
    payload: Buffer
    headers: Mapping[int, HeaderPairs]
    """Record index in the batch -> its headers; absent for most."""
    flags: Buffer
    """Flags, u8 x count, or empty when no record has a flag."""


def header_text(value: HeaderValue) -> str | None:
    """Return a header's value as text, for tables, people and protocols with only text; None for nil.

    Bytes are base64, numbers as in Python and JSON (``1``, ``0.5``, ``nan``, ``inf``), booleans ``true`` and ``false``.
    """
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


def header_json(value: HeaderValue) -> str | int | float | bool | None:
    """Return a header's value for JSON: bytes as base64, floats that JSON lacks as text, all others unchanged."""
    if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
        return header_text(value)
    return value


def header_bytes(value: HeaderValue) -> int:
    """Return the maximum bytes of a header's value beside its type and length.

    Raises:
        ValueError: an integer of more than 64 bits.
    """
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, int) and value not in _INT64:
        raise ValueError(f"the header value {value} has more than 64 bits: store it as text")
    return 8


def u32s(values: Iterable[int]) -> array[int]:
    """Encode integers as a column of little-endian u32."""
    column = array("I", values)
    if sys.byteorder != "little":  # pragma: no cover
        column.byteswap()
    return column


def read_u32s(data: Buffer) -> array[int]:
    """Return the integers of a column of little-endian u32."""
    column = array("I")
    column.frombytes(data)
    if sys.byteorder != "little":  # pragma: no cover
        column.byteswap()
    return column


def columns_from_lists(
    times: Buffer,
    keys: Sequence[bytes],
    payloads: Sequence[bytes],
    headers: Mapping[int, HeaderPairs] | None = None,
    flags: Mapping[int, int] | None = None,
) -> Columns:
    """Lay out a run of records in columns, in a few passes that all run in C.

    Args:
        times: i64 x count, little-endian nanoseconds.
        keys: one key per record; the key table is built here.
        payloads: one payload per record.
        headers: record index -> header pairs, for the records that have any.
        flags: record index -> ``Flag`` bits, for the records that have any.
    """
    table, count = [*dict.fromkeys(keys)], len(keys)
    if len(table) == count:  # each device of a fleet has sent one
        key_index = u32s(range(count)).tobytes()
    elif len(table) == 1:  # one device has sent all
        key_index = bytes(4 * count)
    else:
        indexes = dict(zip(table, range(len(table)), strict=True))
        key_index = u32s(map(indexes.__getitem__, keys)).tobytes()
    flag_column = b""
    if flags:
        dense = bytearray(len(keys))
        for index, bits in flags.items():
            dense[index] = bits
        flag_column = bytes(dense)
    return Columns(
        times,
        key_index,
        table,
        u32s(accumulate(map(len, payloads), initial=0)).tobytes(),
        b"".join(payloads),
        headers or {},
        flag_column,
    )


def expanded_bytes(columns: Columns) -> int:
    """Return the bytes of a batch's records as rows, each with its own key: the cost of making a table of them.

    It counts row by row; ``check_expanded`` is faster if only the bound matters.
    """
    lengths = list(map(len, columns.keys))
    keys = sum(map(lengths.__getitem__, read_u32s(columns.key_index)))
    return keys + _expanded_without_keys(columns, len(columns.times) // 8)


def _expanded_without_keys(columns: Columns, count: int) -> int:
    pairs = sum(map(len, columns.headers.values()))
    return ROW_BYTES * count + len(columns.payload) + HEADER_PAIR_BYTES * pairs


def check_expanded(columns: Columns, count: int) -> None:
    """Refuse keys and records that would cost too much as rows.

    Raises:
        Corrupt: a key is longer than ``KEY_BYTES_MAX``, or the rows have more than ``EXPANDED_BYTES_MAX``.
    """
    longest = max(map(len, columns.keys), default=0)
    if longest > KEY_BYTES_MAX:
        raise Corrupt(f"a record's key has {longest} bytes; at most {KEY_BYTES_MAX} are possible")
    most = longest * count + _expanded_without_keys(columns, count)
    if most > EXPANDED_BYTES_MAX and (size := expanded_bytes(columns)) > EXPANDED_BYTES_MAX:
        raise Corrupt(f"a batch of {count} records stands for {size} bytes of rows; at most {EXPANDED_BYTES_MAX} are")


def _blobs(values: Sequence[bytes]) -> list[Buffer]:
    """Return a run of byte strings: u32 x (n + 1) offsets, then the bytes."""
    return [u32s(accumulate(map(len, values), initial=0)).tobytes(), b"".join(values)]


def _column(parts: list[Buffer]) -> Iterator[Buffer]:
    """Yield a column: length u32, zero u32, the bytes, zeros up to a multiple of eight so that Arrow can wrap it."""
    length = sum(map(len, parts))
    yield struct.pack("<II", length, 0)
    yield from parts
    yield bytes(-length % 8)


def encode_body(columns: Columns) -> bytes:
    """Return the uncompressed body that holds the columns."""
    parts: list[Buffer] = []
    parts += _column([columns.times])
    key_table = [columns.key_index, struct.pack("<I", len(columns.keys)), *_blobs(columns.keys)]
    parts += _column(key_table)
    parts += _column([columns.payload_offsets, columns.payload])
    if columns.headers:
        indexes = sorted(columns.headers)
        packed = [
            pairs.packed if type(pairs) is PackedHeaders else pack(pairs)
            for pairs in map(columns.headers.__getitem__, indexes)
        ]
        parts += _column([struct.pack("<I", len(indexes)), u32s(indexes).tobytes(), *_blobs(packed)])
    if columns.flags:
        parts += _column([columns.flags])
    return b"".join(parts)


def check_shape(columns: Columns, count: int) -> None:
    """Refuse columns that disagree on the number of records: once written, such a batch could never be read."""
    longest = max(map(len, columns.headers.values()), default=0)
    if (
        len(columns.times) != 8 * count
        or len(columns.key_index) != 4 * count
        or len(columns.payload_offsets) != 4 * count + 4
        or (columns.flags and len(columns.flags) != count)
        or (columns.headers and not 0 <= min(columns.headers) <= max(columns.headers) < count)
        or longest > HEADER_PAIRS_MAX
    ):
        raise ValueError(f"the columns of a batch do not agree on {count} records, or have {longest} header pairs")


def ends_of(times: Buffer, count: int) -> tuple[int, int]:
    """Return the first and the last value of a time column."""
    return struct.unpack_from("<q", times)[0], struct.unpack_from("<q", times, 8 * count - 8)[0]


class Checks(NamedTuple):
    """Checks of columns of u32. Readers of large batches pass vector arithmetic, which an edge node does not have."""

    # Sorting a sorted list is one pass in C, four times faster than comparing neighbours from Python.
    ascends: Callable[[Buffer], bool] = lambda data: read_u32s(data).tolist() == sorted(read_u32s(data))
    largest: Callable[[Buffer], int] = lambda data: max(read_u32s(data))


PLAIN_CHECKS = Checks()


class _BodyReader:
    """Walks the columns of a body, refusing any length that does not fit."""

    def __init__(self, body: Buffer) -> None:
        self._body = memoryview(body)
        self._at = 0

    def column(self) -> memoryview:
        if len(self._body) - self._at < 8:
            raise Corrupt("a batch body ends inside a column's length")
        length, zero = struct.unpack_from("<II", self._body, self._at)
        start = self._at + 8
        self._at = start + length + (-length % 8)
        if zero or self._at > len(self._body):
            raise Corrupt(f"a column of {length} bytes does not fit its batch body")
        return self._body[start : start + length]

    def finish(self) -> None:
        if self._at != len(self._body):
            raise Corrupt(f"{len(self._body) - self._at} bytes follow the last column of a batch body")


def _split_blobs(data: memoryview, count: int) -> list[bytes]:
    head = 4 * (count + 1)
    if len(data) < head:
        raise Corrupt("a batch column ends inside its offsets")
    _check_offsets(data[:head], len(data) - head)
    offsets = read_u32s(data[:head])
    blob = bytes(data[head:])
    return [blob[offsets[i] : offsets[i + 1]] for i in range(count)]


def _check_offsets(data: Buffer, length: int, checks: Checks = PLAIN_CHECKS) -> None:
    if bytes(data[:4]) + bytes(data[-4:]) != struct.pack("<II", 0, length) or not checks.ascends(data):
        raise Corrupt("a batch column's offsets do not ascend from zero to its length")


def decode_body(body: Buffer, count: int, *, headers: bool, flags: bool, checks: Checks = PLAIN_CHECKS) -> Columns:
    """Decode an uncompressed body. Large columns are views of it, not copies.

    Args:
        count: records, as the batch's header says.
        headers, flags: whether there is such a column.

    Raises:
        Corrupt: a column does not fit the count, or the columns do not fill the body.
    """
    reader = _BodyReader(body)
    times, keys, payloads = reader.column(), reader.column(), reader.column()
    if len(times) != 8 * count or len(keys) < 4 * count + 4 or len(payloads) < 4 * count + 4:
        raise Corrupt("a batch column is shorter than its record count needs")
    key_index = keys[: 4 * count]
    table = _decode_keys(key_index, keys[4 * count :], count, checks)
    payload_offsets = payloads[: 4 * count + 4]
    _check_offsets(payload_offsets, len(payloads) - len(payload_offsets), checks)
    pairs = _decode_headers(reader.column(), count) if headers else {}
    flag_column: Buffer = reader.column() if flags else b""
    if flags and len(flag_column) != count:
        raise Corrupt(f"a flags column of {len(flag_column)} bytes for {count} records")
    reader.finish()
    columns = Columns(times, key_index, table, payload_offsets, payloads[4 * count + 4 :], pairs, flag_column)
    # With few keys and records, as nearly always, the bounds cannot be reached.
    if pairs or len(keys) > KEY_BYTES_MAX or len(keys) * count > EXPANDED_BYTES_MAX // 4:
        check_expanded(columns, count)
    return columns


PLAIN_COUNT_MAX = 500
"""Records above which ``decode_body`` is faster than ``is_plainly_sound``: it makes no object for each offset."""


@lru_cache(maxsize=2 * PLAIN_COUNT_MAX)
def _u32s_at(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I")


@lru_cache(maxsize=PLAIN_COUNT_MAX)
def _head_of(count: int) -> struct.Struct:
    """Return the layout up to the size of the key table, with only the first and the last time."""
    times = "q" if count == 1 else f"q{8 * (count - 2)}xq"
    return struct.Struct(f"<II{times}II{count}II")


def is_plainly_sound(body: Buffer, count: int, first_time: int, last_time: int) -> bool:
    """Return whether ``decode_body`` would accept a body without optional columns, at a third of its cost for a small
    batch. False is no result: ``decode_body`` has to check.

    Args:
        count: records, as the batch's header says.
        first_time, last_time: times of the first and the last record, as the header says.
    """
    size, index_bytes, at_keys = len(body), 4 * count, 8 + 8 * count
    if not 0 < count <= PLAIN_COUNT_MAX or size < at_keys + index_bytes + 12:
        return False
    values = _head_of(count).unpack_from(body)
    at = 3 if count == 1 else 4
    keys, table = values[at], values[-1]
    at_payloads = at_keys + 8 + keys + (-keys % 8)
    if (
        values[0] != 8 * count or values[1] or values[2] != first_time or values[at - 1] != last_time
        or values[at + 1] or not 0 < table <= count or max(values[at + 2 : -1]) >= table
        or keys < index_bytes + 4 * table + 8 or at_payloads + 12 + index_bytes > size
    ):  # fmt: skip
        return False
    payloads, zero, *offsets = _u32s_at(count + 3).unpack_from(body, at_payloads)
    length = payloads - index_bytes - 4
    if zero or length < 0 or at_payloads + 8 + payloads + (-payloads % 8) != size:
        return False
    names = [*_u32s_at(table + 1).unpack_from(body, at_keys + 12 + index_bytes)]
    return (
        not offsets[0] and offsets[-1] == length and sorted(offsets) == offsets
        and not names[0] and names[-1] == keys - index_bytes - 4 * table - 8 and sorted(names) == names
        # This bounds the longest key, and so few records cannot be too many bytes as rows.
        and names[-1] <= KEY_BYTES_MAX
    )  # fmt: skip


def _decode_keys(key_index: memoryview, data: memoryview, count: int, checks: Checks) -> list[bytes]:
    table_size = struct.unpack_from("<I", data)[0]
    if not 0 < table_size <= count:
        raise Corrupt(f"a key table of {table_size} for {count} records")
    table = _split_blobs(data[4:], table_size)
    if checks.largest(key_index) >= table_size:
        raise Corrupt("a record names a key that is not in the key table")
    return table


_HEADER_PAIRS = msgspec.msgpack.Decoder(
    # No union in msgspec holds both text and bytes.
    Annotated[tuple[tuple[str, Any], ...], msgspec.Meta(max_length=HEADER_PAIRS_MAX)]
)
_VALUE_TYPES = frozenset({str, bytes, int, float, bool, type(None)})


def _decode_pairs(blob: bytes) -> HeaderPairs:
    pairs: HeaderPairs = unpack(_HEADER_PAIRS, blob, "a record's headers")
    for _, value in pairs:
        kind = type(value)
        if kind not in _VALUE_TYPES or (kind is int and value not in _INT64):
            raise Corrupt(f"a record has a header with a value that no header has: {kind.__name__}")
    return pairs


def _decode_headers(data: memoryview, count: int) -> dict[int, HeaderPairs]:
    if len(data) < 4:
        raise Corrupt("a headers column ends inside its count")
    size = struct.unpack_from("<I", data)[0]
    if not 0 < size <= count or len(data) < 4 + 4 * size:
        raise Corrupt(f"a headers column names {size} of {count} records")
    indexes = read_u32s(data[4 : 4 + 4 * size])
    if indexes[-1] >= count or any(map(int.__ge__, indexes, indexes[1:])):
        raise Corrupt("a headers column's record indexes do not ascend inside the batch")
    found, cost = dict[int, HeaderPairs](), 0
    known: dict[bytes, HeaderPairs] = {}  # equal headers share one object: most records of a batch have the same
    for index, blob in zip(indexes, _split_blobs(data[4 + 4 * size :], size), strict=True):
        found[index] = pairs = known.get(blob) or known.setdefault(blob, _decode_pairs(blob))
        cost += HEADER_PAIR_BYTES * len(pairs)
        if cost > EXPANDED_BYTES_MAX:
            raise Corrupt(f"the headers of a batch stand for more than {EXPANDED_BYTES_MAX} bytes of rows")
    return found
