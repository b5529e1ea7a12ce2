"""Index of a chunk: its sections, and the input of the hub's state (docs/reference/formats/chunk.md)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from functools import cached_property
from operator import add
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from weft.protocols.batch import Buffer
from weft.protocols.checksum import crc32c
from weft.protocols.errors import Corrupt, PreRelease, Truncated, UnsupportedVersion
from weft.protocols.lane import NAME_CHARACTERS_MAX, Origin
from weft.protocols.ranges import (
    LIST_ITEMS_MAX,
    SEQ_END,
    U32,
    U64,
    Epoch,
    Nanoseconds,
    Seq,
    StoredRanges,
    Topics,
    unpack,
)

# Footer of a chunk: the index of its sections, and the input of the hub's state (docs/reference/formats/chunk.md).
#
# A release adds optional information as a field at an end, or as an extension. Information that a reader has to
# understand gets a bit of ``must_understand``: a reader that does not know the bit stops instead of guessing.

EdgeName = Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
StreamKey = tuple[str, str]
"""(tenant, stream)."""
HEADER_BYTES = 56
"""Bytes of the chunk's fixed header, behind which the first section starts."""
# Every chunk explains the origins that its batches name. Looked up in the lane's state, a number would mean one
# function in the tail and another in the table.
ORIGINS_MAX = 1024
"""Maximum number of origins that a lane resolves; the state keeps those with the highest numbers."""
CONTROL_BYTES_MAX = 1 << 20
"""Longest body of a control record."""
BLOCKS = 1
"""Bit of ``must_understand``: the index has a block for each stream. Every index has it."""
SPLITS = 2
"""Bit of ``must_understand``: the chunk has a SEAL record."""
APART = 4
"""Bit of ``must_understand``: the chunk has an APART record."""
UNDERSTOOD = BLOCKS | SPLITS | APART
"""Bits of ``must_understand`` that this release knows."""

FIRST_LEVEL = 4
"""Fold level with which every log begins. Builds before the first release had the lower ones; no release reads them."""
LEVEL_MAX = FIRST_LEVEL
"""Fold level of this release: the highest level that it writes and that its fold keeps."""


class ChunkHeader(NamedTuple):
    """The fixed header of a chunk."""

    cluster_id: Annotated[bytes, Meta(min_length=16, max_length=16)]
    """16 random bytes of the cluster."""
    n: Seq
    created: Seq
    """Nanoseconds since 1970 by the writer's clock, never before that of the previous chunk, except with a TIME
    record."""
    shard: U32
    previous_footer_crc: U32
    """CRC-32C of chunk n-1's footer (0 for the first): a chain that reveals a chunk from another history."""
    nonce: U64
    """Random number of an attempt, by which a writer distinguishes its own earlier attempt from another node's."""


class StreamSection(msgspec.Struct, frozen=True, array_like=True, gc=False):
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


class GapRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Records [first, end) that the sender of a lane does not have, and the reason
    (``protocols.segment.GapReason``)."""

    first: Seq
    end: Seq
    reason: U32


class Mark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A statement that everything the edge received up to ``time`` (its wall clock, ns) has a sequence number below
    ``seq``."""

    time: Nanoseconds
    seq: Seq


class LastWord(Mark, frozen=True, array_like=True, gc=False):
    """The mark of an edge that stopped in order: all its records are below ``seq``."""

    renamed_to: EdgeName = ""
    """The edge's name from now on, if the word ends the lane for good."""


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
    UNCOMPARED = 8
    """The sender has not compared its log with all of its hubs since it started. Only for the peer of a pair."""
    TWO_DISKS = 16
    """The sender acknowledges no record to a device before the receiver has it, or every hub. Only for the peer of a
    pair."""


PAIR_FLAGS = LaneFlag.UNCOMPARED | LaneFlag.TWO_DISKS
"""Flags that only the peer of a pair takes."""


class LaneUpdate(msgspec.Struct, frozen=True, array_like=True, gc=False):
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
    renamed_to: EdgeName = ""
    """With ``LAST_WORD``: ``LastWord.renamed_to``."""


class ControlKind(IntEnum):
    """Kinds of control records. The numbers are persisted; a reader skips unknown ones."""

    SCHEMA = 1
    CONFIG = 2
    RETIRE = 3
    """The lane leaves completeness."""
    ADOPT = 4
    """The lane counts again, or gets back the numbers that it had when it was dropped."""
    SEAL = 5
    """The edges of one half of the shard move to a new shard. Alone in its chunk."""
    DROP = 6
    """The lane leaves the state."""
    CONFLICT = 7
    """A second node claims to own the lane's log: the lane's moment does not advance until an ADOPT."""
    SKIP = 8
    """An operator skips offsets of a stream in its table: their records cannot become rows."""
    FORGET = 9
    """An operator deletes a stream, whose lanes have left: the state keeps its next offset and its skips."""
    TIME = 10
    """An operator lowers the time of the shard, which a wrong clock wrote."""
    APART = 11
    """The shard takes nothing of a tenant, which gets a shard of its own. Alone in its chunk."""


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


class StreamBlock(NamedTuple):
    """A chunk's statements about one (tenant, stream), besides the place of its section."""

    lanes: list[LaneUpdate]
    controls: list[Control]
    clocks: list[ClockUpdate]


@dataclass(frozen=True)
class ChunkIndex:
    """The index of a chunk, with all its information for the hub's state: one block for each (tenant, stream), so that
    a reader of one stream decodes one block."""

    header: ChunkHeader
    """A copy of the header's fields: one GET of the tail reads the whole index."""
    fold_level: int
    """The highest level in the log so far."""
    streams: list[StreamSection]
    blocks: dict[StreamKey, StreamBlock]
    """The decoded blocks, in the order of the chunk."""
    cluster_controls: list[Control] = field(default_factory=list)
    """Control records of no stream. They take effect first."""
    extensions: dict[int, bytes] = field(default_factory=dict)
    """Additions of later releases, each under a number of its own. A reader skips unknown ones."""
    only: frozenset[StreamKey] | None = None
    """The streams whose blocks were wanted, and ``streams`` are theirs; None for all."""
    must_understand: int = BLOCKS
    """Bits of the features that a reader has to know to read the chunk at all."""

    @cached_property
    def lanes(self) -> list[LaneUpdate]:
        """Return the lanes of all decoded blocks."""
        return [lane for block in self.blocks.values() for lane in block.lanes]

    @cached_property
    def controls(self) -> list[Control]:
        """Return the control records, in the order in which they take effect."""
        return [*self.cluster_controls, *(each for block in self.blocks.values() for each in block.controls)]

    @cached_property
    def clocks(self) -> list[ClockUpdate]:
        """Return the clock notices of all decoded blocks. Those of one boot may repeat."""
        return [clock for block in self.blocks.values() for clock in block.clocks]

    def section_of(self, stream: StreamKey) -> StreamSection | None:
        """Return the section with a stream's records; None if the chunk has none."""
        return next((each for each in self.streams if (each.tenant, each.stream) == stream), None)

    def lanes_of(self, section: StreamSection) -> Sequence[LaneUpdate]:
        """Return the lanes that the section's entries name by their index."""
        return self.blocks[section.tenant, section.stream].lanes

    def clocks_of(self, section: StreamSection) -> Sequence[ClockUpdate]:
        """Return the clock notices that correct the times of the section's records."""
        return self.blocks[section.tenant, section.stream].clocks


def index_of(  # noqa: PLR0917
    header: ChunkHeader,
    level: int,
    sections: list[StreamSection],
    block: StreamBlock,
    clocks: Mapping[StreamKey, list[ClockUpdate]] = MappingProxyType({}),
    extensions: Mapping[int, bytes] = MappingProxyType({}),
) -> ChunkIndex:
    """Return the index of a chunk.

    Args:
        level: at least ``FIRST_LEVEL``.
        block: lanes and control records of any streams. The lanes of each keep their order.
        clocks: by stream.
    """
    blocks = {(each.tenant, each.stream): StreamBlock([], [], []) for each in sections}
    for lane in block.lanes:
        blocks.setdefault((lane.tenant, lane.stream), StreamBlock([], [], [])).lanes.append(lane)
    for control in block.controls:
        if control.stream:
            blocks.setdefault((control.tenant, control.stream), StreamBlock([], [], [])).controls.append(control)
    for stream, known in clocks.items():
        blocks.setdefault(stream, StreamBlock([], [], [])).clocks.extend(known)
    cluster = [control for control in block.controls if not control.stream]
    return ChunkIndex(header, level, sections, blocks, cluster, dict(extensions))


class Chunk(NamedTuple):
    """A chunk's index."""

    header: ChunkHeader
    footer: ChunkIndex
    footer_crc: int


class Extension(NamedTuple):
    """An addition to chunks and to the fold, with a level of its own. It owns an object in each shard's state."""

    level: int
    """The level at which it begins: nodes write it when the cluster has reached that level."""
    load: Callable[[bytes | None], Any]
    """Function from the object's bytes in a snapshot to the object; None for a new one."""
    write: Callable[[Any, Sequence[LaneUpdate]], bytes | None]
    """Function from the object and a chunk's additions to lanes to the extension's bytes in the chunk; None for no
    bytes."""
    look: Callable[[Any, bytes], object]
    """Function from the object, which it does not change, and a chunk's bytes to the change."""
    accept: Callable[[Any, Any], None]
    """Applies a change that ``look`` returned to the object."""
    freeze: Callable[[Any], Callable[[], bytes]]
    """Returns a function that encodes the present object, in any thread, independently of later changes."""


class FoldRules(NamedTuple):
    """Rules by which a release writes and folds chunks."""

    level: int = LEVEL_MAX
    extensions: Mapping[int, Extension] = {}
    """Extensions that the release knows, by number. This release has none."""


RELEASE = FoldRules()
"""The rules of this release."""


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


# Bytes of a block: what a chunk says about one (tenant, stream) (docs/reference/formats/chunk.md).
#
# Lanes are columns, and names of edges are stored once: a fleet has one lane for each edge in nearly every chunk.

NO_MARK = -1
"""Number of a mark that is not there."""


class LaneRest(msgspec.Struct, frozen=True, array_like=True):
    """Parts that few lanes of a block have."""

    ranges: StoredRanges
    """All records of a lane with more than one run of them; its columns have none then."""
    gaps: Annotated[list[GapRange], Meta(max_length=LIST_ITEMS_MAX)]
    topics: Topics | None
    payload: U32 | None
    origins: Annotated[list[Origin], Meta(max_length=ORIGINS_MAX)]
    floor: Mark | None
    flags: U32
    renamed_to: EdgeName = ""
    """New name of the edge, as in the update; not written when it is empty."""


class BlockControl(msgspec.Struct, frozen=True, array_like=True):
    """A control record of the stream."""

    kind: U32
    edge: str
    log_id: U64
    body: Annotated[bytes, Meta(max_length=CONTROL_BYTES_MAX)]


class BlockClock(msgspec.Struct, frozen=True, array_like=True):
    """A finding about the clock of a boot of an edge with records in the stream."""

    edge: str
    log_id: U64
    boot_id: U64
    monotonic: Nanoseconds
    offset: Nanoseconds
    error: Nanoseconds


_Column = Meta(max_length=LIST_ITEMS_MAX)


class BlockColumns(msgspec.Struct, frozen=True, array_like=True):
    """A block: item i of each column is of lane i, which entries of the stream's section name by i."""

    edges: Annotated[list[str], _Column]
    """Names of edges, each once, in the order in which lanes first name them."""
    edge: Annotated[list[U32], _Column]
    """Index into ``edges``; no items if lane i is of edge i."""
    log_id: Annotated[list[U64], _Column]
    epoch: Annotated[list[Epoch], _Column]
    first: Annotated[list[Seq], _Column]
    """First record of the lane's run."""
    count: Annotated[list[Seq], _Column]
    """Number of records of the lane's run; 0 without one, or with several."""
    mark_time: Annotated[list[Nanoseconds], _Column]
    mark_seq: Annotated[list[Annotated[int, Meta(ge=NO_MARK, le=SEQ_END)]], _Column]
    """``NO_MARK`` for a lane without one, whose time is 0."""
    rest: Annotated[dict[U32, LaneRest], _Column]
    """Other parts of lanes, by lane, ascending."""
    controls: Annotated[list[BlockControl], _Column] = []
    clocks: Annotated[list[BlockClock], _Column] = []


_DECODER = msgspec.msgpack.Decoder(BlockColumns)
_NOTHING = LaneRest([], [], None, None, [], None, 0)


def encode_block(block: StreamBlock) -> bytes:
    """Encode a block. All of its lanes, controls and clocks are of one (tenant, stream)."""
    edges: dict[str, int] = {}
    edge = [edges.setdefault(lane.edge, len(edges)) for lane in block.lanes]
    first, count, rest = [], [], dict[int, Any]()
    for at, lane in enumerate(block.lanes):
        one = len(lane.ranges) == 1
        low, high = lane.ranges[0] if one else (0, 0)
        first.append(low)
        count.append(high - low)
        several = [] if one else lane.ranges
        more = LaneRest(
            several, lane.gaps, lane.topics, lane.payload, lane.origins, lane.floor, lane.flags, lane.renamed_to
        )
        if more != _NOTHING:
            # Without a name the bytes are those of earlier releases.
            rest[at] = more if more.renamed_to else msgspec.structs.astuple(more)[:-1]
    columns = BlockColumns(
        list(edges),
        [] if len(edges) == len(edge) else edge,
        [lane.log_id for lane in block.lanes],
        [lane.epoch for lane in block.lanes],
        first,
        count,
        [0 if lane.mark is None else lane.mark.time for lane in block.lanes],
        [NO_MARK if lane.mark is None else lane.mark.seq for lane in block.lanes],
        rest,
        [BlockControl(each.kind, each.edge, each.log_id, each.body) for each in block.controls],
        [BlockClock(each.edge, each.log_id, *_finding(each)) for each in block.clocks],
    )
    return msgspec.msgpack.encode(columns)


def _finding(clock: ClockUpdate) -> tuple[int, int, int, int]:
    return clock.boot_id, clock.monotonic, clock.offset, clock.error


def decode_block(data: Buffer, stream: StreamKey) -> StreamBlock:
    """Decode a block whose checksum was compared.

    Raises:
        Corrupt: not a block, columns of different lengths, or a lane that names what is not there.
    """
    name, what = stream[1], f"the block of {stream[0]}/{stream[1]}"
    columns = unpack(_DECODER, data, what)
    lanes, edges = len(columns.log_id), columns.edges
    others = (columns.epoch, columns.first, columns.count, columns.mark_time, columns.mark_seq)
    if any(len(column) != lanes for column in others) or len(columns.edge or edges) != lanes:
        raise Corrupt(f"{what} has columns of different lengths")
    if columns.edge and max(columns.edge) >= len(edges):
        raise Corrupt(f"{what} names an edge that it does not have")
    if any(at >= lanes for at in columns.rest):
        raise Corrupt(f"{what} has a part of a lane that it does not have")
    ends = list(map(add, columns.first, columns.count))
    if ends and max(ends) > SEQ_END:
        raise Corrupt(f"{what} has a record beyond {SEQ_END}")
    tenant, edge = stream[0], [edges[at] for at in columns.edge] if columns.edge else edges
    # One pass over all columns: this is most of the work of a reader of the log.
    found = [
        LaneUpdate(
            tenant,
            node,
            log,
            name,
            epoch,
            [(low, high)] if low < high else [],
            [],
            Mark(time, seq) if seq >= 0 else None,
            None,
        )
        for node, log, epoch, low, high, time, seq in zip(
            edge, columns.log_id, columns.epoch, columns.first, ends, columns.mark_time, columns.mark_seq, strict=True
        )
    ]
    for at, rest in columns.rest.items():
        known = found[at]
        if rest.ranges and known.ranges:
            raise Corrupt(f"{what} has records of lane {at} twice")
        found[at] = LaneUpdate(
            tenant,
            known.edge,
            known.log_id,
            name,
            known.epoch,
            rest.ranges or known.ranges,
            rest.gaps,
            known.mark,
            rest.topics,
            rest.payload,
            rest.origins,
            rest.floor,
            rest.flags,
            rest.renamed_to,
        )
    return StreamBlock(
        found,
        [Control(each.kind, tenant, each.edge, each.log_id, name, each.body) for each in columns.controls],
        [ClockUpdate(tenant, each.edge, each.log_id, *_boot(each)) for each in columns.clocks],
    )


def _boot(clock: BlockClock) -> tuple[int, int, int, int]:
    return clock.boot_id, clock.monotonic, clock.offset, clock.error


# Bytes of a chunk's index (docs/reference/formats/chunk.md).
#
# A block for each stream, behind the sections, and a head that says where each block and section is, so that a reader
# of one stream fetches the head and one block.

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
            self.tenant,
            self.stream,
            self.base_offset,
            self.count,
            self.first_time,
            self.last_time,
            self.section,
            self.section_length,
            self.section_crc,
        )


class ChunkHead(msgspec.Struct, frozen=True, array_like=True):
    """The head of an index."""

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
    """The decoded last part of a chunk: the head of its index."""

    head: ChunkHead
    crc: int
    """CRC-32C of the head, which the next chunk names."""
    bytes: int
    """Bytes from its start to the end of the chunk."""

    def span(self, only: Collection[StreamKey] | None = None) -> int:
        """Return the bytes from the first block to the end of the chunk, where all or some blocks are wanted."""
        wanted = [place.position for place in self.head.blocks if only is None or (place.tenant, place.stream) in only]
        return self.bytes + (blocks_end(self.head) - wanted[0] if wanted else 0)


class _Foot(msgspec.Struct, frozen=True, array_like=True):
    """The part of a head that no release changes."""

    header: msgspec.Raw
    must_understand: U64


_HEAD = msgspec.msgpack.Decoder(ChunkHead)
_FOOT = msgspec.msgpack.Decoder(_Foot)


def blocks_end(head: ChunkHead) -> int:
    """Return the byte of the chunk where its head starts: after the last block."""
    last = head.blocks[-1] if head.blocks else None
    return HEADER_BYTES if last is None else last.position + last.length


def encode_footer(index: ChunkIndex) -> tuple[bytes, int]:
    """Encode an index with its trailer; also return the CRC-32C that the next chunk's header carries.

    Raises:
        ValueError: no reader would accept it.
    """
    places, blocks = _place_blocks(index)
    head = ChunkHead(
        index.header, index.must_understand, index.fold_level, places, index.cluster_controls, index.extensions
    )
    body = msgspec.msgpack.encode(head)
    crc = int(crc32c(body))
    tail = blocks + body + _TRAILER.pack(len(body), crc, TRAILER_MAGIC)
    if len(tail) > FOOTER_BYTES_MAX:
        raise ValueError(f"a chunk index of {len(tail)} bytes; the limit is {FOOTER_BYTES_MAX}")
    # Decoded again before it is written: a chunk is permanent, and one that no reader accepts would end its shard's
    # log.
    try:
        decode_footer(tail)
    except (Corrupt, UnsupportedVersion) as error:
        raise ValueError(f"not written: {error}") from error
    return tail, crc


def _place_blocks(index: ChunkIndex) -> tuple[list[BlockPlace], bytes]:
    sections = {(section.tenant, section.stream): section for section in index.streams}
    after = HEADER_BYTES + sum(section.length for section in index.streams)
    if len(sections) != len(index.streams) or not sections.keys() <= index.blocks.keys():
        raise ValueError("each section needs one block of its stream")
    # Blocks are in the order of their sections, and those without one at the end.
    order = [*sections, *(key for key in index.blocks if key not in sections)]
    places, parts, at, empty = list[BlockPlace](), list[bytes](), after, StreamSection("", "", 0, 0, 0, 0, after, 0, 0)
    for key in order:
        data = encode_block(index.blocks[key])
        section = sections.get(key, empty)
        places.append(
            BlockPlace(
                *key,
                at,
                len(data),
                int(crc32c(data)),
                section.base_offset,
                section.count,
                section.first_time,
                section.last_time,
                section.position,
                section.length,
                section.crc,
            )
        )
        parts.append(data)
        at += len(data)
    return places, b"".join(parts)


def decode_footer(tail: Buffer, only: frozenset[StreamKey] | None = None) -> tuple[ChunkIndex, int]:
    """Decode the index from the last bytes of a chunk.

    Args:
        only: decode the blocks of these streams alone.

    Returns:
        The index and the CRC-32C of its head.

    Raises:
        Truncated: ``tail`` does not reach back far enough; ``decode_tail`` and ``IndexTail.span`` say how far.
        UnsupportedVersion: a later release wrote something into it that this one must not skip.
        PreRelease: a build before the first release wrote it.
        Corrupt: no trailer, a checksum does not match, or the parts do not follow one another.
    """
    head, crc, length = decoded = decode_tail(tail)
    if decoded.span(only) > len(tail):
        raise Truncated(f"index truncated: {len(tail)} of {decoded.span(only)} bytes")
    start = blocks_end(head) + length - len(tail)  # byte of the chunk where the tail starts
    return with_blocks(head, tail, start, only), crc


def with_blocks(head: ChunkHead, data: Buffer, start: int, only: frozenset[StreamKey] | None = None) -> ChunkIndex:
    """Return an index from its head and the bytes of its blocks.

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
    return ChunkIndex(head.header, head.fold_level, sections, blocks, head.controls, head.extensions, only, needs)


def decode_tail(tail: Buffer) -> IndexTail:
    """Decode the head of the index from the last bytes of a chunk.

    Raises:
        Truncated: ``tail`` does not reach back to its start; ``footer_bytes`` returns the necessary length.
        UnsupportedVersion, PreRelease, Corrupt: as ``decode_footer``.
    """
    length = footer_bytes(tail)
    if length > len(tail):
        raise Truncated(f"footer and trailer truncated: {len(tail)} of {length} bytes")
    body = memoryview(tail)[len(tail) - length : len(tail) - TRAILER_BYTES]
    crc = _TRAILER.unpack_from(tail, len(tail) - TRAILER_BYTES)[1]
    if crc32c(body) != crc:
        raise Corrupt("a chunk footer's checksum does not match")
    # A later release may have changed the rest: its bits are checked before any other field is used.
    needed = unpack(_FOOT, body, "a chunk footer").must_understand
    check_understood(needed, UNDERSTOOD, "a chunk footer")
    if not needed & BLOCKS:
        raise PreRelease
    head = unpack(_HEAD, body, "a chunk's head")
    if head.fold_level < FIRST_LEVEL:
        raise PreRelease
    _check_head(head)
    return IndexTail(head, crc, length)


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
    """Return the bytes of head and trailer together, from the last ``TRAILER_BYTES`` bytes of a chunk.

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
