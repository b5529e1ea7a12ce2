"""Largest Triangle Three Buckets: a few points with the shape of all of them.

Sveinn Steinarsson: Downsampling Time Series for Visual Representation (University of Iceland, 2013), section 4.2. The
plain algorithm may leave out the least or the greatest value when its neighbours make a larger triangle; people read a
picture without the peak as a signal without one, so here both are always among the points.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

POINTS_MIN: Final = 3
"""Minimum number of points: the first, the last, and one between. The extremes are guaranteed from 4 on."""

# A line in doubles is off by at most some 9 roundings of 2**-53 of its larger end.
_ROUNDINGS: Final = 2.0**-49


def lttb(times: Sequence[float], values: Sequence[float], points: int) -> list[int]:
    """Choose points for a picture. Returns their indexes in order of time; all of them when there are few enough.

    Among them are the first and the last, and from 4 points on one with the least and one with the greatest value. The
    same input gives the same points. Points with equal times stay in the order of the input.

    Args:
        times: time of each point, in any unit and order.
        values: finite numbers.
        points: maximum number of points to choose, at least 3.
    """
    order = sorted(range(len(times)), key=times.__getitem__)
    if len(order) <= points:
        return order
    sorted_values = [values[at] for at in order]
    x, y = _scaled([times[at] for at in order]), _scaled(sorted_values)
    # Extremes that the triangles omit replace other points: with two places less there is room for both.
    for fewer in range(3):
        chosen = {0, *_triangles(x, y, max(points - fewer, 2)), len(order) - 1}
        if points > POINTS_MIN:
            chosen |= _left_out(sorted_values, chosen)
        if len(chosen) <= points:
            break
    return [order[at] for at in sorted(chosen)]


def _left_out(values: Sequence[float], chosen: set[int]) -> set[int]:
    """Return the indexes of the least and the greatest value, unless points with these values are chosen."""
    kept = {values[at] for at in chosen}
    return {values.index(each) for each in (min(values), max(values)) if each not in kept}


def error_of(times: Sequence[float], values: Sequence[float], chosen: Sequence[int]) -> float:
    """Return a bound on the error of chosen points: the largest distance of any point from the line through them,
    rounded up.

    Args:
        times: time of each point.
        values: finite numbers.
        chosen: indexes of points, as ``lttb`` returns them.
    """
    order = sorted(range(len(times)), key=times.__getitem__)
    places = {index: at for at, index in enumerate(order)}
    worst = 0.0
    for left, right in itertools.pairwise(chosen):
        for index in order[places[left] + 1 : places[right]]:
            worst = max(worst, _distance(times, values, left, right, index))
    return worst


def _distance(times: Sequence[float], values: Sequence[float], left: int, right: int, index: int) -> float:
    first, last, value = values[left], values[right], values[index]
    duration = times[right] - times[left]
    if duration == 0:  # a step at one moment covers everything between its ends
        low, high = min(first, last), max(first, last)
        found = max(low - value, value - high, 0)
    else:
        part = (times[index] - times[left]) / duration
        found = abs(first * (1 - part) + last * part - value)
    if found == 0 and first == last == value:
        return 0.0
    margin = max(abs(first), abs(last), abs(value)) * _ROUNDINGS
    return math.nextafter(found + margin, math.inf)


def _triangles(x: list[float], y: list[float], points: int) -> list[int]:
    """Return the point of each bucket that makes the largest triangle with the one chosen before and the mean of the
    next bucket."""
    count = len(x)
    buckets = points - 2
    # Buckets of equal length, up to one point, between the first and the last point.
    edges = [1 + (count - 2) * at // buckets for at in range(buckets + 1)] if buckets else [1]
    chosen = []
    before = 0
    for at in range(buckets):
        start, end = edges[at], edges[at + 1]
        following = range(end, edges[at + 2]) if at + 2 <= buckets else range(count - 1, count)
        mean_x = sum(x[each] for each in following) / len(following)
        mean_y = sum(y[each] for each in following) / len(following)
        from_x, from_y = x[before], y[before]
        wide, high = from_x - mean_x, mean_y - from_y
        best, largest = start, -1.0
        for each in range(start, end):
            area = abs(wide * (y[each] - from_y) - (from_x - x[each]) * high)
            if area > largest:
                best, largest = each, area
        chosen.append(best)
        before = best
    return chosen


def _scaled(numbers: list[float]) -> list[float]:
    """Return numbers between 0 and 1: which triangle is the largest stays the same, and no area is infinite."""
    low, high = min(numbers), max(numbers)
    # Halved, as the difference of two doubles may overflow.
    span = high / 2 - low / 2
    if span == 0:
        return [0.0] * len(numbers)
    return [min(max((each / 2 - low / 2) / span, 0.0), 1.0) for each in numbers]
