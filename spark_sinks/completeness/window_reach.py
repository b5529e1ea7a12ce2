"""Distances between windows of event time and the times at which their records were taken in.

A query of windows reads a window's records by the time at which edges took them in. Most come within a usual distance
of their window; devices that buffer and clocks that are wrong bring others. The reach keeps the larger distances, by
window, so that a window that is computed again has all its records. It can be computed again from the log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from weft.config.functions.window_grid import Grid

PARTS_MAX = 500
"""Maximum number of parts of a reach. Beyond it, the most similar neighbours are joined: more is read, and nothing is
missed."""
STEP_US = 60_000_000
"""Smallest distance that is kept; others are powers of two of it, so that neighbouring windows have the same."""


class Stretch(NamedTuple):
    """Windows with distances beyond the usual ones."""

    first: int
    end: int
    before_us: int
    """Longest time by which a record was taken in before its window began."""
    after_us: int
    """Longest time by which a record was taken in after its window had ended."""


class TakenIn(NamedTuple):
    """Records of one window."""

    number: int
    earliest_us: int
    """First time at which one of them was taken in."""
    latest_us: int
    last_us: int = 0
    """Last time by which one of them belongs to the window."""


@dataclass(slots=True)
class Reach:
    """Distances of windows, with bounded memory."""

    grid: Grid
    before_us: int
    """Usual distance before a window, which has no part."""
    after_us: int
    """Usual distance after a window."""
    parts: list[Stretch] = field(default_factory=list)
    """Ascending, and never overlapping."""

    def see(self, seen: Iterable[TakenIn]) -> None:
        """Add records, each window once."""
        found = []
        for number, earliest, latest, _ in seen:
            before, after = self.grid.start(number) - earliest, latest - self.grid.start(number + 1)
            if before > self.before_us or after >= self.after_us:
                found.append(Stretch(number, number + 1, _rounded(before), _rounded(after)))
        if found:
            self.parts = _bounded(_with(self.parts, sorted(found)))

    def taken_in(self, first: int, end: int) -> tuple[int, int]:
        """Return the first time, and the time after the last, at which records of the windows ``[first, end)`` were
        taken in."""
        before, after = self.before_us, self.after_us
        low = bisect_right(self.parts, first, key=_end)
        for part in self.parts[low : bisect_left(self.parts, end, key=_first)]:
            before, after = max(before, part.before_us), max(after, part.after_us)
        return self.grid.start(first) - before, self.grid.start(end) + after


def _first(part: Stretch) -> int:
    return part.first


def _end(part: Stretch) -> int:
    return part.end


def _rounded(distance_us: int) -> int:
    """Return the distance, rounded up; 0 for none."""
    if distance_us < 0:
        return 0
    steps = distance_us // STEP_US
    return STEP_US << steps.bit_length()


def _with(parts: list[Stretch], found: list[Stretch]) -> list[Stretch]:
    """Return parts with single windows among them, which get the larger distances of the two."""
    result: list[Stretch] = []
    at = 0
    for part in parts:
        while at < len(found) and found[at].first < part.first:
            _add(result, found[at])
            at += 1
        rest = part
        while at < len(found) and found[at].first < part.end:
            one = found[at]
            at += 1
            both = _both(one, rest._replace(first=one.first, end=one.end))
            if both[2:] == part[2:]:
                continue
            if rest.first < one.first:
                _add(result, rest._replace(end=one.first))
            _add(result, both)
            rest = rest._replace(first=one.end)
        if rest.first < rest.end:
            _add(result, rest)
    for one in found[at:]:
        _add(result, one)
    return result


def _add(parts: list[Stretch], part: Stretch) -> None:
    """Append a part, or join it with the last one where the two differ in nothing."""
    if parts and parts[-1].end == part.first and parts[-1][2:] == part[2:]:
        parts[-1] = _both(parts[-1], part)
    else:
        parts.append(part)


def _both(one: Stretch, other: Stretch) -> Stretch:
    return Stretch(
        min(one.first, other.first),
        max(one.end, other.end),
        max(one.before_us, other.before_us),
        max(one.after_us, other.after_us),
    )


def _bounded(parts: list[Stretch]) -> list[Stretch]:
    excess = len(parts) - PARTS_MAX
    if excess <= 0:
        return parts
    costs = sorted((_cost(one, other), at) for at, (one, other) in enumerate(pairwise(parts)))
    joins = {at for _, at in costs[:excess]}
    found: list[Stretch] = []
    for at, part in enumerate(parts):
        if at - 1 in joins:
            found[-1] = _both(found[-1], part)
        else:
            found.append(part)
    return found


def _cost(one: Stretch, other: Stretch) -> int:
    """Return about how much time more is read for two parts that are joined."""
    joined = _both(one, other)
    most = joined.before_us + joined.after_us
    extra = (most - each.before_us - each.after_us for each in (one, other))
    counts = (one.end - one.first, other.end - other.first)
    return most * (other.first - one.end) + sum(each * count for each, count in zip(extra, counts, strict=True))
