"""State that the owner's thread, the writer thread and readers share, under one lock."""

from __future__ import annotations

import errno
import logging
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from weft.protocols.batch import ClockReading
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import (
    BOOTS_MAX,
    ENTRY_HEADER_BYTES,
    SEALED_VERSION,
    ClockNotice,
    GapNotice,
    Owner,
    StreamEntry,
)
from weft.storage.filesystem import FileSystem
from weft.storage.histogram import Histogram
from weft.storage.segment_log.encryption import is_sealed
from weft.storage.segment_log.index import Origins, Segment, merged
from weft.storage.segment_log.pending import PendingQueue
from weft.storage.segment_log.settings import (
    DEFAULT_POLICY,
    IDENTITY_BYTES,
    SEALED_BYTES,
    LogFailed,
    LogSettings,
    StreamPolicy,
)

# The newest batches in memory, for readers that keep up with the log.

_BATCH_OVERHEAD_BYTES = 160
"""Memory of a batch beyond its bytes: the object and its places in the queues."""


class MemoryTail:
    """Durable batches up to a number of bytes, the oldest dropped first. Guarded by the log's lock."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._order: deque[int] = deque()
        self._lanes: dict[int, tuple[deque[int], deque[bytes]]] = {}

    def add(self, stream: int, base_seq: int, data: bytes) -> None:
        """Keep a batch that has become durable; batches of a stream come in seq order."""
        seqs, batches = self._lanes.setdefault(stream, (deque(), deque()))
        seqs.append(base_seq)
        batches.append(data)
        self._order.append(stream)
        # Small batches cost more by their objects than by their bytes; without the overhead the bound would hold many
        # times its size.
        self._bytes += len(data) + _BATCH_OVERHEAD_BYTES
        # The oldest of all streams leaves first, so a quiet stream keeps no memory that a busy one needs.
        while self._bytes > self._bytes_max:
            oldest_seqs, oldest = self._lanes[self._order.popleft()]
            oldest_seqs.popleft()
            self._bytes -= len(oldest.popleft()) + _BATCH_OVERHEAD_BYTES

    def drop(self, stream: int) -> None:
        """Forget a stream's batches: some of its records were declared lost, and readers must no longer see these."""
        _, batches = self._lanes.pop(stream, (deque(), deque()))
        self._bytes -= sum(len(data) + _BATCH_OVERHEAD_BYTES for data in batches)
        self._order = deque(other for other in self._order if other != stream)

    def drop_below(self, stream: int, end: int) -> None:
        """Forget a stream's batches up to ``end``, which were dropped."""
        seqs, batches = self._lanes.get(stream, (deque(), deque()))
        count = 0
        while seqs and seqs[0] < end:
            seqs.popleft()
            self._bytes -= len(batches.popleft()) + _BATCH_OVERHEAD_BYTES
            count += 1
        if count:
            order: deque[int] = deque()
            for other in self._order:
                if other == stream and count:
                    count -= 1
                else:
                    order.append(other)
            self._order = order

    def read(self, stream: int, seq: int, bytes_max: int) -> list[bytes] | None:
        """Return batches from the one that holds ``seq`` on, at least one; None when memory does not reach back to it.

        ``seq`` must be below the stream's durable end. Appends leave no holes, so the batches are contiguous.
        """
        lane = self._lanes.get(stream)
        if lane is None:
            return None
        seqs, batches = lane
        first = bisect_right(seqs, seq) - 1
        # None means "not in memory", so that the caller reads the disk. An empty list would say that there is nothing.
        if first < 0:
            return None
        found = [batches[first]]
        size = len(found[0])
        for index in range(first + 1, len(batches)):
            size += len(batches[index])
            if size > bytes_max:
                break
            found.append(batches[index])
        return found


SYNC_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
"""Upper bounds of the histogram of write + sync times; one more bucket counts longer ones."""


@dataclass
class StreamState:
    """One stream of the log."""

    name: str
    next_seq: int = 0
    """The next sequence number to assign."""
    durable_end: int = 0
    """Number below which each record is durable, or a recorded gap, or deleted after its release."""
    held: RangeSet = field(default_factory=RangeSet)
    """Records on disk that can be read."""
    gaps: list[GapNotice] = field(default_factory=list)
    released: RangeSet = field(default_factory=RangeSet)
    policy: StreamPolicy = DEFAULT_POLICY
    bytes: int = 0
    """Bytes of the entries whose records count, bounded by ``retain_bytes``."""
    queued_bytes: int = 0
    """Uncompressed bytes appended and not durable; counted only if ``retain_bytes`` is set."""
    refusal: str | None = None
    """Reason for which the owner refuses appends; None while they are accepted."""
    full_since: int = -1
    """``LogState.changes`` when no record of the stream could be removed although it is over ``retain_bytes``."""
    dropping: RangeSet = field(default_factory=RangeSet)
    """Records whose gap notices are queued and not durable yet."""
    held_time: int | None = None
    """Time that the stream's mark must not reach; None if nothing holds it."""


@dataclass
class Counters:
    """Sums since the log was opened."""

    commits: int = 0
    records: int = 0
    bytes_written: int = 0
    device_bytes: int = 0
    """Bytes of written pages of ``PAGE_BYTES``, counted at each write, which wear a card."""
    payload_bytes: int = 0
    moved_bytes: int = 0
    sync: Histogram = field(default_factory=lambda: Histogram(SYNC_BUCKETS_S))
    """Times of one write + sync."""
    sync_seconds_max: float = 0.0
    ack: Histogram = field(default_factory=Histogram)
    """Per commit, the time from its first append until it was durable."""

    def timed(self, seconds: float) -> None:
        """Count one write + sync."""
        self.sync_seconds_max = max(self.sync_seconds_max, seconds)
        self.sync.observe(seconds)


@dataclass
class Plan:
    """Steps that make room: see ``space.make_plan``."""

    asides: list[str] = field(default_factory=list)
    victims: list[Segment] = field(default_factory=list)
    drop_ends: dict[int, int] = field(default_factory=dict)
    """Stream -> records below this are dropped."""
    moved_bytes: int = 0
    """Maximum bytes to move."""
    freed_bytes: int = 0
    """Freed room, minus the moves."""


class LogState:
    """The log in memory. Every attribute except the constant ones is guarded by ``changed`` (a lock and its
    condition)."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        settings: LogSettings,
        log_id: int,
        clock_reading: Callable[[], ClockReading],
    ) -> None:
        self.filesystem = filesystem
        self.is_sealed = is_sealed(filesystem)
        """True if new segments are encrypted."""
        self.seal_bytes = SEALED_BYTES if self.is_sealed else 0
        """Bytes that each entry has for that."""
        self.frame_bytes = ENTRY_HEADER_BYTES + self.seal_bytes
        """Bytes of an entry in a new segment beside its plain body."""
        self.directory = directory
        self.settings = settings
        self.log_id = log_id
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        """Condition of the lock; code that neither notifies nor waits takes ``lock`` itself, which costs less."""
        self.lanes: dict[int, StreamState] = {}
        self.numbers: dict[str, int] = {}
        self.segments: list[Segment] = []
        """Segments in log order; the last one is being written."""
        self.asides: dict[str, int] = {}
        """Damaged files kept aside whose segment is gone, with their sizes: they are deleted first when space is
        needed."""
        self.queue = PendingQueue(clock_reading)
        self.tail = MemoryTail(settings.tail_bytes)
        self.unmarked: set[int] = set()
        """Streams that the next commit mark must name: newly declared, or written by the last commit."""
        self.counters = Counters()
        self.first_seq = 0
        """First sequence number of newly declared streams: an unreadable block may hide such a stream's name."""
        self.owner: Owner | None = None
        """The log's owner, which every new segment states; None if it has none."""
        self.origins = Origins()
        self.clocks = Clocks()
        self.expired = ExpiryLog()
        self.refused_bytes = 0
        """The longest append that was refused for lack of disk space since the last accepted one."""
        self.released_lately: dict[int, RangeSet] | None = None
        """Stream -> records that were released since ``LogSpace.take_released``; None before its first call."""
        self.changes = 0
        """Counter of events that may make room after a refusal: releases, deletions, dropped records."""
        self.room_bytes = 0
        """Uncompressed bytes that may be pending without a full check: the newest segment has room for them."""
        self.refusal: tuple[int, int, str] | None = None
        """(``changes`` at that time, bytes, reason) of the last refusal for lack of budget: cheap to repeat."""
        self.promised: Plan | None = None
        """Plan for the next segment's room, on which the last append was accepted."""
        self.is_in_place: Callable[[], bool] = lambda: True
        """Check that ``directory`` is still the opened directory."""
        self.failed: LogFailed | None = None

    def check_place(self) -> None:
        """Check the directory before names are made or removed.

        Raises:
            OSError: the directory was moved. The present one may belong to another log.
        """
        if not self.is_in_place():
            # Continuing would acknowledge records into files that no start will find.
            raise OSError(errno.ESTALE, "the log's directory was moved or removed while the node ran", self.directory)

    def stream_entries(self) -> dict[int, StreamEntry]:
        """Return all streams for a segment's first entry."""
        return {stream: StreamEntry(lane.name, lane.durable_end) for stream, lane in self.lanes.items()}

    def mark_entries(self) -> dict[int, StreamEntry]:
        """Return the streams that the next commit mark names."""
        return {
            stream: StreamEntry(self.lanes[stream].name, self.lanes[stream].durable_end) for stream in self.unmarked
        }

    def lane(self, stream: int) -> StreamState:
        """Return a stream by its number.

        Raises:
            ValueError: it was not declared.
        """
        lane = self.lanes.get(stream)
        if lane is None:
            raise ValueError(f"stream {stream} was not declared: get its number from stream(name)")
        return lane

    def declare(self, name: str, number: int | None = None) -> int:
        """Return the number of a stream, a new one if the name is new. A new stream then needs a notice below
        ``first_seq``.

        Args:
            number: number of a new stream; None for the next free one.

        Raises:
            ValueError: the number is another stream's, or the stream has another one.
        """
        known = self.numbers.get(name)
        if known is None and number in self.lanes:
            raise ValueError(f"stream {name} has number {number}, which is that of {self.lanes[number].name} here")
        if known is None:
            # Never a number that was used before: entries of a former stream may still be in old segments.
            known = self.numbers[name] = max(self.lanes, default=0) + 1 if number is None else number
            self.lanes[known] = StreamState(name, self.first_seq, self.first_seq)
            self.unmarked.add(known)
        elif number is not None and number != known:
            raise ValueError(f"stream {name} has number {number}, and {known} here")
        return known

    def add_gap(self, gap: GapNotice) -> None:
        """Account for a durable gap notice."""
        lane = self.lanes[gap.stream]
        lane.gaps = merged([*lane.gaps, gap])
        lane.held.remove(gap.first, gap.end)
        lane.dropping.remove(gap.first, gap.end)

    def collect_gaps(self) -> None:
        """Rebuild the lanes' notices from the segments: some were deleted with a segment, or merged."""
        found = merged(gap for segment in self.segments for gap in segment.index.gaps)
        for lane in self.lanes.values():
            lane.gaps = []
        for gap in found:
            self.lanes[gap.stream].gaps.append(gap)

    @property
    def version_min(self) -> int:
        """Return the lowest version of a segment that may be written: an encrypted log adds nothing to a plain one."""
        return SEALED_VERSION if self.is_sealed else 1

    @property
    def version(self) -> int:
        """Return the version of the newest format in the log's files. A new file has no advantage from a lower one,
        since a release that does not read that version refuses the log as a whole."""
        return max([segment.version for segment in self.segments] + [self.version_min])

    @property
    def budget_bytes(self) -> int:
        """Return the maximum bytes of the files, so that the file with the log's id can be replaced at any time."""
        return self.settings.budget_bytes - IDENTITY_BYTES

    def bytes_on_disk(self) -> int:
        """Return the bytes of all the log's files."""
        return IDENTITY_BYTES + sum(segment.size for segment in self.segments) + sum(self.asides.values())


def next_held(ranges: RangeSet, seq: int) -> int | None:
    """Return the lowest held number at or above ``seq``."""
    if seq in ranges:
        return seq
    if seq >= ranges.end:
        return None
    return ranges.missing(seq, ranges.end)[0][1]


class Clocks:
    """The last notice of each of the last ``BOOTS_MAX`` boots that have one. Guarded by the log's lock.

    Every segment begins with them: the records of a boot may outlive the segment with its notice.
    """

    def __init__(self) -> None:
        self.known: dict[int, ClockNotice] = {}
        """Boot -> notice, the latest at the end."""

    def learn(self, clocks: Iterable[ClockNotice]) -> None:
        """Add notices, in the order of the log."""
        for clock in clocks:
            # Moved to the end, so that the first is the one with the oldest notice.
            self.known.pop(clock.boot_id, None)
            self.known[clock.boot_id] = clock
            if len(self.known) > BOOTS_MAX:
                del self.known[next(iter(self.known))]


logger = logging.getLogger(__name__)

LINES_INTERVAL_S = 600.0
"""Seconds between two lines about one stream, for streams that lose records all the time."""


@dataclass
class _Stream:
    count: int = 0
    first: int = 0
    end: int = 0
    silent_until: float = float("-inf")


class ExpiryLog:
    """Records of each stream that expired since its last line. For the writer thread."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}

    def add(self, stream: str, first: int, end: int) -> None:
        """Note that records ``[first, end)`` were dropped: no hub had them."""
        entry = self._streams.setdefault(stream, _Stream())
        entry.first = min(entry.first, first) if entry.count else first
        entry.end = max(entry.end, end)
        entry.count += end - first

    def write(self, now: float) -> None:
        """Write the due lines.

        Args:
            now: monotonic clock, in seconds.
        """
        for name, entry in self._streams.items():
            if entry.count and now >= entry.silent_until:
                logger.warning(
                    "stream %s: %d records (seq %d to %d) were older than retain.time and are dropped; no hub had "
                    "them. Restore the link to the hub, or raise the stream's retain.time",
                    name,
                    entry.count,
                    entry.first,
                    entry.end - 1,
                )
                entry.count = entry.end = 0
                entry.silent_until = now + LINES_INTERVAL_S
