"""The time that a hub tells over one connection, for the clocks of the log's boots."""

from __future__ import annotations

from collections.abc import Callable

from weft.protocols.link import Clock
from weft.replication.runner.settings import ClockSource
from weft.replication.sender import Sender

ASKS_MAX = 8
"""Maximum number of times that the hub is asked for its time at once, after its WELCOME told it."""
WAIT_NS = 10_000_000_000
"""Longest wait of records for the time of their boot, from the WELCOME on. Usually it is one round trip."""


class HubTime:
    """Passes the hub's answers to a clock source, and what that learned to the hub.

    Args:
        clocks: None for a sender whose clock is right.
        node: name of the hub node.
        clock: monotonic nanoseconds.
    """

    def __init__(self, clocks: ClockSource | None, node: str, clock: Callable[[], int]) -> None:
        self._clocks = clocks
        self._node = node
        self._clock = clock
        self._answers = 0
        """Number of answers that were passed on."""
        self._told: set[Clock] = set()
        self._awaited_until: int | None = None

    def follow(self, sender: Sender) -> bool:
        """Pass on a new answer, and send the notices that the hub lacks before any later batch. Ask again while the
        time of this boot is unknown: one answer is not enough.

        Returns:
            True if a notice is sent, which makes all marks due: offer the present state of all lanes first.
        """
        live, clocks = sender.liveness, self._clocks
        answer = live.last_answer
        if clocks is None or answer is None or live.answers == self._answers:
            return False
        now = self._clock()
        if not self._answers:
            self._awaited_until = now + WAIT_NS
        self._answers = live.answers
        clocks.tell(self._node, answer.base + now, answer.error)
        new = [notice for notice in clocks.notices() if notice not in self._told]
        if new:
            sender.tell_clocks(new)
            self._told.update(new)
        if not clocks.is_unknown:
            self._awaited_until = None
        elif self._answers <= ASKS_MAX:
            live.ask(now)
        return bool(new)

    def is_awaited(self, now: int) -> bool:
        """Return whether records wait for the time of their boot: those sent before keep the stamps of its clock."""
        return self._awaited_until is not None and now < self._awaited_until
