"""Bounds on numbers that hold in exact arithmetic, despite rounding of floats."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from typing import Any, Final

LARGEST: Final = sys.float_info.max
EXACT_INT_MAX: Final = 1 << 53
"""Largest magnitude up to which every integer is a double."""
INT_MIN: Final = -(1 << 63)
INT_END: Final = 1 << 64
"""End of the integers that fit MessagePack, and so the state."""


def is_finite(value: Any) -> bool:
    """Return whether a value of a payload is a number for which a bound can hold. True and False are 1 and 0."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and INT_MIN <= value < INT_END


def band(value: float, delta: float) -> tuple[float, float]:
    """Return the least and the greatest number that is at most ``delta`` from ``value``, or narrower by a rounding.

    A number x between them satisfies |x - value| <= delta exactly, not only after rounding.

    Args:
        value: a number for which ``is_finite`` holds.
        delta: at least 0 and finite.
    """
    if isinstance(value, int):
        if abs(value) > EXACT_INT_MAX:
            # Whole numbers, so that nothing is rounded; narrower than requested by less than 1.
            whole = int(delta)
            return max(value - whole, INT_MIN), min(value + whole, INT_END - 1)
        value = float(value)
    low, high = value - delta, value + delta
    # Knuth's TwoSum: low + error is the exact difference, and so on. A sum that was rounded away from ``value`` moves
    # back.
    part = low - value
    if (value - (low - part)) - (delta + part) > 0:
        low = math.nextafter(low, value)
    part = high - value
    if (value - (high - part)) + (delta - part) < 0:
        high = math.nextafter(high, value)
    return max(low, -LARGEST), min(high, LARGEST)


def added(bound: float, other: float) -> float:
    """Return the sum of two bounds, rounded up: it must not be less than both together."""
    total = bound + other
    part = total - bound
    # Knuth's TwoSum, as in ``band``: the part lost by rounding.
    lost = (bound - (total - part)) + (other - part)
    return math.nextafter(total, math.inf) if lost > 0 else total


def difference(left: float, right: float) -> float:
    """Return ``left - right`` with one rounding, also for integers that no double represents. Infinite when it is too
    large."""
    if isinstance(left, float) and isinstance(right, float):
        return left - right
    exact = Fraction(left) - Fraction(right)
    try:
        return float(exact)
    except OverflowError:
        return math.copysign(math.inf, exact)


def exact(value: float) -> float:
    """Return an integer as a double where both are equal, and other values unchanged."""
    return float(value) if isinstance(value, int) and abs(value) <= EXACT_INT_MAX else value
