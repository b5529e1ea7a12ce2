"""Needed part of a segment: records that are safe nowhere else, and notices that no receiver has yet.

Everything here is called with the log's lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.protocols.batch import HEADER_BYTES
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import ENTRY_HEADER_BYTES, SEALED_VERSION, GapNotice
from weft.storage.segment_log.state.index import LaneSpan
from weft.storage.segment_log.state.log_state import LogState, StreamState
from weft.storage.segment_log.state.segment import Segment

_GAP_BYTES = ENTRY_HEADER_BYTES + 36
"""Maximum bytes of a gap notice's plain entry."""
_BATCH_BYTES_MIN = ENTRY_HEADER_BYTES + HEADER_BYTES


def gap_bytes(state: LogState) -> int:
    """Return the maximum bytes of a gap notice's entry in a new segment."""
    return _GAP_BYTES + state.seal_bytes


def unreleased(lane: StreamState, span: LaneSpan, start: int = 0) -> RangeSet:
    """Return the held records of a span from ``start`` on that are not released."""
    found = RangeSet()
    for first, end in span.ranges:
        at = max(first, start)
        for hole_first, hole_end in [*lane.held.missing(at, end), (end, end)]:
            found.update(lane.released.missing(at, hole_first))
            at = hole_end
    return found


def needed_records(state: LogState, segment: Segment, starts: dict[int, int]) -> dict[tuple[int, bool], RangeSet]:
    """Return the needed records of a segment, by (stream, moved before).

    Args:
        starts: stream -> records below this are about to be dropped.
    """
    found = {}
    for moved, lanes in ((True, segment.index.moved), (False, segment.index.lanes)):
        for stream, span in lanes.items():
            numbers = unreleased(state.lanes[stream], span, starts.get(stream, 0))
            if numbers:
                found[stream, moved] = numbers
    return found


def needed_gaps(state: LogState, segment: Segment, others: Iterable[Segment]) -> list[GapNotice]:
    """Return a segment's needed notices: no receiver has them, or their records are still in ``others``.

    If a notice were deleted before its sound record, the record would reappear at the next start.
    """
    found = []
    for gap in segment.index.gaps:
        released = state.lanes[gap.stream].released.covers(gap.first, gap.end)
        if not released or any(
            _touches(span.ranges, gap) for other in others for span in other.index.spans_of(gap.stream)
        ):
            found.append(gap)
    return found


def needed_bytes(state: LogState, segment: Segment, starts: dict[int, int]) -> int:
    """Return an upper bound of the needed bytes of a segment."""
    if starts or segment is state.segments[-1]:
        return _needed_bytes(state, segment, starts)
    if segment.needed is None or segment.needed[0] != state.changes:
        segment.needed = (state.changes, _needed_bytes(state, segment, starts))
    return segment.needed[1]


def _needed_bytes(state: LogState, segment: Segment, starts: dict[int, int]) -> int:
    size = sum(
        (segment.index.moved if moved else segment.index.lanes)[stream].size_of(numbers)
        for (stream, moved), numbers in needed_records(state, segment, starts).items()
    )
    if state.is_sealed and segment.version < SEALED_VERSION:
        # Batches of a plain segment grow when they are moved into a sealed one.
        size += state.seal_bytes * (size // _BATCH_BYTES_MIN)
    return size + gap_bytes(state) * sum(
        not state.lanes[gap.stream].released.covers(gap.first, gap.end) for gap in segment.index.gaps
    )


def unsafe_bytes(state: LogState) -> int:
    """Return an upper bound of the needed bytes of the whole log."""
    return sum(needed_bytes(state, segment, {}) for segment in state.segments)


def _touches(ranges: RangeSet, gap: GapNotice) -> bool:
    return ranges.missing(gap.first, gap.end) != [(gap.first, gap.end)]
