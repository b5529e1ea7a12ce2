"""Keeping the log within its disk budget: when an append must be refused, and how large a new segment may be."""

from __future__ import annotations

from typing import NamedTuple

from weft.storage.segment_log.errors import LogFull
from weft.storage.segment_log.room.eviction_plan import make_plan, opening_bytes, renewed
from weft.storage.segment_log.room.retention import shrink
from weft.storage.segment_log.settings import SEGMENT_SHARE_MIN, SURE_ROOM_MARGIN_BYTES
from weft.storage.segment_log.state.log_state import LogState, Plan, StreamState
from weft.storage.segment_log.state.run_sizes import BATCH_OVERHEAD_BYTES

LONG_NOTICES = 2
"""Number of gap notices for whole files that find room when short ones have used up theirs."""


def admit(state: LogState, length: int, *, uses_spare: bool = False) -> None:
    """Refuse ``length`` more uncompressed bytes if there is no room for them. Call with the lock.

    Args:
        uses_spare: they may take the room that is kept free for moving.

    Raises:
        LogFull: nothing was changed.
        OSError: the disk does not say how much is free.
    """
    pending = state.queue.raw_bytes + length
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
    """Refuse ``length`` more bytes of a stream that has a size of its own and is full. Call with the lock.

    Raises:
        LogFull: nothing was taken.
    """
    assert lane.policy.retain_bytes is not None
    used = lane.bytes + lane.queued_bytes
    excess = used + length - lane.policy.retain_bytes
    if excess <= 0 or not used:
        return
    if lane.full_since == state.changes or (
        shrink(state, stream, excess, now) > 0
        # What waits for the disk cannot be dropped. Of a stream that drops its oldest it may exceed the size until it
        # is written, which ``admit`` bounds: devices are not refused for what they have just sent.
        and not (lane.policy.when_full == "drop_oldest" and lane.bytes <= 0)
    ):
        lane.full_since = state.changes
        raise LogFull(
            f"stream {lane.name} takes {used} of its {lane.policy.retain_bytes} bytes and none of them may go yet. "
            "Restore the link to the hub, raise the stream's retain.size, or let it drop its oldest records (when_full)"
        )


def admit_notices(state: LogState, count: int, *, frees_files: bool) -> None:
    """Refuse an operator's gap notices for which even the room that is kept free is too small. Call with the lock.

    Args:
        frees_files: what they speak of is all that some file holds of a stream. The last of the room is for those:
            only they lead out of a log that is full.

    Raises:
        LogFull: nothing was changed.
        OSError: the disk does not say how much is free.
    """
    active, used = state.segments[-1], state.bytes_on_disk()
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
    """Return why there is no room for the refused append, or for any; None when there is. Call with the lock.

    Raises:
        OSError: the disk does not say how much is free.
    """
    reason = _shortage(state, state.queue.raw_bytes + max(state.refused_bytes, BATCH_OVERHEAD_BYTES))
    if reason is None:
        state.refused_bytes = 0
    return reason


def _shortage(state: LogState, pending: int, *, uses_spare: bool = False) -> str | None:
    active, budget_bytes = state.segments[-1], state.budget_bytes
    if active.end + pending + active.index.footer_bytes <= active.size:
        return None
    known = None if uses_spare else state.refusal
    if known is not None and known[0] == state.changes and pending >= known[1]:
        return known[2]
    used = state.bytes_on_disk()
    sealed = used - active.size + active.end + active.index.footer_bytes
    needed = sealed + pending
    needed += state.settings.segment_bytes // SEGMENT_SHARE_MIN + opening_bytes(state)
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
    if budget_bytes <= used + free:
        reason = (
            f"the log in {state.directory} uses {used} of {state.settings.budget_bytes} bytes and nothing in it may be "
            "deleted yet. Restore the link to the hub, or raise the disk budget"
        )
        state.refusal = (state.changes, pending, reason)
        return reason
    return (
        f"the disk of {state.directory} has {free} bytes left and nothing in the log may be deleted yet. "
        "Make space on the disk, or restore the link to the hub"
    )


def sure_room(state: LogState) -> int:
    """Pending bytes that ``admit`` would take without a look at the disk, and some less. Call with the lock."""
    active = state.segments[-1]
    left = active.size - active.end - active.index.footer_bytes - SURE_ROOM_MARGIN_BYTES
    return min(left, state.settings.pending_bytes_max)


class Room(NamedTuple):
    """Space for the next segment, and the plan that makes it."""

    plan: Plan
    first_length: int
    """Bytes that its file may take before the files of the plan are deleted."""
    length: int
    """Bytes that its file may take once they are deleted."""
    least: int
    """Bytes that it cannot do without."""
    most: int
    """Bytes available to it once they are deleted; 0 when it cannot even be begun."""

    @property
    def suffices(self) -> bool:
        """Return whether the segment can be begun, and hold its first commit."""
        return self.least <= self.most


def make_room(state: LogState, commit_bytes: int, *, sealing_frees: int = 0) -> Room:
    """Plan what to delete, move and drop for a segment that begins with that commit. Call with the lock.

    Args:
        commit_bytes: length of the commit; 0 for a segment that only retention asks for, which never takes more than
            the budget. (A commit was promised its room, and a start after a power cut that brought files back must go
            on.)
        sealing_frees: bytes of the newest segment that it gives back when it is sealed, which is still to be done.

    Raises:
        OSError: the disk does not say how much is free.
    """
    settings, used = state.settings, state.bytes_on_disk() - sealing_frees
    on_disk = state.filesystem.free_bytes(state.directory) + sealing_frees
    limit = min(state.budget_bytes, used + on_disk)
    overhead = 2 * opening_bytes(state)
    wished = max(settings.segment_bytes, commit_bytes + commit_bytes // 8 + overhead)
    wanted = used + wished + settings.spare_bytes - limit
    free = limit - used
    plans = [make_plan(state, segments, wanted, free) for segments in (state.segments, state.segments[:-1])]
    if state.promised is not None:
        # A release since then may have led to other moves, which leave less room than those that were counted on.
        plans.append(renewed(state, state.promised, free))
    plan = max(plans, key=lambda plan: min(plan.freed_bytes, wanted))
    gone = sum(segment.size for segment in plan.victims) + sum(state.asides[path] for path in plan.asides)
    least = overhead + plan.moved_bytes + commit_bytes
    length = max(least, min(wished + plan.moved_bytes, limit - settings.spare_bytes - used + gone))
    begins = on_disk >= opening_bytes(state) + plan.moved_bytes
    most = (on_disk if commit_bytes else free) + gone if begins else 0
    return Room(plan, max(0, min(length, free)), length, least, most)


def forget_released(state: LogState) -> None:
    """Drop what is known of releases below everything the log still speaks of, so that it cannot grow without end."""
    for lane in state.lanes.values():
        first = min([gap.first for gap in lane.gaps], default=lane.durable_end)
        for numbers in (lane.held, lane.dropping):
            for start, _ in numbers:
                first = min(first, start)
                break
        lane.released.remove(0, first)
