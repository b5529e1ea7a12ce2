"""State of one hub shard: a pure fold over the indexes of its chunks (docs/reference/formats/shard-state.md).

``ShardState.apply`` takes chunk n+1 and nothing else, so every hub node that has seen chunk n holds the same state.
A snapshot is the encoded state; it saves reading the log from the start.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from crc32c import crc32c

from weft.protocols.batch import Buffer
from weft.protocols.chunk import Chunk, GapRange, LaneUpdate, Mark
from weft.protocols.errors import Corrupt, Truncated, UnsupportedVersion
from weft.protocols.fields import unpack
from weft.protocols.lane import Lane
from weft.protocols.ranges import RangeSet

MAGIC = b"WFN"
VERSION = 1
_HEADER = struct.Struct("<4sII")
HEADER_BYTES = _HEADER.size
PENDING_MARKS_MAX = 16
"""Maximum number of marks that a lane keeps while their records are missing. One more displaces the mark whose
neighbours are closest together in time, so the rest stay spread over the whole backlog."""
FIELDS_MAX = 256
"""Maximum number of named topic levels of a stream; later ones get no column."""
_FIELD = re.compile(r"(?:^|/)\{([A-Za-z_][A-Za-z0-9_]*)\}(?=/|$)")

StreamKey = tuple[str, str]
"""(tenant, stream)."""


@dataclass(slots=True)
class LaneState:
    """A shard's knowledge of one lane."""

    epoch: int = 0
    ranges: RangeSet = field(default_factory=RangeSet)
    """Sequence numbers that are accounted for: records held and gaps."""
    gaps: list[GapRange] = field(default_factory=list)
    """Gaps, ascending and disjoint: the part of ``ranges`` that holds no records."""
    mark: Mark | None = None
    """The best proven mark: every sequence number below ``mark.seq`` is accounted for."""
    pending_marks: list[Mark] = field(default_factory=list)
    """Marks that are not proven yet, ascending in time and in seq."""
    topics: list[str] = field(default_factory=list)
    payload: int = 0
    """Kind of the stream's payloads, as the edge last declared it (``protocols.payloads``)."""

    @property
    def complete_up_to(self) -> int | None:
        """Return the moment (edge wall clock, ns) up to which the lane is complete, gaps being named; None when
        unknown."""
        return self.mark.time if self.mark else None

    @property
    def newest_mark(self) -> Mark | None:
        """Return the last mark from the edge, proven or not."""
        return self.pending_marks[-1] if self.pending_marks else self.mark

    def add_mark(self, mark: Mark) -> None:
        """Note a mark; one that says less than a known one changes nothing."""
        if self.mark is not None and mark.time <= self.mark.time:
            return
        if any(other.time >= mark.time and other.seq <= mark.seq for other in self.pending_marks):
            return
        kept = [other for other in self.pending_marks if other.time > mark.time or other.seq < mark.seq]
        self.pending_marks = sorted([*kept, mark], key=lambda other: other.time)
        if len(self.pending_marks) > PENDING_MARKS_MAX:
            marks = self.pending_marks
            del marks[min(range(1, len(marks) - 1), key=lambda i: marks[i + 1].time - marks[i - 1].time)]

    def prove_marks(self) -> None:
        """Move the pending marks whose records are all accounted for; the latest of them is the lane's mark."""
        held = self.ranges.contiguous_end()
        while self.pending_marks and self.pending_marks[0].seq <= held:
            proven = self.pending_marks.pop(0)
            if self.mark is None or proven.time > self.mark.time:
                self.mark = proven


class _LaneSnapshot(msgspec.Struct, frozen=True, array_like=True):
    tenant: str
    edge: str
    log_id: int
    stream: str
    epoch: int
    ranges: list[tuple[int, int]]
    gaps: list[GapRange]
    mark: Mark | None
    pending_marks: list[Mark]
    topics: list[str]
    payload: int = 0


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    cluster_id: bytes
    shard: int
    n: int
    footer_crc: int
    streams: list[tuple[str, str, int, list[str]]]
    """(tenant, stream, next offset, named topic levels)."""
    lanes: list[_LaneSnapshot]


_DECODER = msgspec.msgpack.Decoder(_Snapshot)


class ShardState:
    """The fold up to chunk ``n``. Iteration orders are part of the state: the order in which the log first named
    things."""

    __slots__ = ("_fields", "cluster_id", "footer_crc", "lanes", "n", "next_offset", "shard")

    def __init__(self, cluster_id: bytes, shard: int) -> None:
        self.cluster_id = cluster_id
        self.shard = shard
        self.n = -1
        """Number of the last chunk applied; -1 when the log is empty (its first chunk is 0)."""
        self.footer_crc = 0
        self.next_offset: dict[StreamKey, int] = {}
        self.lanes: dict[Lane, LaneState] = {}
        self._fields: dict[StreamKey, list[str]] = {}

    def apply(self, chunk: Chunk) -> None:
        """Apply chunk ``n + 1``. Nothing changes when it is refused.

        Raises:
            Corrupt: it is not the next chunk of this shard's history, an offset does not continue its stream, or it
                holds records that the shard holds already.
        """
        self._check(chunk)
        for section in chunk.footer.streams:
            self.next_offset[section.tenant, section.stream] = section.base_offset + section.count
        for update in chunk.footer.lanes:
            self._apply_lane(update)
        self.n = chunk.header.n
        self.footer_crc = chunk.footer_crc

    def _check(self, chunk: Chunk) -> None:
        header = chunk.header
        if (header.cluster_id, header.shard, header.n) != (self.cluster_id, self.shard, self.n + 1):
            raise Corrupt(
                f"expected chunk {self.n + 1} of shard {self.shard}, cluster {self.cluster_id.hex()}; found chunk "
                f"{header.n} of shard {header.shard}, cluster {header.cluster_id.hex()}"
            )
        if header.previous_footer_crc != self.footer_crc:
            raise Corrupt(f"chunk {header.n} of shard {self.shard} continues another history")
        for section in chunk.footer.streams:
            expected = self.next_offset.get((section.tenant, section.stream), 0)
            if section.base_offset != expected:
                raise Corrupt(
                    f"chunk {header.n}: {section.tenant}/{section.stream} starts at offset {section.base_offset}, "
                    f"{expected} is the next"
                )
        self._check_new(chunk)

    def _check_new(self, chunk: Chunk) -> None:
        added: dict[Lane, RangeSet] = {}
        nothing = LaneState()
        for update in chunk.footer.lanes:
            lane = lane_of(update)
            held, new = self.lanes.get(lane, nothing).ranges, added.setdefault(lane, RangeSet())
            for first, end in [*update.ranges, *((gap.first, gap.end) for gap in update.gaps)]:
                whole = [(first, end)]
                if held.missing(first, end) != whole or new.missing(first, end) != whole:
                    raise Corrupt(f"chunk {chunk.header.n} holds [{first}, {end}) of {lane} a second time")
                new.add(first, end)

    def _apply_lane(self, update: LaneUpdate) -> None:
        lane = lane_of(update)
        state = self.lanes.setdefault(lane, LaneState())
        state.epoch = max(state.epoch, update.epoch)
        state.ranges.update(update.ranges)
        if update.gaps:
            state.ranges.update((gap.first, gap.end) for gap in update.gaps)
            state.gaps = _joined(sorted([*state.gaps, *update.gaps], key=lambda gap: gap.first))
        if update.mark is not None:
            state.add_mark(update.mark)
        state.prove_marks()
        if update.topics is not None:
            state.topics = update.topics
            fields = self._fields.setdefault((lane.tenant, lane.stream), [])
            new = [name for topic in update.topics for name in _FIELD.findall(topic)]
            fields += [name for name in dict.fromkeys(new) if name not in fields][: FIELDS_MAX - len(fields)]
        if update.payload is not None:
            state.payload = update.payload

    def stream_fields(self, tenant: str, stream: str) -> list[str]:
        """Return the named topic levels of a stream over all its lanes. The list only grows, at its end."""
        return list(self._fields.get((tenant, stream), ()))

    def stream_lanes(self, tenant: str, stream: str) -> dict[Lane, LaneState]:
        """Return the lanes of a stream in this shard."""
        return {lane: held for lane, held in self.lanes.items() if (lane.tenant, lane.stream) == (tenant, stream)}

    def complete_up_to(self, tenant: str, stream: str) -> int | None:
        """Return the moment up to which every lane of the stream in this shard is complete; None when one is
        unknown."""
        return earliest(state.complete_up_to for state in self.stream_lanes(tenant, stream).values())

    def encode(self) -> bytes:
        """Encode the state as a snapshot."""
        streams = [
            (tenant, stream, self.next_offset.get((tenant, stream), 0), self._fields.get((tenant, stream), []))
            for tenant, stream in dict.fromkeys([*self.next_offset, *self._fields])
        ]
        lanes = [
            _LaneSnapshot(
                *lane, held.epoch, list(held.ranges), held.gaps, held.mark, held.pending_marks, held.topics,
                held.payload,
            )
            for lane, held in self.lanes.items()
        ]  # fmt: skip
        body = msgspec.msgpack.encode(
            _Snapshot(self.cluster_id, self.shard, self.n, self.footer_crc, streams, lanes)
        )  # fmt: skip
        return _HEADER.pack(MAGIC + bytes([VERSION]), crc32c(body), len(body)) + body

    @classmethod
    def decode(cls, data: Buffer) -> ShardState:
        """Decode a snapshot.

        Raises:
            Truncated: the bytes end before the snapshot does.
            UnsupportedVersion: written by a later release.
            Corrupt: not a snapshot, a checksum that does not match, or bytes behind its end.
        """
        snapshot = _decode_snapshot(data)
        state = cls(snapshot.cluster_id, snapshot.shard)
        state.n, state.footer_crc = snapshot.n, snapshot.footer_crc
        for tenant, stream, next_offset, fields in snapshot.streams:
            if next_offset:
                state.next_offset[tenant, stream] = next_offset
            if fields:
                state._fields[tenant, stream] = fields
        for lane in snapshot.lanes:
            state.lanes[Lane(lane.tenant, lane.edge, lane.log_id, lane.stream)] = LaneState(
                lane.epoch, RangeSet(lane.ranges), lane.gaps, lane.mark, lane.pending_marks, lane.topics, lane.payload
            )
        return state


def _decode_snapshot(data: Buffer) -> _Snapshot:
    if len(data) < HEADER_BYTES:
        raise Truncated(f"a snapshot header has {HEADER_BYTES} bytes, {len(data)} are there")
    magic, crc, length = _HEADER.unpack_from(data)
    if magic[:3] != MAGIC:
        raise Corrupt(f"expected a shard snapshot ({MAGIC!r}), found {magic!r}")
    if magic[3] != VERSION:
        raise UnsupportedVersion(f"snapshot version {magic[3]}; this release reads version {VERSION}")
    body = memoryview(data)[HEADER_BYTES:]
    if len(body) < length:
        raise Truncated(f"a snapshot of {length} bytes has only {len(body)} of them")
    if len(body) > length or crc32c(body) != crc:
        raise Corrupt("a snapshot's length or checksum does not match")
    return unpack(_DECODER, body, "a snapshot")


def _joined(gaps: list[GapRange]) -> list[GapRange]:
    """Join neighbouring gaps of one reason; the gaps are ascending and disjoint."""
    joined: list[GapRange] = []
    for gap in gaps:
        if joined and joined[-1].end == gap.first and joined[-1].reason == gap.reason:
            joined[-1] = GapRange(joined[-1].first, gap.end, gap.reason)
        else:
            joined.append(gap)
    return joined


def lane_of(update: LaneUpdate) -> Lane:
    """Return the lane that a chunk's footer entry is about."""
    return Lane(update.tenant, update.edge, update.log_id, update.stream)


def earliest(moments: Iterable[int | None]) -> int | None:
    """Return the smallest of several moments, or None when one is unknown or there are none."""
    known = list(moments)
    return None if not known or None in known else min(moment for moment in known if moment is not None)
