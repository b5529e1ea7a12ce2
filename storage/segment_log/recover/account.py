"""Streams of a log as described by its segments, and their missing records."""

from __future__ import annotations

from weft.protocols.ranges import SEQ_END, RangeSet
from weft.protocols.segment import GapNotice
from weft.storage.segment_log.recover.loading import Loaded
from weft.storage.segment_log.room.quarantine import missing_gaps
from weft.storage.segment_log.room.retention import forget_lost, held_within
from weft.storage.segment_log.state.log_state import LogState, StreamState


def fold(state: LogState, loaded: list[Loaded]) -> None:
    """Account for the segments in the log's lanes."""
    next_seqs: dict[int, int] = {}
    _count_once(loaded)
    for item in loaded:
        state.segments.append(item.segment)
        index = item.segment.index
        names = {stream: entry.name for stream, entry in (item.streams or {}).items()} | index.streams
        for stream, name in names.items():
            state.lanes.setdefault(stream, StreamState(name)).name = name
        ends = [(stream, span.ranges.end) for stream, span in index.spans()]
        ends += [(kept.stream, kept.next_seq) for kept in index.kept]
        ends += [(gap.stream, gap.end) for gap in index.gaps]
        ends += [(stream, entry.next_seq) for stream, entry in (item.streams or {}).items()]
        ends += list(item.scan.next_seqs.items()) if item.scan else []
        for stream, end in ends:
            # A stream whose every naming entry was lost still keeps its records.
            state.lanes.setdefault(stream, StreamState(f"unnamed-{stream}"))
            next_seqs[stream] = max(next_seqs.get(stream, 0), end)
        state.origins.learn(index.origins.values(), item.scan.last_origin if item.scan else 0)
        state.clocks.learn(index.clocks.values())
        for stream, span in index.spans():
            state.lanes[stream].held.update(span.ranges)
    for item in loaded:
        for gap in item.segment.index.gaps:
            state.lanes[gap.stream].held.remove(gap.first, gap.end)
    state.collect_gaps()
    newest = loaded[-1].scan if loaded else None
    for stream in state.lanes:
        if newest and newest.hidden_max and stream not in newest.exact:
            next_seqs[stream] = min(next_seqs.get(stream, 0) + newest.hidden_max, SEQ_END)
    state.first_seq = newest.hidden_max if newest else 0
    state.owner = next((item.segment.index.owner for item in reversed(loaded) if item.segment.index.owner), None)
    for stream, lane in state.lanes.items():
        lane.next_seq = lane.durable_end = next_seqs.get(stream, 0)
        state.numbers[lane.name] = stream
        lane.bytes = sum(span.live_size for item in loaded for span in item.segment.index.spans_of(stream))
        forget_lost(state, stream, lane.durable_end)


def _count_once(loaded: list[Loaded]) -> None:
    """Count records that were moved forward only in their last segment, not in earlier ones too."""
    seen: dict[int, RangeSet] = {}
    for item in reversed(loaded):
        for lanes in (item.segment.index.lanes, item.segment.index.moved):
            for stream, span in lanes.items():
                known = seen.setdefault(stream, RangeSet())
                own = span.ranges.copy()
                for first, end in own:
                    for start, stop in held_within(known, first, end):
                        span.ranges.remove(start, stop)
                known.update(own)


def find_losses(state: LogState, loaded: list[Loaded], now: int) -> list[GapNotice]:
    """Return notices for numbers that were assigned and acknowledged, and are neither held nor under a notice.

    Before each deletion the log records the numbers that it still accounts for. So the numbers of the last such entry
    must be there, and all numbers assigned since.
    """
    kept = next((item.segment.index.kept for item in reversed(loaded) if item.segment.index.kept), None)
    if kept is None:
        expected = _expected_of_earlier_releases(state, loaded)
    else:
        expected = {stream: RangeSet([(0, lane.next_seq)]) for stream, lane in state.lanes.items()}
        for lane in kept:
            expected[lane.stream] = RangeSet(lane.ranges)
            expected[lane.stream].add(lane.next_seq, state.lanes[lane.stream].next_seq)
    known = {}
    for stream, state_lane in state.lanes.items():
        known[stream] = state_lane.held.copy()
        known[stream].update((gap.first, gap.end) for gap in state_lane.gaps)
    return missing_gaps(expected, known, now)


def _expected_of_earlier_releases(state: LogState, loaded: list[Loaded]) -> dict[int, RangeSet]:
    """Return the expected numbers of a log of earlier releases, which deleted segments oldest first. Records before the
    oldest segment were deleted on purpose; its first entry has the next number of each stream at that time, and a
    stream that it does not name began later, at 0. Before the very first segment there was nothing, whatever is left of
    it.
    """
    expected: dict[int, RangeSet] = {}
    if not loaded:
        return expected
    first = loaded[0]
    for stream, lane in state.lanes.items():
        if first.segment.first_position == 0:
            begin = 0
        elif first.streams is not None:
            entry = first.streams.get(stream)
            begin = entry.next_seq if entry else 0
        else:
            span = first.segment.index.lanes.get(stream)
            spoken = first.scan.begins.get(stream, lane.next_seq) if first.scan else lane.next_seq
            begin = min(spoken, next(iter(span.ranges))[0]) if span and len(span.ranges) else spoken
        expected[stream] = RangeSet([(begin, lane.next_seq)])
    return expected
