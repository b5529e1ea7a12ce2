"""Clients with packets to be written, gathered while a read is handled, so that each gets them in one write."""

from __future__ import annotations

from collections.abc import Callable


class Outbox:
    """The clients to be flushed. Belongs to the event loop's thread."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def add(self, flush: Callable[[], None]) -> None:
        """Have a client's ``flush`` called. To be added once until then."""
        self._waiting.append(flush)

    def flush(self) -> None:
        """Write what was gathered for each client; also what a client's flush adds for others."""
        waiting = self._waiting
        while waiting:
            waiting.pop()()
