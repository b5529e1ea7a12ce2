"""Chunk: an object of the hub log (docs/reference/formats/chunk.md).

Layout: header | one section per (tenant, stream) | footer (msgpack) | trailer. A section is a run of entries; each
entry names the lane it came from, which of the batch's records count (overlap is trimmed by these numbers, never by
encoding the batch again) and when the hub took it in, followed by the batch as it was received.
One GET of the tail reads the index; one ranged GET reads a stream.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec
from crc32c import crc32c
from msgspec import Meta

from weft.protocols.batch import Buffer
from weft.protocols.batch import decode_header as batch_header
from weft.protocols.errors import Corrupt, Truncated, UnsupportedVersion
from weft.protocols.fields import LIST_ITEMS_MAX, U32, U64, Epoch, Nanoseconds, Seq, StoredRanges, Topics, unpack
from weft.protocols.ranges import SEQ_END

MAGIC = b"WFC"
TRAILER_MAGIC = b"WFCE"
VERSION = 1
_HEADER = struct.Struct("<4sI16sQQIIQ")
HEADER_BYTES = _HEADER.size
_ENTRY = struct.Struct("<IIIIq")
ENTRY_HEADER_BYTES = _ENTRY.size
_TRAILER = struct.Struct("<II4s")
TRAILER_BYTES = _TRAILER.size
TAIL_READ_BYTES = 64 << 10
"""First guess for reading a chunk's index: one GET of this many bytes nearly always holds the footer."""
FOOTER_BYTES_MAX = 64 << 20
"""Longest footer that a reader fetches."""
N_MAX = (1 << 63) - 1
_NAME = re.compile(r"[0-9]{20}")


class ChunkHeader(NamedTuple):
    """The fixed header of a chunk."""

    cluster_id: bytes
    """16 random bytes of the cluster."""
    n: int
    created: int
    """Nanoseconds since 1970 by the writer's clock."""
    shard: int
    previous_footer_crc: int
    """CRC-32C of chunk n-1's footer (0 for the first): a chain that shows a chunk from another history."""
    nonce: int
    """Random number of an attempt, by which a writer tells its own earlier attempt from another node's."""


class StreamSection(msgspec.Struct, frozen=True, array_like=True):
    """A chunk's records of one (tenant, stream): offsets [base_offset, base_offset + count)."""

    tenant: str
    stream: str
    base_offset: Seq
    count: Seq
    first_time: Nanoseconds
    last_time: Nanoseconds
    position: Seq
    """Byte of the chunk where the section starts."""
    length: Seq
    crc: U32
    """CRC-32C of the section's bytes."""


class GapRange(msgspec.Struct, frozen=True, array_like=True):
    """Records [first, end) of a lane that can never come, and why (``protocols.segment.GapReason``)."""

    first: Seq
    end: Seq
    reason: U32


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A statement that everything the edge received up to ``time`` (its wall clock, ns) has a sequence number below
    ``seq``."""

    time: Nanoseconds
    seq: Seq


class LaneUpdate(msgspec.Struct, frozen=True, array_like=True):
    """A chunk's addition to one lane. Entries name lanes by their index in the footer's list of these."""

    tenant: str
    edge: str
    log_id: U64
    stream: str
    epoch: Epoch
    ranges: StoredRanges
    """Sequence numbers whose records this chunk holds, half-open, ascending."""
    gaps: Annotated[list[GapRange], Meta(max_length=LIST_ITEMS_MAX)]
    mark: Mark | None
    topics: Topics | None
    """The stream's topic patterns at that edge, when the chunk is the first to have them or they changed; otherwise
    None."""
    payload: U32 | None = None
    """The stream's payload kind at that edge (``protocols.payloads``), when first declared or changed; otherwise
    None."""


class ChunkFooter(msgspec.Struct, frozen=True, array_like=True):
    """The index of a chunk, with all that the hub's state needs of it."""

    streams: Annotated[list[StreamSection], Meta(max_length=LIST_ITEMS_MAX)]
    lanes: Annotated[list[LaneUpdate], Meta(max_length=LIST_ITEMS_MAX)]


class SectionEntry(NamedTuple):
    """One batch in a section."""

    lane: int
    """Index into the footer's lanes."""
    skip: int
    """Leading records of the batch that are not part of the chunk, because they were held already."""
    take: int
    """Records after the skipped ones that are part of the chunk; the batch may have more."""
    received: int
    """Nanoseconds since 1970 by the hub's clock."""
    batch: memoryview


class Chunk(NamedTuple):
    """A chunk's index."""

    header: ChunkHeader
    footer: ChunkFooter
    footer_crc: int


def file_name(n: int) -> str:
    """Return the last part of chunk n's key; names sort in log order."""
    return f"{n:020d}"


def parse_file_name(name: str) -> int | None:
    """Return the n in a key's last part, or None when it names no chunk."""
    return int(name) if _NAME.fullmatch(name) and int(name) <= N_MAX else None


def encode_header(header: ChunkHeader) -> bytes:
    """Return the bytes at the start of a chunk."""
    data = bytearray(_HEADER.pack(MAGIC + bytes([VERSION]), 0, *header))
    struct.pack_into("<I", data, 4, _header_crc(data))
    return bytes(data)


def _header_crc(data: Buffer) -> int:
    """Return the CRC of a header in *this* version, whatever its version byte says: a damaged byte is no later
    version."""
    return int(crc32c(memoryview(data)[8:HEADER_BYTES], crc32c(MAGIC + bytes([VERSION]))))


def decode_header(data: Buffer) -> ChunkHeader:
    """Decode and check a chunk's header.

    Raises:
        Truncated: fewer than ``HEADER_BYTES`` bytes.
        UnsupportedVersion: written by a later release.
        Corrupt: not a chunk, or the checksum does not match.
    """
    if len(data) < HEADER_BYTES:
        raise Truncated(f"a chunk header has {HEADER_BYTES} bytes, {len(data)} are there")
    magic, crc, cluster_id, n, created, shard, previous, nonce = _HEADER.unpack_from(data)
    if magic[:3] != MAGIC:
        raise Corrupt(f"expected a chunk ({MAGIC!r}), found {magic!r}")
    sound = _header_crc(data) == crc
    if magic[3] != VERSION and not sound:
        raise UnsupportedVersion(f"chunk version {magic[3]}; this release reads version {VERSION}")
    if magic[3] != VERSION or not sound:
        raise Corrupt("a chunk header's checksum does not match")
    if n > N_MAX:
        raise Corrupt(f"a chunk numbered {n}")
    return ChunkHeader(cluster_id, n, created, shard, previous, nonce)


def encode_entry_header(lane: int, skip: int, take: int, batch_length: int, received: int) -> bytes:
    """Return the 24 bytes that precede a batch in a section."""
    return _ENTRY.pack(lane, skip, take, batch_length, received)


def section_entries(section: StreamSection, data: Buffer, lanes: Sequence[LaneUpdate]) -> Iterator[SectionEntry]:
    """Yield the entries of a section whose CRC was checked before. Batches are views of ``data``.

    Args:
        data: the section's bytes.
        lanes: those of the footer.

    Raises:
        UnsupportedVersion: a batch of a later format.
        Corrupt: an entry does not fit the section, names a lane that the footer lacks or that is another stream's,
            or takes records that its batch does not have; or they are not as many as the footer says.
    """
    view = memoryview(data)
    own = {index for index, lane in enumerate(lanes) if (lane.tenant, lane.stream) == (section.tenant, section.stream)}
    at = count = 0
    while at < len(view):
        if len(view) - at < ENTRY_HEADER_BYTES:
            raise Corrupt("a chunk section ends inside an entry header")
        lane, skip, take, length, received = _ENTRY.unpack_from(view, at)
        start = at + ENTRY_HEADER_BYTES
        at = start + length
        if at > len(view) or lane not in own:
            raise Corrupt(
                f"a chunk entry of {length} bytes for lane {lane} does not fit its section, "
                f"{section.tenant}/{section.stream}"
            )
        _check_entry(view[start:at], skip, take)
        count += take
        yield SectionEntry(lane, skip, take, received, view[start:at])
    if count != section.count:
        raise Corrupt(
            f"the section of {section.tenant}/{section.stream} at offset {section.base_offset} holds {count} records, "
            f"its index says {section.count}"
        )


def _check_entry(data: memoryview, skip: int, take: int) -> None:
    """Refuse an entry that is not exactly one batch, or that takes records the batch does not have."""
    try:
        batch = batch_header(data)
    except Truncated as error:
        raise Corrupt(f"a chunk entry holds no batch: {error}") from error
    if batch.length != len(data) or not 0 < take <= batch.count - skip:
        raise Corrupt(f"a chunk entry takes {take} records after {skip} of a batch of {batch.count}")


def check_section(section: Buffer, stream: StreamSection) -> None:
    """Check a section's bytes against the footer.

    Raises:
        Corrupt: length or checksum differ.
    """
    if len(section) != stream.length or crc32c(section) != stream.crc:
        raise Corrupt(f"the section of {stream.tenant}/{stream.stream} does not match its checksum")


def encode_footer(footer: ChunkFooter) -> tuple[bytes, int]:
    """Encode footer and trailer; also return the footer's CRC-32C, which the next chunk's header carries.

    Raises:
        ValueError: no reader would take it.
    """
    body = msgspec.msgpack.encode(footer)
    # Read back before it leaves: a chunk is permanent, and one that no reader takes would end its shard's log.
    try:
        _unpack_footer(body)
    except Corrupt as error:
        raise ValueError(f"not written: {error}") from error
    if len(body) > FOOTER_BYTES_MAX:
        raise ValueError(f"a chunk footer of {len(body)} bytes; the limit is {FOOTER_BYTES_MAX}")
    crc = int(crc32c(body))
    return body + _TRAILER.pack(len(body), crc, TRAILER_MAGIC), crc


_FOOTER = msgspec.msgpack.Decoder(ChunkFooter)


def decode_footer(tail: Buffer) -> tuple[ChunkFooter, int]:
    """Decode the footer from the last bytes of a chunk.

    Returns:
        The footer and its CRC-32C.

    Raises:
        Truncated: ``tail`` does not reach back to the footer's start; ``footer_bytes`` says how far it must.
        Corrupt: no trailer, the checksum does not match, or the sections do not follow one another.
    """
    length = footer_bytes(tail)
    if length > len(tail):
        raise Truncated(f"the footer and trailer have {length} bytes, {len(tail)} are there")
    body = memoryview(tail)[len(tail) - length : len(tail) - TRAILER_BYTES]
    crc = _TRAILER.unpack_from(tail, len(tail) - TRAILER_BYTES)[1]
    if crc32c(body) != crc:
        raise Corrupt("a chunk footer's checksum does not match")
    return _unpack_footer(body), crc


def _unpack_footer(body: Buffer) -> ChunkFooter:
    footer = unpack(_FOOTER, body, "a chunk footer")
    at = HEADER_BYTES
    for stream in footer.streams:
        if stream.position != at or not stream.count or stream.base_offset + stream.count > SEQ_END:
            raise Corrupt(f"a chunk footer misplaces the section of {stream.tenant}/{stream.stream}")
        at += stream.length
    return footer


def footer_bytes(tail: Buffer) -> int:
    """Return the bytes of footer and trailer together, from the last ``TRAILER_BYTES`` bytes of a chunk.

    Raises:
        Truncated: fewer bytes than a trailer has.
        Corrupt: no trailer there, or a footer over ``FOOTER_BYTES_MAX``.
    """
    if len(tail) < TRAILER_BYTES:
        raise Truncated("too short for a chunk trailer")
    length, _, magic = _TRAILER.unpack_from(tail, len(tail) - TRAILER_BYTES)
    if magic != TRAILER_MAGIC:
        raise Corrupt(f"expected a chunk trailer ({TRAILER_MAGIC!r}), found {magic!r}")
    if length > FOOTER_BYTES_MAX:
        raise Corrupt(f"a chunk footer of {length} bytes; the limit is {FOOTER_BYTES_MAX}")
    return int(length) + TRAILER_BYTES


def decode(data: Buffer) -> Chunk:
    """Decode and check a whole chunk's header, footer and every section's checksum.

    Raises:
        Truncated, UnsupportedVersion, Corrupt: as the parts do.
    """
    header = decode_header(data)
    end = len(data) - footer_bytes(data)
    if end < HEADER_BYTES:
        raise Corrupt("a chunk's footer does not fit the chunk")
    footer, crc = decode_footer(data)
    if HEADER_BYTES + sum(stream.length for stream in footer.streams) != end:
        raise Corrupt("a chunk's sections do not fill the space between its header and its footer")
    for stream in footer.streams:
        check_section(memoryview(data)[stream.position : stream.position + stream.length], stream)
    return Chunk(header, footer, crc)
