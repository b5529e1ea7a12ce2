"""The log within its disk budget: retention, eviction, refusal of appends, and the records that move on from old
segments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from weft.protocols.batch import HEADER_BYTES, ClockReading, ClockState, HeaderPairs, decode_header
from weft.protocols.errors import CodecError, Corrupt
from weft.protocols.lane import HASH_BYTES_MAX, ORIGIN_TEXT_MAX
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.segment import (
    ENTRY_HEADER_BYTES,
    SEALED_VERSION,
    ClockNotice,
    EntryKind,
    GapNotice,
    GapReason,
    encode_body,
)
from weft.storage.filesystem import FileSystem
from weft.storage.segment_log.index import ORIGIN_BYTES_MAX, Chunk, LaneSpan, Segment, notices
from weft.storage.segment_log.segment_bytes import SegmentBytes
from weft.storage.segment_log.settings import (
    BATCH_OVERHEAD_BYTES,
    DROP_SHARE,
    MOVE_SHARE,
    SEGMENT_SHARE_MIN,
    SURE_ROOM_MARGIN_BYTES,
    LogFailed,
    LogFull,
    StreamPolicy,
    run_bytes,
)
from weft.storage.segment_log.state import LogState, Plan, StreamState

# Needed part of a segment: records that are safe nowhere else, and notices that no receiver has yet.
#
# What must stay of a sealed segment moves into the opening of a new one, so one unacknowledged record of a small
# stream pins nothing. A segment for each stream would need an fsync for each; moved records among new ones would end
# the ascent of numbers within a segment. Openings list what the log answers for (``KEPT``), since deletion is not in
# order.
# Everything here is called with the log's lock.

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
        # Numbers that the log no longer holds need no room: they were dropped under a notice or moved to a later
        # segment.
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
        # A notice also stays while another segment still has the bytes of its records: after a crash they would come
        # back as records that were never dropped.
        if not released or any(has_bytes_of(other, gap) for other in others):
            found.append(gap)
    return found


def has_bytes_of(segment: Segment, gap: GapNotice) -> bool:
    """Return whether a segment's file has bytes of records that a notice gives as lost."""
    return any(_touches(span.ranges, gap) for span in segment.index.spans_of(gap.stream))


def needed_bytes(state: LogState, segment: Segment, starts: dict[int, int]) -> int:
    """Return an upper bound of the needed bytes of a segment."""
    if starts or segment is state.segments[-1]:
        return _needed_bytes(state, segment, starts)
    # A full log asks at every append. The count of changes makes the answer for a sealed segment one comparison.
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


# Retention by time and size: removal of records that streams no longer keep, although there would be room.
#
# Released records and those of streams without replication are forgotten, which is not a loss. Records that still
# wait for a hub are dropped under a gap notice, which is durable before they become unreadable. All functions except
# ``expire`` are called with the log's lock.


class Now(NamedTuple):
    """The clocks at one instant."""

    wall: int
    reading: ClockReading

    def age(self, time: int, known_since: int) -> float:
        """Return the seconds since ``time``; while the wall clock is not synced, the seconds since ``known_since``."""
        # A wrong clock must not end records: a Pi without a battery starts in 1970 or in the future. Until the time is
        # confirmed, only time that this process has seen pass counts.
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
    # One segment at a time, each with the lock for itself, so that appends and acknowledgements do not wait for a walk
    # over the whole log.
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
            # Up to here only records went that a hub has, which is no loss and needs no notice.
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
    # A stream that no link carries promised its records to no hub, so it ends them as configured, without notices.
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
    # The notice is queued first and the records stay readable until it is durable. A crash between the two leaves both,
    # never neither.
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
    # Notices are records too: a segment goes only when every link has been given its notices, and none of these is
    # about records of a segment that stays. One that stays for its notices may itself have such records, so that each
    # round may keep further ones.
    staying = [segment for segment in state.segments if segment not in free]
    while kept := [segment for segment in free if needed_gaps(state, segment, staying)]:
        free = [segment for segment in free if segment not in kept]
        staying += kept
    return free


def _any_held(state: LogState, stream: int, span: LaneSpan) -> bool:
    return any(held_within(state.lanes[stream].held, first, end) for first, end in span.ranges)


def is_overdue(state: LogState, now: Now) -> bool:
    """Return whether to seal the newest segment because it has records of half their stream's maximum age. Note when
    it was first found to have some that will expire.

    For records that were moved there, the full age counts: they only must not wait without end after it.
    """
    segment = state.segments[-1]
    for lanes, part in ((segment.index.lanes, 2), (segment.index.moved, 1)):
        for stream, span in lanes.items():
            retain_s = state.lanes[stream].policy.retain_s
            if retain_s is None or not span.live_size:
                continue
            if segment.begun is None:
                segment.begun = now.reading.monotonic
            # Files expire as a whole, so the newest one is ended at half of the retention time: records then live at
            # most half as long again as `retain.time` says. Ending it deletes nothing, so without a synchronised clock
            # the time counts that some record of it was seen to wait.
            if now.age(span.first_time, segment.begun) > retain_s / part:
                return True
    return False


# Choice of the segments that make room, by the cost of cleaning and the loss. A plan is made under the lock and
# carried out later.
#
# The order, oldest first within each group: files kept aside; segments without needed records; segments with a small
# needed part, which is moved; segments with a needed part of at most a half; and if that is not enough, segments that
# get into these groups by dropping the oldest records of streams that allow it.

_OPENING_ENTRIES = 6
"""Entries of an opening beside clock notices and gap notices: names twice, the owner twice, origins, numbers."""
_LANE_BYTES = 48
"""Bytes of a stream in the opening of a segment, beside its name."""


def opening_bytes(state: LogState) -> int:
    """Return the bytes of a new segment's opening, without moved records."""
    owner = 2 * (ENTRY_HEADER_BYTES + len(encode_body(state.owner))) if state.owner is not None else 0
    lanes = sum(_LANE_BYTES + len(lane.name) + 19 * (len(lane.held) + len(lane.gaps)) for lane in state.lanes.values())
    known = state.origins.known
    origins = ENTRY_HEADER_BYTES + len(encode_body([*known.values()])) if known else 0
    sealed = state.seal_bytes * _OPENING_ENTRIES
    return 160 + owner + origins + lanes + gap_bytes(state) * len(state.clocks.known) + sealed


def make_plan(state: LogState, segments: Sequence[Segment], wanted_bytes: int, free_bytes: int) -> Plan:
    """Plan how to free ``wanted_bytes`` from ``segments``, or as much as possible. Call with the lock.

    Args:
        free_bytes: free bytes of budget and disk before anything is deleted: moved records must fit into them.
    """
    plan = Plan()
    # Evidence of damage goes before any record, even before one that every hub has.
    for path, size in sorted(state.asides.items()):
        if plan.freed_bytes >= wanted_bytes:
            return plan
        plan.asides.append(path)
        plan.freed_bytes += size
    needs: list[tuple[Segment, int]] = []
    for segment in segments:
        if plan.freed_bytes >= wanted_bytes:
            return plan
        need = needed_bytes(state, segment, {})
        # Nothing has to be written to free it, so it goes first, in any order of age.
        if need == 0:
            plan.victims.append(segment)
            plan.freed_bytes += segment.size
        else:
            needs.append((segment, need))
    room = _moving_room(state, free_bytes)
    # Moved records must leave room for the notices without which nothing can be dropped.
    # Cleaning must not use up the space in which cleaning happens, or a full log could never be freed again.
    movable = room - gap_bytes(state) * sum(lane.policy.when_full == "drop_oldest" for lane in state.lanes.values())
    cheap = min(movable, state.settings.segment_bytes // MOVE_SHARE)
    # First at most a quarter, then up to a half of a segment: each freed byte costs at most a third of a byte written,
    # in the worst case one.
    for most, part in ((cheap, MOVE_SHARE), (movable, 2)):
        for segment, need in needs:
            if plan.freed_bytes >= wanted_bytes:
                return plan
            if segment not in plan.victims and need * part <= segment.size:
                _take(plan, segment, need, most)
    # Losing records is the last resort, and only of streams that allow it. A stream that refuses loses nothing,
    # whatever the others do.
    _drop(state, plan, [segment for segment, _ in needs if segment not in plan.victims], wanted_bytes, room)
    return plan


def renewed(state: LogState, plan: Plan, free_bytes: int) -> Plan:
    """Renew an earlier plan: releases have made it cheaper, and some of its segments may be gone. Call with the
    lock."""
    drop_ends = {
        stream: end for stream, end in plan.drop_ends.items() if state.lanes[stream].policy.when_full == "drop_oldest"
    }
    again = Plan(asides=[path for path in plan.asides if path in state.asides], drop_ends=drop_ends)
    again.freed_bytes = sum(state.asides[path] for path in again.asides)
    for segment in plan.victims:
        if segment in state.segments:
            need = needed_bytes(state, segment, drop_ends)
            _take(again, segment, need, _moving_room(state, free_bytes))
    return again


def _moving_room(state: LogState, free_bytes: int) -> int:
    return min(state.settings.spare_bytes, free_bytes) - opening_bytes(state)


def _take(plan: Plan, segment: Segment, need: int, moved_max: int) -> bool:
    if plan.moved_bytes + need > moved_max or (need and not segment.is_movable):
        return False
    plan.victims.append(segment)
    plan.moved_bytes += need
    plan.freed_bytes += segment.size - need
    return True


def _drop(state: LogState, plan: Plan, segments: list[Segment], wanted_bytes: int, room: int) -> None:
    """Drop the oldest records of streams that allow it, segment by segment."""
    for segment in segments:
        if plan.freed_bytes >= wanted_bytes:
            return
        ends = {
            # All of a stream up to one number, rather than single batches: a range has one notice and frees whole
            # files.
            stream: max(span.ranges.end, plan.drop_ends.get(stream, 0))
            for stream, span in segment.index.spans()
            if state.lanes[stream].policy.when_full == "drop_oldest"
        }
        if not ends:
            continue
        notices = gap_bytes(state) * len(ends)
        need = needed_bytes(state, segment, {**plan.drop_ends, **ends})
        if (need + notices) * 2 <= segment.size and _take(plan, segment, need, room - notices):
            plan.drop_ends.update(ends)
            room -= notices


def dropped(state: LogState, drop_ends: dict[int, int]) -> dict[int, RangeSet]:
    """Return the unreleased records that are dropped, by stream. Call with the lock."""
    result = {}
    for stream, end in drop_ends.items():
        lane = state.lanes[stream]
        numbers = RangeSet()
        for first, stop in lane.held:
            if first < end:
                numbers.update(lane.released.missing(first, min(stop, end)))
        if numbers:
            result[stream] = numbers
    return result


# Keeping the log within its disk budget: refusal of appends, and the size of a new segment.

LONG_NOTICES = 2
"""Number of gap notices for whole files that still have room after short ones have used up theirs."""


def admit(state: LogState, length: int, *, uses_spare: bool = False) -> None:
    """Refuse ``length`` more uncompressed bytes if there is no room for them. Call with the lock.

    Args:
        uses_spare: they may use the room that is kept free for moving.

    Raises:
        LogFull: nothing was changed.
        OSError: the disk's free space cannot be read.
    """
    pending = state.queue.raw_bytes + length
    # Listeners stop reading at the bound itself. What exceeds it came in one read, so twice the bound means that a
    # source does not wait.
    if pending > 2 * state.settings.pending_bytes_max and not state.queue.idle:
        raise LogFull(
            f"{state.queue.raw_bytes} bytes wait for the disk, twice what pending_bytes_max allows: "
            "the disk is slower than the devices"
        )
    reason = _shortage(state, pending, uses_spare=uses_spare)
    if reason is not None:
        state.refused_bytes = max(state.refused_bytes, length)
        raise LogFull(reason)


def admit_to_stream(state: LogState, stream: int, lane: StreamState, length: int, now: int) -> None:
    """Refuse ``length`` more bytes of a full stream with a size of its own. Call with the lock.

    Raises:
        LogFull: nothing was appended.
    """
    assert lane.policy.retain_bytes is not None
    used = lane.bytes + lane.queued_bytes
    excess = used + length - lane.policy.retain_bytes
    # A stream that has nothing takes one append of any length; otherwise a record longer than its size could never be
    # stored.
    if excess <= 0 or not used:
        return
    # Nothing was released since the last refusal, so the answer is the same without a search.
    if lane.full_since == state.changes or (
        shrink(state, stream, excess, now) > 0
        # Records that wait for the disk cannot be dropped. A stream that drops its oldest may exceed its size by them
        # until they are written, which ``admit`` bounds: devices must not be refused because of records that they have
        # just sent.
        and not (lane.policy.when_full == "drop_oldest" and lane.bytes <= 0)
    ):
        lane.full_since = state.changes
        raise LogFull(
            f"stream {lane.name} takes {used} of its {lane.policy.retain_bytes} bytes and none of them may go yet. "
            "Restore the link to the hub, raise the stream's retain.size, or let it drop its oldest records (when_full)"
        )


def admit_notices(state: LogState, count: int, *, frees_files: bool) -> None:
    """Refuse an operator's gap notices if even the room that is kept free is too small for them. Call with the lock.

    Args:
        frees_files: they cover all records of a stream in some file. The last of the room is for these: only they free
            space in a full log.

    Raises:
        LogFull: nothing was changed.
        OSError: the disk's free space cannot be read.
    """
    active, used = state.segments[-1], state.bytes_on_disk()
    # A notice takes room now and frees none if it ends only parts of files. Without the margin an operator who drops
    # record by record could fill the disk with notices.
    count += 0 if frees_files else LONG_NOTICES
    end = active.end + active.index.footer_bytes + state.queue.raw_bytes + BATCH_OVERHEAD_BYTES * count
    if end <= active.size:
        return
    room = min(state.budget_bytes, used + state.filesystem.free_bytes(state.directory))
    free = room - (used - active.size + end)
    wanted = 2 * opening_bytes(state) - free
    if wanted > 0 and make_plan(state, state.segments[:-1], wanted, free).freed_bytes < wanted:
        raise LogFull(
            f"the log in {state.directory} has no room to note what is dropped. Drop a longer range at once, so "
            "that whole files can go, or raise the disk budget"
        )


def shortage(state: LogState) -> str | None:
    """Return the reason why there is no room for the refused append, or for any; None if there is room. Call with the
    lock.

    Raises:
        OSError: the disk's free space cannot be read.
    """
    reason = _shortage(state, state.queue.raw_bytes + max(state.refused_bytes, BATCH_OVERHEAD_BYTES))
    if reason is None:
        state.refused_bytes = 0
    return reason


def _shortage(state: LogState, pending: int, *, uses_spare: bool = False) -> str | None:
    active, budget_bytes = state.segments[-1], state.budget_bytes
    # The usual case, without a system call: the bytes are reserved already.
    if active.end + pending + active.index.footer_bytes <= active.size:
        return None
    known = None if uses_spare else state.refusal
    # A full log is asked at every message. What was refused is refused again without a plan until something is
    # released.
    if known is not None and known[0] == state.changes and pending >= known[1]:
        return known[2]
    used = state.bytes_on_disk()
    sealed = used - active.size + active.end + active.index.footer_bytes
    needed = sealed + pending
    needed += state.settings.segment_bytes // SEGMENT_SHARE_MIN + opening_bytes(state)
    # Half a segment is kept back for moving records and for notices. Only steps that have been promised already may use
    # it.
    needed += 0 if uses_spare else state.settings.spare_bytes
    free = state.filesystem.free_bytes(state.directory)
    limit = min(budget_bytes, used + free)
    wanted = needed - limit
    if wanted <= 0:
        return None
    plan = make_plan(state, state.segments[:-1], wanted, limit - sealed)
    if plan.freed_bytes >= wanted:
        state.promised = plan
        return None
    # Two causes, two remedies: the budget is the node's own, the disk is shared with other programs.
    if budget_bytes <= used + free:
        reason = (
            f"the log in {state.directory} uses {used} of {state.settings.budget_bytes} bytes and nothing in it may be "
            "deleted yet. Restore the link to the hub, or raise the disk budget"
        )
        # Not remembered for a full disk: another program may free space at any moment, without a change of this log.
        state.refusal = (state.changes, pending, reason)
        return reason
    return (
        f"the disk of {state.directory} has {free} bytes left and nothing in the log may be deleted yet. "
        "Make space on the disk, or restore the link to the hub"
    )


def sure_room(state: LogState) -> int:
    """Return a number of pending bytes that ``admit`` accepts without checking the disk, minus a margin. Call with the
    lock."""
    active = state.segments[-1]
    left = active.size - active.end - active.index.footer_bytes - SURE_ROOM_MARGIN_BYTES
    return min(left, state.settings.pending_bytes_max)


class SegmentSpace(NamedTuple):
    """Space for the next segment, and the plan that makes it."""

    plan: Plan
    first_length: int
    """Bytes available to its file before the files of the plan are deleted."""
    length: int
    """Bytes available to its file after they are deleted."""
    least: int
    """Minimum bytes that it needs."""
    most: int
    """Maximum bytes available to it after they are deleted; 0 if it cannot even be begun."""

    @property
    def suffices(self) -> bool:
        """Return whether the segment can be begun and can hold its first commit."""
        return self.least <= self.most


def make_space(state: LogState, commit_bytes: int, *, sealing_frees: int = 0) -> SegmentSpace:
    """Plan the files to delete and the records to move and drop, for a segment that begins with a commit. Call with the
    lock.

    Args:
        commit_bytes: length of the commit; 0 for a segment that only retention needs, which never exceeds the budget.
            (A commit was promised its room, and a start must succeed after a power cut that restored deleted files.)
        sealing_frees: bytes that the newest segment will free when it is sealed.

    Raises:
        OSError: the disk's free space cannot be read.
    """
    settings, used = state.settings, state.bytes_on_disk() - sealing_frees
    on_disk = state.filesystem.free_bytes(state.directory) + sealing_frees
    limit = min(state.budget_bytes, used + on_disk)
    overhead = 2 * opening_bytes(state)
    wished = max(settings.segment_bytes, commit_bytes + commit_bytes // 8 + overhead)
    wanted = used + wished + settings.spare_bytes - limit
    free = limit - used
    # The newest segment may be freed too, because it is sealed before the next begins. Where that makes moves
    # necessary, the plan without it may free more.
    plans = [make_plan(state, segments, wanted, free) for segments in (state.segments, state.segments[:-1])]
    if state.promised is not None:
        # A later release may have led to other moves, which leave less room than the promised plan.
        plans.append(renewed(state, state.promised, free))
    # Freeing more than is wanted has no value, but each move has a cost.
    plan = max(plans, key=lambda plan: min(plan.freed_bytes, wanted))
    gone = sum(segment.size for segment in plan.victims) + sum(state.asides[path] for path in plan.asides)
    least = overhead + plan.moved_bytes + commit_bytes
    length = max(least, min(wished + plan.moved_bytes, limit - settings.spare_bytes - used + gone))
    begins = on_disk >= opening_bytes(state) + plan.moved_bytes
    most = (on_disk if commit_bytes else free) + gone if begins else 0
    return SegmentSpace(plan, max(0, min(length, free)), length, least, most)


def forget_released(state: LogState) -> None:
    """Forget releases below all numbers that are still in the log, so that the sets cannot grow without end."""
    for lane in state.lanes.values():
        first = min([gap.first for gap in lane.gaps], default=lane.durable_end)
        for numbers in (lane.held, lane.dropping):
            for start, _ in numbers:
                first = min(first, start)
                break
        # Numbers below everything that is held are released by definition. Without this the set of acknowledged ranges
        # would grow for as long as the node lives.
        lane.released.remove(0, first)


# Copying needed records out of segments that will be deleted.


class UnmovableSegment(Exception):
    """A segment whose records cannot be copied: it is damaged, or the device cannot read it."""

    def __init__(self, segment: Segment, cause: Exception) -> None:
        super().__init__(f"{segment.path} cannot be cleaned: {cause}")
        self.segment = segment


Needed = dict[tuple[int, bool], RangeSet]
"""(stream, moved before) -> numbers."""


class _Found(NamedTuple):
    stream: int
    base_seq: int
    offset: int
    source: int


def moved_batches(filesystem: FileSystem, victims: list[tuple[Segment, Needed]]) -> Iterator[bytes]:
    """Yield the batches with needed records of the victims, unchanged, each stream's in the order of its numbers.

    Raises:
        UnmovableSegment: one of them cannot be read. Batches yielded before are sound.
    """
    with contextlib.ExitStack() as stack:
        sources = []
        found: list[_Found] = []
        for segment, needed in victims:
            if not needed:
                continue
            with _blamed(segment):
                file = filesystem.open(segment.path, read_only=True)
                stack.callback(file.close)
                sources.append((segment, SegmentBytes(file, segment.first_position, segment.end)))
                found += _find(sources[-1][1], segment, needed, len(sources) - 1)
        # Numbers ascend within each stream of a segment; readers stop at the first number beyond what they want.
        for item in sorted(found):
            segment, source = sources[item.source]
            with _blamed(segment):
                frame = source.entry(item.offset)
                if frame is None:
                    raise Corrupt(f"the entry at offset {item.offset} is gone")
                body = bytes(frame.body)
            yield body


@contextlib.contextmanager
def _blamed(segment: Segment) -> Iterator[None]:
    try:
        yield
    except (CodecError, OSError) as error:
        raise UnmovableSegment(segment, error) from error


def _find(source: SegmentBytes, segment: Segment, needed: Needed, number: int) -> list[_Found]:
    """Find the places of the batches. The walk begins at the first needed one and skips bodies unread."""
    left = sum(numbers.count() for numbers in needed.values())
    spans = {True: segment.index.moved, False: segment.index.lanes}
    offset = min(spans[moved][stream].start_for(next(iter(ranges))[0]) for (stream, moved), ranges in needed.items())
    found = []
    # The index has a point for every few batches only, so the walk begins at the point before and ends when the last
    # needed record has been seen.
    while left > 0:
        head = source.peek(offset) if offset < source.end else None
        if head is None:
            raise Corrupt(f"{left} records are not where the index has them")
        if head.kind in (EntryKind.BATCH, EntryKind.MOVED):
            header = source.readable_batch_header(offset)
            is_moved = head.kind == EntryKind.MOVED
            numbers = RangeSet() if header is None else needed.get((header.stream, is_moved), RangeSet())
            if header is not None and numbers:
                missing = sum(end - first for first, end in numbers.missing(header.base_seq, header.end_seq))
                if missing < header.count:
                    found.append(_Found(header.stream, header.base_seq, offset, number))
                    left -= header.count - missing
        offset += ENTRY_HEADER_BYTES + head.length
    return found


# Dropping records on an operator's command.


def whole_batches(held: RangeSet, read: Callable[[int], list[bytes]], first: int, end: int) -> Range:
    """Return ``[first, end)`` without the parts of batches at its ends.

    Args:
        held: the readable numbers.
        read: returns the batch that holds a number.
    """
    # A batch is the unit of checksums and of moving: half of one can be neither dropped nor kept.
    first_batch, end_batch = _batch(held, read, first), _batch(held, read, end)
    return first_batch[1] if first_batch[0] < first else first, end_batch[0]


def _batch(held: RangeSet, read: Callable[[int], list[bytes]], seq: int) -> Range:
    """Return the first number and the end of the batch that holds ``seq``; ``seq`` for both if none does."""
    for data in read(seq)[:1] if seq in held else ():
        header = decode_header(data)
        if header.base_seq <= seq < header.end_seq:
            return header.base_seq, header.end_seq
    return seq, seq


def drop_backlog(  # noqa: PLR0917 - what, of what, and when
    state: LogState, stream: int, lane: StreamState, first: int, end: int, now: int
) -> RangeSet:
    """Queue notices for the part of ``[first, end)`` that no hub has. Call with the lock.

    Raises:
        LogFull: there is no room for the notices. Nothing is dropped.
        OSError: the disk's free space cannot be read.
    """
    numbers = RangeSet()
    for start, stop in held_within(lane.held, first, end):
        for part in lane.released.missing(start, stop):
            numbers.update(lane.dropping.missing(*part))
    spans = [span for segment in state.segments[:-1] for span in segment.index.spans_of(stream)]
    waiting = [unreleased(lane, span) for span in spans]
    # A drop that empties a file pays for its own notice.
    frees_files = any(held and all(numbers.covers(*part) for part in held) for held in waiting)
    admit_notices(state, sum(1 for _ in numbers), frees_files=frees_files)
    # Records that hubs have are dropped without a notice: a batch is kept as a whole or not at all.
    for start, stop in held_within(lane.released, first, end):
        lane.held.remove(start, stop)
    state.changes += 1
    if numbers:
        lane.dropping.update(numbers)
        state.queue.add_gaps(notices(stream, numbers, GapReason.OPERATOR, now))
        state.changed.notify()
    return numbers


# Part of an open log that admits records, and makes room by hubs' releases and policies.

AskedRun = tuple[int, list[bytes], list[bytes], dict[int, HeaderPairs] | None]
"""(stream, keys, payloads, headers) as for ``SegmentLog.append``."""


class LogSpace:
    """The room of an open log: policies, releases, and admission. Owner's thread only."""

    def __init__(self, state: LogState, poison: Callable[[Exception], LogFailed]) -> None:
        """Manage the room of ``state``.

        Args:
            poison: called when the disk's free space cannot be read.
        """
        self._state = state
        self._poison = poison

    def set_policy(self, stream: int, policy: StreamPolicy) -> None:
        """Set how long the stream's records are kept. The default keeps all until they are released, and refuses
        records when the log is full."""
        with self._state.changed:
            self._state.lane(stream).policy = policy
            self._state.changes += 1

    def refuse(self, stream: int, reason: str | None) -> None:
        """Refuse appends to a stream as if it had no room, with this reason, until a call with None.

        Earlier appends become durable. Appends within ``together`` are accepted: see ``ask_room``.
        """
        with self._state.changed:
            self._state.lane(stream).refusal = reason

    def origin(self, kind: int, name: str, version: str, hash_: bytes = b"") -> int:
        """Return the log's number of an origin, for ``append``; a new one becomes durable with the first batch that
        names it.

        Args:
            kind: an ``OriginKind``.
            hash_: checksum of the content.

        Raises:
            LogFull: there is no room.
            LogFailed: the log is poisoned.
            ValueError: a text or hash is too long, or there are more than ``ORIGINS_MAX`` in use.
        """
        if max(len(name), len(version)) > ORIGIN_TEXT_MAX or len(hash_) > HASH_BYTES_MAX:
            raise ValueError(
                f"the origin {name[:40]!r} has a name or version over {ORIGIN_TEXT_MAX} characters or a "
                f"hash over {HASH_BYTES_MAX} bytes: shorten it"
            )
        state = self._state
        with state.changed:
            if state.failed:
                raise state.failed
            # An origin is written once and named by its number in every batch header, so a row says what made it at no
            # cost for each record.
            if not state.origins.knows(kind, name, version, hash_):
                self._admit(ORIGIN_BYTES_MAX, uses_spare=True)  # stored only once, and functions' steps wait for it
            number, new = state.origins.number(kind, name, version, hash_)
            if new is not None:
                state.queue.add_origin(new)
            return number

    def note_clock(self, clock: ClockNotice) -> None:
        """Append a notice about a boot's clock; ``on_durable`` calls back when the log has it.

        Raises:
            LogFull: there is no room. Nothing was appended.
            LogFailed: the log is poisoned.
        """
        state = self._state
        with state.changed:
            if state.failed:
                raise state.failed
            self._admit(BATCH_OVERHEAD_BYTES)
            # Before the records that follow: a step of the clock is stated in the log, where it happened, and readers
            # correct the times by it.
            state.clocks.learn([clock])
            state.queue.add_clock(clock)
            state.changed.notify()

    def release(self, stream: int, ranges: RangeSet) -> None:
        """Treat these records and gap notices as safe elsewhere: they are deleted when the budget or retention requires
        it.

        Releases are not stored across restarts; the hub's next WELCOME repeats them.
        """
        with self._state.changed:
            lane = self._state.lane(stream)
            if self._state.released_lately is not None:
                had = self._state.released_lately.setdefault(stream, RangeSet())
                had.update(part for first, end in ranges for part in lane.held.within(first, end))
            lane.released.update(ranges)
            self._state.changes += 1
            forget_released(self._state)

    def take_released(self) -> dict[int, RangeSet]:
        """Return stream -> durable records that were released since the last call, also where the log has deleted them
        since. The first call returns nothing, and begins the account."""
        with self._state.changed:
            found, self._state.released_lately = self._state.released_lately, {}
            return found or {}

    def ask_room(self, runs: Iterable[AskedRun], time: int) -> None:
        """Make sure that streams that may refuse, or have a size of their own, have room for all of these runs. Call it
        within ``together``, before the first append. Owner's thread only.

        Args:
            time: ns since 1970.

        Raises:
            LogFull: one of the streams is full or refuses. Nothing was changed: append none of them.
        """
        sizes: dict[int, int] = {}
        for stream, keys, payloads, headers in runs:
            refusal = self._state.lane(stream).refusal
            # The run is refused as a whole: a half of it in the log would be sent again by the device, and be there
            # twice.
            if keys and refusal is not None:
                raise LogFull(refusal)
            if keys and self._state.lane(stream).policy.retain_bytes is not None:
                size = run_bytes(keys, payloads, headers) + BATCH_OVERHEAD_BYTES
                sizes[stream] = sizes.get(stream, 0) + size
        with self._state.lock:
            for refusing in (True, False):
                # Refusing streams first: no records must be dropped for a run that is then refused.
                for stream, size in sizes.items():
                    lane = self._state.lane(stream)
                    if (lane.policy.when_full == "refuse") is refusing:
                        admit_to_stream(self._state, stream, lane, size, time)

    def shortage(self) -> str | None:
        """Return why the log refuses records for lack of disk space, with advice, or None. Owner's thread only."""
        with self._state.changed:
            try:
                return shortage(self._state)
            except OSError as error:
                self._poison(error)
                return None

    def _admit(self, length: int, *, uses_spare: bool = False) -> None:
        try:
            admit(self._state, length, uses_spare=uses_spare)
        except OSError as error:
            raise self._poison(error) from error

    def _admit_to_stream(self, stream: int, lane: StreamState, length: int, now: int) -> None:
        try:
            admit_to_stream(self._state, stream, lane, length, now)
        except LogFull:
            # Appends that belong together are accepted as a whole: a stream may exceed its own size by them, but not
            # the log.
            if self._state.queue.together is None:
                raise
