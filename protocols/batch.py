"""Batch: a run of consecutive records of one lane, in columns (docs/reference/formats/batch.md).

A batch is encoded once, at the edge, and moves as opaque bytes until it becomes table rows. The hot path hands
lists to ``columns_from_lists`` and joins each of them once; nothing here loops over records in Python.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from enum import IntEnum, IntFlag
from itertools import pairwise
from typing import NamedTuple

import zstandard
from crc32c import crc32c

from weft.protocols.columns import (
    HEADER_PAIRS_MAX,
    Buffer,
    Columns,
    HeaderPairs,
    check_shape,
    columns_from_lists,
    decode_body,
    encode_body,
    ends_of,
    read_u32s,
    u32s,
)
from weft.protocols.errors import Corrupt, Truncated, UnsupportedVersion
from weft.protocols.ranges import SEQ_END

__all__ = [
    "CLOCK_STEP_NS_MAX",
    "COMPRESS_BYTES_MIN",
    "COUNT_MAX",
    "HEADER_BYTES",
    "HEADER_PAIRS_MAX",
    "MAGIC",
    "RAW_BYTES_MAX",
    "RAW_BYTES_MIN_PER_RECORD",
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
    "body_of",
    "columns_from_lists",
    "decode_columns",
    "decode_header",
    "encode",
    "merge",
    "mergeable",
    "records",
    "verify",
]

MAGIC = b"WFB"
VERSION = 1
_HEADER = struct.Struct("<4sIBBBBIIIIIQqqQq")
HEADER_BYTES = _HEADER.size
_CRC_END = 8
"""End of the CRC field: the CRC covers everything after it, from byte 8 to the end of the body."""

RAW_BYTES_MIN_PER_RECORD = 16
"""Least uncompressed bytes of a record: a time, a key index and a payload offset. No header can claim records that its
body has no room for."""
RAW_BYTES_MAX = 64 << 20
"""Longest uncompressed body. Keeps every offset inside a signed 32-bit Arrow offset with room to spare."""
COUNT_MAX = 1 << 22
COMPRESS_BYTES_MIN = 4096
"""Body size from which compression pays. On a link, shorter bodies are better compressed by the connection's streaming
context than each by itself: 32 against 143 bytes a message (docs/decisions/0004-compress-large-batches-only.md)."""

CLOCK_STEP_NS_MAX = 1_000_000_000
"""Largest step of the wall clock against the monotonic clock with which neighbouring batches merge. A merged batch
keeps one pair of readings, so a larger step (a Pi that learns the time) must stay visible between two batches."""


class Codec(IntEnum):
    """Compression of the body. The numbers are persisted."""

    NONE = 0
    ZSTD = 1


class Column(IntFlag):
    """Optional columns, as bits of the header's ``columns`` byte. The numbers are persisted."""

    HEADERS = 1
    FLAGS = 2


class Flag(IntFlag):
    """Bits of the ``flags`` column for a record. The numbers are persisted; bits without a name are kept."""

    RETAINED = 1
    TOMBSTONE = 2
    DUPLICATE_SUSPECTED = 4
    """Flag of a record that the device sent with MQTT's DUP: it, or an earlier attempt, may be stored already."""
    PUBLISHED_QOS0 = 8
    """Flag of a record published at MQTT's QoS 0."""
    PUBLISHED_QOS2 = 16
    """Flag of a record published at MQTT's QoS 2. Neither of the two: at QoS 1, or not with MQTT."""


class ClockState(IntEnum):
    """State of the edge's wall clock when the batch was made: set by a time source or not. Persisted."""

    UNSYNCED = 0
    SYNCED = 1


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

    @property
    def end_seq(self) -> int:
        """Return the sequence number after the last record's."""
        return self.base_seq + self.count

    @property
    def length(self) -> int:
        """Return the bytes of the whole batch, including the header."""
        return HEADER_BYTES + self.body_length


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
) -> bytes:
    """Encode a batch.

    Args:
        compressor: used when the body has at least ``COMPRESS_BYTES_MIN`` bytes and shrinks by it. A compressor
            serves one thread at a time.

    Raises:
        ValueError: no records, more than ``COUNT_MAX``, a body over ``RAW_BYTES_MAX``, sequence numbers past
            ``SEQ_END``, more than ``HEADER_PAIRS_MAX`` headers of a record, or columns of different lengths.
    """
    count = len(columns.times) // 8
    check_shape(columns, count)
    if not 0 <= base_seq <= SEQ_END - count:
        raise ValueError(f"sequence numbers end at {SEQ_END}; got {count} records from {base_seq}")
    raw = encode_body(columns)
    if not 0 < count <= COUNT_MAX or len(raw) > RAW_BYTES_MAX:
        raise ValueError(f"a batch holds 1 to {COUNT_MAX} records in {RAW_BYTES_MAX} bytes; got {count} in {len(raw)}")
    body, codec = raw, Codec.NONE
    if compressor is not None and len(raw) >= COMPRESS_BYTES_MIN:
        packed = compressor.compress(raw)
        if len(packed) < len(raw):
            body, codec = packed, Codec.ZSTD
    present = (Column.HEADERS if columns.headers else 0) | (Column.FLAGS if columns.flags else 0)
    first_time, last_time = ends_of(columns.times, count)
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
    if not 0 < count <= COUNT_MAX or not RAW_BYTES_MIN_PER_RECORD * count < raw_length <= RAW_BYTES_MAX:
        raise Corrupt(f"a batch header is out of bounds: {count} records in {raw_length} bytes")
    if body_length > raw_length or (codec == Codec.NONE and body_length != raw_length):
        raise Corrupt(f"a batch body of {body_length} bytes cannot stand for {raw_length}")
    if base_seq + count > SEQ_END:
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
    """Return the uncompressed body of a batch whose header was decoded (and, for foreign bytes, verified) before.

    Raises:
        Corrupt: the body does not decompress to the length that the header names.
    """
    body = memoryview(data)[offset + HEADER_BYTES : offset + header.length]
    if header.codec is Codec.NONE:
        return body
    try:
        # The library allocates what the frame claims and looks at max_output_size only when it claims nothing.
        claimed = zstandard.frame_content_size(body)
        if claimed not in (header.raw_length, _CONTENT_SIZE_UNKNOWN):
            raise Corrupt(f"a batch body claims {claimed} bytes, its header says {header.raw_length}")
        decompressor = zstandard.ZstdDecompressor()
        raw = decompressor.decompress(body, max_output_size=header.raw_length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Corrupt(f"a batch body does not decompress: {error}") from error
    if len(raw) != header.raw_length:
        raise Corrupt(f"a batch body has {len(raw)} bytes, its header says {header.raw_length}")
    return raw


_CONTENT_SIZE_UNKNOWN = -1


def decode_columns(data: Buffer, header: BatchHeader | None = None, offset: int = 0) -> Columns:
    """Decode the columns of a batch. Large columns are views of the (decompressed) body, not copies.

    Args:
        header: header of a batch that was verified before; without it the batch is verified here.

    Raises:
        Truncated, UnsupportedVersion, Corrupt: as ``verify``, and when a column does not fit the header.
    """
    if header is None:
        header = verify(data, offset)
    columns = decode_body(
        body_of(data, header, offset),
        header.count,
        headers=bool(header.columns & Column.HEADERS),
        flags=bool(header.columns & Column.FLAGS),
    )
    if ends_of(columns.times, header.count) != (header.first_time, header.last_time):
        raise Corrupt("a batch header's times are not those of its first and last record")
    return columns


def records(data: Buffer, offset: int = 0) -> Iterator[Record]:
    """Yield the records of one batch, one by one, verified. For people and tests; slow by nature."""
    header = verify(data, offset)
    columns = decode_columns(data, header, offset)
    times = array("q")
    times.frombytes(columns.times)
    key_index = read_u32s(columns.key_index)
    offsets = read_u32s(columns.payload_offsets)
    payload = bytes(columns.payload)
    for i in range(header.count):
        yield Record(
            header.base_seq + i, times[i], columns.keys[key_index[i]], payload[offsets[i] : offsets[i + 1]],
            columns.headers.get(i, ()), Flag(columns.flags[i]) if columns.flags else Flag(0),
        )  # fmt: skip


def mergeable(left: BatchHeader, right: BatchHeader) -> bool:
    """Return whether ``right`` continues ``left``: same stream, next seq, same boot, no step of the clock, within
    bounds."""
    step = (right.first_time - right.monotonic) - (left.first_time - left.monotonic)
    return (
        left.stream == right.stream
        and left.end_seq == right.base_seq
        and left.boot_id == right.boot_id
        and left.clock == right.clock
        and abs(step) <= CLOCK_STEP_NS_MAX
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
        b"".join(part.times for part in parts), u32s(key_index).tobytes(), list(table), u32s(offsets).tobytes(),
        b"".join(part.payload for part in parts), pairs, bytes(flags),
    )  # fmt: skip
    first = headers[0]
    clock = ClockReading(first.boot_id, first.monotonic, first.clock)
    return encode(first.stream, first.base_seq, columns, clock, compressor)
