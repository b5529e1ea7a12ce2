"""State of many series: bounded, and the same after a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.edge_node.functions.contract import State

_EVICTED_SHARE = 16
"""Part of the series that goes at once when there are too many: one by one would search the beginning of the dict each
time."""


class SeriesState:
    """State of up to ``series_max`` series. An entry is a list or tuple that begins with its number.

    Entries are in the order in which they were put. That order decides which are forgotten first, so each entry has
    a number that brings it back after a restart.
    """

    def __init__(self, series_max: int) -> None:
        """Start empty."""
        self.state = State()
        self.get: Callable[[bytes], Any] = self.state.values.get
        """Entry of a series; None when it has none."""
        self._series_max = series_max
        self._next = 0
        self._is_ordered = False

    def restore(self) -> bool:
        """Bring loaded entries in order, once. Return whether that was now: then anything made of them is yet to be
        made. Call before anything else."""
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
        """Remember a series as the newest one, and return its entry. Follow with ``evict`` when it is a new one."""
        found = [self._next, *entry]
        self._next += 1
        state = self.state
        state.values.pop(series, None)  # a new one goes to the end
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
