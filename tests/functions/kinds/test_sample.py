"""A sample keeps the rows that its settings say, of each series for itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies

from tests.functions.kinds.signals import FAR, inputs, near, signals
from tests.functions.restart import SECOND, context, cuts, row, run, same_after_restarts, stateful
from tests.support.examples import given
from weft.config.functions.step import Sample
from weft.functions.contract import Row
from weft.functions.thinning import SampleFunction

LEVELS = {b"l1/m1": {"line": "l1"}, b"l1/m2": {"line": "l1"}, b"l2/m3": {"line": "l2"}}


def make(**settings: Any) -> SampleFunction:
    return SampleFunction(Sample(**settings), context(LEVELS))


@given(strategies.data())
def test_restarts_change_nothing(data: strategies.DataObject) -> None:
    rows = data.draw(inputs())
    settings: dict[str, Any] = data.draw(
        strategies.sampled_from(
            [{"every": 3}, {"every": 2, "keys_max": 1}, {"period_s": 2.0}, {"period_s": 60.0, "by": ("y",)}]
        )
    )
    same_after_restarts(lambda: make(**settings), rows, data.draw(cuts(len(rows))))


@given(signals(near), strategies.integers(1, 7))
def test_each_nth_row_of_a_topic_is_kept(rows: list[Row], every: int) -> None:
    emitted = [each.seq for each in run(lambda: make(every=every), rows).emitted]
    by_key: dict[bytes, list[int]] = {}
    for each in rows:
        by_key.setdefault(each.key, []).append(each.seq)
    assert emitted == sorted(seq for numbers in by_key.values() for seq in numbers[::every])


@given(signals(near, ordered=True), strategies.sampled_from([0.5, 1.0, 10.0]))
def test_each_period_keeps_its_first_row(rows: list[Row], period: float) -> None:
    emitted = [each.seq for each in run(lambda: make(period_s=period), rows).emitted]
    first: dict[tuple[bytes, int], int] = {}
    for each in rows:
        first.setdefault((each.key, each.time // round(period * SECOND)), each.seq)
    assert emitted == sorted(first.values())


def test_series_may_be_told_apart_by_a_level_or_a_field() -> None:
    rows = [row(FAR + at, {"unit": at % 2}, key, at) for at, key in enumerate([*LEVELS, *LEVELS])]
    assert [each.seq for each in run(lambda: make(every=10, by=("line",)), rows).emitted] == [0, 2]
    assert [each.seq for each in run(lambda: make(every=10, by=("unit",)), rows).emitted] == [0, 1]


def test_a_clock_that_is_set_back_stops_no_series() -> None:
    rows = [row(FAR, {}), row(FAR - 10**6 * SECOND, {}), row(FAR - 10**6 * SECOND + 1, {})]
    assert len(run(lambda: make(period_s=10), rows).emitted) == 2


def test_payloads_are_not_decoded_where_nobody_looks_at_them() -> None:
    assert not make(every=2).reads_values
    assert not make(every=2, by=("line", "key")).reads_values
    assert make(every=2, by=("unit",)).reads_values


def test_the_series_that_are_remembered_are_bounded() -> None:
    function = make(every=2, keys_max=100)
    rows = [row(FAR, {}, b"%d" % at) for at in range(1000)]
    assert len(run(lambda: function, rows).emitted) == 1000
    assert len(stateful(function).values) <= 100


@pytest.mark.parametrize("settings", [{}, {"every": 2, "period_s": 1.0}])
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="set either `every`"):
        make(**settings)
