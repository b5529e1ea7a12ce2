"""Beginning a segment: copy the needed entries of older segments first, then delete those.

A new segment gets its name only when its whole beginning is durable: the streams, the numbers that the log accounts
for, gap notices and records moved forward. So a crash leaves the old segments, or old and new, never less; records that
are then in both count once (``recovery``).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from weft.protocols.origin import Origin
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import (
    ENTRY_HEADER_BYTES,
    ClockNotice,
    EntryKind,
    GapNotice,
    GapReason,
    Kept,
    KeptLane,
    SegmentHeader,
    encode_body,
    encode_streams,
)
from weft.storage.segment_log.commit.segment_file import SegmentWriter
from weft.storage.segment_log.names import aside_path
from weft.storage.segment_log.room.budget import Room
from weft.storage.segment_log.room.eviction_plan import dropped
from weft.storage.segment_log.room.must_keep import needed_gaps, needed_records
from weft.storage.segment_log.room.relocation import Needed, moved_batches
from weft.storage.segment_log.room.retention import forget_lost, held_within
from weft.storage.segment_log.state.gaps import merged, notices
from weft.storage.segment_log.state.log_state import LogState, Plan
from weft.storage.segment_log.state.segment import Segment

logger = logging.getLogger(__name__)


@dataclass
class _Opening:
    """Content of a new segment under a plan: computed under the lock, written without it."""

    victims: list[tuple[Segment, Needed]] = field(default_factory=list)
    gaps: list[GapNotice] = field(default_factory=list)
    drops: list[GapNotice] = field(default_factory=list)
    gone: dict[int, RangeSet] = field(default_factory=dict)
    """Records that are lost with the victims without a notice, because they were released."""
    kept: list[KeptLane] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    clocks: list[ClockNotice] = field(default_factory=list)


def open_segment(state: LogState, position: int, now: int, room: Room, version: int = 1) -> SegmentWriter:
    """Begin the segment at ``position``, then delete the planned files. For the writer thread, without the lock.

    Args:
        now: wall clock, ns since 1970.
        version: version that its future entries need; a log with a higher one keeps that.

    Raises:
        UnmovableSegment: a victim is damaged; nothing was changed.
        OSError: as a write or a deletion.
    """
    with state.changed:
        plan = room.plan
        opening = _prepare(state, plan, now)
        streams = state.stream_entries()
        version = max(version, state.version)
    state.check_place()
    header = SegmentHeader(state.log_id, position, now, version)
    writer = SegmentWriter.create(
        state.filesystem, state.directory, header, streams, _entries(state, opening), room.first_length
    )
    with state.changed:
        _publish(state, opening, plan, writer)
    paths = [segment.path for segment, _ in opening.victims]
    _remove(state, [*plan.asides, *paths, *map(aside_path, paths)])
    writer.grow(room.length)
    with state.changed:
        writer.segment.size = writer.size
    return writer


def delete_free(state: LogState, free: list[Segment]) -> None:
    """Delete segments that hold nothing, after the result of ``kept_after`` is durable.

    Raises:
        OSError: a file could not be removed durably.
    """
    asides = [segment for segment in free if state.filesystem.exists(aside_path(segment.path))]
    with state.changed:
        _forget(state, free)
        state.collect_gaps()
        state.asides.update((aside_path(segment.path), segment.size) for segment in asides)
    _remove(state, [segment.path for segment in free])


def kept_after(state: LogState, free: list[Segment]) -> list[KeptLane]:
    """Return the numbers that the log accounts for without segments that hold nothing. Call with the lock."""
    return kept_lanes(state, {}, [gap for segment in free for gap in segment.index.gaps])


def _forget(state: LogState, victims: list[Segment]) -> None:
    for segment in victims:
        state.segments.remove(segment)
        for stream, span in segment.index.spans():
            state.lanes[stream].bytes -= span.live_size
    state.changes += 1


def _remove(state: LogState, paths: list[str]) -> None:
    state.check_place()
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            state.filesystem.remove(path)
            logger.info("deleted %s: nothing in it must stay", path)
    if paths:
        state.filesystem.sync_directory(state.directory)


def kept_lanes(state: LogState, gone: dict[int, RangeSet], going: list[GapNotice]) -> list[KeptLane]:
    """Return the numbers that the log accounts for without ``gone``. Call with the lock.

    Args:
        going: notices that are deleted too.
    """
    waiting = state.queue.waiting_gaps()
    lanes = []
    for stream, lane in state.lanes.items():
        ranges = lane.held.copy()
        for first, end in gone.get(stream, RangeSet()):
            ranges.remove(first, end)
        for gap in lane.gaps:
            ranges.add(gap.first, gap.end)
        for gap in going:
            if gap.stream == stream:
                ranges.remove(gap.first, gap.end)
        for gap in waiting:
            if gap.stream == stream:
                # Records that were released after the notice was queued may be gone before it is durable, which is not
                # a loss.
                for part in lane.released.missing(gap.first, gap.end):
                    ranges.add(*part)
        lanes.append(KeptLane(stream, lane.durable_end, list(ranges)))
    return lanes


def _prepare(state: LogState, plan: Plan, now: int) -> _Opening:
    opening = _Opening()
    others = [segment for segment in state.segments if segment not in plan.victims]
    for stream, numbers in dropped(state, plan.drop_ends).items():
        opening.drops += notices(stream, numbers, GapReason.BUDGET, now)
        # Records that hubs have are dropped too: a batch is kept as a whole or not at all.
        opening.gone[stream] = RangeSet(held_within(state.lanes[stream].held, 0, plan.drop_ends[stream]))
    staying: list[GapNotice] = []
    going: list[GapNotice] = []
    for segment in plan.victims:
        needed = needed_records(state, segment, plan.drop_ends)
        opening.victims.append((segment, needed))
        stays = needed_gaps(state, segment, others)
        staying += stays
        going += [gap for gap in segment.index.gaps if gap not in stays]
        for moved, lanes in ((True, segment.index.moved), (False, segment.index.lanes)):
            for stream, span in lanes.items():
                gone = opening.gone.setdefault(stream, RangeSet())
                gone.update(span.ranges)
                for first, end in needed.get((stream, moved), RangeSet()):
                    gone.remove(first, end)
    opening.origins = [*state.origins.known.values()]
    opening.clocks = [*state.clocks.known.values()]
    opening.gaps = merged([*staying, *opening.drops])
    opening.kept = kept_lanes(state, _without(opening.gone, opening.drops), going)
    return opening


def _without(gone: dict[int, RangeSet], drops: list[GapNotice]) -> dict[int, RangeSet]:
    """Return the part of ``gone`` that gets no notice; the dropped records stay accounted for."""
    result = {stream: ranges.copy() for stream, ranges in gone.items()}
    for gap in drops:
        if gap.stream in result:
            result[gap.stream].remove(gap.first, gap.end)
    return result


def _entries(state: LogState, opening: _Opening) -> Iterator[tuple[EntryKind, bytes]]:
    # Twice, at both ends: if one damaged entry could lose it, an earlier name would count again, and its links would
    # send records again that the hubs have under this one.
    owner = [(EntryKind.OWNER, encode_body(state.owner))] if state.owner is not None else []
    yield from owner
    if opening.origins:
        yield EntryKind.ORIGINS, encode_body(opening.origins)
    for clock in opening.clocks:
        yield EntryKind.CLOCK, encode_body(clock)
    yield EntryKind.KEPT, encode_body(Kept(opening.kept))
    for gap in opening.gaps:
        yield EntryKind.GAP, encode_body(gap)
    for body in moved_batches(state.filesystem, opening.victims):
        with state.changed:
            state.counters.moved_bytes += ENTRY_HEADER_BYTES + state.seal_bytes + len(body)
        yield EntryKind.MOVED, body
    yield from owner
    # Entries before a mark were durable, so that damage to them never counts as a torn tail.
    yield EntryKind.STREAMS, encode_streams({})


def _publish(state: LogState, opening: _Opening, plan: Plan, writer: SegmentWriter) -> None:
    _forget(state, [segment for segment, _ in opening.victims])
    for path in plan.asides:
        state.asides.pop(path, None)
    for stream, ranges in opening.gone.items():
        for first, end in ranges:
            state.lanes[stream].held.remove(first, end)
    for stream, span in writer.segment.index.spans():
        state.lanes[stream].bytes += span.live_size
    state.segments.append(writer.segment)
    for gap in opening.drops:
        state.add_gap(gap)
        state.tail.drop_below(gap.stream, gap.end)
        forget_lost(state, gap.stream, plan.drop_ends[gap.stream])
    state.collect_gaps()
    if opening.drops:
        lost = ", ".join(f"{state.lanes[gap.stream].name} {gap.first} to {gap.end - 1}" for gap in opening.drops)
        logger.warning("the log is full and dropped the oldest records, recorded as gap notices: %s", lost)
