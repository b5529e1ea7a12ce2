"""Giving up a backlog by an operator's word, on a node that is stopped (``weft log drop``)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from edge_node.clock import clock_reader, wall_clock
from edge_node.log_view import LogDirectory
from edge_node.tail import INTERNAL_STREAMS
from protocols.batch import decode_header
from protocols.ranges import RangeSet
from storage.segment_log import LogSettings, SegmentLog
from storage.segment_log.giving_up import whole_batches
from storage.segment_log.retention import held_within

_SEGMENT_BYTES = 64 << 10
"""Little is written, and half a segment of the node's own, far larger ones is always free within its budget."""
_ROOM_BYTES = 16 << 20


class UnknownStream(ValueError):
    """The log has no such stream."""


class NotTheOwner(Exception):
    """Files that this user makes are not the node's to read."""


@dataclass(frozen=True)
class Backlog:
    """What would be given up."""

    numbers: RangeSet
    first_time: int = 0
    """When the first and the last of them were taken in, ns since 1970; 0 when there are none."""
    last_time: int = 0


class StoppedLog:
    """The log of a node that does not run, opened by ``stopped_log``."""

    def __init__(self, log: SegmentLog) -> None:
        """Not for callers."""
        self._log = log

    def backlog(self, stream: str, end: int | None = None) -> Backlog:
        """What ``give_up`` would give up.

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
            return Backlog(numbers)
        first_batch, last_batch = (self._log.read(number, seq, 1)[0] for seq in (next(iter(numbers))[0], end - 1))
        return Backlog(numbers, decode_header(first_batch).first_time, decode_header(last_batch).last_time)

    def give_up(self, stream: str, end: int | None = None) -> RangeSet:
        """Give up a stream's records that no hub is known to have, under a notice; durable when this returns.

        A stopped node does not know what hubs have: they say so when the links connect again, and take the notices only
        for what they lack. On a running node it is ``SegmentLog.give_up``.

        Args:
            end: one past the last number to give up, batches as a whole; None for all that there is.

        Returns:
            What was given up.

        Raises:
            UnknownStream: the log has no such stream of devices.
            LogError: the log cannot be read or written; the sentence says why.
        """
        numbers = self._log.give_up(self._number(stream), 0, end)
        while self._log.committer.run_once():
            pass
        if self._log.failed is not None:
            raise self._log.failed
        return numbers

    def _number(self, stream: str) -> int:
        names = self._log.streams().keys() - INTERNAL_STREAMS
        if stream not in names:
            raise UnknownStream(f"the log has no stream {stream}; it has {', '.join(sorted(names)) or 'none'}")
        return self._log.streams()[stream]


@contextmanager
def stopped_log(directory: str) -> Iterator[StoppedLog]:
    """The log in a node's data_dir, for as long as the context lasts; the node cannot start meanwhile.

    Raises:
        NoLog: there is none.
        NotTheOwner: the folder is another user's.
        DirectoryInUse: the node runs.
        LogError: the log cannot be opened; the sentence says why.
    """
    LogDirectory(directory).require()
    owner = os.stat(directory).st_uid
    if owner != os.geteuid():
        raise NotTheOwner(f"{directory} belongs to the user with the id {owner}: run this as that user")
    size = sum(entry.stat().st_size for entry in os.scandir(directory) if entry.is_file())

    def post(deliver: Callable[[], None]) -> None:
        deliver()

    log = SegmentLog.open(
        directory,
        LogSettings(segment_bytes=_SEGMENT_BYTES, budget_bytes=size + _ROOM_BYTES, tail_bytes=0),
        wall_clock=wall_clock,
        clock_reading=clock_reader(),
        random_bits=random.SystemRandom().getrandbits,
        post=post,
        start_writer=False,
    )
    try:
        yield StoppedLog(log)
    finally:
        log.close()
