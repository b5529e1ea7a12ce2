"""The batches of a stream whose records were received within a window of time, found by their headers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from weft.protocols.batch import BatchHeader
from weft.protocols.errors import CodecError
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import ENTRY_HEADER_BYTES, EntryKind
from weft.storage.segment_log.state.log_state import LogState
from weft.storage.segment_log.state.segment import Segment
from weft.storage.segment_log.walk.frames import SegmentBytes

_logger = logging.getLogger(__name__)
_WINDOW_BYTES = 256 << 10
ENTRIES_PER_STEP = 1024
"""Number of entries that are looked at without a pause: some milliseconds."""


class FoundBatch(NamedTuple):
    """A stored batch."""

    first: int
    end: int
    """One past its last number."""
    size: int
    """Bytes as stored."""


def batches_between(state: LogState, stream: int, since: int, until: int) -> Iterator[list[FoundBatch]]:
    """Yield the durable batches with records from ``since`` on and before ``until``, a step's at a time. Blocks on the
    disk; any thread.

    Whole batches: those at the ends may have records from outside. A batch that is moved meanwhile may come twice.
    Damaged parts are passed over.

    Args:
        since: nanoseconds since 1970, by the node's clock as of the records.
        until: likewise.

    Raises:
        OSError: a file cannot be opened.
    """
    with state.changed:
        held = state.lane(stream).held.copy()
        segments = [
            segment
            for segment in state.segments
            if any(span.first_time < until and span.last_time >= since for span in segment.index.spans_of(stream))
        ]
    for segment in segments:
        yield from _of_segment(state, segment, stream, (since, until), held)


def _of_segment(
    state: LogState, segment: Segment, stream: int, window: tuple[int, int], held: RangeSet
) -> Iterator[list[FoundBatch]]:
    since, until = window
    with state.changed:
        offset = min(span.start_for(0) for span in segment.index.spans_of(stream))
        end = segment.end
    try:
        file = state.filesystem.open(segment.path, read_only=True)
    except FileNotFoundError:
        return  # released and deleted meanwhile
    found: list[FoundBatch] = []
    try:
        source = SegmentBytes(file, segment.first_position, end, window_bytes=_WINDOW_BYTES)
        looked_at = 0
        while offset < end and (head := source.peek(offset)) is not None:
            if head.kind in (EntryKind.BATCH, EntryKind.MOVED):
                header = source.readable_batch_header(offset)
                if header is not None and _is_wanted(header, stream, since, until, held):
                    found.append(FoundBatch(header.base_seq, header.end_seq, head.length))
            offset += ENTRY_HEADER_BYTES + head.length
            looked_at += 1
            if looked_at % ENTRIES_PER_STEP == 0:
                yield found
                found = []
    except (CodecError, OSError) as error:
        _logger.warning("%s is passed over from offset %d on, looking for records: %s", segment.path, offset, error)
    finally:
        file.close()
    yield found


def _is_wanted(header: BatchHeader, stream: int, since: int, until: int, held: RangeSet) -> bool:
    times = header.first_time, header.last_time
    is_within = min(times) < until and max(times) >= since
    return header.stream == stream and is_within and held.covers(header.base_seq, header.end_seq)
