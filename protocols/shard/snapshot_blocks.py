"""Bytes of a snapshot of level 2: a head, and a block of lanes for each (tenant, stream), so that a reader of one
stream fetches the head and one block (docs/reference/formats/shard-state.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Annotated, NamedTuple

import msgspec
from crc32c import crc32c
from msgspec import Meta

from weft.protocols.batch import Buffer
from weft.protocols.chunk_index.footer import StreamKey
from weft.protocols.errors import Corrupt, Truncated
from weft.protocols.fields import U32, U64, Seq, unpack
from weft.protocols.lane import Lane
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.placement import BITS_MAX, SHARDS_MAX
from weft.protocols.shard.snapshot import HEADER_BYTES, LaneSnapshot, LogClocks, Snapshot, StreamSnapshot
from weft.protocols.shard.splits import Split


class SnapshotPlace(msgspec.Struct, frozen=True, array_like=True):
    """Bytes behind the head."""

    position: Seq
    """Byte behind the head's last where they start."""
    length: Seq
    crc: U32
    """CRC-32C of the bytes."""


class StreamPlace(msgspec.Struct, frozen=True, array_like=True):
    """A stream, and where its lanes are."""

    stream: StreamSnapshot
    lanes: SnapshotPlace


class SnapshotHead(msgspec.Struct, frozen=True, array_like=True):
    """The head of a snapshot: as ``Snapshot``, with places instead of lanes and clocks."""

    cluster_id: Annotated[bytes, Meta(min_length=16, max_length=16)]
    shard: U32
    n: Annotated[int, Meta(ge=-1)]
    footer_crc: U32
    must_understand: U64
    made_with: U32
    fold_level: U32
    created: Seq
    drops: U64
    streams: list[StreamPlace]
    """Streams, by tenant and name."""
    clocks: SnapshotPlace
    extensions: dict[U32, bytes]
    splits: Annotated[list[Split], Meta(max_length=BITS_MAX)] = []
    """Splits of the shard. The field is left out where it and those behind it are empty."""
    apart: Annotated[list[str], Meta(max_length=SHARDS_MAX)] = []
    """Tenants of which the shard takes nothing, by name. Left out likewise."""


class DecodedSnapshot(NamedTuple):
    """A snapshot of any version."""

    head: Snapshot
    """Without lanes."""
    lanes: Iterable[tuple[Lane, LaneSnapshot]]
    splits: Sequence[Split] = ()
    apart: Sequence[str] = ()


_HEAD = msgspec.msgpack.Decoder(SnapshotHead)
_LANES = msgspec.msgpack.Decoder(list[LaneSnapshot])
_CLOCKS = msgspec.msgpack.Decoder(list[LogClocks])


def encode(
    snapshot: Snapshot,
    lanes: Sequence[tuple[Lane, LaneState]],
    splits: Sequence[Split] = (),
    apart: Sequence[str] = (),
) -> bytes:
    """Encode a snapshot. One state has one encoding.

    Args:
        snapshot: without lanes.
        lanes: in any order.
        splits: of the shard.
        apart: tenants of which the shard takes nothing, by name.
    """
    # Names of the stream once, in the head: the lanes of a block have empty ones.
    ordered = sorted(lanes, key=lambda item: (item[0].tenant, item[0].stream, item[0].edge, item[0].log_id))
    blocks = {
        key: _block([(Lane("", lane.edge, lane.log_id, ""), held) for lane, held in some])
        for key, some in groupby(ordered, key=lambda item: (item[0].tenant, item[0].stream))
    }
    named = {(stream.tenant, stream.stream): stream for stream in snapshot.streams}
    known = {key: named.get(key) or StreamSnapshot(*key, 0, [], [], []) for key in {*named, *blocks}}
    parts, streams, at = list[bytes](), [], 0
    for key in sorted(known):
        data = blocks.get(key, b"")
        streams.append(StreamPlace(known[key], SnapshotPlace(at, len(data), crc32c(data))))
        parts.append(data)
        at += len(data)
    clocks = msgspec.msgpack.encode(snapshot.clocks)
    head = SnapshotHead(
        snapshot.cluster_id, snapshot.shard, snapshot.n, snapshot.footer_crc, snapshot.must_understand,
        snapshot.made_with, snapshot.fold_level, snapshot.created, snapshot.drops, streams,
        SnapshotPlace(at, len(clocks), crc32c(clocks)), snapshot.extensions, list(splits), list(apart),
    )  # fmt: skip
    fields = msgspec.structs.astuple(head)
    told = len(fields) if head.apart else len(fields) - 1 if head.splits else len(fields) - 2
    body = snapshots.with_header(snapshots.BLOCKS_VERSION, msgspec.msgpack.encode(fields[:told]))
    return b"".join([body, *parts, clocks])


def _block(lanes: Sequence[tuple[Lane, LaneState]]) -> bytes:
    return b"".join([snapshots.array_head(len(lanes)), *snapshots.lanes_in_pieces(lanes)])


def decode(data: Buffer, only: Collection[StreamKey] | None = None) -> DecodedSnapshot:
    """Decode a snapshot of any version.

    Args:
        only: return the lanes and streams of these alone, and no clocks.

    Raises:
        Truncated: the bytes end before the snapshot does.
        UnsupportedVersion: written by a later release.
        Corrupt: not a snapshot, a checksum that does not match, or bytes behind its end.
    """
    if snapshots.check_header(data) == snapshots.VERSION:
        found = snapshots.decode(data)
        lanes = ((Lane(each.tenant, each.edge, each.log_id, each.stream), each) for each in found.lanes)
        some = lanes if only is None else ((lane, each) for lane, each in lanes if (lane.tenant, lane.stream) in only)
        streams = [each for each in found.streams if only is None or (each.tenant, each.stream) in only]
        return DecodedSnapshot(msgspec.structs.replace(found, lanes=[], streams=streams), some)
    head = decode_head(data)
    end = HEADER_BYTES + snapshots.body_bytes(data)
    whole = end + head.clocks.position + head.clocks.length
    if len(data) < whole:
        raise Truncated(f"a snapshot of {whole} bytes has only {len(data)} of them")
    if len(data) > whole:
        raise Corrupt("a snapshot's length does not match")
    return with_lanes(head, data, end, only)


def decode_head(data: Buffer) -> SnapshotHead:
    """Decode the head of a snapshot of level 2. Raises as ``decode``."""
    body = snapshots.checked_body(data)
    snapshots.check_needs(body)
    head = unpack(_HEAD, body, "a snapshot's head")
    at = 0
    for place in (*(stream.lanes for stream in head.streams), head.clocks):
        if place.position != at:
            raise Corrupt("a snapshot's head misplaces a block")
        at += place.length
    return head


def span(head: SnapshotHead, only: Collection[StreamKey]) -> tuple[int, int]:
    """Return the range of bytes behind the head that has the lanes of some streams; an empty one without any."""
    places = [each.lanes for each in head.streams if (each.stream.tenant, each.stream.stream) in only]
    return (places[0].position, places[-1].position + places[-1].length) if places else (0, 0)


def with_lanes(
    head: SnapshotHead, data: Buffer, start: int, only: Collection[StreamKey] | None = None
) -> DecodedSnapshot:
    """Return a snapshot from its head and the bytes of its blocks.

    Args:
        start: index of ``data`` at which the first byte behind the head is, or would be.
        only: as of ``decode``; other blocks need not be there.

    Raises:
        Corrupt: a block is not what the head says.
    """
    wanted = [each for each in head.streams if only is None or (each.stream.tenant, each.stream.stream) in only]
    clocks = unpack(_CLOCKS, _bytes(head.clocks, data, start), "a snapshot's clocks") if only is None else []
    found = Snapshot(
        head.cluster_id, head.shard, head.n, head.footer_crc, head.must_understand, head.made_with, head.fold_level,
        head.created, head.drops, [each.stream for each in wanted], [], clocks, head.extensions,
    )  # fmt: skip
    return DecodedSnapshot(found, _lanes(wanted, data, start), head.splits, head.apart)


def _lanes(wanted: Sequence[StreamPlace], data: Buffer, start: int) -> Iterator[tuple[Lane, LaneSnapshot]]:
    for each in wanted:
        if each.lanes.length:
            tenant, stream = each.stream.tenant, each.stream.stream
            for lane in unpack(_LANES, _bytes(each.lanes, data, start), "a snapshot's lanes"):
                yield Lane(tenant, lane.edge, lane.log_id, stream), lane


def _bytes(place: SnapshotPlace, data: Buffer, start: int) -> memoryview:
    found = memoryview(data)[start + place.position : start + place.position + place.length]
    if len(found) != place.length or crc32c(found) != place.crc:
        raise Corrupt("a block of a snapshot does not match its checksum")
    return found


def decode_offsets(data: Buffer) -> tuple[tuple[bytes, int], dict[StreamKey, int]]:
    """Return cluster and shard of a snapshot, and the next offset of each (tenant, stream) that has one.

    Args:
        data: the bytes of a snapshot, of which level 2 needs the head alone.

    Raises:
        Truncated, UnsupportedVersion, Corrupt: as ``decode``.
    """
    if snapshots.check_header(data) == snapshots.VERSION:
        return snapshots.decode_offsets(data)
    head = decode_head(data)
    streams = [each.stream for each in head.streams]
    offsets = {(each.tenant, each.stream): each.next_offset for each in streams if each.next_offset}
    return (head.cluster_id, head.shard), offsets
