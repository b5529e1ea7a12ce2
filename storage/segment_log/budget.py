"""Keeping the log within its disk budget: what may be deleted, and when an append must be refused.

Only sealed segments go, oldest first, only when the budget needs it, and only once every record and gap notice in them
is released. The newest segment begins with a ``STREAMS`` entry that was durable before anything older went, so
sequence numbers continue whatever is deleted.
"""

from __future__ import annotations

import contextlib
import logging

from protocols.ranges import RangeSet
from storage.segment_log.errors import LogFull
from storage.segment_log.pending import BATCH_OVERHEAD_BYTES
from storage.segment_log.quarantine import aside_path
from storage.segment_log.segment_file import Segment
from storage.segment_log.settings import LogSettings
from storage.segment_log.state import LogState

logger = logging.getLogger(__name__)


def released(state: LogState, segment: Segment) -> bool:
    """Whether everything a segment holds is safe elsewhere. Call with the lock."""
    lanes = state.lanes
    for stream, span in segment.index.lanes.items():
        gone = RangeSet((gap.first, gap.end) for gap in lanes[stream].gaps)
        gone.update(lanes[stream].released)
        if not all(gone.covers(first, end) for first, end in span.ranges):
            return False
    return all(lanes[gap.stream].released.covers(gap.first, gap.end) for gap in segment.index.gaps)


def reclaimable_bytes(state: LogState) -> int:
    """Bytes that ``make_room`` could free. Call with the lock."""
    total = sum(state.asides.values())
    for segment in state.segments[:-1]:
        if not released(state, segment):
            break
        total += segment.size
    return total


def admit(state: LogState, length: int) -> None:
    """Refuse ``length`` more uncompressed bytes if there is no room for them. Call with the lock.

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
    reason = _shortage(state, pending)
    if reason is not None:
        state.refused_bytes = max(state.refused_bytes, length)
        raise LogFull(reason)


def shortage(state: LogState) -> str | None:
    """Why there is no room for what was refused, or for anything at all; None when there is. Call with the lock.

    Raises:
        OSError: the disk does not say how much is free.
    """
    reason = _shortage(state, state.queue.raw_bytes + max(state.refused_bytes, BATCH_OVERHEAD_BYTES))
    if reason is None:
        state.refused_bytes = 0
    return reason


def _shortage(state: LogState, pending: int) -> str | None:
    active, budget_bytes = state.segments[-1], state.settings.budget_bytes
    if active.end + pending + active.index.footer_bytes <= active.size:
        return None
    used = state.bytes_on_disk()
    needed = used - active.size + active.end + active.index.footer_bytes + pending + state.settings.segment_bytes
    needed -= reclaimable_bytes(state)
    if needed > budget_bytes:
        return (
            f"the log in {state.directory} uses {used} of {budget_bytes} bytes and nothing in it may be deleted yet: "
            "restore the link to the hub, or raise the disk budget"
        )
    free = state.filesystem.free_bytes(state.directory)
    if needed > used + free:
        return (
            f"the disk of {state.directory} has {free} bytes left and nothing in the log may be deleted yet: "
            "make space on the disk, or restore the link to the hub"
        )
    return None


def _budget_bytes(state: LogState) -> int:
    """The budget, or less when other files leave the disk too little."""
    free = state.filesystem.free_bytes(state.directory)
    return min(state.settings.budget_bytes, state.bytes_on_disk() + free)


def make_room(state: LogState, length: int) -> None:
    """Delete released segments, oldest first, until ``length`` more bytes stay within the budget or none is left.

    The newest segment always stays. For the writer thread, without the lock.

    Raises:
        OSError: a file could not be removed durably.
    """
    while True:
        with state.changed:
            if state.bytes_on_disk() + length <= _budget_bytes(state):
                return
            path = _forget_oldest(state)
        if path is None:
            return
        with contextlib.suppress(FileNotFoundError):
            state.filesystem.remove(path)
        state.filesystem.sync_directory(state.directory)


def _forget_oldest(state: LogState) -> str | None:
    if state.asides:
        path = min(state.asides)
        del state.asides[path]
        return path
    if len(state.segments) < 2 or not released(state, state.segments[0]):
        return None
    segment = state.segments.pop(0)
    for stream, span in segment.index.lanes.items():
        for first, end in span.ranges:
            state.lanes[stream].held.remove(first, end)
    for gap in segment.index.gaps:
        state.lanes[gap.stream].gaps.remove(gap)
    aside = aside_path(segment.path)
    if state.filesystem.exists(aside):
        state.asides[aside] = segment.size
    logger.info("deleted the released segment %s (%d bytes)", segment.path, segment.size)
    return segment.path


def forget_released(state: LogState) -> None:
    """Drop what is known of releases below everything the log still speaks of, so that it cannot grow for ever."""
    for lane in state.lanes.values():
        first = min([gap.first for gap in lane.gaps], default=lane.durable_end)
        for start, _ in lane.held:
            first = min(first, start)
            break
        lane.released.remove(0, first)


def new_segment_bytes(settings: LogSettings, first_commit_bytes: int) -> int:
    """What to reserve for a segment whose first commit is that long."""
    return max(settings.segment_bytes, first_commit_bytes + first_commit_bytes // 8)
