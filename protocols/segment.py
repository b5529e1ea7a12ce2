"""Segment: a file of the edge log (docs/reference/formats/segment.md).

A segment is a header, then entries, then (once sealed) a footer entry and a fixed trailer. An entry's checksum is
seeded with its *position*, its byte offset in the whole log, so that old bytes in a recycled or preallocated file never
count as an entry of the current log.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from weft.protocols.batch import Buffer, Codec, Column
from weft.protocols.checksum import crc32c
from weft.protocols.errors import Corrupt, Truncated, UnsupportedVersion
from weft.protocols.lane import ORIGINS_MAX, NodeName, Origin
from weft.protocols.ranges import LIST_ITEMS_MAX, U32, U64, Nanoseconds, Seq, StoredRanges, unpack

# The header of a segment file, and its version rule for later releases (docs/reference/formats/segment.md).
#
# A release must never treat data of a later one as damage. So the first bytes of a file show whether an earlier
# release can read all of it: the header has the *version* of the newest feature that may be in the file, and a
# release that does not know the version refuses the log as a whole. ``version_needed`` maps features to versions.

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
        raise Truncated(f"segment header truncated: {len(data)} of {HEADER_BYTES} bytes")
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


__all__ = [
    "BOOTS_MAX",
    "ENTRY_BYTES_MAX",
    "ENTRY_HEADER_BYTES",
    "HEADER_BYTES",
    "MAGIC",
    "POSITION_MAX",
    "SEALED",
    "SEALED_VERSION",
    "TRAILER_BYTES",
    "TRAILER_MAGIC",
    "VERSION",
    "Body",
    "ClockNotice",
    "EntryFrame",
    "EntryHeader",
    "EntryKind",
    "Footer",
    "GapNotice",
    "GapReason",
    "Kept",
    "KeptLane",
    "LaneIndex",
    "Owner",
    "SegmentHeader",
    "StreamEntry",
    "Whole",
    "decode_body",
    "decode_entry",
    "decode_header",
    "decode_trailer",
    "encode_body",
    "encode_entry_header",
    "encode_header",
    "encode_streams",
    "encode_trailer",
    "file_name",
    "footer_fields",
    "parse_file_name",
    "peek_entry",
    "sound_entry",
    "version_needed",
]

TRAILER_MAGIC = b"WFSE"
_ENTRY = struct.Struct("<IIBxxx")
_PADDED_ENTRY = struct.Struct("<IIB3s")
ENTRY_HEADER_BYTES = _ENTRY.size
_TRAILER = struct.Struct("<QI4s")
TRAILER_BYTES = _TRAILER.size
ENTRY_BYTES_MAX = 80 << 20
"""Longest entry body: the largest batch (64 MiB uncompressed) and its header fit."""
_SEED = struct.Struct("<QIB")
_FOOTER_FIELDS_MIN = 3
BOOTS_MAX = 64
"""Maximum number of boots whose clock notices a log keeps; the one with the oldest notice is dropped first."""


_KINDS = {kind | bit: kind for kind in EntryKind if kind is not EntryKind.END for bit in (0, SEALED)}
"""Byte of the kind, also of a sealed entry -> kind."""


class GapReason(IntEnum):
    """Reasons why a range of records can never be delivered. The numbers are persisted and travel on links."""

    BUDGET = 1
    CORRUPTION = 2
    EXPIRED = 3
    OPERATOR = 4
    RENAMED = 5
    ABSENT = 6
    """This sender does not have them; another may. Any other reason, and the records themselves, take precedence."""


class EntryHeader(NamedTuple):
    """The bytes before an entry's body. They are claims: only ``decode_entry`` checks the body."""

    crc: int
    length: int
    """Bytes of the body."""
    kind: int
    """Without the bit of a sealed body."""
    is_sealed: bool = False


class EntryFrame(NamedTuple):
    """The frame of one entry: the place of its body."""

    kind: EntryKind
    body_start: int
    body_end: int
    is_sealed: bool = False
    """True if the body is sealed: it means nothing before it is opened."""

    @property
    def end(self) -> int:
        """Return the offset of the next entry."""
        return self.body_end


class GapNotice(msgspec.Struct, frozen=True, array_like=True):
    """A statement that records ``[first, end)`` of a stream can never come; appended so that loss is a recorded
    fact."""

    stream: U32
    first: Seq
    end: Seq
    reason: U32
    time: Nanoseconds


class ClockNotice(msgspec.Struct, frozen=True, array_like=True):
    """A statement about the clock of one boot. A batch has the reading of the boot's monotonic clock at its first
    record: that reading plus ``offset`` is the time of the record, independent of the wall clock."""

    boot_id: U64
    monotonic: Nanoseconds
    """Moment of the finding, by the boot's monotonic clock."""
    offset: Nanoseconds
    """Time minus the boot's monotonic clock."""
    error: Nanoseconds
    """Bound on the offset's error."""


class LaneIndex(msgspec.Struct, frozen=True, array_like=True):
    """A sealed segment's records of one stream."""

    stream: U32
    ranges: StoredRanges
    first_time: Nanoseconds
    last_time: Nanoseconds
    points: Annotated[list[tuple[Seq, Seq]], Meta(max_length=LIST_ITEMS_MAX)]
    """Sparse index: (base_seq of a batch, file offset of its entry), ascending in both."""


class KeptLane(msgspec.Struct, frozen=True, array_like=True):
    """The numbers of one stream that the log accounts for: the log has a record or a gap notice for each."""

    stream: U32
    next_seq: Seq
    """Next sequence number at the time of writing; all numbers from here on are accounted for too."""
    ranges: StoredRanges


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """The numbers that the log accounts for, written before each deletion. The last one in a log counts."""

    lanes: Annotated[list[KeptLane], Meta(max_length=LIST_ITEMS_MAX)]


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """The log's owner: the name under which links offer its records. The last one in a log counts."""

    tenant: str
    edge: str
    begins: Annotated[list[tuple[U32, Seq]], Meta(max_length=LIST_ITEMS_MAX)]
    """(stream, first sequence number under this name). Lower numbers belong to an earlier name; a stream that is not
    listed begins at 0."""

    @property
    def name(self) -> NodeName:
        """Return tenant and edge."""
        return NodeName(self.tenant, self.edge)


class Whole(msgspec.Struct, frozen=True, array_like=True):
    """A statement that the following entries became durable together: after a crash all of them count, or none."""

    length: U64
    """Bytes of those entries."""


Origins = Annotated[list[Origin], Meta(max_length=ORIGINS_MAX)]


class Footer(msgspec.Struct, frozen=True, array_like=True):
    """The index of a sealed segment. Empty fields at its end are left out."""

    streams: dict[U32, str]
    lanes: Annotated[list[LaneIndex], Meta(max_length=LIST_ITEMS_MAX)]
    gaps: Annotated[list[GapNotice], Meta(max_length=LIST_ITEMS_MAX)]
    kept: Annotated[list[KeptLane], Meta(max_length=LIST_ITEMS_MAX)] = []
    """Content of a ``KEPT`` entry."""
    sizes: Annotated[list[Annotated[list[U64], Meta(max_length=LIST_ITEMS_MAX)]], Meta(max_length=LIST_ITEMS_MAX)] = []
    """Bytes of entries, for each of ``lanes``, then of ``moved``: the bytes before each point, then the total."""
    moved: Annotated[list[LaneIndex], Meta(max_length=LIST_ITEMS_MAX)] = []
    """Like ``lanes``, for the ``MOVED`` entries."""
    owner: Owner | None = None
    """Content of the segment's last ``OWNER`` entry."""
    origins: Origins = []
    """Content of the segment's ``ORIGINS`` entries."""
    clocks: Annotated[list[ClockNotice], Meta(max_length=LIST_ITEMS_MAX)] = []
    """The last ``CLOCK`` entry about each boot."""


def _entry_crc(position: int, kind: int, body: Buffer) -> int:
    return int(crc32c(body, crc32c(_SEED.pack(position, len(body), kind))))


def encode_entry_header(position: int, kind: EntryKind, body: Buffer, *, is_sealed: bool = False) -> bytes:
    """Encode the frame before ``body`` for an entry at ``position`` of the log. The checksum is that of the bytes on
    the disk, so that damage and a torn end are found without a key."""
    byte = kind | SEALED if is_sealed else int(kind)
    return _ENTRY.pack(_entry_crc(position, byte, body), len(body), byte)


def peek_entry(data: Buffer, offset: int) -> EntryHeader | None:
    """Return the header that the entry at ``offset`` claims, for skipping its body; None if zeros end the entries
    there.

    Raises:
        Corrupt: no entry can be that long.
    """
    crc, length, kind = _ENTRY.unpack_from(data, offset)
    if not (crc or length or kind):
        return None
    if length > ENTRY_BYTES_MAX:
        raise Corrupt(f"an entry of {length} bytes at offset {offset}")
    return EntryHeader(crc, length, kind & ~SEALED, bool(kind & SEALED))


def decode_entry(data: Buffer, offset: int, first_position: int) -> EntryFrame | None:
    """Decode and check the entry at ``offset`` of a segment (or of a piece of it).

    Args:
        first_position: log position of ``data[0]``.

    Returns:
        The entry, or None at the end of the segment's entries (zeros, or the end of the file).

    Raises:
        Truncated: the entry runs past the end of the bytes.
        Corrupt: the bytes are not an entry that was written at this position.
    """
    left = len(data) - offset
    if left < ENTRY_HEADER_BYTES:
        # Zeros are reserved space behind the last entry; anything else is the torn beginning of a header.
        if any(data[offset:]):
            raise Truncated(f"{left} bytes are left at offset {offset}, an entry header has {ENTRY_HEADER_BYTES}")
        return None
    header = peek_entry(data, offset)
    if header is None:
        return None
    crc, length, kind, is_sealed = header
    start = offset + ENTRY_HEADER_BYTES
    if start + length > len(data):
        raise Truncated(f"an entry of {length} bytes at offset {offset} runs past the end")
    # The padding is not part of the checksum, so it is compared on its own.
    padding = bytes(data[start - 3 : start])
    byte = kind | SEALED if is_sealed else kind
    if (
        padding != b"\0\0\0"
        or _entry_crc(first_position + offset, byte, memoryview(data)[start : start + length]) != crc
    ):
        raise Corrupt(f"the entry at offset {offset} does not match its checksum")
    # Kind 0 marks the end, and the end has no body.
    if kind == EntryKind.END:
        raise Corrupt(f"the entry at offset {offset} has a body but no kind")
    try:
        return EntryFrame(EntryKind(kind), start, start + length, is_sealed)
    except ValueError:
        raise UnsupportedVersion(f"an entry of unknown kind {kind} at offset {offset}") from None


def sound_entry(data: Buffer, offset: int, position: int) -> tuple[EntryKind, int] | None:
    """Return kind and end of the entry at ``offset`` if it is sound and complete, for walking over many entries.

    None only means that ``decode_entry`` has to check: there may be the end, damage, or the end of ``data``.
    """
    if offset + ENTRY_HEADER_BYTES > len(data):
        return None
    crc, length, kind, padding = _PADDED_ENTRY.unpack_from(data, offset)
    start = offset + ENTRY_HEADER_BYTES
    known = _KINDS.get(kind)
    if known is None or start + length > len(data) or padding != b"\0\0\0":
        return None
    # The same check as in ``_entry_crc``, without the calls: a scan runs it for every entry of a log.
    if crc32c(memoryview(data)[start : start + length], crc32c(_SEED.pack(position, length, kind))) != crc:
        return None
    return known, start + length


def encode_trailer(footer_offset: int) -> bytes:
    """Encode the last 16 bytes of a sealed segment: the offset of its footer entry."""
    return _TRAILER.pack(footer_offset, crc32c(struct.pack("<Q", footer_offset)), TRAILER_MAGIC)


def decode_trailer(data: Buffer) -> int:
    """Return the footer entry's offset, from the last ``TRAILER_BYTES`` bytes of a sealed segment.

    Raises:
        Truncated: fewer bytes than a trailer has.
        Corrupt: there is no trailer, or a damaged one: the segment was not sealed.
    """
    if len(data) < TRAILER_BYTES:
        raise Truncated("too short for a segment trailer")
    offset, crc, magic = _TRAILER.unpack_from(data, len(data) - TRAILER_BYTES)
    if magic != TRAILER_MAGIC or crc32c(struct.pack("<Q", offset)) != crc:
        raise Corrupt("no segment trailer: the segment was not sealed")
    return int(offset)


class StreamEntry(msgspec.Struct, frozen=True, array_like=True):
    """A ``STREAMS`` entry's statement about one stream number."""

    name: str
    next_seq: Seq
    """Next sequence number when the entry was written: it remains known after the deletion of every earlier segment."""


def encode_streams(streams: dict[int, StreamEntry]) -> bytes:
    """Encode the body of a ``STREAMS`` entry. Every segment starts with one, so that any segment can be read alone."""
    return msgspec.msgpack.encode(streams)


Body = dict[int, StreamEntry] | list[Origin] | GapNotice | ClockNotice | Kept | Owner | Whole | Footer
_DECODERS: dict[EntryKind, msgspec.msgpack.Decoder[Body]] = {
    EntryKind.STREAMS: msgspec.msgpack.Decoder(dict[U32, StreamEntry]),
    EntryKind.GAP: msgspec.msgpack.Decoder(GapNotice),
    EntryKind.CLOCK: msgspec.msgpack.Decoder(ClockNotice),
    EntryKind.KEPT: msgspec.msgpack.Decoder(Kept),
    EntryKind.OWNER: msgspec.msgpack.Decoder(Owner),
    EntryKind.WHOLE: msgspec.msgpack.Decoder(Whole),
    EntryKind.ORIGINS: msgspec.msgpack.Decoder(Origins),
    EntryKind.FOOTER: msgspec.msgpack.Decoder(Footer),
}


def encode_body(value: Body) -> bytes:
    """Encode the body of an entry that is not a batch."""
    if isinstance(value, Footer):
        return msgspec.msgpack.encode(footer_fields(value))
    return msgspec.msgpack.encode(value)


def footer_fields(footer: Footer) -> list[object]:
    """Return the fields of a footer without the empty ones at its end."""
    fields: list[object] = [
        footer.streams,
        footer.lanes,
        footer.gaps,
        footer.kept,
        footer.sizes,
        footer.moved,
        footer.owner,
        footer.origins,
        footer.clocks,
    ]
    # So an earlier release can read a footer that does not use the later fields.
    while len(fields) > _FOOTER_FIELDS_MIN and not fields[-1]:
        fields.pop()
    return fields


def decode_body(kind: EntryKind, body: Buffer) -> Body:
    """Decode the body of any entry that is not a batch.

    Raises:
        Corrupt: the body does not fit the kind.
    """
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise Corrupt(f"an entry of kind {kind.name} has no msgpack body")
    return unpack(decoder, body, f"a {kind.name} entry")
