"""Clients with packets to be written, gathered while a read is handled, so that each gets them in one write."""

from __future__ import annotations

from collections.abc import Callable

from weft.bounds import CROWD, Crowd


class Outbox:
    """The clients to be flushed. Belongs to the event loop's thread."""

    __slots__ = ("_crowd", "_waiting", "last")

    def __init__(self, crowd: Crowd) -> None:
        """Start with nothing to be written.

        Args:
            crowd: told once so many clients were flushed in one call that the others' writes have to wait.
        """
        self._crowd = crowd
        self._waiting: list[Callable[[], None]] = []
        self.last: Callable[[], None] | None = None
        """Work to be done once all clients are flushed."""

    def add(self, flush: Callable[[], None]) -> None:
        """Have a client's ``flush`` called. To be added once until then."""
        self._waiting.append(flush)

    def flush(self) -> None:
        """Write what was gathered for each client; also what a client's flush adds for others."""
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
