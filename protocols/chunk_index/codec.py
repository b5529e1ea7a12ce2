"""Bytes of a chunk's index in both of its forms (docs/reference/formats/chunk.md).

Level 1: one msgpack footer with the lanes of all streams. Level 2: a block for each stream, behind the sections, and a
head that says where each block and section is, so that a reader of one stream fetches the head and one block.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Annotated, NamedTuple

import msgspec
from crc32c import crc32c
from msgspec import Meta

from weft.protocols.batch import Buffer
from weft.protocols.chunk_index.blocks import decode_block, encode_block
from weft.protocols.chunk_index.footer import (
    BLOCKS,
    HEADER_BYTES,
    UNDERSTOOD,
    BlockedFooter,
    ChunkFooter,
    ChunkHeader,
    ChunkIndex,
    Control,
    StreamBlock,
    StreamKey,
    StreamSection,
    check_understood,
)
from weft.protocols.errors import Corrupt, Truncated
from weft.protocols.fields import LIST_ITEMS_MAX, U32, U64, Nanoseconds, Seq, unpack
from weft.protocols.ranges import SEQ_END

TRAILER_MAGIC = b"WFCE"
_TRAILER = struct.Struct("<II4s")
TRAILER_BYTES = _TRAILER.size
FOOTER_BYTES_MAX = 64 << 20
"""Longest index that a reader fetches."""


class BlockPlace(msgspec.Struct, frozen=True, array_like=True):
    """Place of the block and the section of one (tenant, stream)."""

    tenant: str
    stream: str
    position: Seq
    """Byte of the chunk where the block starts."""
    length: Seq
    crc: U32
    """CRC-32C of the block's bytes."""
    base_offset: Seq
    count: Seq
    """Number of the stream's records; 0 if the chunk has no section of it."""
    first_time: Nanoseconds
    last_time: Nanoseconds
    section: Seq
    """Byte of the chunk where the section starts."""
    section_length: Seq
    section_crc: U32

    def placed(self) -> StreamSection:
        """Return the place of the section."""
        return StreamSection(
            self.tenant, self.stream, self.base_offset, self.count, self.first_time, self.last_time, self.section,
            self.section_length, self.section_crc,
        )  # fmt: skip


class ChunkHead(msgspec.Struct, frozen=True, array_like=True):
    """The head of an index of level 2."""

    header: ChunkHeader
    """A copy of the header's fields."""
    must_understand: U64
    """Bits of the features that a reader has to know to read the chunk at all."""
    fold_level: U32
    """The highest level in the log so far."""
    blocks: Annotated[list[BlockPlace], Meta(max_length=LIST_ITEMS_MAX)]
    controls: Annotated[list[Control], Meta(max_length=LIST_ITEMS_MAX)] = []
    """Control records of no stream. They take effect before those of the blocks."""
    extensions: dict[U32, bytes] = {}
    """Additions of later releases, each under a number of its own. A reader skips unknown ones."""


class IndexTail(NamedTuple):
    """The decoded last part of a chunk: the whole index at level 1, the head of one at level 2."""

    found: ChunkFooter | ChunkHead
    crc: int
    """CRC-32C of the footer or head, which the next chunk names."""
    bytes: int
    """Bytes from its start to the end of the chunk."""

    def span(self, only: Collection[StreamKey] | None = None) -> int:
        """Return the bytes from the first block to the end of the chunk, where all or some blocks are wanted."""
        if isinstance(self.found, ChunkFooter):
            return self.bytes
        wanted = [place.position for place in self.found.blocks if only is None or (place.tenant, place.stream) in only]
        return self.bytes + (blocks_end(self.found) - wanted[0] if wanted else 0)


class _Foot(msgspec.Struct, frozen=True, array_like=True):
    """The part of a footer that no release changes."""

    header: msgspec.Raw
    must_understand: U64


_FOOTER = msgspec.msgpack.Decoder(ChunkFooter)
_HEAD = msgspec.msgpack.Decoder(ChunkHead)
_FOOT = msgspec.msgpack.Decoder(_Foot)


def blocks_end(head: ChunkHead) -> int:
    """Return the byte of the chunk where its head starts: after the last block."""
    last = head.blocks[-1] if head.blocks else None
    return HEADER_BYTES if last is None else last.position + last.length


def encode_footer(footer: ChunkIndex) -> tuple[bytes, int]:
    """Encode an index with its trailer; also return the CRC-32C that the next chunk's header carries.

    Raises:
        ValueError: no reader would accept it.
    """
    blocks = b""
    if isinstance(footer, ChunkFooter):
        body = msgspec.msgpack.encode(footer)
    else:
        places, blocks = _place_blocks(footer)
        body = msgspec.msgpack.encode(
            ChunkHead(
                footer.header, footer.must_understand, footer.fold_level, places, footer.cluster_controls,
                footer.extensions,
            )
        )  # fmt: skip
    crc = int(crc32c(body))
    tail = blocks + body + _TRAILER.pack(len(body), crc, TRAILER_MAGIC)
    if len(tail) > FOOTER_BYTES_MAX:
        raise ValueError(f"a chunk index of {len(tail)} bytes; the limit is {FOOTER_BYTES_MAX}")
    # Decoded again before it is written: a chunk is permanent, and one that no reader accepts would end its shard's
    # log.
    try:
        decode_footer(tail)
    except Corrupt as error:
        raise ValueError(f"not written: {error}") from error
    return tail, crc


def _place_blocks(footer: BlockedFooter) -> tuple[list[BlockPlace], bytes]:
    sections = {(section.tenant, section.stream): section for section in footer.streams}
    after = HEADER_BYTES + sum(section.length for section in footer.streams)
    if len(sections) != len(footer.streams) or not sections.keys() <= footer.blocks.keys():
        raise ValueError("each section needs one block of its stream")
    # Blocks stand in the order of their sections, and those without one at the end.
    order = [*sections, *(key for key in footer.blocks if key not in sections)]
    places, parts, at, empty = list[BlockPlace](), list[bytes](), after, StreamSection("", "", 0, 0, 0, 0, after, 0, 0)
    for key in order:
        data = encode_block(footer.blocks[key])
        section = sections.get(key, empty)
        places.append(
            BlockPlace(
                *key, at, len(data), int(crc32c(data)), section.base_offset, section.count, section.first_time,
                section.last_time, section.position, section.length, section.crc,
            )
        )  # fmt: skip
        parts.append(data)
        at += len(data)
    return places, b"".join(parts)


def decode_footer(tail: Buffer, only: frozenset[StreamKey] | None = None) -> tuple[ChunkIndex, int]:
    """Decode the index from the last bytes of a chunk.

    Args:
        only: at level 2, decode the blocks of these streams alone.

    Returns:
        The index and the CRC-32C of its footer or head.

    Raises:
        Truncated: ``tail`` does not reach back far enough; ``decode_tail`` and ``IndexTail.span`` say how far.
        UnsupportedVersion: a later release wrote something into it that this one must not skip.
        Corrupt: no trailer, a checksum does not match, or the parts do not follow one another.
    """
    found, crc, length = decoded = decode_tail(tail)
    if isinstance(found, ChunkFooter):
        return found, crc
    if decoded.span(only) > len(tail):
        raise Truncated(f"the index has {decoded.span(only)} bytes, {len(tail)} are there")
    start = blocks_end(found) + length - len(tail)  # byte of the chunk where the tail starts
    return with_blocks(found, tail, start, only), crc


def with_blocks(head: ChunkHead, data: Buffer, start: int, only: frozenset[StreamKey] | None = None) -> BlockedFooter:
    """Return an index of level 2 from its head and the bytes of its blocks.

    Args:
        data: bytes of the chunk with all wanted blocks.
        start: byte of the chunk where ``data`` starts.
        only: the streams whose blocks are wanted; None for all.

    Raises:
        Corrupt: a block is not what the head says.
    """
    view, blocks, sections = memoryview(data), dict[StreamKey, StreamBlock](), []
    for place in head.blocks:
        key = place.tenant, place.stream
        if only is not None and key not in only:
            continue
        body = view[place.position - start : place.position - start + place.length]
        if len(body) != place.length or crc32c(body) != place.crc:
            raise Corrupt(f"the block of {place.tenant}/{place.stream} does not match its checksum")
        blocks[key] = decode_block(body, key)
        if place.count:
            sections.append(place.placed())
    needs = head.must_understand
    return BlockedFooter(head.header, head.fold_level, sections, blocks, head.controls, head.extensions, only, needs)


def decode_tail(tail: Buffer) -> IndexTail:
    """Decode the footer or head from the last bytes of a chunk.

    Raises:
        Truncated: ``tail`` does not reach back to its start; ``footer_bytes`` returns the necessary length.
        UnsupportedVersion, Corrupt: as ``decode_footer``.
    """
    length = footer_bytes(tail)
    if length > len(tail):
        raise Truncated(f"the footer and trailer have {length} bytes, {len(tail)} are there")
    body = memoryview(tail)[len(tail) - length : len(tail) - TRAILER_BYTES]
    crc = _TRAILER.unpack_from(tail, len(tail) - TRAILER_BYTES)[1]
    if crc32c(body) != crc:
        raise Corrupt("a chunk footer's checksum does not match")
    # A later release may have changed the rest: its bits are checked before any other field is used.
    needed = unpack(_FOOT, body, "a chunk footer").must_understand
    check_understood(needed, UNDERSTOOD, "a chunk footer")
    if needed & BLOCKS:
        head = unpack(_HEAD, body, "a chunk's head")
        _check_head(head)
        return IndexTail(head, crc, length)
    footer = unpack(_FOOTER, body, "a chunk footer")
    _check_places(footer.streams)
    return IndexTail(footer, crc, length)


def _check_places(sections: list[StreamSection]) -> int:
    """Check that sections follow one another. Return the byte after the last."""
    at = HEADER_BYTES
    for stream in sections:
        if stream.position != at or not stream.count or stream.base_offset + stream.count > SEQ_END:
            raise Corrupt(f"a chunk footer misplaces the section of {stream.tenant}/{stream.stream}")
        at += stream.length
    return at


def _check_head(head: ChunkHead) -> None:
    sections = [place.placed() for place in head.blocks if place.count]
    at = _check_places(sections)
    for place in head.blocks:
        if place.position != at or (not place.count and place.section_length):
            raise Corrupt(f"a chunk's head misplaces the block of {place.tenant}/{place.stream}")
        at += place.length
    if len({(place.tenant, place.stream) for place in head.blocks}) != len(head.blocks):
        raise Corrupt("a chunk's head has two blocks of one stream")


def footer_bytes(tail: Buffer) -> int:
    """Return the bytes of footer or head and trailer together, from the last ``TRAILER_BYTES`` bytes of a chunk.

    Raises:
        Truncated: fewer bytes than a trailer has.
        Corrupt: no trailer there, or an index over ``FOOTER_BYTES_MAX``.
    """
    if len(tail) < TRAILER_BYTES:
        raise Truncated("too short for a chunk trailer")
    length, _, magic = _TRAILER.unpack_from(tail, len(tail) - TRAILER_BYTES)
    if magic != TRAILER_MAGIC:
        raise Corrupt(f"expected a chunk trailer ({TRAILER_MAGIC!r}), found {magic!r}")
    if length > FOOTER_BYTES_MAX:
        raise Corrupt(f"a chunk footer of {length} bytes; the limit is {FOOTER_BYTES_MAX}")
    return int(length) + TRAILER_BYTES
