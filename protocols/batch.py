"""Batch: a run of consecutive records of one lane, in columns (docs/reference/formats/batch.md).

A batch is encoded once, at the edge, and moves as opaque bytes until it becomes table rows. The hot path hands
lists to ``columns_from_lists`` and joins each of them once; nothing here loops over records in Python.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum, IntFlag
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec
import zstandard
from crc32c import crc32c

from protocols.errors import Corrupt, Truncated, UnsupportedVersion

MAGIC = b"WFB"
VERSION = 1
_HEADER = struct.Struct("<4sIBBBBIIIIIQqqQq")
HEADER_BYTES = _HEADER.size
_CRC_END = 8
"""The CRC covers everything after itself: bytes 8 to the end of the body."""

RAW_BYTES_MAX = 64 << 20
"""Longest uncompressed body. Keeps every offset inside a signed 32-bit Arrow offset with room to spare."""
COUNT_MAX = 1 << 22
COMPRESS_BYTES_MIN = 4096
"""Shorter bodies stay uncompressed: on the link the connection's streaming context does better than a frame of
their own (32 against 143 bytes a message at one message per send, research.md)."""

HeaderPairs = tuple[tuple[str, str], ...]
"""A record's headers: names may repeat and their order is kept (MQTT 5.0 section 3.3.2.3.7)."""

Buffer = bytes | bytearray | memoryview


class Codec(IntEnum):
    """How the body is compressed. The numbers are persisted."""

    NONE = 0
    ZSTD = 1


class Column(IntFlag):
    """Optional columns, as bits of the header's ``columns`` byte. The numbers are persisted."""

    HEADERS = 1
    FLAGS = 2


class Flag(IntFlag):
    """What the ``flags`` column says of a record. The numbers are persisted."""

    RETAINED = 1
    TOMBSTONE = 2
    DUPLICATE_SUSPECTED = 4
    """The device sent this record with MQTT's DUP: it, or an earlier attempt, may be stored already."""


class ClockState(IntEnum):
    """Whether the edge's wall clock was set by a time source when the batch was taken in. Persisted."""

    UNSYNCED = 0
    SYNCED = 1


class ClockReading(NamedTuple):
    """What an edge knows about time at one instant."""

    boot_id: int
    """Random 64-bit number of this boot of the machine."""
    monotonic: int
    """Nanoseconds of the boot's monotonic clock."""
    state: ClockState


class BatchHeader(NamedTuple):
    """The fixed header of a batch, decoded. Times are nanoseconds since 1970 by the edge's wall clock."""

    stream: int
    """The log's own number of the stream; the name stands in the log's stream table or the link's lane table."""
    base_seq: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
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

    @property
    def end_seq(self) -> int:
        """One past the last record's sequence number."""
        return self.base_seq + self.count

    @property
    def length(self) -> int:
        """Bytes of the whole batch, header included."""
        return HEADER_BYTES + self.body_length


class Columns(NamedTuple):
    """The columns of a batch as raw little-endian bytes, ready to be joined or wrapped by Arrow."""

    times: Buffer
    """i64 x count."""
    key_index: Buffer
    """u32 x count, into ``keys``."""
    keys: Sequence[bytes]
    payload_offsets: Buffer
    """u32 x (count + 1)."""
    payload: Buffer
    headers: Mapping[int, HeaderPairs]
    """Record index in the batch -> its headers; absent for most."""
    flags: Buffer
    """u8 x count, or empty when no record has a flag."""


class Record(NamedTuple):
    """One record, for people and tests; the data path never makes these."""

    seq: int
    time: int
    key: bytes
    payload: bytes
    headers: HeaderPairs
    flags: Flag


def _u32s(values: Iterable[int]) -> array[int]:
    column = array("I", values)
    if sys.byteorder != "little":  # pragma: no cover
        column.byteswap()
    return column


def _read_u32s(data: Buffer) -> array[int]:
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
    table = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    flag_column = b""
    if flags:
        dense = bytearray(len(keys))
        for index, bits in flags.items():
            dense[index] = bits
        flag_column = bytes(dense)
    return Columns(
        times,
        _u32s(map(table.__getitem__, keys)).tobytes(),
        list(table),
        _u32s(accumulate(map(len, payloads), initial=0)).tobytes(),
        b"".join(payloads),
        headers or {},
        flag_column,
    )


def _blobs(values: Sequence[bytes]) -> list[Buffer]:
    """A run of byte strings: u32 x (n + 1) offsets, then the bytes."""
    return [_u32s(accumulate(map(len, values), initial=0)).tobytes(), b"".join(values)]


def _column(parts: list[Buffer]) -> Iterator[Buffer]:
    """A column: length u32, zero u32, the bytes, zeros up to a multiple of eight so that Arrow can wrap it."""
    length = sum(map(len, parts))
    yield struct.pack("<II", length, 0)
    yield from parts
    yield bytes(-length % 8)


def _body(columns: Columns) -> bytes:
    parts: list[Buffer] = []
    parts += _column([columns.times])
    key_table = [columns.key_index, struct.pack("<I", len(columns.keys)), *_blobs(columns.keys)]
    parts += _column(key_table)
    parts += _column([columns.payload_offsets, columns.payload])
    if columns.headers:
        indexes = sorted(columns.headers)
        packed = [msgspec.msgpack.encode(columns.headers[index]) for index in indexes]
        parts += _column([struct.pack("<I", len(indexes)), _u32s(indexes).tobytes(), *_blobs(packed)])
    if columns.flags:
        parts += _column([columns.flags])
    return b"".join(parts)


def encode(
    stream: int,
    base_seq: int,
    columns: Columns,
    clock: ClockReading,
    compressor: zstandard.ZstdCompressor | None = None,
) -> bytes:
    """Encode a batch.

    Args:
        compressor: used when the body has at least ``COMPRESS_BYTES_MIN`` bytes and shrinks by it. A compressor
            serves one thread at a time.

    Raises:
        ValueError: no records, more than ``COUNT_MAX``, or a body over ``RAW_BYTES_MAX``.
    """
    count = len(columns.times) // 8
    raw = _body(columns)
    if not 0 < count <= COUNT_MAX or len(raw) > RAW_BYTES_MAX:
        raise ValueError(f"a batch holds 1 to {COUNT_MAX} records in {RAW_BYTES_MAX} bytes; got {count} in {len(raw)}")
    body, codec = raw, Codec.NONE
    if compressor is not None and len(raw) >= COMPRESS_BYTES_MIN:
        packed = compressor.compress(raw)
        if len(packed) < len(raw):
            body, codec = packed, Codec.ZSTD
    present = (Column.HEADERS if columns.headers else 0) | (Column.FLAGS if columns.flags else 0)
    first_time, last_time = (
        struct.unpack_from("<q", columns.times)[0],
        struct.unpack_from("<q", columns.times, 8 * count - 8)[0],
    )
    header = bytearray(HEADER_BYTES)
    _HEADER.pack_into(
        header, 0, MAGIC + bytes([VERSION]), 0, codec, present, clock.state, 0, stream, count, len(raw), len(body), 0,
        base_seq, first_time, last_time, clock.boot_id, clock.monotonic,
    )  # fmt: skip
    struct.pack_into("<I", header, 4, crc32c(body, crc32c(header[_CRC_END:])))
    return b"".join((header, body))


def decode_header(data: Buffer, offset: int = 0) -> BatchHeader:
    """Decode the header at ``offset`` without looking at the body.

    Raises:
        Truncated: fewer than ``HEADER_BYTES`` bytes are there.
        UnsupportedVersion: a batch of a later format.
        Corrupt: not a batch, or a field is out of bounds.
    """
    if len(data) - offset < HEADER_BYTES:
        raise Truncated(f"a batch header has {HEADER_BYTES} bytes, {len(data) - offset} are left")
    (magic, crc, codec, columns, clock, zero, stream, count, raw_length, body_length, zero2,
     base_seq, first_time, last_time, boot_id, monotonic) = _HEADER.unpack_from(data, offset)  # fmt: skip
    if magic[:3] != MAGIC:
        raise Corrupt(f"expected a batch ({MAGIC!r}), found {magic!r}")
    if magic[3] != VERSION:
        raise UnsupportedVersion(f"batch version {magic[3]}; this release reads version {VERSION}")
    if zero or zero2 or codec > Codec.ZSTD or columns > 3 or clock > ClockState.SYNCED:
        raise Corrupt("a batch header has an unknown codec, column or clock state")
    if not 0 < count <= COUNT_MAX or raw_length > RAW_BYTES_MAX or body_length > raw_length:
        raise Corrupt(f"a batch header is out of bounds: {count} records, {raw_length} bytes in {body_length}")
    if base_seq + count > 1 << 64:
        raise Corrupt(f"a batch runs past the last sequence number: {base_seq} + {count}")
    return BatchHeader(
        stream, base_seq, count, first_time, last_time, boot_id, monotonic,
        ClockState(clock), Codec(codec), Column(columns), raw_length, body_length, crc,
    )  # fmt: skip


def verify(data: Buffer, offset: int = 0) -> BatchHeader:
    """Decode the header at ``offset`` and check the CRC over the whole batch.

    Raises:
        Truncated, UnsupportedVersion, Corrupt: as ``decode_header``, and when the checksum does not match.
    """
    header = decode_header(data, offset)
    end = offset + header.length
    if len(data) < end:
        raise Truncated(f"a batch of {header.length} bytes has only {len(data) - offset} of them")
    found = crc32c(memoryview(data)[offset + _CRC_END : end])
    if found != header.crc:
        raise Corrupt(f"batch checksum {found:#010x}, header says {header.crc:#010x}")
    return header


def body_of(data: Buffer, header: BatchHeader, offset: int = 0) -> Buffer:
    """The uncompressed body of a batch whose header was decoded (and, for foreign bytes, verified) before.

    Raises:
        Corrupt: the body does not decompress to the length that the header names.
    """
    body = memoryview(data)[offset + HEADER_BYTES : offset + header.length]
    if header.codec is Codec.NONE:
        return body
    try:
        raw = zstandard.ZstdDecompressor().decompress(body, max_output_size=header.raw_length)
    except zstandard.ZstdError as error:
        raise Corrupt(f"a batch body does not decompress: {error}") from error
    if len(raw) != header.raw_length:
        raise Corrupt(f"a batch body has {len(raw)} bytes, its header says {header.raw_length}")
    return raw


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
    offsets = _read_u32s(data[:head])
    _check_offsets(offsets, len(data) - head)
    blob = bytes(data[head:])
    return [blob[offsets[i] : offsets[i + 1]] for i in range(count)]


def _check_offsets(offsets: array[int], length: int) -> None:
    if offsets[0] != 0 or offsets[-1] != length or any(map(int.__gt__, offsets, offsets[1:])):
        raise Corrupt("a batch column's offsets do not ascend from zero to its length")


def decode_columns(data: Buffer, header: BatchHeader | None = None, offset: int = 0) -> Columns:
    """Decode the columns of a batch. Large columns are views of the (decompressed) body, not copies.

    Args:
        header: of a batch that was verified before; without it the batch is verified here.

    Raises:
        Truncated, UnsupportedVersion, Corrupt: as ``verify``, and when a column does not fit the header.
    """
    if header is None:
        header = verify(data, offset)
    reader = _BodyReader(body_of(data, header, offset))
    count = header.count
    times, keys, payloads = reader.column(), reader.column(), reader.column()
    if len(times) != 8 * count or len(keys) < 4 * count + 4 or len(payloads) < 4 * count + 4:
        raise Corrupt("a batch column is shorter than its record count needs")
    table_size = struct.unpack_from("<I", keys, 4 * count)[0]
    if not 0 < table_size <= count:
        raise Corrupt(f"a key table of {table_size} for {count} records")
    key_index = keys[: 4 * count]
    table = _split_blobs(keys[4 * count + 4 :], table_size)
    if max(_read_u32s(key_index)) >= table_size:
        raise Corrupt("a record names a key that is not in the key table")
    payload_offsets = payloads[: 4 * count + 4]
    _check_offsets(_read_u32s(payload_offsets), len(payloads) - len(payload_offsets))
    headers = _decode_headers(reader.column(), count) if header.columns & Column.HEADERS else {}
    flags: Buffer = reader.column() if header.columns & Column.FLAGS else b""
    if header.columns & Column.FLAGS and len(flags) != count:
        raise Corrupt(f"a flags column of {len(flags)} bytes for {count} records")
    reader.finish()
    return Columns(times, key_index, table, payload_offsets, payloads[4 * count + 4 :], headers, flags)


_HEADER_PAIRS = msgspec.msgpack.Decoder(HeaderPairs)


def _decode_headers(data: memoryview, count: int) -> dict[int, HeaderPairs]:
    if len(data) < 4:
        raise Corrupt("a headers column ends inside its count")
    size = struct.unpack_from("<I", data)[0]
    if not 0 < size <= count or len(data) < 4 + 4 * size:
        raise Corrupt(f"a headers column names {size} of {count} records")
    indexes = _read_u32s(data[4 : 4 + 4 * size])
    if indexes[-1] >= count or any(map(int.__ge__, indexes, indexes[1:])):
        raise Corrupt("a headers column's record indexes do not ascend inside the batch")
    try:
        pairs = [_HEADER_PAIRS.decode(blob) for blob in _split_blobs(data[4 + 4 * size :], size)]
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a headers column is not msgpack pairs: {error}") from error
    return dict(zip(indexes, pairs, strict=True))


def records(data: Buffer, offset: int = 0) -> Iterator[Record]:
    """The records of one batch, one by one, verified. For people and tests; slow by nature."""
    header = verify(data, offset)
    columns = decode_columns(data, header, offset)
    times = array("q")
    times.frombytes(columns.times)
    key_index = _read_u32s(columns.key_index)
    offsets = _read_u32s(columns.payload_offsets)
    payload = bytes(columns.payload)
    for i in range(header.count):
        yield Record(
            header.base_seq + i, times[i], columns.keys[key_index[i]], payload[offsets[i] : offsets[i + 1]],
            columns.headers.get(i, ()), Flag(columns.flags[i]) if columns.flags else Flag(0),
        )  # fmt: skip


def mergeable(left: BatchHeader, right: BatchHeader) -> bool:
    """Whether ``right`` continues ``left``: same stream, next seq, same boot and clock state, within the bounds."""
    return (
        left.stream == right.stream
        and left.end_seq == right.base_seq
        and left.boot_id == right.boot_id
        and left.clock == right.clock
        and left.count + right.count <= COUNT_MAX
        and left.raw_length + right.raw_length <= RAW_BYTES_MAX
    )


def merge(batches: Sequence[Buffer], compressor: zstandard.ZstdCompressor | None = None) -> bytes:
    """One batch with the records of neighbouring batches (each ``mergeable`` with the next): columns concatenated.

    Raises:
        ValueError: two neighbours are not mergeable.
        Corrupt: one of them is damaged.
    """
    headers = [verify(batch) for batch in batches]
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
        key_index.extend(map(renumber.__getitem__, _read_u32s(part.key_index)))
        shifted = _read_u32s(part.payload_offsets)
        offsets.extend([at + length for at in shifted[1:]] if length else shifted[1:])
        if any_flags:
            flags += part.flags or bytes(header.count)
        pairs.update({done + index: value for index, value in part.headers.items()})
        done += header.count
        length += len(part.payload)
    columns = Columns(
        b"".join(part.times for part in parts), _u32s(key_index).tobytes(), list(table), _u32s(offsets).tobytes(),
        b"".join(part.payload for part in parts), pairs, bytes(flags),
    )  # fmt: skip
    first = headers[0]
    clock = ClockReading(first.boot_id, first.monotonic, first.clock)
    return encode(first.stream, first.base_seq, columns, clock, compressor)
