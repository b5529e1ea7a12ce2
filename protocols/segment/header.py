"""The header of a segment file, and its version rule for later releases (docs/reference/formats/segment.md).

A release must never treat data of a later one as damage. So the first bytes of a file show whether an earlier release
can read all of it: the header has the *version* of the newest feature that may be in the file, and a release that does
not know the version refuses the log as a whole. ``version_needed`` maps features to versions.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from weft.protocols.batch_header import Codec, Column
from weft.protocols.columns import Buffer
from weft.protocols.errors import Corrupt, Truncated, UnsupportedVersion

MAGIC = b"WFS"
VERSION = 2
"""Newest version that this release reads and writes."""
SEALED_VERSION = 2
"""First version of a segment that may contain sealed entries."""
HEADER = struct.Struct("<4sIQQQ")
HEADER_BYTES = HEADER.size
POSITION_MAX = (1 << 63) - 1
"""Largest position of a log."""
_FILE_NAME = re.compile(r"([0-9]{20})\.seg")
_BATCH_VERSION_AT, _CODEC_AT, _COLUMNS_AT = 3, 8, 9
"""Offsets in a batch."""


class EntryKind(IntEnum):
    """Kinds of entries. The numbers are persisted; 0 is the value of preallocated zeros: the end."""

    END = 0
    BATCH = 1
    GAP = 2
    CLOCK = 3
    WHOLE = 4
    STREAMS = 5
    MOVED = 6
    KEPT = 7
    OWNER = 8
    ORIGINS = 9
    FOOTER = 15


SEALED = 0x40
"""Bit of an entry's kind byte: its body is sealed (docs/reference/formats/sealed.md)."""

BATCHES = frozenset({EntryKind.BATCH, EntryKind.MOVED})
"""Kinds of entries whose body is a batch."""

KIND_VERSIONS: dict[EntryKind, int] = dict.fromkeys(EntryKind, 1)
"""Kind of entry -> the first version of a segment that may contain it."""
CODEC_VERSIONS: dict[int, int] = dict.fromkeys(map(int, Codec), 1)
"""Codec of a batch -> the same."""
BATCH_VERSIONS: dict[int, int] = {1: 1}
"""Version of a batch -> the same."""
COLUMN_VERSIONS: dict[int, int] = {int(Column.HEADERS): 1, int(Column.FLAGS): 1}
"""Column of a batch -> the same. The change that first writes a reserved one gives it a version here, and raises
``VERSION``."""


def version_needed(kind: EntryKind, body: Buffer) -> int:
    """Return the lowest version of a segment that may contain this entry.

    Raises:
        KeyError: this release does not write such an entry.
    """
    version = KIND_VERSIONS[kind]
    if kind is EntryKind.BATCH or kind is EntryKind.MOVED:
        version = max(version, BATCH_VERSIONS[body[_BATCH_VERSION_AT]], CODEC_VERSIONS[body[_CODEC_AT]])
        columns = body[_COLUMNS_AT]
        while columns:
            column = columns & -columns
            version = max(version, COLUMN_VERSIONS[column])
            columns ^= column
    return version


class SegmentHeader(NamedTuple):
    """The fixed header of a segment file."""

    log_id: int
    first_position: int
    """Position of the segment's byte 0 in the log; also its file name."""
    created: int
    """Nanoseconds since 1970, for people."""
    version: int = 1
    """At least ``version_needed`` of each entry."""


def file_name(first_position: int) -> str:
    """Return the name of the segment that starts at ``first_position``; names sort in log order."""
    return f"{first_position:020d}.seg"


def parse_file_name(name: str) -> int | None:
    """Return the first position in a file name, or None when it is not a segment's name."""
    match = _FILE_NAME.fullmatch(name)
    return int(match[1]) if match and int(match[1]) <= POSITION_MAX else None


def encode_header(header: SegmentHeader) -> bytes:
    """Return the 32 bytes at the start of a segment file."""
    magic = MAGIC + bytes([header.version])
    data = bytearray(HEADER.pack(magic, 0, header.log_id, header.first_position, header.created))
    struct.pack_into("<I", data, 4, _header_crc(data, header.version))
    return bytes(data)


def _header_crc(data: Buffer, version: int) -> int:
    return int(crc32c(memoryview(data)[8:HEADER_BYTES], crc32c(MAGIC + bytes([version]))))


def decode_header(data: Buffer) -> SegmentHeader:
    """Decode and check a segment's header.

    Raises:
        Truncated: fewer than ``HEADER_BYTES`` bytes.
        UnsupportedVersion: written by a later release.
        Corrupt: not a segment, or the checksum does not match.
    """
    if len(data) < HEADER_BYTES:
        raise Truncated(f"a segment header has {HEADER_BYTES} bytes, {len(data)} are there")
    magic, crc, log_id, first_position, created = HEADER.unpack_from(data)
    if magic[:3] != MAGIC:
        raise Corrupt(f"expected a segment ({MAGIC!r}), found {magic!r}")
    # The checksum covers the version byte, too: a damaged byte must not look like a later version.
    sound_as = [version for version in range(1, VERSION + 1) if _header_crc(data, version) == crc]
    if magic[3] > VERSION and not sound_as:
        raise UnsupportedVersion(f"segment version {magic[3]}; this release reads up to version {VERSION}")
    if magic[3] not in sound_as:
        raise Corrupt("a segment header's checksum does not match")
    if first_position > POSITION_MAX:
        raise Corrupt(f"a segment that starts at position {first_position}")
    return SegmentHeader(log_id, first_position, created, magic[3])
