"""Reading of an open log: batches by (stream, seq), windows of time, pages, and figures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from weft.protocols.batch import BatchHeader, decode_header
from weft.protocols.errors import CodecError, Corrupt
from weft.protocols.lane import NodeName, Origin
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import ENTRY_HEADER_BYTES, ClockNotice, EntryKind, GapNotice
from weft.storage.histogram import Histogram
from weft.storage.segment_log.index import Segment
from weft.storage.segment_log.scan import quarantine
from weft.storage.segment_log.segment_bytes import SegmentBytes
from weft.storage.segment_log.settings import LogFailed
from weft.storage.segment_log.space import held_within, unsafe_bytes
from weft.storage.segment_log.state import LogState, next_held

# Reading batches back from disk by (stream, seq).

_WINDOW_BYTES = 256 << 10


class _Place(NamedTuple):
    segment: Segment
    end: int
    """Readable bytes of the segment."""
    start: int
    """Offset of an entry at or before the wanted one."""
    seq: int
    held_end: int
    """One past the run of held records that begins at ``seq``: later ones may have been declared lost."""


class LogReader:
    """Reader for any thread; each call opens its own files, so that calls never share one."""

    def __init__(
        self, state: LogState, wall_clock: Callable[[], int], poison: Callable[[Exception], LogFailed]
    ) -> None:
        """Make a reader of the log of ``state``.

        Args:
            poison: called when a segment's file is gone although the log did not delete it.
        """
        self._state = state
        self._wall_clock = wall_clock
        self._poison = poison

    def read(self, stream: int, seq: int, bytes_max: int) -> list[bytes]:
        """Return batches from the first held record at or after ``seq`` on: up to ``bytes_max``, at least one if any.

        Damage is quarantined and skipped.

        Raises:
            OSError: a file cannot be opened.
            LogFailed: a second read does not confirm damage of the first, or a file is gone.
        """
        batches: list[bytes] = []
        examined: set[str] = set()
        while bytes_max > 0:
            place = self._locate(stream, seq)
            if place is None:
                break
            try:
                # A read after a quarantine treats unreadable blocks in the same way: the quarantine may have found a
                # sound batch with zeros in their place.
                is_second_look = place.segment.path in examined
                # Without the lock: a slow disk must not hold up appends.
                found = self._walk(place, stream, bytes_max, first=not batches, unreadable_as_zeros=is_second_look)
            except FileNotFoundError as error:
                with self._state.changed:
                    is_listed = place.segment in self._state.segments
                if is_listed:
                    # Recovery will report the loss; a node that continued would write to a log that no longer exists.
                    raise self._poison(error) from error
                # The segment was released and deleted since it was looked up.
                continue
            except (CodecError, OSError) as error:
                path, seq = place.segment.path, place.seq
                if batches:
                    break
                # A second failure of the same file is not damage that notices can explain, such as a device that is
                # gone. Trying again would never end.
                if path in examined:
                    raise LogFailed(f"{path} cannot be read at seq {seq} of stream {stream}: {error}") from error
                examined.add(path)
                # Damage may be met by any reader, not only at start. The lost numbers get notices, then the read goes
                # on behind them.
                quarantine(self._state, place.segment, self._wall_clock())
                continue
            if not found:
                break
            batches += found
            bytes_max -= sum(map(len, found))
            seq = decode_header(found[-1]).end_seq
        return batches

    def _locate(self, stream: int, seq: int) -> _Place | None:
        """Find the first held record at or after ``seq``."""
        with self._state.changed:
            lane = self._state.lanes.get(stream)
            # `held`, and not what the segments contain: dropped records are still in their files, and must not be
            # delivered.
            target = next_held(lane.held, seq) if lane else None
            if lane is None or target is None:
                return None
            for segment in self._state.segments:
                for span in segment.index.spans_of(stream):
                    if target in span.ranges:
                        held_end = min(lane.held.contiguous_end(target), span.ranges.contiguous_end(target))
                        return _Place(segment, segment.end, span.start_for(target), target, held_end)
        return None

    def _walk(
        self, place: _Place, stream: int, bytes_max: int, *, first: bool, unreadable_as_zeros: bool
    ) -> list[bytes]:
        """Return contiguous batches of one segment from the one that holds ``place.seq`` on.

        Args:
            first: return at least one batch, of any length.
            unreadable_as_zeros: treat blocks that the device cannot read as zeros; checksums show whether they were.

        Raises:
            CodecError, OSError: an error before the first batch. A later one only ends the walk: the next begins there.
        """
        file = self._state.filesystem.open(place.segment.path, read_only=True)
        try:
            source = SegmentBytes(
                file,
                place.segment.first_position,
                place.end,
                window_bytes=_WINDOW_BYTES,
                unreadable_as_zeros=unreadable_as_zeros,
            )
            found: list[bytes] = []
            try:
                for data in _batches(source, place, stream):
                    bytes_max -= len(data)
                    # At least one batch, however long: a reader whose limit is below a batch would otherwise stay where
                    # it is for good.
                    if bytes_max < 0 and (found or not first):
                        break
                    found.append(data)
            except (CodecError, OSError):
                if not found:
                    raise
            return found
        finally:
            file.close()


def _batches(source: SegmentBytes, place: _Place, stream: int) -> Iterator[bytes]:
    """Yield the stream's batches from the one that holds ``seq`` on, each checked; skip other entries unread.

    Raises:
        CodecError, OSError: an expected batch is missing or damaged.
    """
    offset, seq, found = place.start, place.seq, False
    while offset < source.end and seq < place.held_end:
        head = source.peek(offset)
        if head is None:
            raise Corrupt(f"zeros at offset {offset}, before the entries end")
        if head.kind in (EntryKind.BATCH, EntryKind.MOVED):
            header = source.readable_batch_header(offset)
            if header is not None and header.stream == stream and header.end_seq > seq:
                # Numbers ascend within a segment, so a higher one means that the wanted batch is not there although the
                # index names it.
                if header.base_seq > seq:
                    raise Corrupt(f"seq {seq} of stream {stream} is not before the entry at offset {offset}")
                frame = source.entry(offset)
                if frame is None:
                    raise Corrupt(f"the entry at offset {offset} is gone")
                found, seq = True, header.end_seq
                yield bytes(frame.body)
        offset += ENTRY_HEADER_BYTES + head.length
    if not found:
        raise Corrupt(f"seq {seq} of stream {stream} is not where the index has it")


# The batches of a stream whose records were received within a window of time, found by their headers.

_logger = logging.getLogger(__name__)
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
            # Whole segments are left out by the times in their index.
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
            # The caller shares its thread with others, so it gets control back after a bounded amount of work, also
            # when nothing is found.
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
    # Times of a batch need not ascend if its clock was synced and then set.
    is_within = min(times) < until and max(times) >= since
    return header.stream == stream and is_within and held.covers(header.base_seq, header.end_seq)


# The log's figures, for people and metrics.


class StreamSnapshot(NamedTuple):
    """Records and gaps that the log has of one stream at one instant."""

    held: RangeSet
    """Durable records that can be read."""
    next_seq: int
    gaps: list[GapNotice]
    gone: RangeSet
    """Records that were durable and were deleted by retention or after their release: neither held nor under a
    notice."""


@dataclass(frozen=True)
class LogStats:
    """Figures for people and metrics. Sums count from the opening of the log."""

    bytes_on_disk: int
    budget_bytes: int
    segments: int
    pending_bytes: int
    oldest_time: int | None
    """Earliest record time on disk, ns since 1970; None when the log is empty."""
    newest_time: int | None
    commits: int
    records: int
    bytes_written: int
    device_bytes: int
    """Bytes of the device's written pages, which wear flash."""
    payload_bytes: int
    """Bytes of the payloads made durable."""
    moved_bytes: int
    """Bytes of records that were copied into newer segments."""
    unsafe_bytes: int
    """Bytes that must not be deleted, because no hub has them yet or retention keeps them."""
    usable_bytes: int
    """Part of the budget available to records."""
    sync: Histogram
    """Times of one write + sync."""
    sync_seconds_max: float
    ack: Histogram
    """Per commit, the time from its first append until it was durable."""
    failed: LogFailed | None
    """Error because of which the log accepts no more records, or None."""


def take_stats(state: LogState) -> LogStats:
    """Return the current figures."""
    with state.changed:
        spans = [span for segment in state.segments for _, span in segment.index.spans()]
        counters = state.counters
        return LogStats(
            bytes_on_disk=state.bytes_on_disk(),
            budget_bytes=state.settings.budget_bytes,
            segments=len(state.segments),
            pending_bytes=state.queue.raw_bytes,
            oldest_time=min((span.first_time for span in spans), default=None),
            newest_time=max((span.last_time for span in spans), default=None),
            commits=counters.commits,
            records=counters.records,
            bytes_written=counters.bytes_written,
            device_bytes=counters.device_bytes,
            payload_bytes=counters.payload_bytes,
            moved_bytes=counters.moved_bytes,
            unsafe_bytes=unsafe_bytes(state),
            usable_bytes=state.settings.budget_bytes - state.settings.spare_bytes,
            sync=counters.sync.copy(),
            sync_seconds_max=counters.sync_seconds_max,
            ack=counters.ack.copy(),
            failed=state.failed,
        )


# A log's answers about its streams, for readers.


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

    def kept(self, stream: int) -> tuple[RangeSet, RangeSet]:
        """Return the durable records that are not released, and those that are, as far as the log still has them.

        Other released numbers may be those of a gap notice, whose records are not at a hub.
        """
        with self._state.changed:
            lane = self._state.lane(stream)
            kept, released = lane.held.copy(), RangeSet()
            for first, end in lane.released:
                released.update(lane.held.within(first, end))
                kept.remove(first, end)
            return kept, released

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

    def ends(self, streams: Iterable[int]) -> dict[int, int]:
        """Return ``next_seq`` of streams, all at one instant."""
        with self._state.changed:
            lanes = self._state.lanes
            return {stream: lanes[stream].next_seq for stream in streams}

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
            # A derived stream may still produce rows with this time, so no link may be promised that everything before
            # it has come.
            if lane.held_time is not None:
                now = min(now, lane.held_time - 1)
            if first is None:
                return now, lane.next_seq
            # A mark promises that no earlier record follows. Records that wait for the disk may get an earlier time
            # than the present, so the mark stays before the first of them.
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
        """Yield the durable batches of a window of time, as the function of that name. Blocks on the disk."""
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


# Reading a log page by page on an event loop: for sessions that are behind, links, functions and queues.

READS_MAX = 4
"""Default number of reads from the disk at one time, each in a thread of its own."""

Listen = Callable[[Callable[[], None]], Callable[[], None]]
"""``SegmentLog.listen``."""


class LogPage(NamedTuple):
    """A piece of a stream."""

    batches: list[bytes]
    """Encoded batches, ascending; the first may begin before the requested number."""
    next_seq: int
    """Number at which the next page begins. It equals the requested number only at the durable end."""
    gone: list[Gone]
    """Numbers between the requested one and ``next_seq`` that no batch holds."""
    from_disk: bool = False
    """True if memory did not reach back so far."""


class PageReader:
    """Reader of a log's durable records. For one event loop, that of the log's owner.

    Batches in memory are returned at once; others are read in threads. A caller may be cancelled at any time: a started
    read ends by itself, and counts against the bound until then.
    """

    def __init__(self, log: LogAnswers, listen: Listen, reads_max: int) -> None:
        """Read the pages of ``log``; callers use ``SegmentLog.page_reader``."""
        self._log = log
        self._listen = listen
        self._reads = asyncio.Semaphore(reads_max)
        # By stream, so that a commit looks only at those that wait for one of its streams.
        self._waiting: dict[int, dict[asyncio.Future[None], int]] = {}
        """Stream -> future of a waiting reader -> the awaited seq."""
        self._unlisten: Callable[[], None] | None = None

    async def read(self, stream: int, seq: int, bytes_max: int, records_max: int | None = None) -> LogPage:
        """Read a page: whole batches from ``seq`` on, at least one if any is held, else the missing numbers.

        Args:
            bytes_max: maximum bytes of the encoded batches; a single one may be longer.
            records_max: likewise.

        Raises:
            OSError: a file cannot be opened.
            LogFailed: the disk gives different bytes at each look.
        """
        # Taken before the read: records that become durable meanwhile belong to the next page, and must not count as
        # gone.
        end = self._log.durable_end(stream)
        if seq >= end:
            return LogPage([], seq, [])
        batches = self._log.read_tail(stream, seq, bytes_max)
        from_disk = batches is None
        if batches is None:
            batches = await self._in_thread(stream, seq, bytes_max)
        return self._page(stream, seq, end, batches, records_max, from_disk=from_disk)

    async def more(self, stream: int, seq: int) -> None:
        """Return when the record ``seq`` and everything before it is durable.

        Raises:
            LogFailed: the log accepts no more records, so ``seq`` will never be durable.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(stream, {})
        waiting[waiter] = seq
        if self._unlisten is None:
            self._unlisten = self._listen(self._look)
        try:
            # After the listener is registered: a commit just before did not call it.
            self._wake({waiter: seq}, self._log.durable_end(stream))
            await waiter
        finally:
            del waiting[waiter]
            if not waiting:
                del self._waiting[stream]
            if not self._waiting:
                self._unlisten()
                self._unlisten = None

    async def _in_thread(self, stream: int, seq: int, bytes_max: int) -> list[bytes]:
        await self._reads.acquire()
        try:
            reading = asyncio.get_running_loop().run_in_executor(None, self._log.read, stream, seq, bytes_max)
        except BaseException:
            self._reads.release()
            raise
        reading.add_done_callback(self._has_read)
        # A thread cannot be cancelled: if a cancelled caller released the bound, threads would pile up.
        return await asyncio.shield(reading)

    def _has_read(self, reading: asyncio.Future[list[bytes]]) -> None:
        self._reads.release()
        if not reading.cancelled():
            reading.exception()  # no error to report: the caller may be cancelled

    def _page(
        self, stream: int, seq: int, end: int, batches: list[bytes], records_max: int | None, *, from_disk: bool
    ) -> LogPage:
        holes = RangeSet()
        kept: list[bytes] = []
        at, count = seq, 0
        for data in batches:
            header = decode_header(data)
            count += header.count
            # Batches are passed on whole. Splitting one would mean to decode and encode it again.
            if kept and records_max is not None and count > records_max:
                break
            if header.base_seq > at:
                # Numbers between two batches were dropped; the reader learns which and why instead of passing over
                # them.
                holes.add(at, header.base_seq)
            kept.append(data)
            at = header.end_seq
        if not kept:
            # Nothing is held up to the durable end from before the read.
            holes.add(seq, end)
            at = end
        return LogPage(kept, at, self._log.why_gone(stream, holes) if holes else [], from_disk)

    def _look(self) -> None:
        for stream, waiting in self._waiting.items():
            self._wake(waiting, self._log.durable_end(stream))

    def _wake(self, waiting: Mapping[asyncio.Future[None], int], end: int) -> None:
        for waiter, seq in waiting.items():
            if waiter.done():
                continue
            if end > seq:
                waiter.set_result(None)
            elif self._log.failed is not None:
                waiter.set_exception(LogFailed(str(self._log.failed)))
