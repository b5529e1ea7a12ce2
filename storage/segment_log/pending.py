"""Queue of appends that are not durable yet: lists that grow on the owner's thread until the writer takes them."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple, TypeVar

import zstandard

from weft.protocols import batch
from weft.protocols.batch import BatchHeader, ClockReading, ClockState, HeaderPairs
from weft.protocols.lane import Origin
from weft.protocols.segment import ClockNotice, GapNotice
from weft.storage.segment_log.index import add_merged, origin_bytes
from weft.storage.segment_log.settings import (
    BATCH_BYTES_MAX,
    BATCH_OVERHEAD_BYTES,
    BATCH_RECORDS_MAX,
    COMMIT_BYTES_MAX,
    record_sizes,
    run_bytes,
)

V = TypeVar("V")

Callback = Callable[[BaseException | None], None]


class Run(NamedTuple):
    """Records of one stream that were appended together."""

    time: int
    """Time of the first record, and of all of them unless ``times`` is set."""
    keys: list[bytes]
    payloads: list[bytes]
    headers: dict[int, HeaderPairs] | None
    flags: dict[int, int] | None
    raw_bytes: int
    """``run_bytes`` of the records."""
    origin: int = 0
    times: list[int] | None = None
    """Time of each record; None for one time for all."""

    def part(self, first: int, end: int, raw_bytes: int | None = None) -> Run:
        """Return the records ``[first, end)`` of the run.

        Args:
            raw_bytes: bytes of the part, if known.
        """
        keys, payloads = self.keys[first:end], self.payloads[first:end]
        headers, flags = _between(self.headers, first, end), _between(self.flags, first, end)
        times = self.times[first:end] if self.times is not None else None
        return Run(
            self.time if times is None else times[0],
            keys,
            payloads,
            headers,
            flags,
            run_bytes(keys, payloads, headers) if raw_bytes is None else raw_bytes,
            self.origin,
            times,
        )


class PendingBatch:
    """Records of one stream for one batch."""

    __slots__ = (
        "_flags",
        "_headers",
        "_keys",
        "_payloads",
        "_times",
        "base_seq",
        "clock",
        "last_time",
        "origin",
        "payload_bytes",
        "raw_bytes",
        "stream",
    )

    def __init__(self, stream: int, base_seq: int, clock: ClockReading, origin: int = 0) -> None:
        self.stream = stream
        self.origin = origin
        self.base_seq = base_seq
        self.raw_bytes = 0
        self.payload_bytes = 0
        """Bytes of its payloads, known after it is encoded."""
        self.clock = clock
        """Reading of the clocks when its first record was appended."""
        self.last_time = -(1 << 63)
        self._times: list[bytes] = []
        self._keys: list[bytes] = []
        self._payloads: list[bytes] = []
        self._headers: dict[int, HeaderPairs] = {}
        self._flags: dict[int, int] = {}

    def takes(self, run: Run) -> bool:
        """Return whether a run still fits. Within a batch, times must not go back, and must not leap while the clock is
        not set (docs/reference/formats/batch.md)."""
        step = run.time - self.last_time
        return (
            step >= 0
            # A batch carries one reading of both clocks, by which a hub corrects the times of an unset one. Across a
            # step of the clock one reading would be wrong for half of the records.
            and (step <= batch.CLOCK_STEP_NS_MAX or self.clock.state is ClockState.SYNCED)
            and len(self._keys) + len(run.keys) <= BATCH_RECORDS_MAX
            and self.raw_bytes + run.raw_bytes <= BATCH_BYTES_MAX
            and self.origin == run.origin
        )

    def extend(self, run: Run) -> None:
        """Add a run of records."""
        at = len(self._keys)
        if run.times is None:
            self.last_time = run.time
            self._times.append(struct.pack("<q", run.time) * len(run.keys))
        else:
            self.last_time = run.times[-1]
            self._times.append(struct.pack(f"<{len(run.times)}q", *run.times))
        self._keys += run.keys
        self._payloads += run.payloads
        if run.headers:
            self._headers.update({at + index: pairs for index, pairs in run.headers.items()})
        if run.flags:
            self._flags.update({at + index: bits for index, bits in run.flags.items()})
        self.raw_bytes += run.raw_bytes

    def encode(self, compressor: zstandard.ZstdCompressor | None) -> bytes:
        """Return the batch as bytes."""
        columns = batch.columns_from_lists(
            b"".join(self._times), self._keys, self._payloads, self._headers, self._flags
        )
        self.payload_bytes = len(columns.payload)
        return batch.encode(self.stream, self.base_seq, columns, self.clock, compressor, origin=self.origin)


class StoredBatch:
    """A batch of another log, encoded there, which is stored as it is."""

    __slots__ = ("_data", "clock", "payload_bytes", "raw_bytes", "stream")

    def __init__(self, header: BatchHeader, data: bytes, clock: ClockReading) -> None:
        self.stream = header.stream
        self.raw_bytes = self.payload_bytes = len(data)
        self.clock = clock
        """Reading of this machine's clocks when it was appended."""
        self._data = data

    def encode(self, _compressor: zstandard.ZstdCompressor | None) -> bytes:
        """Return the batch as it came."""
        return self._data


class PendingCommit:
    """Batches and notices that one write and fsync will make durable."""

    __slots__ = (
        "_first_time",
        "_last_time",
        "_leading",
        "_open",
        "appends",
        "batches",
        "callbacks",
        "clocks",
        "first_times",
        "gaps",
        "is_reported",
        "is_whole",
        "origins",
        "raw_bytes",
        "records",
    )

    def __init__(self) -> None:
        self.batches: list[PendingBatch | StoredBatch] = []
        self.gaps: list[GapNotice] = []
        self.callbacks: list[Callback] = []
        self.first_times: dict[int, int] = {}
        """Stream -> the earliest time of its records here (wall clocks step back: not always the first)."""
        self.raw_bytes = 0
        self.records = 0
        self.appends = 0
        """Number of appends; those within ``together`` are one."""
        self.is_reported = False
        """True when its callbacks were passed on: later ones are for another commit."""
        self.is_whole = False
        """True if some of its appends belong together: after a crash all of the commit's batches count, or none."""
        self.origins: list[Origin] = []
        """Origins that are new to the log."""
        self.clocks: list[ClockNotice] = []
        self._first_time = self._last_time = 0
        self._open: dict[int, PendingBatch] = {}
        self._leading = 0
        """Number of batches at its beginning whose streams lead."""

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to write; there may be callbacks to call."""
        return not (self.batches or self.gaps or self.origins or self.clocks)

    def ages_s(self, now: int) -> tuple[float, float]:
        """Return the seconds since the first and the last append. Zeros when the wall clock was set back."""
        return max(0, now - self._first_time) / 1e9, max(0, now - self._last_time) / 1e9

    def count_append(self, time: int) -> None:
        """Count an append, or several that belong together."""
        if not self.appends:
            self._first_time = time
        self._last_time = time
        self.appends += 1

    def add(
        self, stream: int, base_seq: int, run: Run, clock_reading: Callable[[int], ClockReading], *, leads: bool = False
    ) -> None:
        """Add a run to the stream's batch, or to a new one if it has no room.

        Args:
            clock_reading: function from the time of a record to the clocks at that time.
            leads: the stream's batches come before those of streams that do not lead.
        """
        pending = self._open.get(stream)
        if pending is None or not pending.takes(run):
            pending = self._open[stream] = PendingBatch(stream, base_seq, clock_reading(run.time), run.origin)
            # What a reader needs before the records, such as the note how far messages may be delivered, must be read
            # first after a crash that leaves only a beginning of the commit.
            self.batches.insert(self._leading if leads else len(self.batches), pending)
            self._leading += leads
            self.raw_bytes += BATCH_OVERHEAD_BYTES
        pending.extend(run)
        self.first_times[stream] = min(run.time, self.first_times.get(stream, run.time))
        self.raw_bytes += run.raw_bytes
        self.records += len(run.keys)


class PendingQueue:
    """Pending commits, in their order. Guarded by the log's lock."""

    def __init__(self, clock_reading: Callable[[], ClockReading]) -> None:
        self._clock_reading = clock_reading
        self._commits: deque[PendingCommit] = deque()
        self._in_flight: PendingCommit | None = None
        self.raw_bytes = 0
        """Estimate of the uncompressed bytes that are not durable, including those in flight."""
        self.due = False
        """True if the writer may begin with the queue: the owner's turn has ended, or a gap notice is queued."""
        self.wake_bytes = 0
        """Queued bytes from which on the writer must be notified."""
        self.held_until = 0.0
        """Time before which no commit begins, while appends keep arriving; 0 if one may begin at any time."""
        self.leading: set[int] = set()
        """Streams whose batches come first in their commits."""
        self.reserved_bytes = 0
        """Bytes of appends that are admitted already."""
        self.together: list[tuple[int, int, int]] | None = None
        """(stream, first seq, count) of each append since ``begin_whole``; None outside."""

    def __bool__(self) -> bool:
        return bool(self._commits)

    @property
    def idle(self) -> bool:
        """Return whether everything appended is durable and every callback was passed on."""
        return not self._commits and self._in_flight is None

    @property
    def head(self) -> PendingCommit | None:
        """Return the next commit that is not in flight."""
        return self._commits[0] if self._commits else None

    @property
    def is_awaited(self) -> bool:
        """Return whether the writer must be notified of due work."""
        return self.raw_bytes >= self.wake_bytes

    def add(self, stream: int, base_seq: int, run: Run, now: int) -> None:
        """Queue a run of records; a run that is too long for a batch, or has times that one batch must not have, is
        split.

        Args:
            now: the wall clock; ns since 1970.
        """
        # Appends of one step count as one: the pacer would take a function's step for many busy clients.
        if not self.together:
            self._last().count_append(now)
        if run.times is None:
            self._add_whole(stream, base_seq, run, self._now)
            return
        # Hubs correct an unset clock by the readings of both clocks, which must be those at the record's time, not the
        # present ones.
        for part in self._by_times(run, run.times):
            self._add_whole(stream, base_seq, part, lambda time: _earlier(self._clock_reading(), now - time))
            base_seq += len(part.keys)

    def _by_times(self, run: Run, times: list[int]) -> Iterator[Run]:
        """Yield the run as parts in which times neither go back nor leap further than a batch allows."""
        # A hub does not correct times of a synced clock, so they may leap within a batch.
        leap_max = 1 << 63 if self._clock_reading().state is ClockState.SYNCED else batch.CLOCK_STEP_NS_MAX
        first = 0
        for at, (before, after) in enumerate(pairwise(times), 1):
            if not 0 <= after - before <= leap_max:
                yield run.part(first, at)
                first = at
        yield run.part(first, len(times)) if first else run

    def _now(self, _: int) -> ClockReading:
        return self._clock_reading()

    def _add_whole(self, stream: int, base_seq: int, run: Run, clock_reading: Callable[[int], ClockReading]) -> None:
        if len(run.keys) > 1 and (run.raw_bytes > BATCH_BYTES_MAX or len(run.keys) > BATCH_RECORDS_MAX):
            for part in _parts(run):
                self._add(stream, base_seq, part, clock_reading)
                base_seq += len(part.keys)
        else:
            self._add(stream, base_seq, run, clock_reading)

    def _add(self, stream: int, base_seq: int, run: Run, clock_reading: Callable[[int], ClockReading]) -> None:
        commit = self._last()
        before = commit.raw_bytes
        commit.add(stream, base_seq, run, clock_reading, leads=stream in self.leading)
        self.raw_bytes += commit.raw_bytes - before

    def add_stored(self, header: BatchHeader, data: bytes, now: int) -> None:
        """Queue a batch of another log.

        Args:
            now: the wall clock; ns since 1970.
        """
        commit = self._last()
        commit.count_append(now)
        commit.batches.append(StoredBatch(header, data, self._clock_reading()))
        commit.records += header.count
        commit.raw_bytes += len(data) + BATCH_OVERHEAD_BYTES
        self.raw_bytes += len(data) + BATCH_OVERHEAD_BYTES

    def add_gaps(self, gaps: list[GapNotice]) -> None:
        """Queue gap notices."""
        commit = self._last()
        self.due = True
        before = len(commit.gaps)
        for gap in gaps:
            add_merged(commit.gaps, gap)
        added = BATCH_OVERHEAD_BYTES * (len(commit.gaps) - before)
        commit.raw_bytes += added
        self.raw_bytes += added

    def add_origin(self, origin: Origin) -> None:
        """Queue an origin, in front of the batches that will name it."""
        commit = self._last()
        commit.origins.append(origin)
        commit.raw_bytes += origin_bytes(origin)
        self.raw_bytes += origin_bytes(origin)

    def add_clock(self, clock: ClockNotice) -> None:
        """Queue a clock notice."""
        commit = self._last()
        self.due = True
        commit.clocks.append(clock)
        commit.raw_bytes += BATCH_OVERHEAD_BYTES
        self.raw_bytes += BATCH_OVERHEAD_BYTES

    def waiting_gaps(self) -> list[GapNotice]:
        """Return the gap notices that are not durable yet."""
        commits = [self._in_flight, *self._commits] if self._in_flight else self._commits
        return [gap for commit in commits if commit for gap in commit.gaps]

    def add_callback(self, callback: Callback) -> None:
        """Queue a callback behind everything that was queued so far."""
        # Records in flight are what the caller waits for. Joining their commit saves one without records.
        commit = self._commits[-1] if self._commits else self._in_flight
        if commit is None or commit.is_reported:
            # Nothing is queued behind the commit in flight: add a commit without records, which writes nothing.
            commit = PendingCommit()
            self._commits.append(commit)
        commit.callbacks.append(callback)

    def begin_whole(self, reserved_bytes: int) -> None:
        """Put everything up to ``end_whole`` into one commit of any length."""
        assert self.together is None, "a commit cannot start within another"
        # The fence at the start of a commit covers all of its batches, so the step begins a commit of its own if one is
        # full.
        if self._commits:
            self._last()
        self.together, self.reserved_bytes = [], reserved_bytes

    def end_whole(self) -> None:
        """End the commit of ``begin_whole``: later appends may begin another."""
        if self.together:
            self._commits[-1].is_whole = True
        self.together, self.reserved_bytes = None, 0

    def _last(self) -> PendingCommit:
        # A step is never divided over two commits, whatever its length: recovery keeps or cuts it as a whole.
        if not self._commits or (self._commits[-1].raw_bytes >= COMMIT_BYTES_MAX and self.together is None):
            self._commits.append(PendingCommit())
        return self._commits[-1]

    def take(self) -> PendingCommit | None:
        """Remove and return the next commit, which is in flight until ``done``."""
        if self._in_flight is None and self._commits:
            self._in_flight = self._commits.popleft()
            self.due = bool(self._commits)
        return self._in_flight

    def committed_callbacks(self) -> list[Callback]:
        """Return the callbacks of the commit in flight, which is durable; it accepts no more of them."""
        assert self._in_flight is not None
        self._in_flight.is_reported = True
        return self._in_flight.callbacks

    def done(self) -> None:
        """Forget the commit in flight: it is durable and its callbacks were passed on."""
        assert self._in_flight is not None
        # Only now, after the write: bytes in flight still occupy memory and count for back-pressure.
        self.raw_bytes -= self._in_flight.raw_bytes
        self._in_flight = None

    def first_time(self, stream: int) -> int | None:
        """Return the earliest time of the stream's records that are not durable."""
        commits = [self._in_flight, *self._commits] if self._in_flight else self._commits
        times = [commit.first_times[stream] for commit in commits if commit and stream in commit.first_times]
        return min(times, default=None)

    def take_callbacks(self) -> list[Callback]:
        """Remove and return all callbacks, in order: the log failed, and this is their last call."""
        callbacks: list[Callback] = []
        for commit in [self._in_flight, *self._commits]:
            if commit is not None:
                callbacks += commit.callbacks
                commit.callbacks = []
        return callbacks


def _earlier(reading: ClockReading, ago: int) -> ClockReading:
    """Return the reading of the clocks some ns ago. The monotonic clock cannot be from before this boot."""
    return reading._replace(monotonic=max(0, reading.monotonic - ago))


def parts_max(times: list[int]) -> int:
    """Return the maximum number of batches for records of these times."""
    return 1 + sum(not 0 <= after - before <= batch.CLOCK_STEP_NS_MAX for before, after in pairwise(times))


def _parts(run: Run) -> Iterator[Run]:
    """Yield the run as the longest parts that fit a batch; two neighbours never fit into one."""
    first = size = 0
    for at, length in enumerate(record_sizes(run.keys, run.payloads, run.headers)):
        if at > first and (size + length > BATCH_BYTES_MAX or at - first == BATCH_RECORDS_MAX):
            yield run.part(first, at, size)
            first, size = at, 0
        size += length
    yield run.part(first, len(run.keys), size)


def _between(values: dict[int, V] | None, first: int, end: int) -> dict[int, V] | None:
    if not values:
        return None
    return {index - first: value for index, value in values.items() if first <= index < end}
