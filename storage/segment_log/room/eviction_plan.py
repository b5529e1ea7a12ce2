"""Choice of the segments that make room, by the cost of cleaning and the loss. A plan is made under the lock and
carried out later.

The order, oldest first within each group: files kept aside; segments without needed records; segments with a small
needed part, which is moved; segments with a needed part of at most a half; and if that is not enough, segments that get
into these groups by dropping the oldest records of streams that allow it.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.protocols.ranges import RangeSet
from weft.protocols.segment import ENTRY_HEADER_BYTES, encode_body
from weft.storage.segment_log.room.must_keep import gap_bytes, needed_bytes
from weft.storage.segment_log.settings import MOVE_SHARE
from weft.storage.segment_log.state.log_state import LogState, Plan
from weft.storage.segment_log.state.segment import Segment

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
        if need == 0:
            plan.victims.append(segment)
            plan.freed_bytes += segment.size
        else:
            needs.append((segment, need))
    room = _moving_room(state, free_bytes)
    # Moved records must leave room for the notices without which nothing can be dropped.
    movable = room - gap_bytes(state) * sum(lane.policy.when_full == "drop_oldest" for lane in state.lanes.values())
    cheap = min(movable, state.settings.segment_bytes // MOVE_SHARE)
    for most, part in ((cheap, MOVE_SHARE), (movable, 2)):
        for segment, need in needs:
            if plan.freed_bytes >= wanted_bytes:
                return plan
            if segment not in plan.victims and need * part <= segment.size:
                _take(plan, segment, need, most)
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
