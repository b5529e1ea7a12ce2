"""Signals as devices send them, and worse: every number there is, times that repeat and step back, rows without."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from hypothesis import strategies

from tests.functions.restart import SECOND, row
from weft.functions.contract import Gap, Row

KEYS = (b"a", b"b", b"long/" + b"x" * 500)
FAR = 1_700_000_000 * SECOND

near = strategies.integers(-30, 30).map(lambda tenths: tenths / 10)
"""Numbers near each other, as of a sensor; most series have them, or nothing would ever be left out."""
any_float = strategies.floats(allow_nan=True, allow_infinity=True)
any_int = strategies.integers(-(1 << 63), (1 << 64) - 1)
numbers = strategies.one_of(
    near,
    near,
    near,
    near.map(lambda value: value + 1e15),
    near.map(lambda value: int(value) + (1 << 53)),
    any_float,
    any_int,
)
others: strategies.SearchStrategy[Any] = strategies.sampled_from(
    [None, "n/a", True, False, [1], {"x": 1}, 1 << 64, -(1 << 70), math.nan, math.inf, -math.inf, "", b"\xff"]
)
steps = strategies.one_of(
    strategies.integers(0, 3 * SECOND),
    strategies.integers(0, 3).map(lambda seconds: seconds * SECOND),
    strategies.just(0),
    strategies.integers(-5 * SECOND, 0),
    strategies.integers(0, 500 * SECOND),
)
forward = strategies.one_of(
    strategies.integers(0, 3 * SECOND), strategies.just(0), strategies.integers(0, 500 * SECOND)
)


@strategies.composite
def signals(
    draw: strategies.DrawFn, values: strategies.SearchStrategy[Any] = numbers, *, ordered: bool = False
) -> list[Row]:
    """Draw rows of a few topics with the field ``x``, and ``y`` now and then."""
    time = FAR
    rows: list[Row] = []
    for _ in range(draw(strategies.integers(0, 40))):
        time += draw(forward if ordered else steps)
        found: dict[str, Any] = {"x": draw(values)}
        if draw(strategies.integers(0, 5)) == 0:
            found["y"] = draw(values)
        if draw(strategies.integers(0, 9)) == 0:
            del found["x"]
        rows.append(_row(time, found, draw(strategies.sampled_from(KEYS)), len(rows)))
    return rows


@strategies.composite
def inputs(draw: strategies.DrawFn, *, ordered: bool = False) -> list[Row | Gap]:
    """Draw rows of all kinds with gaps between them."""
    mixed: list[Row | Gap] = list(draw(signals(strategies.one_of(numbers, others), ordered=ordered)))
    for _ in range(draw(strategies.integers(0, 2))):
        at = draw(strategies.integers(0, len(mixed)))
        times = [each.time for each in mixed[:at] if isinstance(each, Row)]
        mixed.insert(at, Gap("in", at, at + 1, "budget", times[-1] if times else 0))
    return mixed


def _row(time: int, values: dict[str, Any], key: bytes, seq: int) -> Row:
    made = row(time, {}, key, seq)
    # JSON has no NaN and no bytes; other formats do.
    made.payload, made.values = repr(values).encode(), values
    return made


def exact(value: Any) -> Fraction:
    """Return a number as it is, without any rounding."""
    return Fraction(value)


def usable(value: Any) -> bool:
    """Return whether a value is a number on which a bound can be kept, in the words of the documentation."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and -(1 << 63) <= value < 1 << 64
