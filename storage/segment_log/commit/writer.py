"""The writer thread: the only thread that writes the log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from weft.storage.segment_log.commit.committer import Committer
from weft.storage.segment_log.commit.pacing import Pacer
from weft.storage.segment_log.settings import HOUSEKEEPING_INTERVAL_S, SPACE_INTERVAL_S
from weft.storage.segment_log.state.log_state import LogState


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
        queue.wake_bytes = 0
        if self.stopping or state.failed is not None:
            return 0.0
        if self._committer.waits_for_space:
            return max(0.0, self._space_at - now)
        until = self._housekeeping_at
        is_empty = queue.head is not None and queue.head.empty  # a commit with only callbacks costs no write
        if now < self._pacer.opens_at and queue.raw_bytes < self._pacer.bytes_max and not is_empty:
            # Held back: appends do not wake the writer, since it would only read the clock each time.
            queue.wake_bytes = self._pacer.bytes_max
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
