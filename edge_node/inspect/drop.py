"""Dropping a backlog at an operator's request, on a stopped or running node (``weft log drop``)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from weft.edge_node.control.client import DropRequest, ask_drop, check_listens
from weft.edge_node.inspect.exclusive_log import NotTheOwner, exclusive_log
from weft.edge_node.inspect.view import Cursor, LogDirectory, NoLog, is_locked, summarise
from weft.edge_node.streams import STATE_STREAMS
from weft.protocols.batch import BatchHeader, decode_header
from weft.protocols.lane import format_log_id
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import Footer
from weft.storage.filesystem import DirectoryInUse
from weft.storage.segment_log import LogSettings, SegmentLog
from weft.storage.segment_log.room.drop_backlog import whole_batches
from weft.storage.segment_log.room.retention import held_within

_SEGMENT_BYTES = 64 << 10
"""Segment size for the few bytes to write; half of the node's own, far larger segment size is always free within its
budget."""
_ROOM_BYTES = 16 << 20


class UnknownStream(ValueError):
    """An error: the log has no such stream."""


@dataclass(frozen=True)
class DropPreview:
    """The records that would be dropped."""

    numbers: RangeSet
    first_time: int = 0
    """Times of receipt of the first and the last of them, ns since 1970; 0 when there are none."""
    last_time: int = 0


class StoppedLog:
    """The log of a stopped node, opened by ``stopped_log``."""

    def __init__(self, log: SegmentLog) -> None:
        """Wrap an open log; called by ``stopped_log``."""
        self._log = log

    def backlog(self, stream: str, end: int | None = None) -> DropPreview:
        """Return the records that ``drop_backlog`` would drop.

        Raises:
            UnknownStream: the log has no such stream of devices.
            LogError: a file cannot be read.
        """
        number = self._number(stream)
        held = self._log.ranges(number)
        end = self._log.durable_end(number) if end is None else min(end, self._log.durable_end(number))
        first, end = whole_batches(held, lambda seq: self._log.read(number, seq, 1), 0, end)
        numbers = RangeSet(held_within(held, first, end))
        if not numbers:
            return DropPreview(numbers)
        first_batch, last_batch = (self._log.read(number, seq, 1)[0] for seq in (next(iter(numbers))[0], end - 1))
        return DropPreview(numbers, decode_header(first_batch).first_time, decode_header(last_batch).last_time)

    def drop_backlog(self, stream: str, end: int | None = None) -> RangeSet:
        """Drop a stream's records that no hub is known to have, under a notice; durable when this returns.

        A stopped node does not know what hubs have: they report it when the links connect again, and apply the notices
        only to records that they lack. For a running node see ``SegmentLog.drop_backlog``.

        Args:
            end: number after the last one to drop, in whole batches; None for all records.

        Returns:
            The dropped records.

        Raises:
            UnknownStream: the log has no such stream of devices.
            LogError: the log cannot be read or written; the text has the reason.
        """
        numbers = self._log.drop_backlog(self._number(stream), 0, end)
        while self._log.committer.run_once():
            pass
        if self._log.failed is not None:
            raise self._log.failed
        return numbers

    def _number(self, stream: str) -> int:
        _check_stream(stream, self._log.streams())
        return self._log.streams()[stream]


class RunningLog:
    """The log of a running node: inspected from outside, changed by the node."""

    def __init__(self, directory: str) -> None:
        """Open the log in a node's data_dir, and check on each use that it is the same log.

        Raises:
            ControlFailed: its node accepts no requests, or none from this user.
            NoLog: none of its files has the id of the log.
        """
        check_listens(directory)
        self._directory = LogDirectory(directory)
        log_id = self._directory.log_id()
        if log_id is None:
            raise NoLog(f"{directory} holds no file with the id of its log")
        self._log_id = format_log_id(log_id)

    def backlog(self, stream: str, end: int | None = None) -> DropPreview:
        """Return the records that ``drop_backlog`` would drop at most: hubs may have some of them, which only the node
        knows.

        Raises:
            NoLog: there is none.
            UnknownStream: the log has no such stream of devices.
            OSError: a file cannot be read.
            UnsupportedVersion: a later release wrote the log.
        """
        found = summarise(self._directory)
        _check_stream(stream, found.streams)
        held = found.streams[stream].held
        end = held.end if end is None else min(end, held.end)
        cut = self._batch(stream, end) if end in held else None
        numbers = RangeSet(held_within(held, 0, end if cut is None else cut.base_seq))
        if not numbers:
            return DropPreview(numbers)
        # For records deleted since the summary, the times of the whole stream remain.
        first, last = self._batch(stream, next(iter(numbers))[0]), self._batch(stream, numbers.end - 1)
        first_time = found.streams[stream].first_time if first is None else first.first_time
        last_time = found.streams[stream].last_time if last is None else last.last_time
        return DropPreview(numbers, first_time or 0, last_time or 0)

    def drop_backlog(self, stream: str, end: int) -> RangeSet:
        """Request the node to drop the numbers below ``end`` that no hub has; durable when this returns.

        Returns:
            The dropped ranges.

        Raises:
            ControlFailed: the node dropped nothing, or it is unknown what it dropped. A repeated request is harmless.
        """
        return ask_drop(self._directory.path, DropRequest(self._log_id, stream, end))

    def _batch(self, stream: str, seq: int) -> BatchHeader | None:
        """Return the batch that holds a number. Reads a segment or two."""

        def skips(footer: Footer) -> bool:
            ours = [lane for lane in (*footer.lanes, *footer.moved) if footer.streams.get(lane.stream) == stream]
            return not any(seq in RangeSet(lane.ranges) for lane in ours)

        cursor = Cursor(self._directory, None, stream.__eq__, skips)
        try:
            for commit in cursor.read():
                for item in commit.items:
                    header = item[1].value if isinstance(item, tuple) else None
                    if isinstance(header, BatchHeader) and header.base_seq <= seq < header.end_seq:
                        return header
        finally:
            cursor.close()
        return None


def _check_stream(stream: str, names: Iterable[str]) -> None:
    known = set(names) - STATE_STREAMS
    if stream not in known:
        raise UnknownStream(f"the log has no stream {stream}; it has {', '.join(sorted(known)) or 'none'}")


@contextmanager
def opened_log(directory: str) -> Iterator[StoppedLog | RunningLog]:
    """Open the log in a node's data_dir, whether or not the node runs: with ``stopped_log`` if it does not.

    Raises:
        NoLog: there is none.
        NotTheOwner: the folder is another user's; root may send requests to a running node.
        ControlFailed: the node runs, and accepts no requests, or none from this user.
        LogError: the log cannot be opened; the text has the reason.
    """
    with ExitStack() as stack:
        log: StoppedLog | RunningLog
        try:
            log = stack.enter_context(stopped_log(directory))
        except DirectoryInUse:
            log = RunningLog(directory)
        except NotTheOwner:
            if os.geteuid() != 0 or not is_locked(directory):
                raise
            log = RunningLog(directory)
        yield log


@contextmanager
def stopped_log(directory: str) -> Iterator[StoppedLog]:
    """Open the log in a node's data_dir, for as long as the context lasts; the node cannot start meanwhile.

    Raises:
        NoLog: there is none.
        NotTheOwner: the folder is another user's.
        DirectoryInUse: the node runs.
        LogError: the log cannot be opened; the text has the reason.
    """
    LogDirectory(directory).require()
    size = sum(entry.stat().st_size for entry in os.scandir(directory) if entry.is_file())
    settings = LogSettings(segment_bytes=_SEGMENT_BYTES, budget_bytes=size + _ROOM_BYTES, tail_bytes=0)
    with exclusive_log(directory, settings) as log:
        yield StoppedLog(log)
