"""The header of a batch (docs/reference/formats/batch.md): facts about a run of records without reading it."""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import NamedTuple, NoReturn

from crc32c import crc32c

from weft.protocols.columns import Buffer
from weft.protocols.errors import Corrupt, Truncated, UnsupportedVersion
from weft.protocols.ranges import SEQ_END

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


# Enums are slow to make and to combine; a hub reads tens of thousands of headers a second.
_CODECS = tuple(Codec)
_CLOCK_STATES = tuple(ClockState)
_COLUMNS = tuple(Column(bits) for bits in range(int(Column.HEADERS | Column.FLAGS) + 1))


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
    """Number of the records' origin (``protocols.origin``), which the log, the lane of a link or the footer of a chunk
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
    (magic, crc, codec, columns, clock, zero, stream, count, raw_length, body_length, origin,
     base_seq, first_time, last_time, boot_id, monotonic) = HEADER.unpack_from(data, offset)  # fmt: skip
    if magic[:3] != MAGIC:
        raise Corrupt(f"expected a batch ({MAGIC!r}), found {magic!r}")
    if magic[3] != VERSION:
        raise UnsupportedVersion(f"batch version {magic[3]}; this release reads version {VERSION}")
    if zero or codec >= len(_CODECS) or columns & _UNKNOWN_COLUMNS or clock >= len(_CLOCK_STATES):
        _refuse_unknown(data, offset, offset + HEADER_BYTES + body_length, crc)
    if not 0 < count <= COUNT_MAX or not RAW_BYTES_MIN_PER_RECORD * count < raw_length <= RAW_BYTES_MAX:
        raise Corrupt(f"a batch header is out of bounds: {count} records in {raw_length} bytes")
    if body_length > raw_length or (not codec and body_length != raw_length):
        raise Corrupt(f"a batch body of {body_length} bytes cannot stand for {raw_length}")
    if base_seq + count > SEQ_END:
        raise Corrupt(f"a batch runs past the last sequence number: {base_seq} + {count}")
    # Not with the class's own constructor, which takes twice as long.
    return tuple.__new__(BatchHeader, (
        stream, base_seq, count, first_time, last_time, boot_id, monotonic,
        _CLOCK_STATES[clock], _CODECS[codec], _COLUMNS[columns], raw_length, body_length, crc, origin,
    ))  # fmt: skip


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
        raise Corrupt(f"batch checksum {found:#010x}, header says {crc:#010x}")
