"""Bytes of a block: what a chunk of level 2 says about one (tenant, stream) (docs/reference/formats/chunk.md).

Lanes are columns, and names of edges stand once: a fleet has one lane for each edge in nearly every chunk.
"""

from __future__ import annotations

from operator import add
from typing import Annotated

import msgspec
from msgspec import Meta

from weft.protocols.batch import Buffer
from weft.protocols.chunk_index.footer import (
    CONTROL_BYTES_MAX,
    ORIGINS_MAX,
    ClockUpdate,
    Control,
    GapRange,
    LaneUpdate,
    Mark,
    StreamBlock,
    StreamKey,
)
from weft.protocols.errors import Corrupt
from weft.protocols.fields import LIST_ITEMS_MAX, U32, U64, Epoch, Nanoseconds, Seq, StoredRanges, Topics, unpack
from weft.protocols.origin import Origin
from weft.protocols.ranges import SEQ_END

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
    first, count, rest = [], [], dict[int, LaneRest]()
    for at, lane in enumerate(block.lanes):
        one = len(lane.ranges) == 1
        low, high = lane.ranges[0] if one else (0, 0)
        first.append(low)
        count.append(high - low)
        several = [] if one else lane.ranges
        more = LaneRest(several, lane.gaps, lane.topics, lane.payload, lane.origins, lane.floor, lane.flags)
        if more != _NOTHING:
            rest[at] = more
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
            tenant, node, log, name, epoch, [(low, high)] if low < high else [], [],
            Mark(time, seq) if seq >= 0 else None, None,
        )
        for node, log, epoch, low, high, time, seq in zip(
            edge, columns.log_id, columns.epoch, columns.first, ends, columns.mark_time, columns.mark_seq, strict=True
        )
    ]  # fmt: skip
    for at, rest in columns.rest.items():
        known = found[at]
        if rest.ranges and known.ranges:
            raise Corrupt(f"{what} has records of lane {at} twice")
        found[at] = LaneUpdate(
            tenant, known.edge, known.log_id, name, known.epoch, rest.ranges or known.ranges, rest.gaps, known.mark,
            rest.topics, rest.payload, rest.origins, rest.floor, rest.flags,
        )  # fmt: skip
    return StreamBlock(
        found,
        [Control(each.kind, tenant, each.edge, each.log_id, name, each.body) for each in columns.controls],
        [ClockUpdate(tenant, each.edge, each.log_id, *_boot(each)) for each in columns.clocks],
    )


def _boot(clock: BlockClock) -> tuple[int, int, int, int]:
    return clock.boot_id, clock.monotonic, clock.offset, clock.error
