"""Bytes of a shard snapshot (docs/reference/formats/shard-state.md): the fold up to a chunk, in one canonical form.

All parts are ordered by key, so that one state has one encoding, whether folded from the start or from another
snapshot. The parts are immutable: they can be encoded in a thread.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Annotated, NamedTuple, cast

import msgspec
from msgspec import Meta

from weft.protocols.batch import Buffer
from weft.protocols.checksum import crc32c
from weft.protocols.chunk_index import FIRST_LEVEL, GapRange, LastWord, Mark, StreamKey, check_understood
from weft.protocols.errors import Corrupt, PreRelease, Truncated, UnsupportedVersion
from weft.protocols.lane import Lane, Origin
from weft.protocols.ranges import U32, U64, Epoch, Nanoseconds, RangeSet, Seq, StoredRanges, unpack
from weft.protocols.shard.lane_state import Conflict, GapSet, LaneState, OpenGap, Retirement
from weft.protocols.shard.placement import BITS_MAX, SHARDS_MAX, Split

# Streams that an operator deleted: FORGET records, and what a shard's state keeps of such a stream.

FORGOTTEN_MAX = 16_384
"""Maximum number of deleted streams with records in one shard: a state keeps the next offset of each for good."""
BY_MAX, REASON_MAX = 128, 512
"""Maximum numbers of characters of a FORGET record."""


class ForgetBody(msgspec.Struct, frozen=True, array_like=True):
    """Body of a FORGET record."""

    by: Annotated[str, Meta(max_length=BY_MAX)]
    """The person who deleted the stream."""
    reason: Annotated[str, Meta(max_length=REASON_MAX)]
    tabled: bool
    """True when all of the shard's records of the stream were table rows, or skipped."""


class Forgotten(msgspec.Struct, frozen=True, array_like=True):
    """The deletion of a stream, until a lane of the stream is in the state again."""

    time: Nanoseconds
    """Moment by the hub's clock."""
    by: str
    reason: str
    tabled: bool


_BODY = msgspec.msgpack.Decoder(ForgetBody)


def forgotten(body: bytes, created: int) -> Forgotten:
    """Return what a FORGET record says.

    Args:
        created: moment of the record by the hub's clock, nanoseconds since 1970.

    Raises:
        Corrupt: the body is malformed.
    """
    fields = unpack(_BODY, body, "a FORGET record")
    return Forgotten(created, fields.by, fields.reason, fields.tabled)


MAGIC = b"WFN"
VERSION = 2
"""Version 1, with all lanes in one body, was of builds before the first release."""
_HEADER = struct.Struct("<4sII")
HEADER_BYTES = _HEADER.size
SPLITS = 1
"""Bit of ``must_understand``: the shard has splits."""
APART = 2
"""Bit of ``must_understand``: the shard takes nothing of some tenants."""
UNDERSTOOD = SPLITS | APART
"""Bits of ``must_understand`` that this release knows."""
LANES_AT_ONCE = 256
"""Number of lanes in one call of the encoder, which holds the interpreter: a hub's event loop must not wait long."""


FIELDS_MAX = 256
"""Maximum number of named topic levels of a stream; later ones get no column."""
FIELDS_PER_EDGE_MAX = 64
"""Maximum number of topic levels that one edge may be the first to name."""
SKIPS_MAX = 256
"""Maximum number of skipped ranges of one stream."""
SKIPPED_RUNS_MAX = 1024
"""Maximum number of runs of records in one skipped range."""


class SkippedRun(msgspec.Struct, frozen=True, array_like=True):
    """Records [first, end) of one log in a skipped range."""

    edge: str
    log_id: U64
    first: Seq
    end: Seq


class SkipBody(msgspec.Struct, frozen=True, array_like=True):
    """Body of a SKIP record."""

    first: Seq
    end: Seq
    reason: str
    runs: Annotated[list[SkippedRun], Meta(max_length=SKIPPED_RUNS_MAX)]


class Skip(msgspec.Struct, frozen=True, array_like=True):
    """Offsets [first, end) of a stream that an operator skipped in its table."""

    first: Seq
    end: Seq
    time: Nanoseconds
    """Moment by the hub's clock."""
    reason: str
    runs: list[SkippedRun]


class StreamSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A stream in a snapshot."""

    tenant: str
    stream: str
    next_offset: Seq
    fields: list[str]
    """Named topic levels, in the order in which the log first named them."""
    named_by: list[str]
    """For each level, the edge that named it first."""
    skips: list[Skip]
    """Ranges that are not in the table, ascending."""
    open_gaps: list[OpenGap] = []
    """Open gaps of lanes that have left the state, by their ends."""
    forgotten: Forgotten | None = None
    """The stream's deletion; None unless an operator deleted it."""


class LaneSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A lane in a snapshot, or the stored state of one that has left."""

    tenant: str
    edge: str
    log_id: U64
    stream: str
    epoch: Epoch
    ranges: StoredRanges
    gaps: list[GapRange]
    mark: Mark | None
    whole_mark: Mark | None
    pending_marks: list[Mark]
    topics: list[str]
    payload: U32
    origins: list[Origin]
    partial: bool
    last_seen: Nanoseconds
    retired: Retirement | None
    conflict: Conflict | None = None
    last_word: LastWord | None = None


class BootClock(msgspec.Struct, frozen=True, array_like=True):
    """Clock of one boot of an edge, from a ``protocols.chunk.ClockUpdate``."""

    boot_id: U64
    monotonic: Nanoseconds
    offset: Nanoseconds
    error: Nanoseconds


class LogClocks(msgspec.Struct, frozen=True, array_like=True):
    """The clocks of one log's boots, the one with the newest notice at the end."""

    tenant: str
    edge: str
    log_id: U64
    boots: list[BootClock]


class Snapshot(NamedTuple):
    """A shard's state without its lanes."""

    cluster_id: bytes
    shard: int
    n: int
    footer_crc: int
    must_understand: int
    """Bits of the features that a reader has to know to use the snapshot at all."""
    made_with: int
    """The fold level of the node that made it."""
    fold_level: int
    """The highest level in the log up to ``n``."""
    created: int
    """Creation time of chunk ``n``."""
    drops: int
    """Number of lanes that have left the state."""
    streams: Sequence[StreamSnapshot]
    clocks: Sequence[LogClocks]
    extensions: Mapping[int, bytes]
    """Bytes that the fold kept for chunk extensions, by number, ascending."""
    splits: Sequence[Split] = ()
    """Splits of the shard."""
    apart: Sequence[str] = ()
    """Tenants of which the shard takes nothing, by name."""


_LANE_DECODER = msgspec.msgpack.Decoder(LaneSnapshot)


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """The part of a snapshot that no release changes."""

    cluster_id: msgspec.Raw
    shard: msgspec.Raw
    n: msgspec.Raw
    footer_crc: msgspec.Raw
    must_understand: U64


_HEAD = msgspec.msgpack.Decoder(_Head)


def with_levels(known: dict[str, str], edge: str, names: list[str]) -> dict[str, str]:
    """Return the named topic levels of a stream, each with its edge, after adding those of an edge."""
    own = sum(other == edge for other in known.values())
    room = min(FIELDS_MAX - len(known), FIELDS_PER_EDGE_MAX - own)
    added = [name for name in names if name not in known][: max(0, room)]
    return known | dict.fromkeys(added, edge) if added else known


_SKIP = msgspec.msgpack.Decoder(SkipBody)


def with_skip(known: list[Skip], body: bytes, next_offset: int, time: int) -> list[Skip]:
    """Return the skipped ranges of a stream, with that of a SKIP record added.

    They remain unchanged if the log does not have all of the range, if it touches one of them, or if there are too
    many.

    Raises:
        Corrupt: the body is malformed.
    """
    fields = unpack(_SKIP, body, "a SKIP record")
    fits = fields.first < fields.end <= next_offset and len(known) < SKIPS_MAX
    if not fits or any(fields.first < other.end and other.first < fields.end for other in known):
        return known
    return sorted(
        [*known, Skip(fields.first, fields.end, time, fields.reason, fields.runs)], key=lambda skip: skip.first
    )


def lane_snapshot(lane: Lane, held: LaneState) -> LaneSnapshot:
    """Return a lane's state in its form for a snapshot."""
    word = held.last_word
    if word is not None and not word.renamed_to:
        # Without a name the bytes are those of earlier releases.
        word = cast("LastWord", Mark(word.time, word.seq))
    return LaneSnapshot(
        *lane,
        held.epoch,
        list(held.ranges),
        list(held.gaps),
        held.mark,
        held.whole_mark,
        held.pending_marks,
        held.topics,
        held.payload,
        held.origins,
        held.partial,
        held.last_seen,
        held.retired,
        held.conflict,
        word,
    )


def lane_state(lane: LaneSnapshot) -> LaneState:
    """Return the state of a lane in a snapshot."""
    return LaneState(
        lane.epoch,
        RangeSet(lane.ranges),
        GapSet(lane.gaps),
        lane.mark,
        lane.whole_mark,
        lane.pending_marks,
        lane.topics,
        lane.payload,
        lane.origins,
        lane.partial,
        lane.last_seen,
        lane.retired,
        lane.conflict,
        lane.last_word,
    )


def encode_lane(lane: LaneSnapshot) -> bytes:
    """Return a lane's state as msgpack, to store it when the lane leaves the state."""
    return msgspec.msgpack.encode(lane)


def decode_lane(data: Buffer) -> LaneSnapshot:
    """Decode the state of a lane that left.

    Raises:
        Corrupt: it is not a lane's state.
    """
    return unpack(_LANE_DECODER, data, "the state of a lane")


def _lanes_in_pieces(lanes: Sequence[tuple[Lane, LaneState]]) -> Iterator[bytes]:
    """Yield the msgpack of lanes without the head of their array, a few at a time."""
    for at in range(0, len(lanes), LANES_AT_ONCE):
        some = [lane_snapshot(lane, held) for lane, held in lanes[at : at + LANES_AT_ONCE]]
        yield msgspec.msgpack.encode(some)[len(_array_head(len(some))) :]


def _array_head(length: int) -> bytes:
    """Return the head of a msgpack array, as short as msgspec makes it."""
    if length < 1 << 4:
        return bytes([0x90 | length])
    return struct.pack(">BH", 0xDC, length) if length < 1 << 16 else struct.pack(">BI", 0xDD, length)


def head_bytes(data: Buffer) -> int:
    """Return the bytes of the head, which follows the header."""
    return int(_HEADER.unpack_from(data)[2])


def _checked_head(data: Buffer) -> memoryview:
    """Return the bytes of the head, checked against the header. Raises as ``decode``."""
    _, crc, length = _HEADER.unpack_from(data)
    body = memoryview(data)[HEADER_BYTES : HEADER_BYTES + length]
    if len(body) < length:
        raise Truncated(f"a snapshot of {length} bytes has only {len(body)} of them")
    if crc32c(body) != crc:
        raise Corrupt("a snapshot's length or checksum does not match")
    return body


def check_header(data: Buffer) -> None:
    """Check that the bytes begin a snapshot of a version that this release reads. Raises as ``decode``."""
    if len(data) < HEADER_BYTES:
        raise Truncated(f"snapshot header truncated: {len(data)} of {HEADER_BYTES} bytes")
    magic = bytes(_HEADER.unpack_from(data)[0])
    if magic[:3] != MAGIC:
        raise Corrupt(f"expected a shard snapshot ({MAGIC!r}), found {magic!r}")
    if magic[3] < VERSION:
        raise PreRelease
    if magic[3] > VERSION:
        raise UnsupportedVersion(f"snapshot version {magic[3]}; this release reads version {VERSION}")


# Bytes of a snapshot: a head, and a block of lanes for each (tenant, stream), so that a reader of one
# stream fetches the head and one block (docs/reference/formats/shard-state.md).


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
    """The head of a snapshot: as ``Snapshot``, with places of lanes and clocks."""

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
    """A snapshot and its lanes."""

    head: Snapshot
    lanes: Iterable[tuple[Lane, LaneSnapshot]]


_SNAPSHOT_HEAD = msgspec.msgpack.Decoder(SnapshotHead)
_LANES = msgspec.msgpack.Decoder(list[LaneSnapshot])
_CLOCKS = msgspec.msgpack.Decoder(list[LogClocks])


def encode(snapshot: Snapshot, lanes: Sequence[tuple[Lane, LaneState]]) -> bytes:
    """Encode a snapshot. One state has one encoding. Lanes are converted a few at a time, so that other threads can
    run in between.

    Args:
        lanes: in any order.
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
        snapshot.cluster_id,
        snapshot.shard,
        snapshot.n,
        snapshot.footer_crc,
        snapshot.must_understand,
        snapshot.made_with,
        snapshot.fold_level,
        snapshot.created,
        snapshot.drops,
        streams,
        SnapshotPlace(at, len(clocks), crc32c(clocks)),
        dict(snapshot.extensions),
        list(snapshot.splits),
        list(snapshot.apart),
    )
    fields = msgspec.structs.astuple(head)
    field_count = len(fields) if head.apart else len(fields) - 1 if head.splits else len(fields) - 2
    body = msgspec.msgpack.encode(fields[:field_count])
    header = _HEADER.pack(MAGIC + bytes([VERSION]), crc32c(body), len(body))
    return b"".join([header, body, *parts, clocks])


def _block(lanes: Sequence[tuple[Lane, LaneState]]) -> bytes:
    return b"".join([_array_head(len(lanes)), *_lanes_in_pieces(lanes)])


def decode(data: Buffer, only: Collection[StreamKey] | None = None) -> DecodedSnapshot:
    """Decode a snapshot.

    Args:
        only: return the lanes and streams of these alone, and no clocks.

    Raises:
        Truncated: the bytes end before the snapshot does.
        UnsupportedVersion: written by a later release.
        PreRelease: written by a build before the first release.
        Corrupt: not a snapshot, a checksum that does not match, or bytes behind its end.
    """
    head = decode_head(data)
    end = HEADER_BYTES + head_bytes(data)
    whole = end + head.clocks.position + head.clocks.length
    if len(data) < whole:
        raise Truncated(f"a snapshot of {whole} bytes has only {len(data)} of them")
    if len(data) > whole:
        raise Corrupt("a snapshot's length does not match")
    return with_lanes(head, data, end, only)


def decode_head(data: Buffer) -> SnapshotHead:
    """Decode the head of a snapshot. Raises as ``decode``."""
    check_header(data)
    body = _checked_head(data)
    # A later release may have changed the rest: its bits are checked before any other field is used.
    check_understood(unpack(_HEAD, body, "a snapshot").must_understand, UNDERSTOOD, "a snapshot")
    head = unpack(_SNAPSHOT_HEAD, body, "a snapshot's head")
    if head.fold_level < FIRST_LEVEL:
        raise PreRelease
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
        head.cluster_id,
        head.shard,
        head.n,
        head.footer_crc,
        head.must_understand,
        head.made_with,
        head.fold_level,
        head.created,
        head.drops,
        [each.stream for each in wanted],
        clocks,
        head.extensions,
        head.splits,
        head.apart,
    )
    return DecodedSnapshot(found, _lanes(wanted, data, start))


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
        data: the bytes of a snapshot, up to the end of its head at least.

    Raises:
        Truncated, UnsupportedVersion, Corrupt: as ``decode``.
    """
    head = decode_head(data)
    streams = [each.stream for each in head.streams]
    offsets = {(each.tenant, each.stream): each.next_offset for each in streams if each.next_offset}
    return (head.cluster_id, head.shard), offsets
