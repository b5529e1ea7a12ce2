"""State of many series: bounded, and the same after a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.edge_node.functions.contract import State

_EVICTED_SHARE = 16
"""Divisor of the series: the share removed at once when there are too many. Removing one by one would search the
beginning of the dict each time."""


class SeriesState:
    """State of up to ``series_max`` series. An entry is a list or tuple that begins with its number.

    Entries are in the order of ``put``. That order decides which are forgotten first, so each entry has a number that
    restores it after a restart.
    """

    def __init__(self, series_max: int) -> None:
        """Start empty."""
        self.state = State()
        self.get: Callable[[bytes], Any] = self.state.values.get
        """Entry of a series; None without one."""
        self._series_max = series_max
        self._next = 0
        self._is_ordered = False

    def restore(self) -> bool:
        """Order loaded entries, once. Return whether this call did: structures derived from them must then be built.
        Call it before any other method."""
        if self._is_ordered:
            return False
        self._is_ordered = True
        values = self.state.values
        entries = sorted(values.items(), key=lambda item: item[1][0])
        values.clear()
        values.update(entries)
        self._next = entries[-1][1][0] + 1 if entries else 0
        return True

    def put(self, series: bytes, *entry: Any) -> list[Any]:
        """Remember a series as the newest one, and return its entry. Call ``evict`` afterwards for a new series."""
        found = [self._next, *entry]
        self._next += 1
        state = self.state
        state.values.pop(series, None)  # a new entry goes to the end
        state.set(series, found)
        return found

    def evict(self) -> list[tuple[bytes, Any]]:
        """Forget the oldest series when there are too many, and return them with their entries."""
        values = self.state.values
        if len(values) <= self._series_max:
            return []
        count = len(values) - self._series_max + self._series_max // _EVICTED_SHARE
        oldest = [item for item, _ in zip(values.items(), range(count), strict=False)]
        for series, _ in oldest:
            self.state.delete(series)
        return oldest

    def clear(self) -> None:
        """Forget all series."""
        for series in list(self.state.values):
            self.state.delete(series)
