"""Memory of messages in flight and waiting: bounds for one client, and for all of them together."""

from __future__ import annotations

MESSAGE_OVERHEAD_BYTES = 200
"""Memory of a waiting message besides its payload, roughly: its topic, tuple and places in the containers."""


class QueueBudget:
    """Bytes that the windows and queues of all clients may take together. Only ``QueueAccount`` changes it."""

    __slots__ = ("bytes_max", "used")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0


class QueueAccount:
    """Part of the budget that one client, or one shared subscription, has taken, with a bound of its own.

    What is taken is counted in both places in one call, so that they cannot come apart.
    """

    __slots__ = ("_budget", "_bytes_max", "used")

    def __init__(self, budget: QueueBudget, bytes_max: int) -> None:
        self._budget = budget
        self._bytes_max = bytes_max
        self.used = 0

    def take(self, size: int) -> None:
        """Count bytes that are held from now on."""
        self.used += size
        self._budget.used += size

    def free(self, size: int) -> None:
        """Count bytes that are held no longer."""
        self.used -= size
        self._budget.used -= size

    def fits(self, size: int) -> bool:
        """Return whether so many bytes more are within both bounds."""
        budget = self._budget
        return self.used + size <= self._bytes_max and budget.used + size <= budget.bytes_max

    def is_full(self) -> bool:
        """Return whether a bound is reached: then nothing more is sent before something is acknowledged."""
        budget = self._budget
        return self.used >= self._bytes_max or budget.used >= budget.bytes_max
