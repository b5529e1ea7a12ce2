"""Patience of a sender with a hub that reads data and acknowledges none."""

from __future__ import annotations


class AckPatience:
    """The time that a sender waits for an acknowledgement of batches in flight. All times are monotonic nanoseconds.

    A hub that pings is alive, but may be unable to write to its store. Another node of the hub may then accept the
    data.
    """

    def __init__(self, timeout: int) -> None:
        self._timeout = timeout
        self._since: int | None = None

    @property
    def since(self) -> int | None:
        """Return the time at which the patience began; None while nothing is awaited."""
        return self._since

    @property
    def deadline(self) -> int | None:
        """Return the time at which the patience ends; None while nothing is awaited."""
        return None if self._since is None else self._since + self._timeout

    def awaits(self, anything: bool, now: int) -> None:
        """Note whether anything is in flight without an answer."""
        if not anything:
            self._since = None
        elif self._since is None:
            self._since = now

    def answered(self, now: int) -> None:
        """Note an answer: the patience begins again."""
        if self._since is not None:
            self._since = now

    def still_sending(self, now: int) -> None:
        """Note that bytes still leave this machine, so the hub may not have the batches yet: the patience begins
        again."""
        self.answered(now)

    def is_over(self, now: int) -> bool:
        """Return whether the hub acknowledged nothing for too long."""
        deadline = self.deadline
        return deadline is not None and now >= deadline
