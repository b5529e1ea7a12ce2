"""A log's answers about its streams, for readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from weft.protocols.lane import NodeName
from weft.protocols.origin import Origin
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import ClockNotice, GapNotice
from weft.storage.segment_log.errors import LogFailed
from weft.storage.segment_log.read.reader import LogReader
from weft.storage.segment_log.read.stats import LogStats, StreamSnapshot, take_stats
from weft.storage.segment_log.read.windows import FoundBatch, batches_between
from weft.storage.segment_log.room.retention import held_within
from weft.storage.segment_log.state.log_state import LogState


class Gone(NamedTuple):
    """Records ``[first, end)`` that the log no longer has."""

    first: int
    end: int
    reason: int | None
    """The ``GapReason`` of their notice. None without one: hubs had them, or their retention had ended."""


class LogAnswers:
    """Durable records, gap notices and figures, for any thread. Records that are not durable are not included."""

    def __init__(self, state: LogState, reader: LogReader) -> None:
        self._state = state
        self._reader = reader

    @property
    def log_id(self) -> int:
        """Return the random 64-bit number made with the directory."""
        return self._state.log_id

    @property
    def owner(self) -> NodeName | None:
        """Return the name under which the log's records are known; None without one."""
        owner = self._state.owner
        return owner.name if owner is not None else None

    def begins(self) -> dict[int, int]:
        """Return stream number -> its first sequence number under the present name; streams that are not listed begin
        at 0."""
        owner = self._state.owner
        return dict(owner.begins) if owner is not None else {}

    def streams(self) -> dict[str, int]:
        """Return all streams of the log by name, including those that are no longer in the configuration."""
        with self._state.changed:
            return dict(self._state.numbers)

    def ranges(self, stream: int) -> RangeSet:
        """Return the durable records that can be read."""
        with self._state.changed:
            return self._state.lane(stream).held.copy()

    def gaps(self, stream: int) -> list[GapNotice]:
        """Return the durable notices of records that can never come."""
        with self._state.changed:
            return list(self._state.lane(stream).gaps)

    def why_gone(self, stream: int, numbers: RangeSet) -> list[Gone]:
        """Return the reasons why the log has none of ``numbers``, in their order."""
        with self._state.changed:
            gaps = [*self._state.lane(stream).gaps]
            gaps += [gap for gap in self._state.queue.waiting_gaps() if gap.stream == stream]
        found: list[Gone] = []
        left = numbers.copy()
        for gap in gaps:
            found += [Gone(*part, gap.reason) for part in held_within(left, gap.first, gap.end)]
            left.remove(gap.first, gap.end)
        return sorted([*found, *(Gone(*part, None) for part in left)])

    def origins(self) -> dict[int, Origin]:
        """Return the origins that batches of the log name, by number."""
        with self._state.changed:
            return dict(self._state.origins.known)

    def clocks(self) -> list[ClockNotice]:
        """Return the newest clock notices of the log's boots, the latest at the end."""
        with self._state.changed:
            return [*self._state.clocks.known.values()]

    def stream_bytes(self, stream: int) -> int:
        """Return the bytes of the entries that hold the stream's records, as ``retain_bytes`` counts them."""
        with self._state.changed:
            return self._state.lane(stream).bytes

    def next_seq(self, stream: int) -> int:
        """Return the number that the next record will get."""
        with self._state.changed:
            return self._state.lane(stream).next_seq

    def durable_end(self, stream: int) -> int:
        """Return the number after the last durable record."""
        with self._state.changed:
            return self._state.lane(stream).durable_end

    def mark(self, stream: int, now: int) -> tuple[int, int]:
        """Return (T, N): every record of the stream received up to time T has a seq below N. Owner's thread only.

        T stays below the time of ``hold_mark``.

        Args:
            now: the wall clock, no earlier than any time passed to ``append``.
        """
        with self._state.changed:
            lane = self._state.lane(stream)
            first = self._state.queue.first_time(stream)
            if lane.held_time is not None:
                now = min(now, lane.held_time - 1)
            if first is None:
                return now, lane.next_seq
            return min(first - 1, now), lane.durable_end

    def hold_mark(self, stream: int, time: int | None) -> None:
        """Keep the stream's mark below ``time``, since more records from that time on may come. Owner's thread only.

        For a stream that a function writes: its mark must not pass the start of the function's oldest open window. It
        applies to later results of ``mark``, and is forgotten when the log is closed: call it before links start.

        Args:
            time: ns since 1970; None lifts it.
        """
        with self._state.changed:
            self._state.lane(stream).held_time = time

    def read_tail(self, stream: int, seq: int, bytes_max: int) -> list[bytes] | None:
        """Return encoded batches from memory, contiguous, the first of which contains ``seq``; at least one.

        Returns:
            An empty list at the durable end; None if memory does not reach back to ``seq``: use ``read``.
        """
        with self._state.changed:
            if seq >= self._state.lane(stream).durable_end:
                return []
            return self._state.tail.read(stream, seq, bytes_max)

    def read(self, stream: int, seq: int, bytes_max: int) -> list[bytes]:
        """Return encoded batches, ascending, from the first held record at or after ``seq`` on. May block on the disk.

        Batches from the disk are checked against their checksums; damage becomes a gap notice and is skipped.

        Returns:
            Up to ``bytes_max`` bytes of batches, but at least one if any is held; empty at the durable end.

        Raises:
            OSError: a file cannot be opened.
            LogFailed: the disk returns different bytes at each read.
        """
        tail = self.read_tail(stream, seq, bytes_max)
        return self._reader.read(stream, seq, bytes_max) if tail is None else tail

    def batches_between(self, stream: int, since: int, until: int) -> Iterator[list[FoundBatch]]:
        """Yield the durable batches of a window of time, as ``windows.batches_between``. Blocks on the disk."""
        return batches_between(self._state, stream, since, until)

    def snapshot(self, stream: int) -> StreamSnapshot:
        """Return the records and gaps of a stream at one instant."""
        with self._state.changed:
            lane = self._state.lane(stream)
            gone = RangeSet([(0, lane.durable_end)])
            for first, end in [*lane.held, *((gap.first, gap.end) for gap in lane.gaps)]:
                gone.remove(first, end)
            for gap in self._state.queue.waiting_gaps():
                if gap.stream == stream:
                    gone.remove(gap.first, gap.end)
            return StreamSnapshot(lane.held.copy(), lane.next_seq, list(lane.gaps), gone)

    @property
    def failed(self) -> LogFailed | None:
        """Return the error because of which the log accepts nothing until it is opened again, or None."""
        return self._state.failed

    def stats(self) -> LogStats:
        """Return the log's current figures."""
        return take_stats(self._state)
