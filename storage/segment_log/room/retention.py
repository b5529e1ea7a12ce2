"""Retention by time and size: removal of records that streams no longer keep, although there would be room.

Released records and those of streams without replication are forgotten, which is not a loss. Records that still wait
for a hub are dropped under a gap notice, which is durable before they become unreadable. All functions except
``expire`` are called with the log's lock.
"""

from __future__ import annotations

from typing import NamedTuple

from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.segment import GapReason
from weft.storage.segment_log.room.must_keep import needed_gaps
from weft.storage.segment_log.settings import DROP_SHARE
from weft.storage.segment_log.state.gaps import notices
from weft.storage.segment_log.state.index import Chunk, LaneSpan
from weft.storage.segment_log.state.log_state import LogState, StreamState
from weft.storage.segment_log.state.segment import Segment


class Now(NamedTuple):
    """The clocks at one instant."""

    wall: int
    reading: ClockReading

    def age(self, time: int, known_since: int) -> float:
        """Return the seconds since ``time``; while the wall clock is not synced, the seconds since ``known_since``."""
        if self.reading.state is ClockState.SYNCED:
            return (self.wall - time) / 1e9
        return (self.reading.monotonic - known_since) / 1e9


def expire(state: LogState, now: Now) -> None:
    """Forget or drop, in sealed segments, the records that streams no longer keep; notices are queued. For the writer
    thread.

    It takes the lock for one segment at a time, so that the expiry of a long backlog does not block devices.
    """
    with state.changed:
        segments = state.segments[:-1]
    for segment in segments:
        with state.changed:
            _expire_segment(state, segment, now)
    state.expired.write(now.reading.monotonic / 1e9)
    with state.changed:
        for stream, lane in state.lanes.items():
            if lane.policy.retain_bytes is not None and lane.bytes > lane.policy.retain_bytes:
                shrink(state, stream, lane.bytes - lane.policy.retain_bytes, now.wall)


def _expire_segment(state: LogState, segment: Segment, now: Now) -> None:
    for stream, span in segment.index.spans():
        retain_s = state.lanes[stream].policy.retain_s
        if retain_s is not None and span.live_size and now.age(span.last_time, segment.known_since) > retain_s:
            for chunk in list(span.chunks(span.forgotten)):
                for first, end in _let_go(state, stream, span, chunk, GapReason.EXPIRED, now.wall):
                    state.expired.add(state.lanes[stream].name, first, end)


def shrink(state: LogState, stream: int, excess: int, now: int) -> int:
    """Shrink a stream by ``excess`` bytes, oldest first, as far as its policy allows. Returns the rest of
    ``excess``."""
    lane = state.lanes[stream]
    assert lane.policy.retain_bytes is not None
    spans = [span for segment in state.segments for span in segment.index.spans_of(stream) if span.live_size]
    is_losing = False
    for span in sorted(spans, key=lambda span: next(iter(span.ranges), (0, 0))):
        # Chunk by chunk: a full stream calls this at every append, mostly for one chunk of a thousand.
        for chunk in span.chunks(span.forgotten):
            if excess <= 0:
                return 0
            if not is_losing and _waiting(lane, span, chunk):
                if lane.policy.when_full == "refuse":
                    return excess
                # Few large losses rather than a notice for each commit.
                excess, is_losing = max(excess, lane.policy.retain_bytes // DROP_SHARE), True
            _let_go(state, stream, span, chunk, GapReason.BUDGET, now)
            excess -= chunk.size
    return max(0, excess)


def _waiting(lane: StreamState, span: LaneSpan, chunk: Chunk) -> RangeSet:
    """Return the held records of a chunk whose removal is a loss."""
    waiting = RangeSet()
    for first, end in span.parts(chunk) if lane.policy.replicated else ():
        waiting.update(held_within(lane.held, first, end))
    for numbers in (lane.released, lane.dropping):
        for first, end in list(waiting):
            for start, stop in held_within(numbers, first, end):
                waiting.remove(start, stop)
    return waiting


def held_within(numbers: RangeSet, first: int, end: int) -> list[Range]:
    """Return the parts of ``[first, end)`` in a set."""
    found, at = [], first
    for hole_first, hole_end in [*numbers.missing(first, end), (end, end)]:
        if at < hole_first:
            found.append((at, hole_first))
        at = hole_end
    return found


def _let_go(  # noqa: PLR0917 - what, where, why and when
    state: LogState, stream: int, span: LaneSpan, chunk: Chunk, reason: GapReason, now: int
) -> RangeSet:
    """Stop counting the oldest chunk of a span. Lost records get a notice, and remain readable until it is durable.

    Returns:
        The lost records.
    """
    lane = state.lanes[stream]
    waiting = _waiting(lane, span, chunk)
    if waiting:
        lane.dropping.update(waiting)
        state.queue.add_gaps(notices(stream, waiting, reason, now))
        state.changed.notify_all()
    for first, end in span.parts(chunk):
        for start, stop in lane.dropping.missing(first, end):
            lane.held.remove(start, stop)
    span.forgotten += 1
    lane.bytes -= chunk.size
    state.changes += 1
    return waiting


def forget_lost(state: LogState, stream: int, end: int) -> None:
    """Stop counting chunks below ``end`` without held records."""
    lane = state.lanes[stream]
    for segment in state.segments:
        for span in segment.index.spans_of(stream):
            for chunk in span.chunks(span.forgotten):
                if chunk.first >= end or any(held_within(lane.held, *part) for part in span.parts(chunk)):
                    break
                span.forgotten += 1
                lane.bytes -= chunk.size


def free_segments(state: LogState) -> list[Segment]:
    """Return the sealed segments that hold nothing: they may be deleted at once."""
    free = [
        segment
        for segment in state.segments[:-1]
        if all(not span.live_size and not _any_held(state, stream, span) for stream, span in segment.index.spans())
    ]
    return [segment for segment in free if not _gaps_stay(state, segment, free)]


def _gaps_stay(state: LogState, segment: Segment, free: list[Segment]) -> bool:
    return bool(needed_gaps(state, segment, [other for other in state.segments if other not in free]))


def _any_held(state: LogState, stream: int, span: LaneSpan) -> bool:
    return any(held_within(state.lanes[stream].held, first, end) for first, end in span.ranges)


def is_overdue(state: LogState, now: Now) -> bool:
    """Return whether to seal the newest segment because it has records of half their stream's maximum age.

    For records that were moved there, the full age counts: they only must not wait without end after it.
    """
    index = state.segments[-1].index
    for lanes, part in ((index.lanes, 2), (index.moved, 1)):
        for stream, span in lanes.items():
            retain_s = state.lanes[stream].policy.retain_s
            if retain_s is not None and span.live_size and (now.wall - span.first_time) / 1e9 > retain_s / part:
                return now.reading.state is ClockState.SYNCED
    return False
