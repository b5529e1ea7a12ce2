"""The segment log: all streams of one edge node in one directory, durable by group commit."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from functools import partial

from weft.protocols.batch import KEY_BYTES_MAX, BatchHeader, ClockReading, HeaderPairs
from weft.protocols.lane import NAME_RULE, NodeName, valid_name
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.storage.filesystem import FileSystem
from weft.storage.segment_log.commit import Post, WriterThread, rename
from weft.storage.segment_log.encryption import KeyUnavailable, disk_of
from weft.storage.segment_log.index import notices
from weft.storage.segment_log.pending import Callback, Run, parts_max
from weft.storage.segment_log.reader import READS_MAX, LogAnswers, LogReader, PageReader
from weft.storage.segment_log.recovery import Guard, Identity, OpenedLog, keep_identity, open_log
from weft.storage.segment_log.settings import (
    BATCH_BYTES_MAX,
    BATCH_OVERHEAD_BYTES,
    DUE_BYTES,
    RECORD_BYTES_MAX,
    LogFailed,
    LogFull,
    LogSettings,
    batches_bytes,
    check_headers,
    check_keys,
    check_records,
    run_bytes,
)
from weft.storage.segment_log.space import LogSpace, drop_backlog, whole_batches
from weft.storage.segment_log.state import LogState

# Appends to several streams that become durable in one commit.


class Together:
    """A context; see ``SegmentLog.together``. It holds the log's lock, so that the writer cannot commit half of it."""

    __slots__ = ("_admit", "_reserve_bytes", "_state")

    def __init__(self, state: LogState, reserve_bytes: int, admit: Callable[[int], None]) -> None:
        self._admit = admit
        self._state = state
        self._reserve_bytes = reserve_bytes

    def __enter__(self) -> None:
        """Reserve the room.

        Raises:
            LogFull, LogFailed: nothing was changed.
        """
        state = self._state
        # The lock is held from the first append to the last: another thread's append between them would become a part
        # of the step.
        state.changed.acquire()
        try:
            if state.failed:
                raise state.failed
            self._admit(self._reserve_bytes + batches_bytes(self._reserve_bytes))
            state.queue.begin_whole(self._reserve_bytes)
        except BaseException:
            state.changed.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._state.queue.end_whole()
        self._state.changed.release()


EndOfTick = Callable[[Callable[[], None]], object]
AskedRun = tuple[int, list[bytes], list[bytes], dict[int, HeaderPairs] | None]
"""(stream, keys, payloads, headers) as for ``SegmentLog.append``."""


class SegmentLog(LogAnswers, LogSpace):
    """An open log.

    The owner's thread appends; a writer thread makes all records appended during its last sync durable with the next
    single write and sync. Reads see only durable records and may come from any thread. Sequence numbers of one stream
    are gapless from 0. Numbers of records that a crash lost before they were durable are assigned again, which is safe
    because the log never reported them.
    """

    def __init__(self, opened: OpenedLog, wall_clock: Callable[[], int], end_of_tick: EndOfTick | None) -> None:
        """Wrap the parts of an open log; callers use ``open``."""
        committer = opened.committer
        super().__init__(opened.state, LogReader(opened.state, wall_clock, committer.poison))
        LogSpace.__init__(self, opened.state, committer.poison)
        self._lock = opened.lock
        self._wall_clock = wall_clock
        self._writer: WriterThread | None = None
        self._closed = False
        self._end_of_tick = end_of_tick
        self._turn_awaited = False
        self._settled = False
        self.committer = committer
        """Without a writer thread, ``committer.run_once()`` makes commits."""
        self.recovery = opened.recovery
        """Findings and actions of opening the log."""

    @classmethod
    def open(
        cls,
        directory: str,
        settings: LogSettings,
        *,
        wall_clock: Callable[[], int],
        clock_reading: Callable[[], ClockReading],
        random_bits: Callable[[int], int],
        post: Post,
        end_of_tick: EndOfTick | None = None,
        filesystem: FileSystem | None = None,
        start_writer: bool = True,
        owner: NodeName | None = None,
        guard: Guard | None = None,
    ) -> SegmentLog:
        """Open or create the log in ``directory``. It recovers by itself from any crash or disk damage.

        Args:
            wall_clock: nanoseconds since 1970.
            random_bits: random integer of that many bits; makes a new log's id.
            post: runs a callback on the owner's thread, e.g. ``loop.call_soon_threadsafe``; must keep order.
            end_of_tick: calls back after the owner's thread has handled the ready events, e.g. ``loop.call_soon``. A
                commit then begins when the reads of one turn of the loop are appended, not after the first of them: ten
                times as many records per commit under load, without a delay for an idle node. Without it, a commit
                begins at once.
            start_writer: False leaves every commit to calls of ``committer.run_once``.
            owner: the name under which its records are known. A log without an owner gets this one. None accepts any
                owner.
            guard: checks the folder before anything is written, and records the formats when the log is open.

        Raises:
            WrongOwner: the log has another owner. Nothing was written.
            DirectoryInUse: another process, or another log of this one, has it open.
            LogVersionError: another release has to open it. Nothing was written.
            LogFailed: a read or write that opening needs failed.
        """
        try:
            disk = filesystem or disk_of(directory)
        except KeyUnavailable as error:
            raise LogFailed(f"the log in {directory} cannot be opened: {error}") from error
        opened = open_log(
            directory,
            settings,
            wall_clock=wall_clock,
            clock_reading=clock_reading,
            random_bits=random_bits,
            post=post,
            filesystem=disk,
            owner=owner,
            guard=guard,
        )
        log = cls(opened, wall_clock, end_of_tick)
        if start_writer:
            log._writer = WriterThread(opened.state, opened.committer)
        return log

    def stream(self, name: str) -> int:
        """Return the number of a stream. Declare a new name, which is durable with the next commit.

        Raises:
            ValueError: it is not a valid name of a stream.
        """
        if not valid_name(name):
            raise ValueError(f"{name!r} cannot name a stream: {NAME_RULE}")
        state = self._state
        with state.changed:
            if name in state.numbers or not state.first_seq:
                return state.declare(name)
            stream = state.declare(name)
            # The stream may have existed in blocks that the disk no longer reads. It begins above every number it can
            # have had, and the notice explains the numbers below.
            state.queue.add_gaps(notices(stream, [(0, state.first_seq)], GapReason.CORRUPTION, self._wall_clock()))
            state.changed.notify()
            return stream

    def settled(self) -> None:
        """Note that all earlier streams are declared again. After the next close of the log, new streams begin at 0,
        even if an unreadable block may have hidden the name of one."""
        self._settled = True

    def append(  # noqa: PLR0917  # the hot path: positional arguments cost least
        self,
        stream: int,
        time: int,
        keys: list[bytes],
        payloads: list[bytes],
        headers: dict[int, HeaderPairs] | None = None,
        flags: dict[int, int] | None = None,
        payload_bytes: int | None = None,
        origin: int = 0,
        times: list[int] | None = None,
    ) -> int:
        """Append a run of records, in order; they are durable when ``on_durable`` calls back. Owner's thread only.

        Args:
            time: time at which they were received, ns since 1970.
            headers: index in this run -> headers, for the records that have any.
            flags: index in this run -> ``protocols.batch.Flag`` bits, likewise.
            payload_bytes: bytes of all payloads, for callers that have counted them.
            origin: number of their origin, from ``origin``; 0 for records of devices.
            times: time of each record, if they differ; ``time`` must still be the present time.

        Returns: the sequence number of the first; the others follow.

        Raises:
            LogFull: there is no room, or the stream must refuse (``refuse``). Nothing of the run was appended.
            LogFailed: the log is poisoned. Nothing of the run was appended.
            RecordTooLarge: a record can never be stored.
            ValueError: the lists differ in length, or the stream was not declared.
        """
        size = run_bytes(keys, payloads, headers, payload_bytes)
        if len(keys) != len(payloads) or (times is not None and len(times) != len(keys)):
            raise ValueError(f"{len(keys)} keys for {len(payloads)} payloads")
        # No single key or record can be too long if all of them together are not, so nearly every run is checked by one
        # comparison.
        if size > KEY_BYTES_MAX:
            check_keys(keys)
            if size > RECORD_BYTES_MAX:
                check_records(keys, payloads, headers)
        if headers:
            check_headers(headers)
        state = self._state
        with state.lock:
            lane = state.lane(stream)
            if state.failed:
                raise state.failed
            base_seq = lane.next_seq
            if not keys:
                return base_seq
            if lane.refusal is not None and state.queue.together is None:
                raise LogFull(lane.refusal)
            needed = size + BATCH_OVERHEAD_BYTES * (1 if times is None else parts_max(times))
            # The room of this step was reserved before its first append; asking again could refuse it halfway.
            if needed <= state.queue.reserved_bytes:
                state.queue.reserved_bytes -= needed
            else:
                if size > BATCH_BYTES_MAX:
                    needed += batches_bytes(size)
                # `room_bytes` is a lower bound computed at each commit. Only an append that may not fit pays for the
                # exact answer.
                if state.queue.raw_bytes + needed > state.room_bytes:
                    self._admit(needed)
            if lane.policy.retain_bytes is not None:
                # Last, because it may drop the oldest records, which it must not do for a run that is then refused.
                self._admit_to_stream(stream, lane, needed, time)
            run = Run(time if times is None else times[0], keys, payloads, headers, flags, size, origin, times)
            state.queue.add(stream, base_seq, run, time)
            if state.queue.together is not None:
                # The step's own record names the numbers of its results, which are known only now.
                state.queue.together.append((stream, base_seq, len(keys)))
            # Numbers are given out at once, not at the sync: a caller has them in hand. What a crash takes was not
            # acknowledged, and its numbers are used again.
            lane.next_seq += len(keys)
            if lane.policy.retain_bytes is not None:
                lane.queued_bytes += size
            if not state.queue.due or (state.queue.wake_bytes and state.queue.is_awaited):
                self._make_due()
        return base_seq

    def append_stored(self, name: str, batches: Sequence[tuple[BatchHeader, bytes]]) -> int:
        """Append batches of another log as they are, under its numbers: this log is a copy of it. Owner's thread only.

        A batch that is here already is left out. Numbers that are left out before a batch get a notice of reason
        ``ABSENT``. The batches are durable when ``on_durable`` calls back.

        Args:
            name: name of their stream, which gets their number here too.
            batches: verified, ascending.

        Returns:
            The number of the stream.

        Raises:
            LogFull: there is no room. Nothing was appended.
            LogFailed: the log is poisoned. Nothing was appended.
            ValueError: a batch overlaps the end of the stream, or its stream's number is another stream's here. Batches
                before it were appended.
        """
        if not valid_name(name):
            raise ValueError(f"{name!r} cannot name a stream: {NAME_RULE}")
        state, now = self._state, self._wall_clock()
        with state.lock:
            if state.failed:
                raise state.failed
            self._admit(sum(len(data) + 2 * BATCH_OVERHEAD_BYTES for _, data in batches))
            stream = state.declare(name, batches[0][0].stream)
            lane = state.lane(stream)
            for header, data in batches:
                if header.end_seq <= lane.next_seq:
                    continue
                if header.stream != stream or header.base_seq < lane.next_seq:
                    raise ValueError(
                        f"stream {name} ends at {lane.next_seq} here, and a batch has {header.base_seq} to "
                        f"{header.end_seq} of stream number {header.stream}"
                    )
                # Otherwise a later opening of the log would take the numbers for lost ones.
                if header.base_seq > lane.next_seq:
                    left_out = [(lane.next_seq, header.base_seq)]
                    state.queue.add_gaps(notices(stream, left_out, GapReason.ABSENT, now))
                state.queue.add_stored(header, data, now)
                lane.next_seq = header.end_seq
            if not state.queue.due or (state.queue.wake_bytes and state.queue.is_awaited):
                self._make_due()
        return stream

    def lead(self, stream: int) -> None:
        """Put this stream's batches first in each commit from now on.

        A crash may leave the beginning of the interrupted commit, if nothing in it was appended ``together``. So if a
        record of such a commit is there, the leading streams' records of the same commit are there too, but not vice
        versa.
        """
        with self._state.changed:
            self._state.queue.leading.add(stream)

    def together(self, reserve_bytes: int, *, uses_spare: bool = False) -> Together:
        """Return a context that puts all appends into one commit; a crash leaves all of its records or none. Owner's
        thread only; not within another one.

        The writer waits until it ends, so it must be short: no reads, no waiting.

        Args:
            reserve_bytes: room that is reserved at the start (including headers and 512 bytes an append): appends
                within it are not refused, not even those to a full stream (``StreamPolicy.retain_bytes``), so that all
                of them are accepted or none. To have such a stream refuse, see ``ask_room``.
            uses_spare: they may use the room that is kept free for moving. For appends that let other records be
                deleted: the steps of functions, without which a log that is full of their input would remain full.

        Raises:
            LogFull, LogFailed: on entering it; nothing was changed.
        """
        return Together(self._state, reserve_bytes, partial(self._admit, uses_spare=uses_spare))

    def appended_together(self) -> list[tuple[int, int, int]] | None:
        """Return (stream, first seq, count) of each append so far in the context ``together``; None outside of one."""
        return self._state.queue.together

    def on_durable(self, callback: Callback) -> None:
        """Call back, through ``post``, when everything appended so far is durable (None) or never can be (the error).

        Callbacks run in the order of their registration. Owner's thread only.
        """
        with self._state.lock:
            failed = self._state.failed
            # With nothing pending, everything appended so far is on the disk and the callback needs no commit.
            queued = failed is None and not self._state.queue.idle
            if queued:
                self._state.queue.add_callback(callback)
                if not self._turn_awaited and not self._state.queue.due:
                    self._make_due()
        if not queued:
            self.committer.deliver([callback], failed)

    async def durable(self) -> None:
        """Return when everything appended so far is durable. On the owner's loop, whose thread appends.

        Raises:
            LogFailed: it can never be durable.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(error: BaseException | None) -> None:
            if done.done():
                return  # the waiting task was cancelled
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.on_durable(settle)
        await done

    @property
    def pending_bytes(self) -> int:
        """Return the uncompressed bytes that are appended but not durable: stop reading sockets at
        ``pending_bytes_max``."""
        return self._state.queue.raw_bytes

    @property
    def held_until(self) -> float:
        """Return the time, by the monotonic clock in seconds, before which no commit begins and no callback of one is
        due; 0 if one may begin, runs, or has callbacks that were not called yet.

        Another commit may begin earlier once enough bytes wait. It is not 0 only while appends keep arriving without
        waiting for commits.
        """
        return self._state.queue.held_until if self.committer.posted is None else 0.0

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back, through ``post``, after each commit, and after a callback of ``on_durable`` that had no commit to
        wait for. Return a function that ends this. Owner's thread only."""
        return self.listen_to_streams(lambda _: callback())

    def listen_to_streams(self, callback: Callable[[frozenset[int]], None]) -> Callable[[], None]:
        """Call back as ``listen`` does, with the streams that have new records or gap notices."""
        self.committer.listeners.append(callback)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self.committer.listeners.remove(callback)

        return unsubscribe

    def page_reader(self, reads_max: int = READS_MAX) -> PageReader:
        """Return a reader of durable records by pages, for the owner's loop.

        Args:
            reads_max: maximum number of its reads from the disk at one time.
        """
        return PageReader(self, self.listen, reads_max)

    def drop_backlog(self, stream: int, first: int = 0, end: int | None = None) -> RangeSet:
        """Drop durable records that no hub has acknowledged, on an operator's command: they get gap notices.

        They remain readable until the notices are durable (await ``durable``). Records of the range that hubs have are
        dropped without a notice. Only whole batches are dropped, so a few records at both ends may remain. May block on
        the disk.

        Args:
            first: the first number to drop.
            end: one past the last; None for all durable records.

        Returns:
            The dropped numbers.

        Raises:
            LogFull: there is no room for the notices, which only many short ranges need. Nothing is dropped.
            OSError, LogFailed: as ``read``; or the log accepts no more appends.
        """
        if end is None:
            end = self.durable_end(stream)
        # Outside the lock, since it reads the disk. Numbers that change meanwhile are looked at again within it.
        first, end = whole_batches(self.ranges(stream), lambda seq: self.read(stream, seq, 1), first, end)
        with self._state.changed:
            if self._state.failed:
                raise self._state.failed
            return drop_backlog(self._state, stream, self._state.lane(stream), first, end, self._wall_clock())

    def rename(self, owner: NodeName, *, from_now_on: bool) -> None:
        """Rename the log's owner, durably when this returns. Only for a log that was opened without its writer.

        Args:
            from_now_on: True to keep its present records under the former name; otherwise all records of that name get
                the new one.

        Raises:
            LogFull, LogFailed: as ``commit.rename``.
        """
        if self._writer is not None:
            raise RuntimeError("a log is renamed without its writer thread")
        rename(self._state, self.committer, owner, from_now_on=from_now_on)

    def close(self) -> None:
        """Commit pending records, seal the segment, release the directory. No reads or appends are possible afterwards.

        Raises:
            OSError: sealing failed. All acknowledged records are durable nevertheless.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._writer:
                self._writer.stop()
            # What is pending was appended before the close, and its appenders still wait for an answer.
            while self.committer.run_once():
                pass
            if self.committer.waits_for_space and not self._state.queue.idle:
                self.committer.poison(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._state.directory))
            self.committer.close(seal=True)
            # All streams are declared and a clean stop wrote every name, so no unreadable block can hide one any more.
            # The file then no longer makes new streams skip numbers.
            if self._settled and self._state.failed is None:
                keep_identity(self._state.filesystem, self._state.directory, Identity(self._state.log_id))
        finally:
            with self._state.changed:
                self._state.failed = self._state.failed or LogFailed(f"the log in {self._state.directory} is closed")
            self._lock.close()

    def _make_due(self) -> None:
        """Let the writer begin, now or at the end of this turn. Call with the lock."""
        state = self._state
        # One turn of the loop is one commit, however many connections brought records. A long turn must not leave the
        # disk idle, so 512 KiB begin it earlier.
        if self._end_of_tick is None or state.queue.raw_bytes >= DUE_BYTES:
            self._due()
        elif not self._turn_awaited:
            self._turn_awaited = True
            self._end_of_tick(self._tick_ended)

    def _tick_ended(self) -> None:
        self._turn_awaited = False
        with self._state.lock:
            self._due()

    def _due(self) -> None:
        """Notify the writer about queued records, unless the pacer holds commits back. Call with the lock."""
        queue = self._state.queue
        # With an empty queue (the writer has taken all of it, or a callback joined the commit in flight) nothing is
        # due. If it were marked as due, the next append would not wake the writer, and would wait for its housekeeping.
        if not queue:
            return
        queue.due = True
        if queue.is_awaited:
            self._state.changed.notify()
