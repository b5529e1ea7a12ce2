"""Group commit: when the writer thread begins a commit, and what it does in one."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

import zstandard

from weft.protocols import batch
from weft.protocols.batch import ClockReading
from weft.protocols.lane import NodeName
from weft.protocols.segment import TRAILER_BYTES, EntryKind, Kept, Owner, encode_body, encode_streams, file_name
from weft.storage.segment_log.index import Segment
from weft.storage.segment_log.pending import Callback, PendingCommit
from weft.storage.segment_log.scan import quarantine
from weft.storage.segment_log.segment_file import (
    NO_SPACE,
    SegmentWriter,
    commit_entries,
    delete_free,
    kept_after,
    newest_version,
    open_segment,
)
from weft.storage.segment_log.settings import (
    COMMIT_BYTES_MAX,
    HOUSEKEEPING_INTERVAL_S,
    SPACE_INTERVAL_S,
    LogFailed,
    LogFull,
)
from weft.storage.segment_log.space import (
    Now,
    SegmentSpace,
    UnmovableSegment,
    expire,
    forget_lost,
    forget_released,
    free_segments,
    is_overdue,
    make_space,
    sure_room,
)
from weft.storage.segment_log.state import LogState

# One commit: encode the pending records, one write, one sync, then the callbacks of the appenders.

logger = logging.getLogger(__name__)

Post = Callable[[Callable[[], None]], None]


class _NoSpace(Exception):
    """Other programs used the disk space promised to a segment. Nothing was changed: another try is possible."""


class Committer:
    """Makes one commit at a time; the writer thread calls ``run_once`` in a loop, tests call it themselves."""

    def __init__(
        self,
        state: LogState,
        writer: SegmentWriter,
        wall_clock: Callable[[], int],
        clock_reading: Callable[[], ClockReading],
        post: Post,
    ) -> None:
        self._state = state
        self._writer = writer
        self.wall_clock = wall_clock
        self._clock_reading = clock_reading
        self._post = post
        level = state.settings.compression_level
        self._compressor = None if level is None else zstandard.ZstdCompressor(level=level)
        self._sealed_at: int | None = None
        """Position at which the next segment begins, while there is no space for it."""
        self._wished: int | None = None
        """Wanted length of the segment, while the disk does not have enough even for the next commit."""
        self._is_held_back = False
        """True if the newest segment remains unsealed because there is no space to begin the next."""
        self.listeners: list[Callable[[frozenset[int]], None]] = []
        self.posted: object | None = None
        """Stands for the last delivery to the owner's thread; None once it was called, and with it all earlier ones."""

    def run_once(self) -> bool:
        """Make the next pending commit durable. False if nothing was pending, the log has failed, or its disk has no
        space now (``waits_for_space``): then the commit remains the next one.

        Any other failure poisons the log: it is unknown what reached the disk, so nothing is repeated.
        """
        with self._state.changed:
            commit = self._state.queue.take() if self._state.failed is None else None
            # The mark names the streams of the previous commit with their next numbers. If an entry of that commit is
            # damaged later, its numbers are still known, and none is assigned twice.
            mark = self._state.mark_entries()
        if commit is None:
            return False
        try:
            if not commit.empty:
                self._commit(commit, encode_streams(mark), set(mark))
        except _NoSpace:
            return False
        except Exception as error:
            self.poison(error)
            return False
        with self._state.lock:
            callbacks = self._state.queue.committed_callbacks()
        self.deliver(callbacks, None, frozenset([b.stream for b in commit.batches] + [g.stream for g in commit.gaps]))
        with self._state.lock:
            self._state.queue.done()
            if self._state.queue.idle:
                self._state.promised = None
        return True

    @property
    def waits_for_space(self) -> bool:
        """Return whether a commit waits for other programs to free disk space."""
        return self._sealed_at is not None or self._wished is not None or self._is_held_back

    def _commit(self, commit: PendingCommit, mark: bytes, marked: set[int]) -> None:
        entries = commit_entries(commit, mark, self._compressor, self._state.frame_bytes)
        length = sum(self._state.frame_bytes + len(body) for _, body in entries)
        version = max(newest_version(entries), self._state.version_min)
        # The footer must still fit after this commit: a full segment is always sealable, also on a full disk.
        if self.waits_for_space or not self._writer.fits(length + self._footer_growth(commit), version):
            self._rotate(length, version)
        started = self._clock_reading().monotonic
        offsets = self._writer.write(entries, version)
        ended = self._clock_reading().monotonic
        with self._state.changed:
            self._state.unmarked -= marked
            self._publish(commit, entries, offsets)
            counters = self._state.counters
            counters.timed((ended - started) / 1e9)
            if commit.batches:
                first = min(pending.clock.monotonic for pending in commit.batches)
                counters.ack.observe((ended - first) / 1e9)
            counters.commits += 1
            counters.records += commit.records
            counters.bytes_written += length
            self._account()

    def _footer_growth(self, commit: PendingCommit) -> int:
        index, new_names = self._writer.segment.index, []
        with self._state.changed:
            lanes = self._state.lanes
            if len(index.streams) != len(lanes):
                new_names = [lane.name for stream, lane in lanes.items() if stream not in index.streams]
        streams = [pending.stream for pending in commit.batches]
        return index.footer_growth(streams, len(commit.gaps) + len(commit.clocks), new_names, commit.origins)

    def _publish(self, commit: PendingCommit, entries: list[tuple[EntryKind, bytes]], offsets: list[int]) -> None:
        state, index = self._state, self._writer.segment.index
        if len(index.streams) != len(state.lanes):
            index.streams = {stream: lane.name for stream, lane in state.lanes.items()}
        index.add_origins(commit.origins)
        index.add_clocks(commit.clocks)
        for gap in commit.gaps:
            index.add_gap(gap)
            state.add_gap(gap)
            state.tail.drop_below(gap.stream, gap.end)
            forget_lost(state, gap.stream, gap.end)
            state.unmarked.add(gap.stream)
            state.changes += 1
        for (kind, body), offset in zip(entries, offsets, strict=True):
            if kind is not EntryKind.BATCH:
                continue
            header = batch.decode_header(body)
            lane = state.lanes[header.stream]
            size = self._state.frame_bytes + len(body)
            index.add_batch(header, offset, size)
            lane.bytes += size
            lane.held.add(header.base_seq, header.end_seq)
            # Only here, after the sync: readers and links see a record no sooner than its acknowledgement may be sent.
            lane.durable_end = header.end_seq
            state.tail.add(header.stream, header.base_seq, body)
            state.unmarked.add(header.stream)
        for pending in commit.batches:
            state.counters.payload_bytes += pending.payload_bytes
            lane = state.lanes[pending.stream]
            if lane.queued_bytes:
                lane.queued_bytes = max(0, lane.queued_bytes - pending.raw_bytes)
        self._writer.publish()

    def _rotate(self, commit_bytes: int, version: int = 1) -> None:
        """Seal the segment and begin the next. Make room for it within the budget.

        Args:
            commit_bytes: length of the commit for which it is begun.
            version: version of a segment that the commit's contents need.

        Raises:
            _NoSpace: there is no space on the disk.
            OSError: any other error.
        """
        if self._wished is not None and self._grow(self._wished, commit_bytes, version):
            return
        state, sealed = self._state, self._writer.segment
        # Space is checked before the seal, which cannot be undone: a sealed segment takes nothing more, so without a
        # successor the log would refuse records that its last bytes could still hold.
        if self._sealed_at is None:
            # An appender was admitted by an estimate. This is the last moment at which the commit can wait for room
            # without the segment being closed.
            self._look_ahead(commit_bytes)
            self._reserve(sealed.end + sealed.index.footer_bytes + TRAILER_BYTES)
            self._sealed_at = sealed.first_position + self._seal()
        position = self._sealed_at
        while True:
            with state.changed:
                space = make_space(state, commit_bytes)
            if not space.suffices:
                raise _NoSpace
            try:
                self._writer = self._open(position, space, version)
                self._sealed_at = None
                break
            except UnmovableSegment as damage:
                logger.warning("%s", damage)
                with state.changed:
                    damage.segment.is_movable = False
                    state.changes += 1
                # Damage that is found while records move must not stop the node. The segment stays, its lost numbers
                # get notices, and room is looked for elsewhere.
                quarantine(state, damage.segment, self.wall_clock())
        with state.changed:
            sealed.index.forget_names()
            forget_released(state)
            self._account()
        if not self._writer.fits(commit_bytes):
            # Other programs used the space of the deleted files.
            self._wished = space.length
            raise _NoSpace

    def _look_ahead(self, commit_bytes: int) -> None:
        """Check the room for the next segment before the newest frees its spare space, which others could use.

        Raises:
            _NoSpace: the next segment would not have enough.
        """
        sealed = self._writer.segment
        spare = sealed.size - sealed.end - sealed.index.footer_bytes - TRAILER_BYTES
        with self._state.changed:
            space = make_space(self._state, commit_bytes, sealing_frees=max(0, spare))
        if commit_bytes:
            self._is_held_back = not space.suffices
        if not space.suffices:
            raise _NoSpace

    def _reserve(self, length: int) -> None:
        """Reserve space for the footer; a segment found on a full disk has none. Raises _NoSpace."""
        self._writer.grow(length)
        if self._writer.size < length:
            self._wished = length
            raise _NoSpace

    def _grow(self, wished: int, commit_bytes: int, version: int) -> bool:
        """Reserve the space that the disk lacked at the segment's beginning. False: the commit needs another segment.

        Raises:
            _NoSpace: the disk still has no space.
        """
        writer, segment = self._writer, self._writer.segment
        needed = segment.end + commit_bytes + segment.index.footer_bytes + TRAILER_BYTES
        for length in (wished, min(wished, needed)):
            writer.grow(length)
            if writer.size >= length:
                break
        else:
            raise _NoSpace
        self._wished = None
        with self._state.changed:
            segment.size = writer.size
            self._account()
        return writer.fits(commit_bytes, version)

    def _open(self, position: int, space: SegmentSpace, version: int) -> SegmentWriter:
        try:
            return open_segment(self._state, position, self.wall_clock(), space, version)
        except OSError as error:
            # If it has its name, the sync of the name failed, and a failed sync is never repeated.
            is_named = self._state.filesystem.exists(os.path.join(self._state.directory, file_name(position)))
            if error.errno not in NO_SPACE or is_named:
                raise
            if space.first_length <= space.least:
                raise _NoSpace from error
        # Other programs used the space since it was checked. Nothing was changed; the rest may still be enough.
        least = space._replace(first_length=space.least, length=space.least)
        return self._open(position, least, version)

    def _account(self) -> None:
        """Count the written bytes, and note the remaining room. Call with the lock."""
        self._state.counters.device_bytes += self._writer.device_bytes
        self._writer.device_bytes = 0
        self._state.room_bytes = sure_room(self._state)

    def state_owner(self) -> bool:
        """Make sure that the newest segment names the log's owner: begin one if it does not. For the writer thread.

        Returns:
            False if the disk has no room for it now: the next segment will state it.
        """
        state = self._state
        segment = self._writer.segment
        # A node writes its name into the log before it takes records: with another name over the same records, hubs
        # would store all of them a second time in lanes of their own.
        if state.failed is not None or (segment.index.owner == state.owner and segment.version >= state.version_min):
            return state.failed is None
        try:
            # The opening of a segment has it twice, and becomes visible as a whole.
            self._rotate(0)
        except _NoSpace:
            # The segment may have been begun nevertheless, without space for more.
            if self._writer.segment.index.owner == state.owner:
                return True
            logger.warning("%s has no room to name the log's owner: its next file will", state.directory)
            return False
        except Exception as error:
            self.poison(error)
            return False
        return True

    def housekeep(self) -> None:
        """Apply retention; writes nothing unless records have expired. For the writer thread.

        Gap notices are queued for the next commit; empty segments are deleted.
        """
        state = self._state
        if state.failed is not None:
            return
        now = Now(self.wall_clock(), self._clock_reading())
        try:
            expire(state, now)
            with state.changed:
                forget_released(state)
                overdue, free = is_overdue(state, now), free_segments(state)
            if overdue:
                self._rotate(0)
            elif free:
                self._delete(free)
        except _NoSpace:
            logger.info("retention waits for room to begin the log's next file in %s", state.directory)
        except Exception as error:
            self.poison(error)

    def _delete(self, free: list[Segment]) -> None:
        """Delete segments that hold nothing, after a durable entry that accounts for all their numbers."""
        state = self._state
        with state.changed:
            mark = state.mark_entries()
            kept = kept_after(state, free)
        # Segments leave in any order, so positions do not say what is missing. The list of numbers that the log still
        # answers for is durable before the files go; otherwise the next start would report them as lost.
        entries = [(EntryKind.STREAMS, encode_streams(mark)), (EntryKind.KEPT, encode_body(Kept(kept)))]
        length = 2 * sum(self._state.frame_bytes + len(body) for _, body in entries)
        if not self._writer.fits(length, state.version_min):
            # The next run of retention finds them again, and may find room for the entry.
            self._rotate(0)
            return
        self._writer.write(entries, newest_version(entries))
        with state.changed:
            state.unmarked -= set(mark)
            self._writer.segment.index.streams = {stream: lane.name for stream, lane in state.lanes.items()}
            self._writer.segment.index.kept = kept
            self._writer.publish()
            self._account()
        delete_free(state, free)

    def _seal(self) -> int:
        with self._state.changed:
            footer = self._writer.segment.index.to_footer()
        size = self._writer.seal(footer)
        with self._state.changed:
            self._writer.segment.size = size
            self._writer.segment.known_since = self._clock_reading().monotonic
            self._account()
        return size

    def poison(self, error: Exception) -> LogFailed:
        """Refuse all appends from now on and fail the waiting callbacks, because of an error of the disk. Any thread.

        Returns:
            The reason why the log has failed: the first one remains.
        """
        with self._state.changed:
            # After a failed sync the kernel may have dropped the dirty pages, and a second sync that succeeds proves
            # nothing. The log takes no more until it is opened again and reads what the disk really has.
            if self._state.failed is not None:
                return self._state.failed
            directory = self._state.directory
            failed = LogFailed(f"the log in {directory} failed and refuses appends until reopened: {error}")
            failed.__cause__ = error
            self._state.failed = failed
            callbacks = self._state.queue.take_callbacks()
        # An error of the disk needs only a message; the traceback is for a bug in Weft.
        logger.error("%s", failed, exc_info=None if isinstance(error, OSError) else error)
        self.deliver(callbacks, failed)
        return failed

    def deliver(
        self, callbacks: list[Callback], error: LogFailed | None, streams: frozenset[int] = frozenset()
    ) -> None:
        """Pass callbacks, in order, then the listeners with a commit's streams to the owner's thread in one call."""
        # Each post wakes the event loop, which a commit that concerns no one should not do.
        if not callbacks and not self.listeners:
            return

        # Not the function itself: it would hold itself, and with it all messages of the callbacks, until a collection.
        posted = object()

        def call() -> None:
            if self.posted is posted:
                self.posted = None
            # An error in one callback must not keep the others from being called.
            for callback in callbacks:
                try:
                    callback(error)
                except Exception:
                    logger.exception("a callback of the segment log failed")
            for listener in list(self.listeners):
                try:
                    listener(streams)
                except Exception:
                    logger.exception("a listener of the segment log failed")

        self.posted = posted
        self.post(call)

    def post(self, deliver: Callable[[], None]) -> None:
        """Run a function on the owner's thread; drop it if the owner's loop has closed."""
        try:
            self._post(deliver)
        except RuntimeError as error:
            logger.debug("the owner's loop is gone: %s", error)

    def close(self, *, seal: bool) -> None:
        """Release the segment; seal it if it holds anything and the log is sound."""
        if self._sealed_at is not None:
            return
        if seal and self._state.failed is None and not self._writer.segment.index.empty:
            self._seal()
        else:
            self._writer.close()


# Start times of commits: at once while the node is quiet, every few milliseconds while it is busy.
#
# A commit costs the same whether it carries one message or a hundred, so a busy node gathers. Three rules keep that
# from costing a client time for nothing; ``docs/decisions/0033-commits-paced-by-load.md`` has the measurements.
#
# - *Quiet*: the last commit began an interval ago or earlier. The next begins at once.
# - *Alone*: the last commit carried a single append, and nothing was appended meanwhile. The next begins at once: a
#   device that waits for each acknowledgement before it sends again would only wait longer.
# - *In vain*: twice a commit waited although no append followed, and no wait has paid since. All clients then wait for
#   their acknowledgements, so commits begin at once for a while.

PACED_INTERVAL_S = 0.008
"""The shortest time between the beginnings of two commits of a busy node. The longest that keeps the 99th percentile of
acknowledgements below 10 ms on a disk that syncs in less than 1 ms."""
FULL_INTERVAL_S = 0.012
"""The same while commits carry ``FULL_BYTES`` and more: each writes the page again in which the last one ended. So
10,000 messages of 100 bytes a second write less than they are long."""
FULL_BYTES = 8 << 10
"""Uncompressed: from some 7,000 such messages a second on, and down to 4,500."""
WORTHWHILE_BYTES = 64 << 10
"""A commit of this size begins at once: its cost per message is low already."""
VAIN_CHANCE, PAYING_CHANCE = 0.02, 0.5
"""Probabilities of a silence as at the end of a wait, for random appends. At most the first: the wait was in vain. More
than the second: it has paid. Between the two, as with two clients of which one waits, there is no result."""
SILENCE_SHARE = 8
"""A silence shorter than this part of the interval does not count: the wait is practically over."""
VAIN_WAITS_MIN, VAIN_WAITS_MAX = 2, 7
"""Numbers of waits in vain. One may be chance. From two on, commits do not wait for ``2 ** waits`` intervals, up to 1
s: a client in a closed loop then loses less than 1 % of its rate to further trial waits."""


class Pacer:
    """The earliest time of the next commit. Pure: times are seconds of one monotonic clock, and arguments.

    Args:
        interval_s: the time after each commit; None adapts it to the load.
    """

    def __init__(self, interval_s: float | None) -> None:
        self._interval_s = interval_s
        self.opens_at = 0.0
        """The next commit does not begin earlier, unless ``bytes_max`` wait."""
        self.bytes_max = COMMIT_BYTES_MAX if interval_s is not None else WORTHWHILE_BYTES
        """A commit of this many bytes begins at once."""
        self._began_at = self._ended_at = 0.0
        self._appends = 0
        self._bytes = 0
        self._appends_before = 0
        """Number of the next commit's appends that arrived before the last commit had ended."""
        self.pays = interval_s is not None
        """True if appends arrive at any time of a wait, and not only at its beginning, as those of clients in a closed
        loop do."""
        self._vain_waits = 0
        self._patient_at = 0.0
        """Commits do not wait before this time, because waiting was in vain."""

    def begin(self, now: float, appends: int, bytes_: int, first_s: float, last_s: float) -> None:
        """Note that a commit begins.

        Args:
            appends: number of appends that it carries.
            bytes_: their length, uncompressed.
            first_s: seconds since the first of them.
            last_s: seconds since the last of them.
        """
        if self._interval_s is None and appends and now - first_s < self.opens_at:
            self._judge(now, appends, last_s)
        self._began_at, self._appends, self._bytes = now, appends, bytes_

    def _judge(self, now: float, appends: int, silence_s: float) -> None:
        """Learn from a finished wait whether appends arrived in its last part."""
        # Only appends after the last acknowledgements count: clients in a closed loop send the next message at once,
        # however long the last sync took.
        came = appends - self._appends_before
        window_s = now - self._ended_at
        if came <= 0 or window_s <= 0:
            self.pays = False
            return
        # Probability that all of ``came`` appends at random times lie within this share of the wait.
        chance = max(0.0, 1 - silence_s / window_s) ** came
        if silence_s < PACED_INTERVAL_S / SILENCE_SHARE or chance > PAYING_CHANCE:
            self._vain_waits = max(0, self._vain_waits - 1)
            self.pays = not self._vain_waits
            return
        self.pays = False
        if chance <= VAIN_CHANCE:
            self._vain_waits = min(self._vain_waits + 1, VAIN_WAITS_MAX)
            if self._vain_waits >= VAIN_WAITS_MIN:
                self._patient_at = now + PACED_INTERVAL_S * 2**self._vain_waits

    def end(self, now: float, waiting: int) -> None:
        """Note that the commit has ended.

        Args:
            waiting: number of appends that arrived during the commit.
        """
        self._ended_at, self._appends_before = now, waiting
        # A configured interval counts from the end of a commit, as its setting says. It stays a promise about wear,
        # whatever the load.
        if self._interval_s is not None:
            self.opens_at = now + self._interval_s
        elif now >= self._patient_at and (waiting or self._appends > 1):
            # From its beginning: a sync that takes longer than the interval has gathered enough while it ran.
            self.opens_at = self._began_at + (FULL_INTERVAL_S if self._bytes >= FULL_BYTES else PACED_INTERVAL_S)
        else:
            self.opens_at = now


# The writer thread: the only thread that writes the log.


class Writer:
    """Work of the writer thread: one commit as soon as the pacer allows it, and retention at intervals.

    Args:
        monotonic: clock in seconds.
    """

    def __init__(self, state: LogState, committer: Committer, monotonic: Callable[[], float]) -> None:
        self._state = state
        self._committer = committer
        self._monotonic = monotonic
        self._pacer = Pacer(state.settings.commit_interval_s)
        self._housekeeping_at = monotonic() + HOUSEKEEPING_INTERVAL_S
        self._space_at = 0.0
        self.stopping = False
        """True to commit pending records without waiting, and end. Set it with the lock."""

    def idle_s(self) -> float:
        """Return the seconds until there is work, 0 if there is some now. Call with the lock.

        The owner's thread ends this time early by a notice: for any due work, or while the pacer holds commits back,
        for a commit of sufficient size.
        """
        state, queue, now = self._state, self._state.queue, self._monotonic()
        # By default every append wakes the writer. Only a writer that is held back on purpose sleeps through appends.
        queue.wake_bytes, queue.held_until = 0, 0.0
        if self.stopping or state.failed is not None:
            return 0.0
        if self._committer.waits_for_space:
            return max(0.0, self._space_at - now)
        until = self._housekeeping_at
        is_empty = queue.head is not None and queue.head.empty  # a commit with only callbacks costs no write
        if now < self._pacer.opens_at and queue.raw_bytes < self._pacer.bytes_max and not is_empty:
            # Held back: appends do not wake the writer, since it would only read the clock each time.
            queue.wake_bytes = self._pacer.bytes_max
            queue.held_until = self._pacer.opens_at if self._pacer.pays else 0.0
            until = min(until, self._pacer.opens_at)
        elif queue.due and queue:
            return 0.0
        return max(0.0, until - now)

    def step(self) -> bool:
        """Do the due work. Returns False at the end: the log has failed, or was stopped and no work is left."""
        state, committer = self._state, self._committer
        if self._has_ended():
            return False
        if self._monotonic() >= self._housekeeping_at or committer.waits_for_space:
            committer.housekeep()
            self._housekeeping_at = self._monotonic() + HOUSEKEEPING_INTERVAL_S
        head = state.queue.head
        if head is not None and head.appends:
            self._pacer.begin(self._monotonic(), head.appends, head.raw_bytes, *head.ages_s(committer.wall_clock()))
        is_committed = committer.run_once()
        now = self._monotonic()
        if is_committed and head is not None and head.appends:
            waiting = state.queue.head
            self._pacer.end(now, waiting.appends if waiting is not None else 0)
        self._space_at = now + SPACE_INTERVAL_S
        return not (self.stopping and committer.waits_for_space)

    def _has_ended(self) -> bool:
        with self._state.lock:
            return self._state.failed is not None or (self.stopping and not self._state.queue)


class WriterThread:
    """Runs a ``Writer``. Writing, syncing and compressing release the GIL."""

    def __init__(self, state: LogState, committer: Committer, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._changed = state.changed
        self._writer = Writer(state, committer, monotonic)
        self._thread = threading.Thread(target=self._run, name="weft-log-writer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Commit pending records, then end the thread."""
        with self._changed:
            self._writer.stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while (idle_s := self._writer.idle_s()) > 0:
                    self._changed.wait(idle_s)
            if not self._writer.step():
                return


# Renaming a log's owner.


def rename(state: LogState, committer: Committer, owner: NodeName, *, from_now_on: bool) -> None:
    """Rename the log's owner, durably when this returns. For the writer thread.

    Args:
        from_now_on: True to keep its present records under the former name; otherwise all records of that name get the
            new one.

    Raises:
        LogFull: there is no room on the disk. Nothing was changed.
        LogFailed: a write failed; the next opening of the log shows which name counts.
    """
    # The new name begins at numbers that the log has durably: what is still pending belongs to the former name.
    while committer.run_once():
        pass
    no_room = LogFull(f"the disk of {state.directory} has no room to note the new name: make space on it")
    if not state.queue.idle:
        # A power cut could lose these records, and then no name would have their numbers.
        raise state.failed or no_room
    former = state.owner
    begins = former.begins if former is not None else []
    if from_now_on:
        begins = [(stream, lane.durable_end) for stream, lane in state.lanes.items() if lane.durable_end]
    state.owner = Owner(*owner, begins)
    if not committer.state_owner():
        # The segment that would have stated the new name does not exist, so the former name is still the true one.
        state.owner = former
        raise state.failed or no_room
