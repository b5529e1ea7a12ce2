"""Footer of a chunk: the index of its sections, and the input of the hub's state (docs/reference/formats/chunk.md).

A release adds optional information as a field at an end, or as an extension. Information that a reader has to
understand gets a bit of ``must_understand``: a reader that does not know the bit stops instead of guessing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum, IntFlag
from typing import Annotated, NamedTuple

import msgspec
from crc32c import crc32c
from msgspec import Meta

from weft.protocols.batch import Buffer
from weft.protocols.errors import Corrupt, Truncated, UnsupportedVersion
from weft.protocols.fields import LIST_ITEMS_MAX, U32, U64, Epoch, Nanoseconds, Seq, StoredRanges, Topics, unpack
from weft.protocols.origin import Origin
from weft.protocols.ranges import SEQ_END

TRAILER_MAGIC = b"WFCE"
_TRAILER = struct.Struct("<II4s")
TRAILER_BYTES = _TRAILER.size
HEADER_BYTES = 56
"""Bytes of the chunk's fixed header, behind which the first section starts."""
FOOTER_BYTES_MAX = 64 << 20
"""Longest footer that a reader fetches."""
ORIGINS_MAX = 1024
"""Maximum number of origins that a lane resolves; the state keeps those with the highest numbers."""
CONTROL_BYTES_MAX = 1 << 20
"""Longest body of a control record."""
UNDERSTOOD = 0
"""Bits of ``must_understand`` that this release knows: none yet."""

LEVEL_MAX = 1
"""Fold level of this release: the highest level that it writes and that its fold keeps."""


class ChunkHeader(NamedTuple):
    """The fixed header of a chunk."""

    cluster_id: Annotated[bytes, Meta(min_length=16, max_length=16)]
    """16 random bytes of the cluster."""
    n: Seq
    created: Seq
    """Nanoseconds since 1970 by the writer's clock, never before that of the previous chunk."""
    shard: U32
    previous_footer_crc: U32
    """CRC-32C of chunk n-1's footer (0 for the first): a chain that reveals a chunk from another history."""
    nonce: U64
    """Random number of an attempt, by which a writer distinguishes its own earlier attempt from another node's."""


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
    """Records [first, end) that the sender of a lane does not have, and the reason
    (``protocols.segment.GapReason``)."""

    first: Seq
    end: Seq
    reason: U32


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A statement that everything the edge received up to ``time`` (its wall clock, ns) has a sequence number below
    ``seq``."""

    time: Nanoseconds
    seq: Seq


class LaneFlag(IntFlag):
    """Properties of a chunk's addition to a lane. The bits are persisted; a reader ignores unknown ones."""

    PARTIAL = 1
    """The sender was asked for a part of the lane: its missing records are not gaps, and the lane does not count for
    completeness."""
    RELAY = 2
    """Another hub relayed this; it claims no epoch."""
    LAST_WORD = 4
    """The edge has stopped in order: it appends nothing more before it opens the lane again. Only together with a
    mark."""


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
    """The stream's topic patterns at that edge, if the chunk is the first with them or they changed; otherwise None."""
    payload: U32 | None = None
    """The stream's payload kind at that edge (``protocols.payloads``), if first declared or changed; otherwise None."""
    origins: Annotated[list[Origin], Meta(max_length=ORIGINS_MAX)] = []
    """The origins that batches of the lane name in this chunk, and others when new or changed."""
    floor: Mark | None = None
    """A mark that the lane had before this chunk, if a batch of the chunk contradicts it: the clock stepped back. Rows
    from number ``seq`` on with times up to ``time`` are ``stepped``."""
    flags: U32 = 0
    """``LaneFlag`` bits."""


class ControlKind(IntEnum):
    """Kinds of control records. The numbers are persisted; a reader skips unknown ones."""

    SCHEMA = 1
    CONFIG = 2
    RETIRE = 3
    """The lane leaves completeness."""
    ADOPT = 4
    """The lane counts again, or gets back the numbers that it had when it was dropped."""
    SEAL = 5
    DROP = 6
    """The lane leaves the state."""
    CONFLICT = 7
    """A second node claims to own the lane's log: the lane's moment does not advance until an ADOPT."""
    SKIP = 8
    """An operator skips offsets of a stream in its table: their records cannot become rows."""


class Control(msgspec.Struct, frozen=True, array_like=True):
    """A record of the hub's log that is not device data, about a lane or another object that its names identify.
    Applied before the chunk's lanes, in order."""

    kind: U32
    tenant: str
    edge: str
    log_id: U64
    stream: str
    body: Annotated[bytes, Meta(max_length=CONTROL_BYTES_MAX)]
    """Msgpack; its form depends on the kind."""


class ClockUpdate(msgspec.Struct, frozen=True, array_like=True):
    """A finding about the clock of one boot of an edge. A batch has the reading of the boot's monotonic clock at its
    first record: that reading plus ``offset`` is the time of the record, independent of the wall clock."""

    tenant: str
    edge: str
    log_id: U64
    boot_id: U64
    monotonic: Nanoseconds
    """Moment of the finding, by the boot's monotonic clock."""
    offset: Nanoseconds
    """Time minus the boot's monotonic clock."""
    error: Nanoseconds
    """Bound on the offset's error."""


class ChunkFooter(msgspec.Struct, frozen=True, array_like=True):
    """The index of a chunk, with all its information for the hub's state."""

    header: ChunkHeader
    """A copy of the header's fields: one GET of the tail reads the whole index."""
    must_understand: U64
    """Bits of the features that a reader has to know to read the chunk at all."""
    fold_level: U32
    """The highest level in the log so far."""
    streams: Annotated[list[StreamSection], Meta(max_length=LIST_ITEMS_MAX)]
    lanes: Annotated[list[LaneUpdate], Meta(max_length=LIST_ITEMS_MAX)]
    controls: Annotated[list[Control], Meta(max_length=LIST_ITEMS_MAX)] = []
    clocks: Annotated[list[ClockUpdate], Meta(max_length=LIST_ITEMS_MAX)] = []
    extensions: dict[U32, bytes] = {}
    """Additions of later releases, each under a number of its own. A reader skips unknown ones."""


class Chunk(NamedTuple):
    """A chunk's index."""

    header: ChunkHeader
    footer: ChunkFooter
    footer_crc: int


class Extension(NamedTuple):
    """An addition to chunks and to the fold, with a level of its own."""

    level: int
    """The level at which it begins: nodes write it when the cluster has reached that level."""
    write: Callable[[Sequence[LaneUpdate]], bytes | None]
    """Function from a chunk's additions to lanes to the extension's bytes in the chunk; None for no bytes."""
    fold: Callable[[bytes | None, bytes], bytes]
    """Function from the state's bytes and a chunk's bytes to the state's new bytes."""


class FoldRules(NamedTuple):
    """Rules by which a release writes and folds chunks."""

    level: int = LEVEL_MAX
    extensions: Mapping[int, Extension] = {}
    """Extensions that the release knows, by number. This release has none."""


RELEASE = FoldRules()
"""The rules of this release."""


class _Foot(msgspec.Struct, frozen=True, array_like=True):
    """The part of a footer that no release changes."""

    header: msgspec.Raw
    must_understand: U64


_FOOTER = msgspec.msgpack.Decoder(ChunkFooter)
_FOOT = msgspec.msgpack.Decoder(_Foot)


def encode_footer(footer: ChunkFooter) -> tuple[bytes, int]:
    """Encode footer and trailer; also return the footer's CRC-32C, which the next chunk's header carries.

    Raises:
        ValueError: no reader would accept it.
    """
    body = msgspec.msgpack.encode(footer)
    # Decoded again before it is written: a chunk is permanent, and one that no reader accepts would end its shard's
    # log.
    try:
        _unpack_footer(body)
    except Corrupt as error:
        raise ValueError(f"not written: {error}") from error
    if len(body) > FOOTER_BYTES_MAX:
        raise ValueError(f"a chunk footer of {len(body)} bytes; the limit is {FOOTER_BYTES_MAX}")
    crc = int(crc32c(body))
    return body + _TRAILER.pack(len(body), crc, TRAILER_MAGIC), crc


def decode_footer(tail: Buffer) -> tuple[ChunkFooter, int]:
    """Decode the footer from the last bytes of a chunk.

    Returns:
        The footer and its CRC-32C.

    Raises:
        Truncated: ``tail`` does not reach back to the footer's start; ``footer_bytes`` returns the necessary length.
        UnsupportedVersion: a later release wrote something into it that this one must not skip.
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
    try:
        footer = unpack(_FOOTER, body, "a chunk footer")
    except Corrupt:
        # A later release may have changed the rest: its bits are checked before any other field is used.
        check_understood(unpack(_FOOT, body, "a chunk footer").must_understand, UNDERSTOOD, "a chunk footer")
        raise
    check_understood(footer.must_understand, UNDERSTOOD, "a chunk footer")
    at = HEADER_BYTES
    for stream in footer.streams:
        if stream.position != at or not stream.count or stream.base_offset + stream.count > SEQ_END:
            raise Corrupt(f"a chunk footer misplaces the section of {stream.tenant}/{stream.stream}")
        at += stream.length
    return footer


def check_understood(needed: int, known: int, what: str) -> None:
    """Refuse data with features that must be understood and are unknown.

    Args:
        needed: bits that the writer set.
        known: bits that this release knows.
        what: name of the data with the bits, with its article.

    Raises:
        UnsupportedVersion: there is a bit that this release does not know.
    """
    if needed & ~known:
        raise UnsupportedVersion(f"{what} needs features {needed & ~known:#x} of a later release")


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
