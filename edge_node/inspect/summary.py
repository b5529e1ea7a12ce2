"""Summary of a stopped node's log, and a forecast of what its next start will find. Nothing is locked or written."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.edge_node.inspect.view import DamagedBytes, LogDirectory, SegmentView
from weft.protocols.batch import BatchHeader, ClockReading, ClockState
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import Footer, GapNotice
from weft.storage.filesystem import DirectoryInUse, File, FileSystem, Lock
from weft.storage.segment_log import LogSettings
from weft.storage.segment_log.encryption import disk_of
from weft.storage.segment_log.index import merged
from weft.storage.segment_log.recovery import find_losses, fold, load_directory, read_identity
from weft.storage.segment_log.scan import Damage, Torn
from weft.storage.segment_log.settings import aside_path
from weft.storage.segment_log.state import LogState

# Contents of a log, from its files alone: for ``weft edge status`` of a stopped node, and for queries.

RATE_WINDOW_NS = 3_600 * 10**9
"""Newest part of a log from which its growth is computed: an hour, as on a running node."""
RATE_WINDOW_NS_MIN = 60 * 10**9


@dataclass
class StreamSummary:
    """One stream of a log."""

    number: int
    held: RangeSet = field(default_factory=RangeSet)
    """Number of records present."""
    next_seq: int = 0
    gaps: list[GapNotice] = field(default_factory=list)
    first_time: int | None = None
    """Times of the first and the last present record, ns since 1970."""
    last_time: int | None = None

    def saw(self, first_time: int, last_time: int) -> None:
        """Count records of these times."""
        self.first_time = first_time if self.first_time is None else min(self.first_time, first_time)
        self.last_time = last_time if self.last_time is None else max(self.last_time, last_time)


@dataclass
class LogSummary:
    """Summary of a log from its files."""

    log_id: int | None = None
    """Log id; None when every header is damaged."""
    segments: int = 0
    bytes: int = 0
    """Bytes of all segment files, including reserved space."""
    streams: dict[str, StreamSummary] = field(default_factory=dict)
    damage: list[DamagedBytes] = field(default_factory=list)
    """Damage, only in files without a valid index: of other files only the index was read."""
    torn_bytes: int = 0
    """Bytes at the end that the next start will cut: a commit of which nothing was acknowledged."""
    growth: list[tuple[int, int, int]] = field(default_factory=list)
    """(first time, last time, bytes) of each segment with records."""

    def of(self, name: str, number: int) -> StreamSummary:
        """Return the summary of a stream, created if it is new."""
        return self.streams.setdefault(name, StreamSummary(number))

    def bytes_per_second(self) -> float | None:
        """Return the growth of the log in its last hour with records, or in a shorter history; None if there is too
        little."""
        last = max((end for _, end, _ in self.growth), default=0)
        total, first = 0, last
        for start, end, size in reversed(self.growth):
            begin = max(start, last - RATE_WINDOW_NS)
            if end < begin:
                break
            span = max(end - start, 1)
            total += round(size * (end - begin + 1) / (span + 1))
            first = min(first, begin)
        return total * 1e9 / (last - first) if last - first >= RATE_WINDOW_NS_MIN else None


def summarise(directory: LogDirectory) -> LogSummary:
    """Read the index of every sealed segment, and the whole of segments without one.

    Raises:
        NoLog: there is no log.
        OSError: a file cannot be read.
        UnsupportedVersion: a later release wrote the log.
    """
    summary = LogSummary()
    positions = directory.require()
    for position in positions:
        view = directory.open(position)
        if view is None:
            continue
        try:
            _add(summary, view, is_newest=position == positions[-1])
        finally:
            view.close()
    for stream in summary.streams.values():
        stream.next_seq = max(stream.next_seq, stream.held.end, *(gap.end for gap in stream.gaps), 0)
        # Notices are carried forward when their segment is deleted: a later segment may repeat one.
        stream.gaps = merged(stream.gaps)
        for gap in stream.gaps:
            stream.held.remove(gap.first, gap.end)
    return summary


def _add(summary: LogSummary, view: SegmentView, *, is_newest: bool) -> None:
    summary.segments += 1
    summary.bytes += view.size()
    if view.header is not None:
        summary.log_id = view.header.log_id
    for number, next_seq in view.next_seqs().items():
        stream = summary.of(view.name_of(number), number)
        stream.next_seq = max(stream.next_seq, next_seq)
    spans = [*_by_index(summary, view, view.footer)] if view.footer else [*_by_entries(summary, view, is_newest)]
    if spans:
        first, last = min(first for first, _ in spans), max(last for _, last in spans)
        summary.growth.append((first, last, view.end if view.footer else view.written_end()))


def _by_index(summary: LogSummary, view: SegmentView, footer: Footer) -> Iterator[tuple[int, int]]:
    """Count a sealed segment. Yield first and last time of its streams."""
    for lane in (*footer.lanes, *footer.moved):
        stream = summary.of(view.name_of(lane.stream), lane.stream)
        stream.held.update(lane.ranges)
        stream.saw(lane.first_time, lane.last_time)
        yield lane.first_time, lane.last_time
    for gap in footer.gaps:
        summary.of(view.name_of(gap.stream), gap.stream).gaps.append(gap)


def _by_entries(summary: LogSummary, view: SegmentView, is_newest: bool) -> Iterator[tuple[int, int]]:
    """Count a segment that has no index. Yield first and last time of its batches."""
    for item in view.walk(0, is_newest=is_newest):
        if isinstance(item, Torn):
            summary.torn_bytes = item.end - item.offset
        elif isinstance(item, Damage):
            summary.damage.append(DamagedBytes(view.path, item.offset, item.end))
        elif isinstance(item.value, dict):
            view.learn(item.value)
            for number, named in item.value.items():
                summary.of(named.name, number)
        elif isinstance(item.value, GapNotice):
            summary.of(view.name_of(item.value.stream), item.value.stream).gaps.append(item.value)
        elif isinstance(item.value, BatchHeader):
            header = item.value
            stream = summary.of(view.name_of(header.stream), header.stream)
            stream.held.add(header.base_seq, header.end_seq)
            stream.saw(header.first_time, header.last_time)
            yield header.first_time, header.last_time


# A forecast of a node's next start: recovery's own analysis of the log, without writes.


class NextStart(NamedTuple):
    """Recovery's actions on the present log."""

    torn_bytes: int
    """Bytes that recovery will cut at the end: a commit of which nothing was acknowledged."""
    unreadable_bytes: int
    """Bytes that the device cannot read where the newest records are."""
    damaged: tuple[str, ...]
    """Files with damage that recovery will move aside."""
    strange: tuple[str, ...]
    """Files that may be another log's; recovery will set each aside with its content."""
    lost: tuple[tuple[str, GapNotice], ...]
    """(stream, notice) for used numbers that are gone and not covered by a notice yet."""

    @property
    def records_lost(self) -> int:
        """Return the number of lost records; an upper bound where something cannot be read."""
        return sum(notice.end - notice.first for _, notice in self.lost)

    @property
    def finds_all_well(self) -> bool:
        """Return whether recovery will find no problem."""
        return not any(self)


def forecast(directory: str, filesystem: FileSystem | None = None) -> NextStart:
    """Run recovery's analysis on a log that no node has open. Sealed segments are read by their indexes, as in
    recovery.

    Raises:
        OSError: a file cannot be read, or a node has started meanwhile and deleted it.
        LogVersionError: a later release wrote the log.
    """
    disk = _Untouched(filesystem or disk_of(directory))
    known = read_identity(disk, directory)
    known_id = known.log_id if known else None
    loaded, strange = load_directory(disk, directory, known_id)
    state = LogState(disk, directory, LogSettings(), known_id or 0, lambda: ClockReading(0, 0, ClockState.UNSYNCED))
    fold(state, loaded)
    losses = find_losses(state, loaded, 0)
    scan = loaded[-1].scan if loaded else None
    damaged = [item for item in loaded if item.damaged or (item.scan is not None and item is not loaded[-1])]
    return NextStart(
        scan.torn_bytes if scan else 0,
        scan.unreadable_bytes if scan else 0,
        tuple(path for item in damaged if not disk.exists(aside_path(path := item.segment.path))),
        tuple(strange),
        tuple((state.lanes[gap.stream].name, gap) for gap in losses),
    )


class _Untouched(FileSystem):
    """A read-only disk: removing, renaming, linking and syncing names do nothing."""

    def __init__(self, disk: FileSystem) -> None:
        self._disk = disk

    def open(self, path: str, *, read_only: bool = False) -> File:
        assert read_only
        return self._disk.open(path, read_only=True)

    def create(self, path: str) -> File:
        raise OSError(errno.EROFS, "nothing is written here", path)

    def read(self, path: str) -> bytes:
        return self._disk.read(path)

    def size(self, path: str) -> int:
        return self._disk.size(path)

    def modified(self, path: str) -> int:
        return self._disk.modified(path)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def list_names(self, directory: str) -> list[str]:
        return self._disk.list_names(directory)

    def is_directory(self, path: str) -> bool:
        return self._disk.is_directory(path)

    def make_directory(self, path: str) -> None:
        """Do nothing."""

    def link(self, source: str, target: str) -> None:
        """Do nothing."""

    def rename(self, source: str, target: str) -> None:
        """Do nothing."""

    def remove(self, path: str) -> None:
        """Do nothing."""

    def remove_directory(self, path: str) -> None:
        """Do nothing."""

    def sync_directory(self, path: str) -> None:
        """Do nothing."""

    def free_bytes(self, path: str) -> int:
        return self._disk.free_bytes(path)

    def lock(self, directory: str) -> Lock:
        raise DirectoryInUse(directory)
