"""Appends to several streams that become durable in one commit."""

from __future__ import annotations

from collections.abc import Callable

from weft.storage.segment_log.state.log_state import LogState
from weft.storage.segment_log.state.run_sizes import batches_bytes


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
