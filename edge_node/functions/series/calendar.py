"""Series by the second at which they have work."""

from __future__ import annotations


class Calendar:
    """Seconds with their series, and the first such second."""

    def __init__(self) -> None:
        """Start empty."""
        self._series: dict[int, dict[bytes, None]] = {}
        self._first: int | None = None

    def put(self, second: int, series: bytes) -> None:
        """Add a series at a second. A series has at most one second; ``move`` changes it."""
        there = self._series.get(second)
        if there is not None:
            there[series] = None
            return
        self._series[second] = {series: None}
        if self._first is not None and second < self._first:
            self._first = second

    def take(self, second: int, series: bytes) -> None:
        """Remove a series from a second."""
        there = self._series[second]
        del there[series]
        if not there:
            self._remove(second)

    def move(self, old: int, new: int, series: bytes) -> None:
        """Move a series from a second to another."""
        if old != new:
            self.take(old, series)
            self.put(new, series)

    def first(self) -> int | None:
        """Return the first second that has series; None when there is none."""
        if self._first is None and self._series:
            self._first = min(self._series)
        return self._first

    def series_at(self, second: int) -> list[bytes]:
        """Return the series of a second."""
        return list(self._series.get(second, ()))

    def _remove(self, second: int) -> None:
        del self._series[second]
        if second == self._first:
            self._first = None  # ``first`` looks for the next one
