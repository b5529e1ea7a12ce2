"""Keeping the log within its disk budget: refusal of appends, and the size of a new segment."""

from __future__ import annotations

from typing import NamedTuple

from weft.storage.segment_log.errors import LogFull
from weft.storage.segment_log.room.eviction_plan import make_plan, opening_bytes, renewed
from weft.storage.segment_log.room.retention import shrink
from weft.storage.segment_log.settings import SEGMENT_SHARE_MIN, SURE_ROOM_MARGIN_BYTES
from weft.storage.segment_log.state.log_state import LogState, Plan, StreamState
from weft.storage.segment_log.state.run_sizes import BATCH_OVERHEAD_BYTES

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
    if excess <= 0 or not used:
        return
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
    """Return a number of pending bytes that ``admit`` accepts without checking the disk, minus a margin. Call with the
    lock."""
    active = state.segments[-1]
    left = active.size - active.end - active.index.footer_bytes - SURE_ROOM_MARGIN_BYTES
    return min(left, state.settings.pending_bytes_max)


class Room(NamedTuple):
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


def make_room(state: LogState, commit_bytes: int, *, sealing_frees: int = 0) -> Room:
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
    plans = [make_plan(state, segments, wanted, free) for segments in (state.segments, state.segments[:-1])]
    if state.promised is not None:
        # A later release may have led to other moves, which leave less room than the promised plan.
        plans.append(renewed(state, state.promised, free))
    plan = max(plans, key=lambda plan: min(plan.freed_bytes, wanted))
    gone = sum(segment.size for segment in plan.victims) + sum(state.asides[path] for path in plan.asides)
    least = overhead + plan.moved_bytes + commit_bytes
    length = max(least, min(wished + plan.moved_bytes, limit - settings.spare_bytes - used + gone))
    begins = on_disk >= opening_bytes(state) + plan.moved_bytes
    most = (on_disk if commit_bytes else free) + gone if begins else 0
    return Room(plan, max(0, min(length, free)), length, least, most)


def forget_released(state: LogState) -> None:
    """Forget releases below all numbers that are still in the log, so that the sets cannot grow without end."""
    for lane in state.lanes.values():
        first = min([gap.first for gap in lane.gaps], default=lane.durable_end)
        for numbers in (lane.held, lane.dropping):
            for start, _ in numbers:
                first = min(first, start)
                break
        lane.released.remove(0, first)
