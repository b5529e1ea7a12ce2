"""Opening of a log: lock and load its directory, cut a torn tail, account for what is missing, and continue."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from weft.protocols import segment as format_
from weft.protocols.batch import ClockReading
from weft.protocols.checksum import crc32c
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.lane import NodeName
from weft.protocols.ranges import SEQ_END, RangeSet
from weft.protocols.segment import HEADER_BYTES, GapNotice, Owner, SegmentHeader, StreamEntry
from weft.storage.filesystem import File, FileSystem, Lock, write_atomically
from weft.storage.segment_log.commit import Committer, Post
from weft.storage.segment_log.index import Segment, SegmentIndex
from weft.storage.segment_log.scan import Scan, keep_aside, missing_gaps, report_damage, scan_segment
from weft.storage.segment_log.segment_bytes import SegmentBytes, find_footer, find_header, read_entry
from weft.storage.segment_log.segment_file import SegmentWriter, open_segment
from weft.storage.segment_log.settings import (
    DAMAGED,
    STRANGE,
    UNFINISHED,
    LogFailed,
    LogSettings,
    LogVersionError,
    WrongOwner,
)
from weft.storage.segment_log.space import SegmentSpace, forget_lost, held_within
from weft.storage.segment_log.state import LogState, Plan, StreamState

# A file beside the segments with facts that must outlive them: a damaged header must not turn this log into another
# one, and an unreadable block may hide a stream's name for longer than one start.

FILE = "log-id"
_LINE = re.compile(rb"([0-9a-f]{16})( [0-9a-f]{16})? ([0-9a-f]{8})\n")


class Identity(NamedTuple):
    """Content of the file."""

    log_id: int
    first_seq: int = 0
    """First number of streams whose names the log does not know (``LogState.first_seq``)."""


def read_identity(filesystem: FileSystem, directory: str) -> Identity | None:
    """Return the file's content; None if there is no file, it is damaged, or the device cannot read it."""
    try:
        match = _LINE.fullmatch(filesystem.read(os.path.join(directory, FILE)))
    except OSError:
        return None
    # A file that does not check says nothing. The segments' own headers decide then, by majority.
    if not match or int(match[3], 16) != crc32c(match[1] + (match[2] or b"")):
        return None
    return Identity(int(match[1], 16), int(match[2] or b"0", 16))


def keep_identity(filesystem: FileSystem, directory: str, identity: Identity) -> None:
    """Write the file, unless it has this content. On a full disk, it is written at a later start.

    Raises:
        OSError: it could not be written, and without it numbers might be assigned twice.
    """
    if read_identity(filesystem, directory) == identity:
        return
    digits = b"%016x %016x" % identity
    try:
        write_atomically(
            filesystem, os.path.join(directory, FILE), b"%s %08x\n" % (digits, crc32c(digits)), is_open=True
        )
    except OSError:
        # Without it a stream whose name is in an unreadable block would begin at 0 again and assign numbers a second
        # time. The log id alone can be read from the segments.
        if identity.first_seq:
            raise


# Reading a log directory: footers of sealed segments, and a scan of the newest and of those without a sound footer.

logger = logging.getLogger(__name__)

_WINDOW_BYTES = 16 << 10
"""Bytes read at each end of a sealed segment; the rest is not read."""


@dataclass
class Loaded:
    """A segment as found on disk."""

    segment: Segment
    header: SegmentHeader | None
    """None when it is damaged."""
    streams: dict[int, StreamEntry] | None
    """Its first entry; None when it is damaged."""
    scan: Scan | None
    """None for a sealed segment with a sound footer."""

    @property
    def damaged(self) -> bool:
        return self.header is None or self.streams is None or bool(self.scan and self.scan.damage)

    @property
    def is_empty(self) -> bool:
        """Return whether neither an entry was found nor a block that may hide one: then the file's log is unknown."""
        scan = self.scan
        return (
            self.header is None
            and self.streams is None
            and scan is not None
            and scan.end == HEADER_BYTES
            and not scan.unreadable_bytes
        )


def load_directory(filesystem: FileSystem, directory: str, known_id: int | None) -> tuple[list[Loaded], list[str]]:
    """Load all segments of a directory in log order; then remove leftovers of an interrupted creation.

    If any file is of a later release, nothing is changed.

    Args:
        known_id: the log's id from the file beside the segments.

    Returns:
        The log's segments, and the paths of files that were set aside because they may be from another log.

    Raises:
        LogVersionError: one of them was written by a later release.
        OSError: the directory or a file cannot be opened.
    """
    # A name or a byte that an earlier process wrote may be only in memory: make both durable before relying on them.
    # A file that is only visible in the page cache would be trusted now and be gone after the next power cut.
    filesystem.sync_directory(directory)
    own, strange = _own_segments(filesystem, directory, known_id)
    loaded: list[Loaded] = []
    for position, path in reversed(own):
        with _opened(filesystem, path) as file:
            item = _load(file, path, position, newest=not loaded)
        # Such a file would be continued as this log's newest segment, and everything before it would look complete.
        if item.is_empty:
            strange.append(_Strange(path, DAMAGED, "holds nothing that could be read as this log's"))
        else:
            loaded.append(item)
    # Changes begin only here: every file has been read, and none is of a later release.
    _remove_unfinished(filesystem, directory)
    for found in strange:
        logger.error("%s %s: set aside", found.path, found.reason)
        _set_aside(filesystem, found.path, found.suffix)
    return loaded[::-1], [found.path for found in strange]


class _Strange(NamedTuple):
    """A file to set aside."""

    path: str
    suffix: str
    reason: str


def _remove_unfinished(filesystem: FileSystem, directory: str) -> None:
    for name in filesystem.list_names(directory):
        path = os.path.join(directory, name)
        if name.endswith(UNFINISHED) and format_.parse_file_name(name.removesuffix(UNFINISHED)) is not None:
            # Not made by this log, so it is not ours to remove.
            if filesystem.is_directory(path):
                _set_aside(filesystem, path, STRANGE)
            else:
                filesystem.remove(path)


def _own_segments(
    filesystem: FileSystem, directory: str, known_id: int | None
) -> tuple[list[tuple[int, str]], list[_Strange]]:
    """Return (position, path) of the files that by their headers may be this log's, and the others.

    The id in the file beside the segments identifies the log, unless no segment has it: then the id in most headers
    counts, and in a tie that of the oldest file. A file without a sound header may be any log's, so it counts as this
    one's unless no id is known at all.
    """
    found: list[tuple[int, str, int | None]] = []
    strange: list[_Strange] = []
    for name in filesystem.list_names(directory):
        path, position = os.path.join(directory, name), format_.parse_file_name(name)
        if position is None:
            continue
        if filesystem.is_directory(path) or not filesystem.exists(path):
            strange.append(_Strange(path, STRANGE, "is not a file"))
            continue
        with _opened(filesystem, path) as file:
            source = SegmentBytes(file, position, file.size(), window_bytes=_WINDOW_BYTES, unreadable_as_zeros=True)
            header = find_header(source, position)
        found.append((position, path, header.log_id if header else None))
    found.sort()
    ids = Counter(log_id for _, _, log_id in found if log_id is not None)
    # A segment of another log, copied here by mistake, must not give this one its id: hubs tell records apart by it. So
    # the file beside the segments decides, then the majority.
    own_id = known_id if known_id in ids else max(ids, key=lambda log_id: ids[log_id], default=known_id)
    own: list[tuple[int, str]] = []
    for position, path, log_id in found:
        # A segment with a damaged header is kept as this log's: its entries carry checksums seeded with their position
        # and prove themselves.
        if own_id is not None and log_id in (None, own_id):
            own.append((position, path))
        else:
            reason = "belongs to another log, or its header is damaged; which of the two is not known"
            strange.append(_Strange(path, DAMAGED, reason))
    return own, strange


@contextmanager
def _opened(filesystem: FileSystem, path: str) -> Iterator[File]:
    file = filesystem.open(path, read_only=True)
    try:
        yield file
    except UnsupportedVersion as error:
        raise LogVersionError(
            f"{path} was written by a later release of Weft ({error}): install that release again, or move "
            f"{os.path.dirname(path)} away to begin an empty log"
        ) from error
    finally:
        file.close()


def _set_aside(filesystem: FileSystem, path: str, suffix: str) -> None:
    filesystem.rename(path, path + suffix)
    if filesystem.exists(path):
        # If both were names of one file, the rename had no effect, so the old name is removed here.
        filesystem.remove(path)
    filesystem.sync_directory(os.path.dirname(path))


def _load(file: File, path: str, position: int, *, newest: bool) -> Loaded:
    size = file.size()
    source = SegmentBytes(file, position, size, window_bytes=_WINDOW_BYTES, unreadable_as_zeros=True)
    header = find_header(source, position)
    version = header.version if header is not None else 1
    streams = _first_streams(source)
    # A sound footer has the whole index, so that a start reads some kilobytes of a segment instead of all of it.
    footer = find_footer(source, size)
    if footer is not None:
        index = SegmentIndex.from_footer(footer[1], footer[0])
        return Loaded(Segment(path, position, footer[0], size, index, version=version), header, streams, None)
    # Only the newest segment can end in a commit that was never acknowledged. Bad bytes anywhere else had been synced,
    # so they are damage and get notices.
    scan = scan_segment(SegmentBytes(file, position, size, unreadable_as_zeros=True), may_be_torn=newest)
    return Loaded(Segment(path, position, scan.end, size, scan.index, version=version), header, streams, scan)


def _first_streams(source: SegmentBytes) -> dict[int, StreamEntry] | None:
    first = read_entry(source, HEADER_BYTES)
    return first.value if first is not None and isinstance(first.value, dict) else None


# Streams of a log as described by its segments, and their missing records.


def fold(state: LogState, loaded: list[Loaded]) -> None:
    """Account for the segments in the log's lanes."""
    next_seqs: dict[int, int] = {}
    # A crash between the new opening and the removal of the old file leaves moved records in two segments. The later
    # place counts.
    _count_once(loaded)
    for item in loaded:
        state.segments.append(item.segment)
        index = item.segment.index
        names = {stream: entry.name for stream, entry in (item.streams or {}).items()} | index.streams
        for stream, name in names.items():
            state.lanes.setdefault(stream, StreamState(name)).name = name
        ends = [(stream, span.ranges.end) for stream, span in index.spans()]
        ends += [(kept.stream, kept.next_seq) for kept in index.kept]
        ends += [(gap.stream, gap.end) for gap in index.gaps]
        ends += [(stream, entry.next_seq) for stream, entry in (item.streams or {}).items()]
        ends += list(item.scan.next_seqs.items()) if item.scan else []
        for stream, end in ends:
            # A stream whose every naming entry was lost still keeps its records.
            state.lanes.setdefault(stream, StreamState(f"unnamed-{stream}"))
            next_seqs[stream] = max(next_seqs.get(stream, 0), end)
        state.origins.learn(index.origins.values(), item.scan.last_origin if item.scan else 0)
        state.clocks.learn(index.clocks.values())
        for stream, span in index.spans():
            state.lanes[stream].held.update(span.ranges)
    for item in loaded:
        for gap in item.segment.index.gaps:
            state.lanes[gap.stream].held.remove(gap.first, gap.end)
    state.collect_gaps()
    newest = loaded[-1].scan if loaded else None
    for stream in state.lanes:
        # Unreadable blocks may hold records of any stream that was not named after them. Numbers skip as many as the
        # blocks could hold at most: a skipped number costs nothing, one that is assigned twice loses a record at the
        # hub.
        if newest and newest.hidden_max and stream not in newest.exact:
            next_seqs[stream] = min(next_seqs.get(stream, 0) + newest.hidden_max, SEQ_END)
    state.first_seq = newest.hidden_max if newest else 0
    # The newest statement counts: a rename is one segment's opening, which appears whole or not at all.
    state.owner = next((item.segment.index.owner for item in reversed(loaded) if item.segment.index.owner), None)
    for stream, lane in state.lanes.items():
        lane.next_seq = lane.durable_end = next_seqs.get(stream, 0)
        state.numbers[lane.name] = stream
        lane.bytes = sum(span.live_size for item in loaded for span in item.segment.index.spans_of(stream))
        forget_lost(state, stream, lane.durable_end)


def _count_once(loaded: list[Loaded]) -> None:
    """Count records that were moved forward only in their last segment, not in earlier ones too."""
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
    """Return notices for numbers that were assigned and acknowledged, and are neither held nor under a notice.

    Before each deletion the log records the numbers that it still accounts for. So the numbers of the last such entry
    must be there, and all numbers assigned since; without one, all from 0 on.
    """
    # What must be there cannot follow from the files that are there, since segments are removed in any order. The last
    # durable list of kept numbers says it, and even shows that the oldest file was lost.
    kept = next((item.segment.index.kept for item in reversed(loaded) if item.segment.index.kept), None)
    expected = {stream: RangeSet([(0, lane.next_seq)]) for stream, lane in state.lanes.items()}
    if kept is None and loaded and loaded[0].segment.first_position > 0:
        expected = _expected_without_list(state, loaded[0])
    for lane in kept or ():
        expected[lane.stream] = RangeSet(lane.ranges)
        # Numbers assigned after the list was written are expected without exception.
        expected[lane.stream].add(lane.next_seq, state.lanes[lane.stream].next_seq)
    known = {}
    for stream, state_lane in state.lanes.items():
        known[stream] = state_lane.held.copy()
        known[stream].update((gap.first, gap.end) for gap in state_lane.gaps)
    return missing_gaps(expected, known, now)


def _expected_without_list(state: LogState, first: Loaded) -> dict[int, RangeSet]:
    """Return the expected numbers of a log that has deleted segments, and whose lists of kept numbers are damaged: from
    the numbers on with which the oldest segment begins. Most deletions are of the oldest segments, so those before were
    deleted on purpose, as far as can be known.
    """
    expected = {}
    for stream, lane in state.lanes.items():
        if first.streams is not None:
            entry = first.streams.get(stream)
            begin = entry.next_seq if entry else 0  # a stream that it does not name began later
        else:
            span = first.segment.index.lanes.get(stream)
            spoken = first.scan.begins.get(stream, lane.next_seq) if first.scan else lane.next_seq
            begin = min(spoken, next(iter(span.ranges))[0]) if span and len(span.ranges) else spoken
        expected[stream] = RangeSet([(begin, lane.next_seq)])
    return expected


# The segment that an opened log continues: the newest one without its torn end, or a new one after it.


def continue_or_create(state: LogState, loaded: list[Loaded], now: int) -> SegmentWriter:
    """Return the segment to write: the newest one with its torn tail cut, or a new one after it."""
    position = 0
    if loaded:
        newest = loaded[-1]
        position = newest.segment.first_position + newest.segment.size
        # The newest segment has a footer. A crash may have come between its write and its sync, so the footer is
        # written again before the log relies on it.
        if newest.scan is None:
            _seal_again(state.filesystem, newest.segment)
        elif newest.scan.unreadable_bytes or not _reads_again(state.filesystem, newest):
            # A file with unreadable blocks is never written: it remains unsealed.
            _sync(state.filesystem, newest.segment.path)
        else:
            writer = _resume(state, newest)
            # A damaged file is evidence and takes nothing more, so only a sound one is continued.
            if not newest.damaged:
                return writer
            # Evidence of damage must not be overwritten: the sound part is sealed, and the log continues in a new file.
            newest.segment.size = writer.seal(newest.segment.index.to_footer())
            position = newest.segment.first_position + newest.segment.size
    length = _reservable(state, state.bytes_on_disk())
    return open_segment(state, position, now, SegmentSpace(Plan(), length, length, length, length))


def _seal_again(filesystem: FileSystem, segment: Segment) -> None:
    """Write the newest sealed segment's footer again, for the same reason as ``_resume`` writes the last commit
    again."""
    file = filesystem.open(segment.path)
    try:
        file.write_at(segment.end, file.read_at(segment.end, segment.size - segment.end))
        file.truncate(segment.size)
        file.sync()
    finally:
        file.close()


def _reads_again(filesystem: FileSystem, newest: Loaded) -> bool:
    """Return whether the device reads the last commit a second time."""
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
    """Return the maximum bytes to reserve for a segment at start-up, when nothing is released yet.

    The budget applies from the start. On a disk that other programs have filled, the log still opens, and refuses
    records until there is space. Half of the free space is left for other files, such as the links' epochs, without
    which no records are ever released.

    Args:
        used: bytes of the other segments.
        written: bytes that the segment has already.
    """
    free = state.filesystem.free_bytes(state.directory)
    settings = state.settings
    room = state.budget_bytes - settings.spare_bytes - used
    # Half of what is free, at most: other programs of the machine use the disk too, and a reservation looks to them
    # like a full one.
    return max(0, min(settings.segment_bytes, room, written + free // 2))


def _resume(state: LogState, newest: Loaded) -> SegmentWriter:
    """Cut the bytes after the last sound entry, and make certain that the last commit is on the disk.

    After a failed fsync, the bytes that a new process reads may be only in memory, although the system treats them as
    written. This is possible only for the last commit, so it is written again before anything relies on it.
    """
    segment, scan = newest.segment, newest.scan
    assert scan is not None
    others = state.bytes_on_disk() - segment.size
    file = state.filesystem.open(segment.path)
    try:
        if not newest.damaged:
            file.write_at(scan.last_mark, file.read_at(scan.last_mark, segment.end - scan.last_mark))
        # Nothing after the end was acknowledged. Cut before space is reserved again, so that the reserved bytes read as
        # zeros.
        file.truncate(segment.end)
        file.sync()
        if not newest.damaged:
            # Zeros beyond the end, durably, before anything is appended: stale bytes must never count as entries.
            file.allocate(max(_reservable(state, others, segment.end), segment.end))
            file.sync()
        segment.size = file.size()
        state.unmarked |= scan.unmarked
        return SegmentWriter(file, segment)
    except BaseException:
        file.close()
        raise


# Opening a log: combine the contents of its segments, cut a torn tail, record losses.
#
# Recovery needs no operator: the log opens after any damage, with a report of cuts and losses. The only exception is
# a directory of a later release, which is not changed.


@dataclass(frozen=True)
class RecoveryReport:
    """Findings and actions of opening a log."""

    created: bool = False
    """True if the log is new: no usable segment was there."""
    segments: int = 0
    torn_bytes: int = 0
    """Bytes cut from the end of the newest segment: a commit whose fsync never returned. None were acknowledged."""
    torn_file: str | None = None
    torn_offset: int | None = None
    """Offset in ``torn_file`` of the cut."""
    unreadable_bytes: int = 0
    """Bytes at the place of the newest records that the device cannot read. The number of lost records is unknown;
    entries of ``gaps`` that end at a stream's next number are an upper bound."""
    damaged: tuple[str, ...] = ()
    """Files with damage, or possibly of another log, each kept aside as ``<name>.damaged``."""
    gaps: tuple[GapNotice, ...] = ()
    """Acknowledged records found missing at this start, each range now recorded as a gap."""
    lanes: dict[str, int] = field(default_factory=dict)
    """Stream -> its next sequence number."""
    seconds: float = 0.0


def recover(  # noqa: PLR0917 - what was found, who asks, and when
    state_of: Callable[[int], LogState],
    loaded: list[Loaded],
    known: Identity | None,
    owner: NodeName | None,
    new_id: int,
    now: int,
) -> tuple[LogState, SegmentWriter, RecoveryReport]:
    """Build the log's state from its segments and choose the segment to write.

    Args:
        state_of: makes an empty state for a log id.
        known: content of the file beside the segments; segments without a sound header are checked with its log id.
        owner: required owner of the log, and the owner of a log without one; None accepts any.
        new_id: the log id if there is no log yet.

    Raises:
        WrongOwner: the log has another owner; nothing was written.
        OSError: a write failed; opening again starts over.
    """
    known_id = known.log_id if known and loaded else None
    log_id = next((item.header.log_id for item in reversed(loaded) if item.header), known_id)
    state = state_of(new_id if log_id is None else log_id)
    # The same order as the log was written in: later statements about a stream replace earlier ones.
    fold(state, loaded)
    if owner is not None:
        # Before anything is written. A refused folder must remain as it was, since it is another node's.
        _check_owner(state, owner)
    if known is not None and known.log_id == log_id:
        state.first_seq = max(state.first_seq, known.first_seq)
    # Before the log continues in a new segment: after that, nothing shows that this one may hide a stream's name.
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
            "%d bytes of %s where the newest records were cannot be read. How many records they held is not known: "
            "the notices say up to how many, and streams continue after them at %s",
            report.unreadable_bytes,
            newest.segment.path,
            lanes,
        )
    if newest and newest.scan and newest.scan.torn_bytes:
        path, end, torn_bytes = newest.segment.path, newest.segment.end, newest.scan.torn_bytes
        report = replace(report, torn_bytes=torn_bytes, torn_file=path, torn_offset=end)
        logger.warning(
            "cut a torn tail of %d bytes from %s at offset %d: an unacknowledged commit; streams continue at %s",
            torn_bytes,
            path,
            end,
            lanes,
        )
    if gaps:
        # Before a segment is begun, so that its entry of accounted numbers includes them.
        state.queue.add_gaps(gaps)
    writer = continue_or_create(state, loaded, now)
    return state, writer, report


def _check_owner(state: LogState, owner: NodeName) -> None:
    if state.owner is None:
        # A new log, or one of a release that did not record owners.
        state.owner = Owner(*owner, [])
    elif state.owner.name != owner:
        # Continuing under another name would offer every record again in new lanes, and hubs compare numbers within a
        # lane only: the table would hold all of them twice (decision 0022).
        raise WrongOwner(state.directory, state.owner.name, owner)


def _keep_aside(state: LogState, loaded: list[Loaded], gaps: list[GapNotice]) -> tuple[str, ...]:
    damaged = []
    for item in loaded:
        footer_lost = item.scan is not None and item is not loaded[-1]
        # A sealed segment always has a footer, so one that lost it was damaged, even if all its entries check.
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


# Opening a log's directory: lock it, load its files, recover, and record losses.


class Guard(Protocol):
    """Check of the other files in the log's directory, and of the releases that may write it."""

    def check(self) -> None:
        """Raise ``LogVersionError`` if this release must not write there."""

    def state(self) -> None:
        """Record that this release writes from now on."""


class OpenedLog(NamedTuple):
    """The parts of an open log."""

    state: LogState
    committer: Committer
    lock: Lock
    recovery: RecoveryReport


def open_log(
    directory: str,
    settings: LogSettings,
    *,
    wall_clock: Callable[[], int],
    clock_reading: Callable[[], ClockReading],
    random_bits: Callable[[int], int],
    post: Post,
    filesystem: FileSystem,
    owner: NodeName | None,
    guard: Guard | None = None,
) -> OpenedLog:
    """Open or create the log in ``directory``; arguments and errors as for ``SegmentLog.open``."""
    began = clock_reading().monotonic
    try:
        filesystem.make_directory(directory)
        # Two processes that append to one log would assign the same numbers to different records.
        lock = filesystem.lock(directory)
    except OSError as error:
        raise LogFailed(f"the log in {directory} cannot be opened: {error}") from error
    try:
        if guard is not None:
            # A key that does not fit is found before recovery: without it every sealed entry would look damaged, and a
            # repair would give up sound records.
            guard.check()
        known = read_identity(filesystem, directory)
        loaded, strange = load_directory(filesystem, directory, known.log_id if known else None)
        state, writer, report = recover(
            lambda log_id: LogState(filesystem, directory, settings, log_id, clock_reading),
            loaded,
            known,
            owner,
            random_bits(64),
            wall_clock(),
        )
        state.is_in_place = lock.is_in_place
        for segment in state.segments:
            segment.known_since = began
        committer = Committer(state, writer, wall_clock, clock_reading, post)
        # Gap notices for losses are durable before the first read of the log.
        # Otherwise a link could offer records around a hole that no notice explains yet, and a hub would wait for them.
        committer.run_once()
        if committer.waits_for_space:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), directory)
        committer.state_owner()
        if state.failed:
            committer.close(seal=False)
            raise state.failed
        if guard is not None:
            # Not before: a refused log, such as another node's, must remain unchanged. Everything written so far is in
            # segments, whose headers state their version.
            guard.state()
    except OSError as error:
        lock.close()
        raise LogFailed(f"the log in {directory} cannot be opened: {error}") from error
    except BaseException:
        lock.close()
        raise
    seconds = (clock_reading().monotonic - began) / 1e9
    report = dataclasses.replace(report, damaged=(*strange, *report.damaged), seconds=seconds)
    return OpenedLog(state, committer, lock, report)
