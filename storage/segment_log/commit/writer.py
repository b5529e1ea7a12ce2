"""The writer thread: the only thread that writes the log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from weft.storage.segment_log.commit.committer import Committer
from weft.storage.segment_log.settings import COMMIT_BYTES_MAX, HOUSEKEEPING_INTERVAL_S, SPACE_INTERVAL_S
from weft.storage.segment_log.state.log_state import LogState


class WriterThread:
    """Calls ``Committer.run_once`` as soon as anything is due, and looks after retention now and then.

    Writing, syncing and compressing release the GIL.
    """

    def __init__(self, state: LogState, committer: Committer, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._monotonic = monotonic
        self._committer = committer
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weft-log-writer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Commit what is pending, then end the thread."""
        self._stopping.set()
        with self._state.changed:
            self._state.changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        state, stopping = self._state, self._stopping
        interval_s = state.settings.commit_interval_s
        housekeeping_at = self._monotonic() + HOUSEKEEPING_INTERVAL_S
        while True:
            with state.changed:
                while (
                    not (state.queue.due and state.queue)
                    and not self._committer.waits_for_space
                    and not stopping.is_set()
                    and self._monotonic() < housekeeping_at
                ):
                    state.changed.wait(housekeeping_at - self._monotonic())
                if state.failed or (stopping.is_set() and not state.queue):
                    return
            if self._monotonic() >= housekeeping_at or self._committer.waits_for_space:
                self._committer.housekeep()
                housekeeping_at = self._monotonic() + HOUSEKEEPING_INTERVAL_S
            self._committer.run_once()
            if self._committer.waits_for_space:
                if stopping.wait(SPACE_INTERVAL_S):
                    return
            elif interval_s and state.queue.raw_bytes < COMMIT_BYTES_MAX:
                stopping.wait(interval_s)
