"""Clients with pending packets, gathered while a read is handled, so that each gets them in one write."""

from __future__ import annotations

from collections.abc import Callable

from weft.bounds import CROWD, Crowd


class Outbox:
    """Clients with a pending flush. Belongs to the event loop's thread."""

    __slots__ = ("_crowd", "_waiting", "last")

    def __init__(self, crowd: Crowd) -> None:
        """Start without pending writes.

        Args:
            crowd: notified once so many clients were flushed in one call that the others' writes must wait.
        """
        self._crowd = crowd
        self._waiting: list[Callable[[], None]] = []
        self.last: Callable[[], None] | None = None
        """Callback once all clients are flushed."""

    def add(self, flush: Callable[[], None]) -> None:
        """Schedule a client's ``flush``. Add it only once until then."""
        self._waiting.append(flush)

    def flush(self) -> None:
        """Call the scheduled flushes, also those that a flush adds for other clients."""
        waiting = self._waiting
        if not waiting:
            return
        left = CROWD
        try:
            while waiting:
                if not left:
                    self._crowd.is_here = True
                left -= 1
                waiting.pop()()
        finally:
            self._crowd.is_here = False
            if self.last is not None:
                last, self.last = self.last, None
                last()
