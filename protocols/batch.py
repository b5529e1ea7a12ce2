"""Batch: a run of consecutive records of one lane, in columns (docs/reference/formats/batch.md).

A batch is encoded once, at the edge, and moves as opaque bytes until it becomes table rows. The hot path passes lists
to ``columns_from_lists``, which joins each of them once; nothing here loops over records in Python.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from enum import IntFlag
from itertools import pairwise
from typing import NamedTuple

import zstandard
from crc32c import crc32c

from weft.protocols.batch_header import (
    COUNT_MAX,
    CRC_END,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    RAW_BYTES_MAX,
    RAW_BYTES_MIN_PER_RECORD,
    VERSION,
    BatchHeader,
    ClockReading,
    ClockState,
    Codec,
    Column,
    check_crc,
    decode_header,
)
from weft.protocols.columns import (
    EXPANDED_BYTES_MAX,
    HEADER_PAIR_BYTES,
    HEADER_PAIRS_MAX,
    KEY_BYTES_MAX,
    PLAIN_CHECKS,
    ROW_BYTES,
    Buffer,
    Checks,
    Columns,
    HeaderPairs,
    check_expanded,
    check_shape,
    columns_from_lists,
    decode_body,
    encode_body,
    ends_of,
    expanded_bytes,
    is_plainly_sound,
    read_u32s,
    u32s,
)
from weft.protocols.errors import Corrupt, Truncated
from weft.protocols.ranges import SEQ_END

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
    "body_of",
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
        header, 0, MAGIC + bytes([VERSION]), 0, codec, present, clock.state, 0,
        stream, count, len(raw), len(body), origin, base_seq, first_time, last_time, clock.boot_id, clock.monotonic,
    )  # fmt: skip
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
            raise Corrupt(f"a batch body claims {claimed} bytes, its header says {header.raw_length}")
        decompressor = decompressor or zstandard.ZstdDecompressor()
        raw = decompressor.decompress(body, max_output_size=header.raw_length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Corrupt(f"a batch body does not decompress: {error}") from error
    if len(raw) != header.raw_length:
        raise Corrupt(f"a batch body has {len(raw)} bytes, its header says {header.raw_length}")
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


def check(data: Buffer, header: BatchHeader) -> None:
    """Check all of a batch whose header was decoded: its checksum, and its body to the last column.

    Raises:
        Corrupt: it is damaged, or a column does not fit the header.
    """
    end = HEADER_BYTES + header.body_length
    if end > len(data):  # the checksum alone does not show that bytes are missing
        raise Corrupt(f"a batch of {end} bytes has only {len(data)} of them")
    check_crc(data, 0, end, header.crc)
    body = memoryview(data)[HEADER_BYTES:end] if header.codec is Codec.NONE else body_of(data, header)
    if header.columns or not is_plainly_sound(body, header.count, header.first_time, header.last_time):
        _columns_in(body, header)


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
            header.base_seq + i, times[i], columns.keys[key_index[i]], payload[offsets[i] : offsets[i + 1]],
            columns.headers.get(i, ()), Flag(columns.flags[i]) if columns.flags else Flag(0),
        )  # fmt: skip


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
        b"".join(part.times for part in parts), u32s(key_index).tobytes(), list(table), u32s(offsets).tobytes(),
        b"".join(part.payload for part in parts), pairs, bytes(flags),
    )  # fmt: skip
    first = headers[0]
    clock = ClockReading(first.boot_id, first.monotonic, first.clock)
    return encode(first.stream, first.base_seq, columns, clock, compressor, origin=first.origin)
