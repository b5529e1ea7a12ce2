"""LTTB chooses points of the signal, keeps its ends and extremes, and says how far the others are from the line."""

from __future__ import annotations

import itertools
from fractions import Fraction

from hypothesis import example, given, strategies

from weft.functions.aggregates import error_of, lttb

finite = strategies.one_of(
    strategies.integers(-20, 20).map(float),
    strategies.floats(allow_nan=False, allow_infinity=False),
    strategies.integers(-(1 << 63), (1 << 63) - 1),
)
times = strategies.one_of(strategies.integers(0, 50), strategies.integers(1_700_000_000 * 10**9, 1_700_000_100 * 10**9))
signals = strategies.lists(strategies.tuples(times, finite), max_size=60)


@given(signals, strategies.integers(3, 20))
@example([(0, 1e308), (1, -1e308), (2, 1e308), (3, 0.0), (4, 5e-324)], 4)
def test_the_points_are_of_the_signal_with_its_ends_and_extremes(signal: list[tuple[int, float]], points: int) -> None:
    t, v = [each[0] for each in signal], [each[1] for each in signal]
    chosen = lttb(t, v, points)
    assert len(chosen) == len(set(chosen)) <= points
    assert all(0 <= each < len(signal) for each in chosen)
    assert [t[each] for each in chosen] == sorted(t[each] for each in chosen)
    if len(signal) <= points:
        assert len(chosen) == len(signal)
    if signal:
        assert t[chosen[0]] == min(t)
        assert t[chosen[-1]] == max(t)
    if signal and points >= 4:
        kept = [v[each] for each in chosen]
        assert max(kept) == max(v)
        assert min(kept) == min(v)


@given(signals, strategies.integers(3, 20))
def test_every_point_is_within_the_stated_error_of_the_line(signal: list[tuple[int, float]], points: int) -> None:
    """In exact arithmetic, of the line through the chosen points."""
    t, v = [each[0] for each in signal], [each[1] for each in signal]
    chosen = lttb(t, v, points)
    bound = error_of(t, v, chosen)
    order = sorted(range(len(t)), key=t.__getitem__)
    for left, right in itertools.pairwise(chosen):
        first, last = Fraction(v[left]), Fraction(v[right])
        for index in order[order.index(left) : order.index(right) + 1]:
            value = Fraction(v[index])
            if t[left] == t[right]:
                off = max(min(first, last) - value, value - max(first, last), Fraction(0))
            else:
                off = abs(first + (last - first) * (t[index] - t[left]) / (t[right] - t[left]) - value)
            assert bound == float("inf") or off <= Fraction(bound)


def test_a_spike_is_kept() -> None:
    values = [0.0] * 1000
    values[517] = 9.0
    assert 517 in lttb(range(1000), values, 10)


def test_a_line_has_no_error() -> None:
    assert error_of(range(5), [0.0, 0.0, 0.0, 0.0, 0.0], lttb(range(5), [0.0] * 5, 3)) == 0
    assert error_of(range(101), [at / 4 for at in range(101)], [0, 100]) < 1e-13


def test_points_of_any_order_are_chosen_by_time() -> None:
    assert lttb([3, 1, 2], [0.0, 0.0, 0.0], 3) == [1, 2, 0]


def test_the_points_are_spread_over_the_signal() -> None:
    """One of each bucket, as in the paper."""
    chosen = lttb(range(100), [(-1.0) ** at for at in range(100)], 12)
    assert len(chosen) == 12
    assert max(after - before for before, after in itertools.pairwise(chosen)) <= 20
