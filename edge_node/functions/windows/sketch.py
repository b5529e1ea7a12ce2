"""Quantiles of many values in little memory: a DDSketch (docs/decisions/0075-quantiles-by-ddsketch.md).

A sketch counts values in bins whose bounds grow by a constant factor, so a quantile is off by at most ``accuracy`` of
its value. Only bins with values are kept, in a plain dictionary: a machine's temperature needs about ten of them.
Counts are integers, so that sketches merge, restart and add up without rounding.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

from ddsketch.mapping import LogarithmicMapping

Bins = dict[int, int]
"""Bin -> number of values in it."""
BINS_MAX = 2048
"""Maximum number of bins of a sketch; an accuracy of 1 % then covers values from 1 to 10**17. Beyond it, the bins
nearest to zero are merged."""
_NEGATIVE = 1 << 20
"""Added to the bins of values below zero. The bins of floats at the finest accuracy reach to 360,000 on both sides."""
_ZERO = 1 << 21


class Sketches:
    """Sketches of one accuracy."""

    def __init__(self, accuracy: float) -> None:
        self._mapping = LogarithmicMapping(accuracy)

    def adder(self) -> Callable[[Bins, float], None]:
        """Return a function that adds a value to a sketch."""
        key, least = self._mapping.key, self._mapping.min_possible
        # The value that represents the highest bin must be a float.
        most = self._mapping.max_possible / self._mapping.gamma

        def add(bins: Bins, value: float) -> None:
            if value > least:
                bin_ = key(min(value, most))
            elif value < -least:
                bin_ = key(min(-value, most)) + _NEGATIVE
            else:
                bin_ = _ZERO
            bins[bin_] = bins.get(bin_, 0) + 1
            if len(bins) > BINS_MAX:
                _collapse(bins)

        return add

    def quantiles(self, bins: Bins, wanted: tuple[float, ...]) -> list[float | None]:
        """Return quantiles between 0 and 1: for each, the value that this share of all values does not exceed."""
        # The library's stores are dense: values from 1e-300 to 1e300 would take them seconds.
        ordered = sorted(bins, key=_order)
        ranks = list(accumulate(bins[bin_] for bin_ in ordered))
        if not ranks:
            return [None] * len(wanted)
        places = (bisect_right(ranks, share * (ranks[-1] - 1)) for share in wanted)
        return [self._value(ordered[place]) for place in places]

    def _value(self, bin_: int) -> float:
        if bin_ == _ZERO:
            return 0.0
        is_negative, key = _key(bin_)
        value: float = self._mapping.value(key)
        return -value if is_negative else value


def _key(bin_: int) -> tuple[bool, int]:
    """Return whether a bin is for values below zero, and its number by their size."""
    return (True, bin_ - _NEGATIVE) if bin_ >= _NEGATIVE // 2 else (False, bin_)


def _order(bin_: int) -> tuple[int, int]:
    """Return the sort key of a bin, by its values."""
    if bin_ == _ZERO:
        return 0, 0
    is_negative, key = _key(bin_)
    return (-1, -key) if is_negative else (1, key)


def merge(bins: Bins, other: Bins) -> None:
    """Add the values of another sketch."""
    for bin_, count in other.items():
        bins[bin_] = bins.get(bin_, 0) + count
    if len(bins) > BINS_MAX:
        _collapse(bins)


def _collapse(bins: Bins) -> None:
    """Merge the bins nearest to zero, an eighth at a time: sorting them for each value would make widely scattered
    values a hundred times as expensive."""
    ordered = sorted((bin_ for bin_ in bins if bin_ != _ZERO), key=lambda bin_: _key(bin_)[::-1])
    kept = ordered[len(ordered) - BINS_MAX * 7 // 8 :]
    least = {_key(bin_)[0]: bin_ for bin_ in reversed(kept)}
    for bin_ in ordered[: len(ordered) - len(kept)]:
        # Into the least bin of its own sign; where none is left, among the zeros.
        into = least.get(_key(bin_)[0], _ZERO)
        bins[into] = bins.get(into, 0) + bins.pop(bin_)
