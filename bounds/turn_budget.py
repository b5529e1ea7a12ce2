"""Bound on one owner's work before the others' turn."""

from __future__ import annotations

from collections.abc import Callable


class TurnBudget:
    """A cost and a time for one turn; an owner that has spent either waits for its next turn.

    Spending is checked after the fact, so one step may pass the budget by its own cost: bound the steps as well.

    Args:
        cost_max: units of work in a turn.
        seconds_max: longest time of a turn.
        clock: monotonic seconds.
    """

    __slots__ = ("_clock", "_cost_max", "_left", "_seconds_max", "_until")

    def __init__(self, cost_max: int, seconds_max: float, clock: Callable[[], float]) -> None:
        self._cost_max = cost_max
        self._seconds_max = seconds_max
        self._clock = clock
        self._left = cost_max
        self._until = float("inf")

    def begin(self, now: float) -> None:
        """Begin a turn with the whole budget.

        Args:
            now: time of the clock, which a caller in a hot loop has already.
        """
        self._left = self._cost_max
        self._until = now + self._seconds_max

    def spend(self, cost: int = 1) -> bool:
        """Charge work that was done. Return whether the turn may continue."""
        self._left -= cost
        return self._left > 0 and self._clock() < self._until
