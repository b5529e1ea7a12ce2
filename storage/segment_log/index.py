"""Index of a segment: its records of each stream, and their places."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weft.protocols.batch import BatchHeader
from weft.protocols.lane import HASH_BYTES_MAX, ORIGIN_TEXT_MAX, ORIGINS_MAX, Origin
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.segment import ClockNotice, Footer, GapNotice, GapReason, KeptLane, LaneIndex, Owner, encode_body
from weft.storage.segment_log.settings import POINT_SPACING_BYTES

# Helpers for gap notices: adjacent ones are merged.


def add_merged(notices: list[GapNotice], gap: GapNotice) -> None:
    """Append a notice; merge it with the last one if it continues that for the same reason."""
    last = notices[-1] if notices else None
    if (
        last is None
        or (last.stream, last.reason) != (gap.stream, gap.reason)
        # Adjacent losses are one notice: a thousand notices for one long outage would have to be kept, sent and moved.
        or not last.first <= gap.first <= last.end
    ):
        notices.append(gap)
        return
    notices[-1] = GapNotice(gap.stream, last.first, max(last.end, gap.end), gap.reason, max(last.time, gap.time))


def merged(notices: Iterable[GapNotice]) -> list[GapNotice]:
    """Return notices in the order of their streams and numbers; if two cover a number, the earlier one counts."""
    result: list[GapNotice] = []
    ranges: dict[int, RangeSet] = {}
    for gap in sorted(notices, key=lambda gap: (gap.stream, gap.first, gap.time)):
        known = ranges.setdefault(gap.stream, RangeSet())
        # The earlier reason stands: what was lost first cannot be lost again for another reason.
        for first, end in known.missing(gap.first, gap.end):
            add_merged(result, GapNotice(gap.stream, first, end, gap.reason, gap.time))
        known.add(gap.first, gap.end)
    return result


def notices(stream: int, ranges: Iterable[Range], reason: GapReason, now: int) -> list[GapNotice]:
    """Return a notice for each of the ranges."""
    return [GapNotice(stream, first, end, reason, now) for first, end in ranges]


def reason_name(reason: int) -> str:
    """Return the name of a notice's reason; its number when a later release introduced it."""
    try:
        return GapReason(reason).name.lower()
    except ValueError:
        return f"reason {reason}"


def lost_by_reason(gaps: Iterable[GapNotice]) -> dict[str, int]:
    """Return the number of records under gap notices, by reason."""
    lost: dict[str, int] = {}
    for gap in gaps:
        reason = reason_name(gap.reason)
        lost[reason] = lost.get(reason, 0) + gap.end - gap.first
    return lost


# Numbers of origins in one log, and their meanings.

_OVERHEAD_BYTES = 128
"""Maximum bytes of a commit beside its origins: its mark, the headers of entries."""
ORIGIN_BYTES_MAX = _OVERHEAD_BYTES + 2 * (8 * ORIGIN_TEXT_MAX + HASH_BYTES_MAX + 32)
"""Maximum bytes of an origin in the log."""

_Content = tuple[int, str, str, bytes]


def origin_bytes(origin: Origin) -> int:
    """Return the bytes of an origin in the log: in an entry of its own, and in the footer."""
    return _OVERHEAD_BYTES + 2 * len(encode_body([origin]))


class Origins:
    """The known origins of a log, at most ``ORIGINS_MAX``. A number is never assigned twice. Guarded by the log's
    lock."""

    def __init__(self) -> None:
        self.known: dict[int, Origin] = {}
        self._numbers: dict[_Content, int] = {}
        self._asked: set[int] = set()
        """Numbers that this process has requested."""
        self._last = 0

    def learn(self, origins: Iterable[Origin], last: int = 0) -> None:
        """Add the origins of a segment.

        Args:
            last: highest number in a batch of it, even if unknown.
        """
        for origin in origins:
            self.known[origin.number] = origin
            self._numbers[_content(origin)] = origin.number
        self._last = max(self._last, last, *self.known, 0)

    def knows(self, kind: int, name: str, version: str, hash_: bytes) -> bool:
        """Return whether the origin has a number."""
        return (kind, name, version, hash_) in self._numbers

    def number(self, kind: int, name: str, version: str, hash_: bytes) -> tuple[int, Origin | None]:
        """Return the number of an origin, and the origin itself when it is new.

        Raises:
            ValueError: this process has requested as many origins as a log can have.
        """
        content = (kind, name, version, hash_)
        number = self._numbers.get(content)
        new = None
        if number is None:
            self._make_room()
            number = self._last = self._last + 1
            new = self.known[number] = Origin(number, *content)
            self._numbers[content] = number
        self._asked.add(number)
        return number, new

    def _make_room(self) -> None:
        """Forget the oldest origin that this process has not requested, if there is no room for one more."""
        if len(self.known) < ORIGINS_MAX:
            return
        # An origin that this process uses stays. Records of forgotten ones keep their number, and show it instead of a
        # name.
        oldest = min(self.known.keys() - self._asked, default=None)
        if oldest is None:
            raise ValueError(f"a log knows {ORIGINS_MAX} origins at most, and this process uses as many: use fewer")
        del self._numbers[_content(self.known.pop(oldest))]


def _content(origin: Origin) -> _Content:
    return origin.kind, origin.name, origin.version, origin.hash


_NAME_BYTES, _GAP_BYTES, _SPAN_BYTES, _RANGE_BYTES, _POINT_BYTES = 8, 48, 73, 19, 27
"""Maximum bytes of each of these in an encoded footer; for a name, beside its characters."""


class Chunk(NamedTuple):
    """The batches from one index point to the next: the finest part of a stream whose size is known without reading."""

    first: int
    end: int
    """One past its last number."""
    size: int
    """Bytes of its entries."""


class LaneSpan:
    """One stream's part of a segment. Points are kept as arrays: 24 bytes each, of which a full log has many."""

    __slots__ = ("_offsets", "_seqs", "_sizes", "first_time", "forgotten", "last_time", "ranges", "size")

    def __init__(self, first_time: int, last_time: int) -> None:
        self.ranges = RangeSet()
        self.first_time = first_time
        self.last_time = last_time
        self.size = 0
        """Bytes of its entries."""
        self.forgotten = 0
        """Number of its chunks, from the first on, without records that count."""
        self._seqs = array("Q")
        self._offsets = array("Q")
        self._sizes = array("Q")

    def add(self, header: BatchHeader, offset: int, length: int, *, point: bool) -> None:
        """Add a batch with its entry at ``offset``; batches come in the order of their seqs and offsets."""
        self.ranges.add(header.base_seq, header.end_seq)
        self.first_time = min(self.first_time, header.first_time)
        self.last_time = max(self.last_time, header.last_time)
        # A point per commit would make the index as large as the keys of small records. Readers walk on from the point
        # before.
        if point or self.forgotten == len(self._offsets) or offset - self._offsets[-1] >= POINT_SPACING_BYTES:
            self._seqs.append(header.base_seq)
            self._offsets.append(offset)
            self._sizes.append(self.size)
        self.size += length

    def start_for(self, seq: int) -> int:
        """Return the offset of a batch at or before the one that holds ``seq``."""
        return self._offsets[max(0, bisect_right(self._seqs, seq) - 1)]

    @property
    def live_size(self) -> int:
        """Return the bytes of the chunks that are not forgotten."""
        return self.size - self._sizes[self.forgotten] if self.forgotten < len(self._sizes) else 0

    def chunks(self, start: int) -> Iterator[Chunk]:
        """Yield the chunks from the ``start``-th on, oldest first."""
        for at in range(start, len(self._seqs)):
            last = at + 1 == len(self._seqs)
            end = self.ranges.end if last else self._seqs[at + 1]
            yield Chunk(self._seqs[at], end, (self.size if last else self._sizes[at + 1]) - self._sizes[at])

    def size_of(self, numbers: RangeSet) -> int:
        """Return the bytes of the chunks with any of ``numbers``: at least the bytes of these."""
        if numbers == self.ranges:
            return self.size
        # Rounded up to whole chunks. An estimate that is too low would begin a move that then does not fit.
        return sum(size for first, end, size in self.chunks(0) if numbers.missing(first, end) != [(first, end)])

    def parts(self, chunk: Chunk) -> list[Range]:
        """Return the numbers of a chunk in this segment: others of its range may be in other segments."""
        cut = ((max(first, chunk.first), min(end, chunk.end)) for first, end in self.ranges)
        return [(first, end) for first, end in cut if first < end]

    def add_points(self, other: LaneSpan) -> None:
        """Add the points of another index of the same segment."""
        points = sorted({*self.points(), *other.points()})
        live_from = self._offsets[self.forgotten] if self.forgotten < len(self._offsets) else self._end_offset()
        self._sizes = array("Q", [self._size_before(offset) for _, offset in points])
        self._seqs = array("Q", [seq for seq, _ in points])
        self._offsets = array("Q", [offset for _, offset in points])
        self.forgotten = bisect_left(self._offsets, live_from)

    def _size_before(self, offset: int) -> int:
        at = bisect_right(self._offsets, offset) - 1
        if at < 0:
            return 0
        following = self._sizes[at + 1] if at + 1 < len(self._sizes) else self.size
        return min(following, self._sizes[at] + offset - self._offsets[at])

    def _end_offset(self) -> int:
        return self._offsets[-1] + 1 if self._offsets else 0

    def points(self) -> list[tuple[int, int]]:
        """Return (base_seq, offset) of some batches, ascending."""
        return list(zip(self._seqs, self._offsets, strict=True))

    def sizes(self) -> list[int]:
        """Return the bytes before each point, and the total."""
        return [*self._sizes, self.size]

    def to_footer(self, stream: int) -> LaneIndex:
        """Return the lane's line of a footer."""
        return LaneIndex(stream, list(self.ranges), self.first_time, self.last_time, self.points())

    @classmethod
    def from_footer(cls, lane: LaneIndex, sizes: list[int], end: int) -> LaneSpan:
        """Return the span that a footer's line describes.

        Args:
            sizes: empty in footers that have none; then the offsets of the points bound them.
            end: offset of the footer.
        """
        span = cls(lane.first_time, lane.last_time)
        span.ranges = RangeSet(lane.ranges)
        span._seqs = array("Q", [seq for seq, _ in lane.points])
        span._offsets = array("Q", [offset for _, offset in lane.points])
        # A footer may have no sizes (the format page). The distance between points is an upper bound of them.
        if len(sizes) != len(lane.points) + 1:
            sizes = [offset - lane.points[0][1] for _, offset in lane.points] + [max(0, end - lane.points[0][1])]
        span._sizes, span.size = array("Q", sizes[:-1]), sizes[-1]
        return span


class SegmentIndex:
    """The index of one segment: grown entry by entry, or read from a footer."""

    __slots__ = (
        "_fixed_bytes",
        "_kept_counted",
        "_origins_counted",
        "_owner_counted",
        "_streams_counted",
        "clocks",
        "gaps",
        "kept",
        "lanes",
        "moved",
        "origins",
        "owner",
        "seal_bytes",
        "streams",
    )

    def __init__(self) -> None:
        self.streams: dict[int, str] = {}
        self.lanes: dict[int, LaneSpan] = {}
        self.moved: dict[int, LaneSpan] = {}
        """Records that were moved here from earlier segments."""
        self.gaps: list[GapNotice] = []
        self.kept: list[KeptLane] = []
        """Content of the last ``KEPT`` entry here; empty without one."""
        self.owner: Owner | None = None
        """Content of the last ``OWNER`` entry here; None without one."""
        self.origins: dict[int, Origin] = {}
        """Content of the ``ORIGINS`` entries here."""
        self.clocks: dict[int, ClockNotice] = {}
        """Boot -> its last ``CLOCK`` entry here."""
        self.seal_bytes = 0
        """Bytes that the entry of the footer has for its encryption."""
        self._fixed_bytes = 80
        self._streams_counted = 0
        self._kept_counted = self.kept
        self._owner_counted: Owner | None = None
        self._origins_counted = 0

    def add_batch(
        self, header: BatchHeader, offset: int, length: int, *, point: bool = False, moved: bool = False
    ) -> None:
        """Add a batch.

        Args:
            length: bytes of its entry, header included.
            point: make an index point of it, so that a walk to it need not cross earlier entries.
            moved: it was moved here from an earlier segment.
        """
        lanes = self.moved if moved else self.lanes
        span = lanes.get(header.stream)
        if span is None:
            span = lanes[header.stream] = LaneSpan(header.first_time, header.last_time)
        span.add(header, offset, length, point=point)

    def add_gap(self, gap: GapNotice) -> None:
        """Add a gap notice."""
        add_merged(self.gaps, gap)

    def add_origins(self, origins: Iterable[Origin]) -> None:
        """Add origins."""
        self.origins.update((origin.number, origin) for origin in origins)

    def add_clocks(self, clocks: Iterable[ClockNotice]) -> None:
        """Add clock notices; the last one about a boot counts."""
        for clock in clocks:
            # Removed first, so that dictionaries keep the order of the notices and the oldest one is forgotten first.
            self.clocks.pop(clock.boot_id, None)
            self.clocks[clock.boot_id] = clock

    def spans(self) -> Iterator[tuple[int, LaneSpan]]:
        """Yield (stream, span) for all held records; a stream may come twice."""
        yield from self.moved.items()
        yield from self.lanes.items()

    def spans_of(self, stream: int) -> list[LaneSpan]:
        """Return the spans of one stream."""
        return [lanes[stream] for lanes in (self.moved, self.lanes) if stream in lanes]

    def forget_names(self) -> None:
        """Free the parts that only a footer needs, after the segment is sealed."""
        self.streams, self.kept, self.owner, self.origins, self.clocks = {}, [], None, {}, {}

    @property
    def empty(self) -> bool:
        """Return whether the segment holds no record and no notice."""
        return not self.lanes and not self.moved and not self.gaps

    @property
    def footer_bytes(self) -> int:
        """Return an upper estimate of the encoded footer's bytes."""
        counted = self._kept_counted, self._owner_counted
        if (
            len(self.streams) != self._streams_counted
            or len(self.origins) != self._origins_counted
            or self.kept is not counted[0]
            or self.owner is not counted[1]
        ):
            self._origins_counted = len(self.origins)
            self._streams_counted, self._kept_counted, self._owner_counted = len(self.streams), self.kept, self.owner
            self._fixed_bytes = 80 + sum(len(name) + _NAME_BYTES for name in self.streams.values())
            self._fixed_bytes += sum(24 + _RANGE_BYTES * len(lane.ranges) for lane in self.kept)
            self._fixed_bytes += len(encode_body(self.owner)) if self.owner is not None else 0
            self._fixed_bytes += len(encode_body([*self.origins.values()])) if self.origins else 0
        size = self._fixed_bytes + self.seal_bytes + _GAP_BYTES * (len(self.gaps) + len(self.clocks))
        for lanes in (self.lanes, self.moved):
            for span in lanes.values():
                size += _SPAN_BYTES + _RANGE_BYTES * len(span.ranges) + _POINT_BYTES * len(span._seqs)
        return size

    def footer_growth(
        self, batches: Sequence[int], notices: int, new_names: Sequence[str], origins: Sequence[Origin] = ()
    ) -> int:
        """Return the maximum growth of the footer by a commit, in bytes.

        Args:
            batches: the stream of each of its batches.
            notices: number of its notices, of gaps and of clocks.
            new_names: names of streams that are new to the segment.
            origins: origins that are new to the segment.
        """
        size = _GAP_BYTES * notices + (_RANGE_BYTES + _POINT_BYTES) * len(batches)
        size += _SPAN_BYTES * sum(stream not in self.lanes for stream in {*batches})
        return size + sum(len(name) + _NAME_BYTES for name in new_names) + sum(map(origin_bytes, origins))

    def to_footer(self) -> Footer:
        """Return the footer with the same content."""
        sizes = [span.sizes() for span in (*self.lanes.values(), *self.moved.values())]
        lanes = [span.to_footer(stream) for stream, span in self.lanes.items()]
        moved = [span.to_footer(stream) for stream, span in self.moved.items()]
        origins, clocks = [*self.origins.values()], [*self.clocks.values()]
        return Footer(self.streams, lanes, self.gaps, self.kept, sizes, moved, self.owner, origins, clocks)

    @classmethod
    def from_footer(cls, footer: Footer, end: int) -> SegmentIndex:
        """Return the index that a footer at offset ``end`` describes."""
        index = cls()
        index.streams = dict(footer.streams)
        lines = [*footer.lanes, *footer.moved]
        sizes = footer.sizes if len(footer.sizes) == len(lines) else [[] for _ in lines]
        for at, (lane, size) in enumerate(zip(lines, sizes, strict=True)):
            if lane.points:
                lanes = index.lanes if at < len(footer.lanes) else index.moved
                lanes[lane.stream] = LaneSpan.from_footer(lane, size, end)
        index.gaps = list(footer.gaps)
        index.kept = footer.kept
        index.owner = footer.owner
        index.add_origins(footer.origins)
        index.add_clocks(footer.clocks)
        return index


# One segment of the log, for readers and the budget.


@dataclass(eq=False)
class Segment:
    """A segment, for readers and the budget. Guarded by the log's lock."""

    path: str
    first_position: int
    end: int
    """Durable bytes with entries; readers do not read beyond them."""
    size: int
    """Bytes of the file on disk."""
    index: SegmentIndex
    known_since: int = 0
    """Monotonic ns at which its last record was received, or the log opened: its records are at least that old."""
    begun: int | None = None
    """Monotonic ns at which it was found to have records that will expire; None before."""
    needed: tuple[int, int] | None = None
    """(``LogState.changes`` at that time, needed bytes): for ``space.needed_bytes``."""
    version: int = 1
    """Version of its header, which limits its entries (``segment.version_needed``)."""
    is_movable: bool = True
    """True if its records can be copied; False after damage was found in it."""
