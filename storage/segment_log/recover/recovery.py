"""Opening a log: what its segments say is put together, a torn tail is cut, losses are recorded.

Nothing here needs a person: whatever is found, the log opens, with a report of what was cut or lost. The one exception
is a directory that a later release wrote, which is left alone.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from weft.protocols.lane import NodeName
from weft.protocols.ranges import SEQ_END, RangeSet
from weft.protocols.segment import GapNotice, Owner
from weft.storage.filesystem import FileSystem
from weft.storage.segment_log.commit.new_segment import open_segment
from weft.storage.segment_log.commit.segment_file import SegmentWriter
from weft.storage.segment_log.errors import WrongOwner
from weft.storage.segment_log.names import DAMAGED
from weft.storage.segment_log.recover.identity import Identity, keep_identity
from weft.storage.segment_log.recover.loading import Loaded
from weft.storage.segment_log.room.budget import Room
from weft.storage.segment_log.room.quarantine import keep_aside, missing_gaps, report_damage
from weft.storage.segment_log.room.retention import forget_lost, held_within
from weft.storage.segment_log.state.log_state import LaneState, LogState, Plan
from weft.storage.segment_log.state.segment import Segment
from weft.storage.segment_log.walk.scan import Scan

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecoveryReport:
    """What opening a log found and did."""

    created: bool = False
    """The log is new: no usable segment was there."""
    segments: int = 0
    torn_bytes: int = 0
    """Bytes cut from the end of the newest segment: a commit whose fsync never returned. None were acknowledged."""
    torn_file: str | None = None
    torn_offset: int | None = None
    """Offset in ``torn_file`` at which was cut."""
    unreadable_bytes: int = 0
    """Bytes that the device cannot read where the newest records stood. How many records they held is not known: those
    of ``gaps`` that end at a stream's next number say how many at most."""
    damaged: tuple[str, ...] = ()
    """Files in which damage was found, or that may be another log's, each kept aside as ``<name>.damaged``."""
    gaps: tuple[GapNotice, ...] = ()
    """Acknowledged records found missing now, each range now recorded as a gap."""
    lanes: dict[str, int] = field(default_factory=dict)
    """Stream -> its next sequence number."""
    seconds: float = 0.0


def fold(state: LogState, loaded: list[Loaded]) -> None:
    """Account for the segments in the log's lanes."""
    next_seqs: dict[int, int] = {}
    _count_once(loaded)
    for item in loaded:
        state.segments.append(item.segment)
        index = item.segment.index
        names = {stream: entry.name for stream, entry in (item.streams or {}).items()} | index.streams
        for stream, name in names.items():
            state.lanes.setdefault(stream, LaneState(name)).name = name
        ends = [(stream, span.ranges.end) for stream, span in index.spans()]
        ends += [(kept.stream, kept.next_seq) for kept in index.kept]
        ends += [(gap.stream, gap.end) for gap in index.gaps]
        ends += [(stream, entry.next_seq) for stream, entry in (item.streams or {}).items()]
        ends += list(item.scan.next_seqs.items()) if item.scan else []
        for stream, end in ends:
            # A stream whose every naming entry was lost still keeps its records.
            state.lanes.setdefault(stream, LaneState(f"unnamed-{stream}"))
            next_seqs[stream] = max(next_seqs.get(stream, 0), end)
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
    """Records that were moved forward and stand in their old segments too count where they stand last."""
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
    """Notices for numbers that were given out and acknowledged, and are neither held nor noticed yet.

    Before anything is deleted the log writes down what it answers for without it, so the last such entry says what must
    be there, together with all numbers given out since.
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
    """Earlier releases deleted segments oldest first, so what lies before the oldest segment went rightly; its first
    entry says where each stream stood then, and a stream that it does not name began later, at 0. Before the first
    segment of all there was nothing, whatever is left of it.
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


def continue_or_create(state: LogState, loaded: list[Loaded], now: int) -> SegmentWriter:
    """The segment to write: the newest one with its torn tail cut, or a new one after it."""
    position = 0
    if loaded:
        newest = loaded[-1]
        position = newest.segment.first_position + newest.segment.size
        if newest.scan is None:
            _seal_again(state.filesystem, newest.segment)
        elif newest.scan.unreadable_bytes or not _reads_again(state.filesystem, newest):
            # Nothing is written to a file whose blocks cannot be read: it stays as it is, unsealed.
            _sync(state.filesystem, newest.segment.path)
        else:
            writer = _resume(state, newest)
            if not newest.damaged:
                return writer
            # Evidence is not written over: what is sound here is sealed, and the log goes on in a new file.
            newest.segment.size = writer.seal(newest.segment.index.to_footer())
            position = newest.segment.first_position + newest.segment.size
    length = _reservable(state, state.bytes_on_disk())
    return open_segment(state, position, now, Room(Plan(), length, length, length, length))


def _seal_again(filesystem: FileSystem, segment: Segment) -> None:
    """Write the newest sealed segment's footer once more, for the same reason as ``_resume`` the last commit."""
    file = filesystem.open(segment.path)
    try:
        file.write_at(segment.end, file.read_at(segment.end, segment.size - segment.end))
        file.truncate(segment.size)
        file.sync()
    finally:
        file.close()


def _reads_again(filesystem: FileSystem, newest: Loaded) -> bool:
    """Whether the device reads the last commit a second time."""
    assert newest.scan is not None
    file = filesystem.open(newest.segment.path, read_only=True)
    try:
        file.read_at(newest.scan.last_mark, newest.segment.end - newest.scan.last_mark)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return False
    finally:
        file.close()
    return True


def _sync(filesystem: FileSystem, path: str) -> None:
    file = filesystem.open(path)
    try:
        file.sync()
    finally:
        file.close()


def _reservable(state: LogState, used: int, written: int = 0) -> int:
    """What may be reserved for a segment at start-up, when nothing is released yet: the budget holds from the start.

    On a disk that others have filled the log opens all the same, and refuses records until there is space. Half of
    what is left is for others, such as the links' epochs, without which nothing here is ever released.

    Args:
        used: bytes of the other segments.
        written: bytes that the segment has already.
    """
    free = state.filesystem.free_bytes(state.directory)
    settings = state.settings
    room = state.budget_bytes - settings.spare_bytes - used
    return max(0, min(settings.segment_bytes, room, written + free // 2))


def _resume(state: LogState, newest: Loaded) -> SegmentWriter:
    """Cut what follows the last sound entry, and make certain that the last commit is on the disk.

    After a failed fsync the bytes that a new process reads may be in memory only, with the system believing them
    written; so the last commit, the only one of which that may be true, is written again before anybody relies on it.
    """
    segment, scan = newest.segment, newest.scan
    assert scan is not None
    others = state.bytes_on_disk() - segment.size
    file = state.filesystem.open(segment.path)
    try:
        if not newest.damaged:
            file.write_at(scan.last_mark, file.read_at(scan.last_mark, segment.end - scan.last_mark))
        file.truncate(segment.end)
        file.sync()
        if not newest.damaged:
            # Zeros beyond the end, durably, before anything is appended: stale bytes never pass for entries.
            file.allocate(max(_reservable(state, others, segment.end), segment.end))
            file.sync()
        segment.size = file.size()
        state.unmarked |= scan.unmarked
        return SegmentWriter(file, segment)
    except BaseException:
        file.close()
        raise


def recover(  # noqa: PLR0917 - what was found, who asks, and when
    state_of: Callable[[int], LogState],
    loaded: list[Loaded],
    known: Identity | None,
    owner: NodeName | None,
    new_id: int,
    now: int,
) -> tuple[LogState, SegmentWriter, RecoveryReport]:
    """Build the log's state from its segments and decide where to write on.

    Args:
        state_of: makes an empty state for a log id.
        known: the log's id as it is kept beside the segments; segments without a sound header go by it.
        owner: whose log it must be, and becomes if nothing says so; None to take it whosever it is.
        new_id: the log id if there is no log yet.

    Raises:
        WrongOwner: it is another's; nothing was written.
        OSError: a write failed; opening again starts over.
    """
    known_id = known.log_id if known and loaded else None
    log_id = next((item.header.log_id for item in reversed(loaded) if item.header), known_id)
    state = state_of(new_id if log_id is None else log_id)
    fold(state, loaded)
    if owner is not None:
        _check_owner(state, owner)
    if known is not None and known.log_id == log_id:
        state.first_seq = max(state.first_seq, known.first_seq)
    # Before the log goes on in a new segment: then nothing tells any more that this one hid something.
    keep_identity(state.filesystem, state.directory, Identity(state.log_id, state.first_seq))
    gaps = find_losses(state, loaded, now)
    damaged = _keep_aside(state, loaded, gaps)
    for item in loaded[:-1]:
        item.segment.index.forget_names()
    lanes = {lane.name: lane.next_seq for lane in state.lanes.values()}
    report = RecoveryReport(log_id is None, len(loaded), damaged=damaged, gaps=tuple(gaps), lanes=lanes)
    newest = loaded[-1] if loaded else None
    if newest and newest.scan and newest.scan.unreadable_bytes:
        report = replace(report, unreadable_bytes=newest.scan.unreadable_bytes)
        logger.error(
            "%d bytes of %s where the newest records stood cannot be read. How many records they held is not known: "
            "the notices say up to how many, and streams go on behind them at %s",
            report.unreadable_bytes, newest.segment.path, lanes,
        )  # fmt: skip
    if newest and newest.scan and newest.scan.torn_bytes:
        path, end, torn_bytes = newest.segment.path, newest.segment.end, newest.scan.torn_bytes
        report = replace(report, torn_bytes=torn_bytes, torn_file=path, torn_offset=end)
        logger.warning(
            "cut a torn tail of %d bytes from %s at offset %d: an unacknowledged commit; streams go on at %s",
            torn_bytes, path, end, lanes,
        )  # fmt: skip
    if gaps:
        # Before a segment is begun, so that it says that the log answers for them.
        state.queue.add_gaps(gaps)
    writer = continue_or_create(state, loaded, now)
    return state, writer, report


def _check_owner(state: LogState, owner: NodeName) -> None:
    if state.owner is None:
        # A new log, or one of a release whose logs did not say it.
        state.owner = Owner(*owner, [])
    elif state.owner.name != owner:
        raise WrongOwner(state.directory, state.owner.name, owner)


def _keep_aside(state: LogState, loaded: list[Loaded], gaps: list[GapNotice]) -> tuple[str, ...]:
    damaged = []
    for item in loaded:
        footer_lost = item.scan is not None and item is not loaded[-1]
        if (item.damaged or footer_lost) and keep_aside(state.filesystem, item.segment.path):
            damaged.append(item.segment.path)
            report_damage(item.segment.path, item.scan or Scan(), gaps)
    segments = {item.segment.path for item in loaded}
    for name in state.filesystem.list_names(state.directory):
        path = os.path.join(state.directory, name)
        if name.endswith(DAMAGED) and path.removesuffix(DAMAGED) not in segments:
            with contextlib.suppress(FileNotFoundError):
                state.asides[path] = state.filesystem.size(path)
    return tuple(damaged)
