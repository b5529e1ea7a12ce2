"""What a segment holds of each stream, and where."""

from __future__ import annotations

from array import array
from bisect import bisect_right

from protocols.batch import BatchHeader
from protocols.ranges import RangeSet
from protocols.segment import Footer, GapNotice, LaneIndex
from storage.segment_log.settings import POINT_SPACING_BYTES


class LaneSpan:
    """One stream's part of a segment. Points are kept as two arrays: 16 bytes each, of which a full log has many."""

    __slots__ = ("_offsets", "_seqs", "first_time", "last_time", "ranges")

    def __init__(self, first_time: int, last_time: int) -> None:
        self.ranges = RangeSet()
        self.first_time = first_time
        self.last_time = last_time
        self._seqs = array("Q")
        self._offsets = array("Q")

    def add(self, header: BatchHeader, offset: int, *, point: bool) -> None:
        """Note a batch whose entry stands at ``offset``; batches come in the order of their seqs and offsets."""
        self.ranges.add(header.base_seq, header.end_seq)
        self.first_time = min(self.first_time, header.first_time)
        self.last_time = max(self.last_time, header.last_time)
        if point or not self._offsets or offset - self._offsets[-1] >= POINT_SPACING_BYTES:
            self._seqs.append(header.base_seq)
            self._offsets.append(offset)

    def start_for(self, seq: int) -> int:
        """Offset of a batch at or before the one that holds ``seq``."""
        return self._offsets[max(0, bisect_right(self._seqs, seq) - 1)]

    def add_points(self, other: LaneSpan) -> None:
        """Take over the points of another index of the same segment."""
        points = sorted({*self.points(), *other.points()})
        self._seqs = array("Q", [seq for seq, _ in points])
        self._offsets = array("Q", [offset for _, offset in points])

    def points(self) -> list[tuple[int, int]]:
        """(base_seq, offset) of some batches, ascending."""
        return list(zip(self._seqs, self._offsets, strict=True))

    def to_footer(self, stream: int) -> LaneIndex:
        """The lane's line of a footer."""
        return LaneIndex(stream, list(self.ranges), self.first_time, self.last_time, self.points())

    @classmethod
    def from_footer(cls, lane: LaneIndex) -> LaneSpan:
        """The span that a footer's line describes."""
        span = cls(lane.first_time, lane.last_time)
        span.ranges = RangeSet(lane.ranges)
        span._seqs = array("Q", [seq for seq, _ in lane.points])
        span._offsets = array("Q", [offset for _, offset in lane.points])
        return span


class SegmentIndex:
    """The index of one segment: grown entry by entry, or read from a footer."""

    __slots__ = ("_batches", "_footer", "gaps", "lanes", "streams")

    def __init__(self) -> None:
        self._batches = 0
        self._footer = ((-1, -1, -1), 0)
        """(batches, gaps, streams) at which the footer was this many bytes long: every append asks."""
        self.streams: dict[int, str] = {}
        self.lanes: dict[int, LaneSpan] = {}
        self.gaps: list[GapNotice] = []

    def add_batch(self, header: BatchHeader, offset: int, *, point: bool = False) -> None:
        """Note a batch; ``point`` forces an index point, so that no walk to it has to cross what lies before."""
        span = self.lanes.get(header.stream)
        if span is None:
            span = self.lanes[header.stream] = LaneSpan(header.first_time, header.last_time)
        span.add(header, offset, point=point)
        self._batches += 1

    @property
    def empty(self) -> bool:
        """Whether the segment holds no record and no notice."""
        return not self.lanes and not self.gaps

    @property
    def footer_bytes(self) -> int:
        """Upper estimate of the encoded footer."""
        holds = (self._batches, len(self.gaps), len(self.streams))
        if holds == self._footer[0]:
            return self._footer[1]
        names = sum(len(name) + 8 for name in self.streams.values())
        lanes = sum(64 + 18 * (len(span.ranges) + len(span._seqs)) for span in self.lanes.values())
        self._footer = (holds, 64 + names + lanes + 48 * len(self.gaps))
        return self._footer[1]

    def to_footer(self) -> Footer:
        """The footer that says the same."""
        return Footer(self.streams, [span.to_footer(stream) for stream, span in self.lanes.items()], self.gaps)

    @classmethod
    def from_footer(cls, footer: Footer) -> SegmentIndex:
        """The index that a footer describes."""
        index = cls()
        index.streams = dict(footer.streams)
        index.lanes = {lane.stream: LaneSpan.from_footer(lane) for lane in footer.lanes if lane.points}
        index.gaps = list(footer.gaps)
        return index
