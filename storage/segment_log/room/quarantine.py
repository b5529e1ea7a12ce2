"""Damage in a segment: the file is kept aside, lost records get a gap notice, the rest remains readable.

The segment itself remains in place, because most of it is sound; ``<name>.damaged`` is a second name (hard link) of the
same file, so that the evidence outlives the segment until the budget needs its space.
"""

from __future__ import annotations

import logging
import os

from weft.protocols.errors import UnsupportedVersion
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapNotice, GapReason
from weft.storage.filesystem import FileSystem
from weft.storage.segment_log.errors import LogVersionError
from weft.storage.segment_log.names import aside_path
from weft.storage.segment_log.state.log_state import LogState
from weft.storage.segment_log.state.segment import Segment
from weft.storage.segment_log.walk.frames import SegmentBytes
from weft.storage.segment_log.walk.scan import Scan, scan_segment

logger = logging.getLogger(__name__)


def keep_aside(filesystem: FileSystem, path: str) -> bool:
    """Add the second name of a damaged segment, durably. False if it existed already: then the damage was reported."""
    try:
        filesystem.link(path, aside_path(path))
        filesystem.sync_directory(os.path.dirname(path))
    except FileExistsError:
        return False
    except OSError as error:
        logger.warning("the damaged segment %s cannot be kept aside: %s", path, error)
    return True


def missing_gaps(expected: dict[int, RangeSet], found: dict[int, RangeSet], now: int) -> list[GapNotice]:
    """Return notices for the expected numbers that were not found."""
    return [
        GapNotice(stream, first, end, GapReason.CORRUPTION, now)
        for stream, ranges in expected.items()
        for start, stop in ranges
        for first, end in found.get(stream, RangeSet()).missing(start, stop)
    ]


def quarantine(state: LogState, segment: Segment, now: int) -> list[GapNotice]:
    """Scan a segment in which a read found damage. Returns the queued notices, often none.

    The whole file is scanned, so that all its damage is known at once. Any thread; blocking.

    Raises:
        LogVersionError: the segment has an entry that only a later release understands.
        OSError: the file cannot be opened.
    """
    with state.changed:
        end = segment.end
        expected: dict[int, RangeSet] = {}
        for stream, span in segment.index.spans():
            expected.setdefault(stream, RangeSet()).update(_held(state, stream, span.ranges))
    scan = _scan(state.filesystem, segment, end)
    found: dict[int, RangeSet] = {}
    for stream, span in scan.index.spans():
        found.setdefault(stream, RangeSet()).update(span.ranges)
    with state.changed:
        gaps = missing_gaps(expected, found, now)
        # Another reader may have found the same damage meanwhile.
        gaps = [gap for gap in gaps if state.lanes[gap.stream].held.covers(gap.first, gap.end)]
        for known, seen in ((segment.index.lanes, scan.index.lanes), (segment.index.moved, scan.index.moved)):
            for stream in known.keys() & seen.keys():
                known[stream].add_points(seen[stream])
        for gap in gaps:
            state.lanes[gap.stream].held.remove(gap.first, gap.end)
            for span in segment.index.spans_of(gap.stream):
                span.ranges.remove(gap.first, gap.end)
            state.tail.drop(gap.stream)
        if scan.damage or gaps:
            segment.is_movable = False
            state.changes += 1
        if gaps and state.failed is None:
            state.queue.add_gaps(gaps)
            state.changed.notify_all()
    if gaps:
        keep_aside(state.filesystem, segment.path)
        report_damage(segment.path, scan, gaps)
    return gaps


def _held(state: LogState, stream: int, ranges: RangeSet) -> RangeSet:
    held = state.lanes[stream].held
    result = ranges.copy()
    for first, end in ranges:
        for start, stop in held.missing(first, end):
            result.remove(start, stop)
    return result


def _scan(filesystem: FileSystem, segment: Segment, end: int) -> Scan:
    file = filesystem.open(segment.path, read_only=True)
    try:
        return scan_segment(
            SegmentBytes(file, segment.first_position, end, unreadable_as_zeros=True), may_be_torn=False
        )
    except UnsupportedVersion as error:
        raise LogVersionError(f"{segment.path} was written by a later release of Weft: {error}") from error
    finally:
        file.close()


def report_damage(path: str, scan: Scan, gaps: list[GapNotice]) -> None:
    """Log the lost records."""
    lost = ", ".join(f"stream {gap.stream} seq {gap.first} to {gap.end - 1}" for gap in gaps)
    logger.error(
        "damage in %s at bytes %s: lost %s; recorded as gap notices, and the file is kept as %s",
        path, scan.damage, lost or "nothing", aside_path(path),
    )  # fmt: skip
