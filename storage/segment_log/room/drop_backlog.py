"""Dropping records on an operator's command."""

from __future__ import annotations

from collections.abc import Callable

from weft.protocols.batch import decode_header
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.segment import GapReason
from weft.storage.segment_log.room.budget import admit_notices
from weft.storage.segment_log.room.must_keep import unreleased
from weft.storage.segment_log.room.retention import held_within
from weft.storage.segment_log.state.gaps import notices
from weft.storage.segment_log.state.log_state import LogState, StreamState


def whole_batches(held: RangeSet, read: Callable[[int], list[bytes]], first: int, end: int) -> Range:
    """Return ``[first, end)`` without the parts of batches at its ends.

    Args:
        held: the readable numbers.
        read: returns the batch that holds a number.
    """
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
