"""Batch: a run of consecutive records of one lane, in columns (docs/reference/formats/batch.md).

A batch is encoded once, at the edge, and moves as opaque bytes until it becomes table rows. The hot path passes lists
to ``columns_from_lists``, which joins each of them once; nothing here loops over records in Python.
"""

from __future__ import annotations

import base64
import math
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum, IntFlag
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Annotated, Any, NamedTuple, NoReturn

import msgspec
import zstandard

from weft.protocols.checksum import crc32c
from weft.protocols.errors import CodecError, Corrupt, Truncated, UnsupportedVersion
from weft.protocols.ranges import SEQ_END, PackedHeaders, pack, unpack

# The body of a batch: columns of many records as bytes (docs/reference/formats/batch.md, "Body").
#
# They are laid out from lists and decoded in passes that run in C. Columns that do not fit are refused here.

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
# Cost as rows, not a ratio of compression: telemetry of one device compresses a hundredfold, and 188 bytes were 57 TB
# as rows. No setting: an edge and its hub must agree about what can be acknowledged.
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
        raise Corrupt(f"a batch of {count} records expands to {size} bytes of rows; the limit is {EXPANDED_BYTES_MAX}")


class RecordTooLong(CodecError):
    """A record that is longer than its receiver takes, in a batch that is sound."""

    def __init__(self, seq: int, size: int, bytes_max: int) -> None:
        super().__init__(f"the record at seq {seq} has {size} bytes, the hub's limit is {bytes_max}")
        self.seq = seq


def check_records(columns: Columns, base_seq: int, bytes_max: int) -> None:
    """Refuse a record whose key, payload and headers have more than ``bytes_max`` bytes together.

    Raises:
        RecordTooLong: with the first one.
    """
    offsets, key_index = read_u32s(columns.payload_offsets), read_u32s(columns.key_index)
    # A payload that makes a record too long has one of these bytes. Comparing a million lengths would hold the
    # interpreter for longer than a few looks.
    apart = max(bytes_max - KEY_BYTES_MAX, 1)
    suspects = {bisect_right(offsets, at) - 1 for at in range(0, offsets[-1], apart)} | columns.headers.keys()
    known: dict[int, int] = {}  # most records of a batch share their headers
    for index in sorted(suspects):
        pairs = columns.headers.get(index, ())
        if (of_headers := known.get(id(pairs))) is None:
            of_headers = known[id(pairs)] = sum(len(name.encode()) + header_bytes(value) for name, value in pairs)
        size = len(columns.keys[key_index[index]]) + offsets[index + 1] - offsets[index] + of_headers
        if size > bytes_max:
            raise RecordTooLong(base_seq + index, size, bytes_max)


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
        values[0] != 8 * count
        or values[1]
        or values[2] != first_time
        or values[at - 1] != last_time
        or values[at + 1]
        or not 0 < table <= count
        or max(values[at + 2 : -1]) >= table
        or keys < index_bytes + 4 * table + 8
        or at_payloads + 12 + index_bytes > size
    ):
        return False
    payloads, zero, *offsets = _u32s_at(count + 3).unpack_from(body, at_payloads)
    length = payloads - index_bytes - 4
    if zero or length < 0 or at_payloads + 8 + payloads + (-payloads % 8) != size:
        return False
    names = [*_u32s_at(table + 1).unpack_from(body, at_keys + 12 + index_bytes)]
    return (
        not offsets[0]
        and offsets[-1] == length
        and sorted(offsets) == offsets
        and not names[0]
        and names[-1] == keys - index_bytes - 4 * table - 8
        and sorted(names) == names
        # This bounds the longest key, and so few records cannot be too many bytes as rows.
        and names[-1] <= KEY_BYTES_MAX
    )


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
            raise Corrupt(f"the headers of a batch expand to more than {EXPANDED_BYTES_MAX} bytes of rows")
    return found


# The header of a batch (docs/reference/formats/batch.md): facts about a run of records without reading it.

MAGIC = b"WFB"
VERSION = 1
HEADER = struct.Struct("<4sIBBBBIIIIIQqqQq")
HEADER_BYTES = HEADER.size
CRC_END = 8
"""End of the CRC field: the CRC covers everything after it, from byte 8 to the end of the body."""

RAW_BYTES_MIN_PER_RECORD = 16
"""Minimum uncompressed bytes of a record: a time, a key index and a payload offset. No header can claim more records
than its body has room for."""
RAW_BYTES_MAX = 64 << 20
"""Longest uncompressed body. Keeps every offset inside a signed 32-bit Arrow offset with room to spare."""
COUNT_MAX = 1 << 20
"""Maximum number of records of a batch. Passes over its columns hold the interpreter for some 20 ms at most."""


class Codec(IntEnum):
    """Compression of the body. The numbers are persisted."""

    NONE = 0
    ZSTD = 1


class Column(IntFlag):
    """Optional columns, as bits of the header's ``columns`` byte. The numbers are persisted."""

    HEADERS = 1
    FLAGS = 2
    FLAGS2 = 4
    """Reserved for a second byte of flags. This release neither writes nor reads it."""
    EVENT_TIME = 8
    """Reserved for the times at which events happened, i64 x count. This release neither writes nor reads it."""


_UNKNOWN_COLUMNS = 0xFF & ~int(Column.HEADERS | Column.FLAGS)


class ClockState(IntEnum):
    """State of the edge's wall clock when the batch was made: set by a time source or not. Persisted."""

    UNSYNCED = 0
    SYNCED = 1


_MAGIC, _PLAIN = MAGIC + bytes([VERSION]), Codec.NONE
# Enums are slow to make and to combine; a hub reads tens of thousands of headers a second.
_HEADER_READ = struct.Struct("<4sI4sIIIIIQqqQq")
"""``HEADER`` with codec, columns, clock state and the reserved byte in one."""
_KINDS = {
    bytes([codec, bits, clock, 0]): (clock, codec, Column(bits))
    for codec in Codec
    for bits in range(int(Column.HEADERS | Column.FLAGS) + 1)
    for clock in ClockState
}
"""Values that this release knows, by these four bytes."""


class ClockReading(NamedTuple):
    """An edge's clocks at one instant."""

    boot_id: int
    """Random 64-bit number of this boot of the machine."""
    monotonic: int
    """Nanoseconds of the boot's monotonic clock."""
    state: ClockState


class BatchHeader(NamedTuple):
    """The fixed header of a batch, decoded. Times are nanoseconds since 1970 by the edge's wall clock."""

    stream: int
    """The log's own number of the stream; the log's stream table, or the link's lane table, has the name."""
    base_seq: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which no code calls
    first_time: int
    last_time: int
    boot_id: int
    monotonic: int
    """Nanoseconds of the boot's monotonic clock at the batch's first record."""
    clock: ClockState
    codec: Codec
    columns: Column
    raw_length: int
    body_length: int
    crc: int
    origin: int = 0
    """Number of the records' origin (``lane.Origin``), which the log, the lane of a link or the footer of a chunk
    resolves; 0 for records of devices."""

    @property
    def end_seq(self) -> int:
        """Return the sequence number after the last record's."""
        return self.base_seq + self.count

    @property
    def length(self) -> int:
        """Return the bytes of the whole batch, including the header."""
        return HEADER_BYTES + self.body_length


def decode_header(data: Buffer, offset: int = 0) -> BatchHeader:
    """Decode the header at ``offset`` without reading the body.

    An unknown codec, column or clock state comes from a later release only if the checksum is right. The checksum is
    checked if all the bytes that the header claims are there. A caller that passes only the header must check the whole
    batch before it relies on ``UnsupportedVersion``.

    Raises:
        Truncated: fewer than ``HEADER_BYTES`` bytes are there.
        UnsupportedVersion: a batch of a later release.
        Corrupt: not a batch, or a field is out of bounds.
    """
    if len(data) - offset < HEADER_BYTES:
        raise Truncated(f"a batch header has {HEADER_BYTES} bytes, {len(data) - offset} are left")
    (
        magic,
        crc,
        kind,
        stream,
        count,
        raw_length,
        body_length,
        origin,
        base_seq,
        first_time,
        last_time,
        boot_id,
        monotonic,
    ) = _HEADER_READ.unpack_from(data, offset)
    if magic != _MAGIC:
        if magic[:3] != MAGIC:
            raise Corrupt(f"expected a batch ({MAGIC!r}), found {magic!r}")
        raise UnsupportedVersion(f"batch version {magic[3]}; this release reads version {VERSION}")
    if (known := _KINDS.get(kind)) is None:
        _refuse_unknown(data, offset, offset + HEADER_BYTES + body_length, crc)
    clock, codec, columns = known
    if not 0 < count <= COUNT_MAX or not RAW_BYTES_MIN_PER_RECORD * count < raw_length <= RAW_BYTES_MAX:
        raise Corrupt(f"a batch header is out of bounds: {count} records in {raw_length} bytes")
    if body_length > raw_length or (codec is _PLAIN and body_length != raw_length):
        raise Corrupt(f"a batch body of {body_length} bytes cannot expand to {raw_length}")
    if base_seq + count > SEQ_END:
        raise Corrupt(f"a batch runs past the last sequence number: {base_seq} + {count}")
    # Not with the class's own constructor, which takes twice as long.
    return tuple.__new__(
        BatchHeader,
        (
            stream,
            base_seq,
            count,
            first_time,
            last_time,
            boot_id,
            monotonic,
            clock,
            codec,
            columns,
            raw_length,
            body_length,
            crc,
            origin,
        ),
    )


def _refuse_unknown(data: Buffer, offset: int, end: int, crc: int) -> NoReturn:
    """Refuse a header with a codec, column or clock state that this release does not know.

    Raises:
        UnsupportedVersion: a later release wrote it, according to the available bytes.
        Corrupt: the checksum is wrong, so the bytes are damage.
    """
    if end <= len(data):
        check_crc(data, offset, end, crc)
    codec, columns, clock, reserved = bytes(memoryview(data)[offset + CRC_END : offset + CRC_END + 4])
    raise UnsupportedVersion(
        f"a batch of a later release: codec {codec}, columns {columns:#x}, clock state {clock}, reserved {reserved}"
    )


def check_crc(data: Buffer, offset: int, end: int, crc: int) -> None:
    """Compare the checksum of a whole batch with its header's. Raises Corrupt."""
    found = crc32c(memoryview(data)[offset + CRC_END : end])
    if found != crc:
        raise Corrupt(f"batch checksum {found:#010x}, header has {crc:#010x}")


__all__ = [
    "CLOCK_STEP_NS_MAX",
    "COMPRESS_BYTES_MIN",
    "COUNT_MAX",
    "EXPANDED_BYTES_MAX",
    "HEADER_BYTES",
    "HEADER_PAIRS_MAX",
    "HEADER_PAIR_BYTES",
    "KEY_BYTES_MAX",
    "MAGIC",
    "RAW_BYTES_MAX",
    "RAW_BYTES_MIN_PER_RECORD",
    "ROW_BYTES",
    "SEQ_END",
    "VERSION",
    "BatchHeader",
    "Buffer",
    "ClockReading",
    "ClockState",
    "Codec",
    "Column",
    "Columns",
    "Flag",
    "HeaderPairs",
    "Record",
    "RecordTooLong",
    "body_of",
    "check_records",
    "columns_from_lists",
    "decode_columns",
    "decode_header",
    "encode",
    "expanded_bytes",
    "merge",
    "mergeable",
    "records",
    "verify",
]

COMPRESS_BYTES_MIN = 4096
"""Body size from which compression pays. On a link, shorter bodies compress better in the connection's streaming
context than each on its own: 32 against 143 bytes a message (docs/decisions/0004-compress-large-batches-only.md)."""

CLOCK_STEP_NS_MAX = 1_000_000_000
"""Largest step of the wall clock against the monotonic clock between batches that may be merged. A merged batch keeps
one pair of readings, so a larger step (a Pi that learns the time) must stay visible between two batches."""


class Flag(IntFlag):
    """Bits of the ``flags`` column for a record. The numbers are persisted; bits without a name are kept."""

    RETAINED = 1
    TOMBSTONE = 2
    DUPLICATE_SUSPECTED = 4
    """Flag of a record that the device sent with MQTT's DUP: it, or an earlier attempt, may be stored already."""
    PUBLISHED_QOS0 = 8
    """Flag of a record published at MQTT's QoS 0."""
    PUBLISHED_QOS2 = 16
    """Flag of a record published at MQTT's QoS 2. A record with neither flag was published at QoS 1, or not with
    MQTT."""
    COPIED_FOR_SESSIONS = 32
    """Flag of a record of the stream `unrouted` that is in the stream for sessions, too: readers of both skip it."""


class Record(NamedTuple):
    """One record, for people and tests; the data path never creates these."""

    seq: int
    time: int
    key: bytes
    payload: bytes
    headers: HeaderPairs
    flags: Flag


def encode(
    stream: int,
    base_seq: int,
    columns: Columns,
    clock: ClockReading,
    compressor: zstandard.ZstdCompressor | None = None,
    *,
    origin: int = 0,
) -> bytes:
    """Encode a batch.

    Args:
        origin: number of the origin of the records; 0 for none.
        compressor: used when the body has at least ``COMPRESS_BYTES_MIN`` bytes and shrinks by it. A compressor
            serves one thread at a time.

    Raises:
        ValueError: no records, more than ``COUNT_MAX``, a body over ``RAW_BYTES_MAX``, sequence numbers past
            ``SEQ_END``, more than ``HEADER_PAIRS_MAX`` headers of a record, a key over ``KEY_BYTES_MAX``, rows over
            ``EXPANDED_BYTES_MAX``, or columns of different lengths.
    """
    count = len(columns.times) // 8
    check_shape(columns, count)
    if not 0 <= base_seq <= SEQ_END - count:
        raise ValueError(f"sequence numbers end at {SEQ_END}; got {count} records from {base_seq}")
    raw = encode_body(columns)
    if not 0 < count <= COUNT_MAX or len(raw) > RAW_BYTES_MAX:
        raise ValueError(f"a batch holds 1 to {COUNT_MAX} records in {RAW_BYTES_MAX} bytes; got {count} in {len(raw)}")
    if len(raw) > KEY_BYTES_MAX:  # a shorter body can have neither a key that is too long nor too many bytes of keys
        check_expanded(columns, count)
    body, codec = raw, Codec.NONE
    if compressor is not None and len(raw) >= COMPRESS_BYTES_MIN:
        packed = compressor.compress(raw)
        if len(packed) < len(raw):
            body, codec = packed, Codec.ZSTD
    # Numbers, since `|` of two flags makes an object, in some ten calls.
    present = (int(Column.HEADERS) if columns.headers else 0) | (int(Column.FLAGS) if columns.flags else 0)
    first_time, last_time = ends_of(columns.times, count)
    header = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        header,
        0,
        MAGIC + bytes([VERSION]),
        0,
        codec,
        present,
        clock.state,
        0,
        stream,
        count,
        len(raw),
        len(body),
        origin,
        base_seq,
        first_time,
        last_time,
        clock.boot_id,
        clock.monotonic,
    )
    struct.pack_into("<I", header, 4, crc32c(body, crc32c(header[CRC_END:])))
    return b"".join((header, body))


def verify(data: Buffer, offset: int = 0) -> BatchHeader:
    """Decode the header at ``offset`` and check the CRC over the whole batch.

    Raises:
        Truncated, UnsupportedVersion, Corrupt: as ``decode_header``, and when the checksum does not match.
    """
    header = decode_header(data, offset)
    end = offset + header.length
    if len(data) < end:
        raise Truncated(f"a batch of {header.length} bytes has only {len(data) - offset} of them")
    check_crc(data, offset, end, header.crc)
    return header


def body_of(
    data: Buffer, header: BatchHeader, offset: int = 0, decompressor: zstandard.ZstdDecompressor | None = None
) -> Buffer:
    """Return the uncompressed body of a batch whose header was decoded (and, for foreign bytes, verified) before.

    Args:
        decompressor: used for this body; None makes one, which takes as long as decompressing 50 kB. It serves one
            thread at a time.

    Raises:
        Corrupt: the body does not decompress to the length that the header names.
    """
    body = memoryview(data)[offset + HEADER_BYTES : offset + header.length]
    if header.codec is Codec.NONE:
        return body
    try:
        # The library allocates the size that the frame claims, and uses max_output_size only for a frame without one.
        claimed = zstandard.frame_content_size(body)
        if claimed not in (header.raw_length, _CONTENT_SIZE_UNKNOWN):
            raise Corrupt(f"a batch body declares {claimed} bytes, its header {header.raw_length}")
        decompressor = decompressor or zstandard.ZstdDecompressor()
        raw = decompressor.decompress(body, max_output_size=header.raw_length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Corrupt(f"a batch body does not decompress: {error}") from error
    if len(raw) != header.raw_length:
        raise Corrupt(f"a batch body has {len(raw)} bytes, its header declares {header.raw_length}")
    return raw


_CONTENT_SIZE_UNKNOWN = -1


def decode_columns(
    data: Buffer,
    header: BatchHeader | None = None,
    offset: int = 0,
    checks: Checks = PLAIN_CHECKS,
    decompressor: zstandard.ZstdDecompressor | None = None,
) -> Columns:
    """Decode the columns of a batch. Large columns are views of the (decompressed) body, not copies.

    Args:
        header: header of a batch that was verified before; without it the batch is verified here.
        checks: functions that compare numbers.
        decompressor: as for ``body_of``.

    Raises:
        Truncated, UnsupportedVersion, Corrupt: as ``verify``, and when a column does not fit the header.
    """
    if header is None:
        header = verify(data, offset)
    return _columns_in(body_of(data, header, offset, decompressor), header, checks)


def check(data: Buffer, header: BatchHeader, record_bytes_max: int = RAW_BYTES_MAX) -> None:
    """Check all of a batch whose header was decoded: its checksum, its body to the last column, and that no record is
    longer than ``record_bytes_max``.

    Raises:
        Corrupt: it is damaged, or a column does not fit the header.
        RecordTooLong: all else is right.
    """
    end = HEADER_BYTES + header.body_length
    if end > len(data):  # the checksum alone does not show that bytes are missing
        raise Corrupt(f"a batch of {end} bytes has only {len(data)} of them")
    view = memoryview(data)
    if crc32c(view[CRC_END:end]) != header.crc:
        check_crc(data, 0, end, header.crc)  # names both
    body = view[HEADER_BYTES:end] if header.codec is _PLAIN else body_of(data, header)
    may_be_long = header.raw_length > record_bytes_max
    if may_be_long or header.columns or not is_plainly_sound(body, header.count, header.first_time, header.last_time):
        columns = _columns_in(body, header)
        if may_be_long:
            check_records(columns, header.base_seq, record_bytes_max)


def _columns_in(body: Buffer, header: BatchHeader, checks: Checks = PLAIN_CHECKS) -> Columns:
    columns = decode_body(
        body,
        header.count,
        headers=bool(header.columns & Column.HEADERS),
        flags=bool(header.columns & Column.FLAGS),
        checks=checks,
    )
    if ends_of(columns.times, header.count) != (header.first_time, header.last_time):
        raise Corrupt("a batch header's times are not those of its first and last record")
    return columns


def records(data: Buffer, offset: int = 0, first: int = 0, end: int | None = None) -> Iterator[Record]:
    """Yield the records of one batch, one by one, verified. For people and tests; slow by nature.

    Args:
        first, end: only those with these indexes.
    """
    header = verify(data, offset)
    columns = decode_columns(data, header, offset)
    times = array("q")
    times.frombytes(columns.times)
    key_index = read_u32s(columns.key_index)
    offsets = read_u32s(columns.payload_offsets)
    payload = bytes(columns.payload)
    for i in range(header.count)[first:end]:
        yield Record(
            header.base_seq + i,
            times[i],
            columns.keys[key_index[i]],
            payload[offsets[i] : offsets[i + 1]],
            columns.headers.get(i, ()),
            Flag(columns.flags[i]) if columns.flags else Flag(0),
        )


def mergeable(left: BatchHeader, right: BatchHeader) -> bool:
    """Return whether ``right`` continues ``left``: same stream and origin, next seq, same boot, no step of the clock
    and none back at all, within bounds."""
    step = (right.first_time - right.monotonic) - (left.first_time - left.monotonic)
    return (
        left.stream == right.stream
        and left.origin == right.origin
        and left.end_seq == right.base_seq
        and left.boot_id == right.boot_id
        and left.clock == right.clock
        and abs(step) <= CLOCK_STEP_NS_MAX
        and left.last_time <= right.first_time
        and left.count + right.count <= COUNT_MAX
        and left.raw_length + right.raw_length <= RAW_BYTES_MAX
    )


def merge(batches: Sequence[Buffer], compressor: zstandard.ZstdCompressor | None = None) -> bytes:
    """Return one batch with the records of neighbouring batches, each ``mergeable`` with the next: columns
    concatenated.

    Raises:
        ValueError: no batches, two neighbours are not mergeable, or all of them exceed the bounds of one batch.
        Truncated, UnsupportedVersion, Corrupt: one of them is damaged.
    """
    headers = [verify(batch) for batch in batches]
    if not headers or sum(header.raw_length for header in headers) > RAW_BYTES_MAX:
        raise ValueError(f"a merge takes at least one batch and at most {RAW_BYTES_MAX} uncompressed bytes in all")
    for left, right in pairwise(headers):
        if not mergeable(left, right):
            raise ValueError(f"batches at seq {left.base_seq} and {right.base_seq} do not merge")
    parts = [decode_columns(batch, header) for batch, header in zip(batches, headers, strict=True)]
    table: dict[bytes, int] = {}
    key_index, offsets, flags = array("I"), array("I", [0]), bytearray()
    pairs: dict[int, HeaderPairs] = {}
    any_flags = any(part.flags for part in parts)
    done = length = 0
    for header, part in zip(headers, parts, strict=True):
        renumber = [table.setdefault(key, len(table)) for key in part.keys]
        key_index.extend(map(renumber.__getitem__, read_u32s(part.key_index)))
        shifted = read_u32s(part.payload_offsets)
        offsets.extend([at + length for at in shifted[1:]] if length else shifted[1:])
        if any_flags:
            flags += part.flags or bytes(header.count)
        pairs.update({done + index: value for index, value in part.headers.items()})
        done += header.count
        length += len(part.payload)
    columns = Columns(
        b"".join(part.times for part in parts),
        u32s(key_index).tobytes(),
        list(table),
        u32s(offsets).tobytes(),
        b"".join(part.payload for part in parts),
        pairs,
        bytes(flags),
    )
    first = headers[0]
    clock = ClockReading(first.boot_id, first.monotonic, first.clock)
    return encode(first.stream, first.base_seq, columns, clock, compressor, origin=first.origin)
