"""Windows by brute force: every row is remembered, and every window is looked for again at every second."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.functions.restart import SECOND
from weft.functions.contract import Gap, Row


class Times(NamedTuple):
    """Settings of windows, in seconds."""

    every: int = 0
    size: int = 0
    gap: int = 0
    event: bool = False
    lateness: int = 0
    idle: int = 0


@dataclass
class Found:
    """A window that came out."""

    key: bytes
    start: int
    end: int
    rows: list[Row]
    late: int
    complete: bool

    @property
    def first(self) -> int:
        return min(row.time for row in self.rows)


@dataclass
class Key:
    """What is known of one key."""

    rows: list[tuple[int, Row]] = field(default_factory=list)
    greatest: float = -math.inf
    closed: float = -math.inf
    seen: int = 0
    late: int = 0


class Reference:
    """Windows of one input."""

    def __init__(self, times: Times) -> None:
        self.times = times
        self.keys: dict[bytes, Key] = {}
        self.found: list[Found] = []
        self.gaps: list[list[float]] = []
        self.now = 0

    def feed(self, inputs: Sequence[Row | Gap], until: int) -> list[Found]:
        for each in inputs:
            if isinstance(each, Gap):
                self.gaps.append([each.after, math.inf])
                continue
            self._seconds_before(each.time)
            for gap in self.gaps:
                gap[1] = min(gap[1], each.time)
            self._row(each)
        self._seconds_before(until)
        return self.found

    def _seconds_before(self, time: int) -> None:
        while self.now < time:
            self._tick(self.now)
            self.now += SECOND

    def _row(self, row: Row) -> None:
        key = self.keys.setdefault(row.key, Key())
        t = round(row.values["ts"] * SECOND) if self.times.event else row.time
        every = self.times.every * SECOND
        first_end = t + 1 if self.times.gap else t // every * every + every
        if self.times.event and first_end <= key.greatest - self.times.lateness * SECOND:
            self._close({row.key: key}, self.now, idle=False)
            if self._is_passed(key, t):
                key.late += 1
                key.seen = max(key.seen, row.time)
                return
        if self.times.gap:
            ends = [t + 1]
        else:
            ends = [end for _, end in self._windows(t)]
        if any(end <= key.closed for end in ends):
            key.late += 1
        if all(end <= key.closed for end in ends):
            key.seen = max(key.seen, row.time)
            return
        key.rows.append((t, row))
        key.greatest = max(key.greatest, t)
        key.seen = row.time

    def _is_passed(self, key: Key, t: int) -> bool:
        """Whether all windows of a row are over, opened or not. Fixed ones are closed from then on."""
        limit, gap = key.greatest - self.times.lateness * SECOND, self.times.gap * SECOND
        if gap:
            return t + gap <= limit and not any(abs(t - other) < gap for other, _ in key.rows)
        every, size = self.times.every * SECOND, self.times.size * SECOND
        key.closed = max(key.closed, (limit - size) // every * every + size)
        return all(end <= key.closed for _, end in self._windows(t))

    def _windows(self, t: int) -> Iterator[tuple[int, int]]:
        every, size = self.times.every * SECOND, self.times.size * SECOND
        start = t // every * every
        while start + size > t:
            yield start, start + size
            start -= every

    def _open(self, key: Key) -> dict[tuple[int, int], list[Row]]:
        windows: dict[tuple[int, int], list[Row]] = {}
        if not self.times.gap:
            for t, row in key.rows:
                for window in self._windows(t):
                    if window[1] > key.closed:
                        windows.setdefault(window, []).append(row)
            return windows
        chains: list[list[tuple[int, Row]]] = []
        gap = self.times.gap * SECOND
        for t, row in sorted(key.rows, key=lambda each: each[0]):
            if chains and t - chains[-1][-1][0] < gap:
                chains[-1].append((t, row))
            else:
                chains.append([(t, row)])
        return {(chain[0][0], chain[-1][0] + gap): [row for _, row in chain] for chain in chains}

    def _tick(self, now: int) -> None:
        self._close(self.keys, now, idle=True)

    def _close(self, keys: dict[bytes, Key], now: int, *, idle: bool) -> None:
        """Put out the windows that are over: at a second, or those of a key that gets a row of such a one."""
        over: list[tuple[int, int, bytes, int, Key, list[Row]]] = []
        for name, key in keys.items():
            limit: float = now
            if self.times.event:
                is_idle = idle and key.seen + self.times.idle * SECOND <= now
                limit = math.inf if is_idle else key.greatest - self.times.lateness * SECOND
            for (start, end), rows in self._open(key).items():
                if end <= limit:
                    over.append((end, min(row.time for row in rows), name, start, key, rows))
        for end, _, name, start, key, rows in sorted(over, key=lambda each: each[:4]):
            key.closed = max(key.closed, end)
            self.found.append(Found(name, start, end, rows, key.late, self._complete(start, end, rows)))
            key.late = 0
            if self.times.gap:
                key.rows = [(t, row) for t, row in key.rows if row not in rows]

    def _complete(self, start: int, end: int, rows: list[Row]) -> bool:
        if not self.times.event:
            return not any(after < end and start <= until for after, until in self.gaps)
        first, lateness = min(row.time for row in rows), self.times.lateness * SECOND
        return not any(first <= until or (after - lateness < end and start <= until) for after, until in self.gaps)


def quantile(values: list[float], wanted: float) -> float:
    return sorted(values)[math.floor(wanted * (len(values) - 1))]


def deviation(values: list[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def by_time(rows: list[Row], event: bool) -> list[Any]:
    """Return the values in the order of time, and of arrival where times are equal."""
    return [row.values["x"] for row in sorted(rows, key=lambda row: row.values["ts"] if event else row.time)]
