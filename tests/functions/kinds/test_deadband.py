"""A deadband's output says what its input was, within the bound that it states."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import strategies

from tests.functions.kinds.signals import FAR, exact, inputs, near, signals, usable
from tests.functions.restart import SECOND, context, cuts, row, run, same_after_restarts, stateful
from tests.support.examples import given
from weft.config.functions.step import Band, Deadband
from weft.functions.contract import Gap, Row
from weft.functions.series import key_of
from weft.functions.thinning import DEADBAND_HEADER, DeadbandFunction, with_bounds

deltas = strategies.one_of(
    strategies.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0, 1e-300, 5e-324]), strategies.floats(0, 1e300)
)
relatives = strategies.one_of(strategies.none(), strategies.floats(1e-9, 1), strategies.just(0.1))


def make(**settings: Any) -> DeadbandFunction:
    return DeadbandFunction(Deadband(**settings), context())


def kept(function: DeadbandFunction, rows: list[Row | Gap]) -> list[Any]:
    return [each.values["x"] for each in run(lambda: function, rows).emitted]


def of(*values: Any, every: int = SECOND) -> list[Row | Gap]:
    return [row(FAR + at * every, {"x": value}, seq=at) for at, value in enumerate(values)]


def bound_of(row: Row, field: str = "x") -> float:
    (bound,) = (value for name, value in row.headers if name == DEADBAND_HEADER + field)
    assert isinstance(bound, float)
    return bound


@given(signals(), deltas, relatives)
def test_the_last_kept_row_is_within_the_bound_of_every_row_since(
    rows: list[Row], delta: float, relative: float | None
) -> None:
    """In exact arithmetic, for every double and every integer of 64 bits."""
    whole = run(lambda: make(field_="x", delta=delta, relative=relative), rows)
    emitted = {each.seq: each for each in whole.emitted}
    last: dict[bytes, Row | None] = {}
    for each in rows:
        if "x" not in each.values:
            assert each.seq in emitted
        elif not usable(each.values["x"]):
            assert each.seq in emitted
            last[each.key] = None
        elif each.seq in emitted:
            last[each.key] = emitted[each.seq]
        else:
            before = last[each.key]
            assert before is not None, "dropped, and nothing stands for it"
            value = before.values["x"]
            assert bound_of(before) == max(delta, (relative or 0.0) * abs(value))
            assert abs(exact(each.values["x"]) - exact(value)) <= exact(bound_of(before))


@given(strategies.lists(near, min_size=1, max_size=60), strategies.sampled_from([0.0, 0.1, 0.2, 0.5, 1.0]))
def test_no_row_is_kept_that_the_bound_would_not_need(values: list[float], delta: float) -> None:
    """But for one rounding: what is within the bound by more than that is left out."""
    emitted = [each.seq for each in run(lambda: make(field_="x", delta=delta), of(*values)).emitted]
    for before, after in itertools.pairwise(emitted):
        assert abs(exact(values[after]) - exact(values[before])) > exact(delta) - exact(1e-15)


@given(strategies.data())
def test_restarts_change_nothing(data: strategies.DataObject) -> None:
    rows = data.draw(inputs())
    settings = data.draw(
        strategies.sampled_from(
            [
                {"field_": "x", "delta": 0.2},
                {"field_": "x", "delta": 0.2, "max_silence_s": 5.0, "keys_max": 1},
                {"field_": "x", "relative": 0.1, "missing": "reject", "by": ("y",)},
                {"fields": {"x": Band(delta=0.5), "y": Band(relative=0.1)}, "missing": "drop", "keys_max": 2},
            ]
        )
    )
    same_after_restarts(lambda: make(**settings), rows, data.draw(cuts(len(rows))))


@given(signals(near, ordered=True))
def test_silence_is_never_longer_than_max_silence_and_the_next_row(rows: list[Row]) -> None:
    emitted = {each.seq for each in run(lambda: make(field_="x", delta=1e9, max_silence_s=10.0), rows).emitted}
    last: dict[bytes, int] = {}
    for each in rows:
        if "x" in each.values:
            if each.key not in last or each.time - last[each.key] >= 10 * SECOND:
                assert each.seq in emitted
            if each.seq in emitted:
                last[each.key] = each.time


@given(inputs())
def test_the_state_is_bounded_and_changes_only_with_kept_rows(rows: list[Row | Gap]) -> None:
    function = make(field_="x", delta=0.5, keys_max=2, missing="reject")
    state = stateful(function)
    for each in rows:
        emitted = [] if isinstance(each, Gap) else run(lambda: function, [each]).emitted
        assert len(state.values) <= 2
        if not emitted and isinstance(each, Row):
            assert state.take_changes() == {}
        state.take_changes()


def test_a_row_on_the_bound_is_left_out() -> None:
    assert kept(make(field_="x", delta=0.2), of(20.0, 20.2, 20.3, 19.9, 20.0, 20.3)) == [20.0, 20.3, 19.9, 20.3]


def test_a_relative_band_grows_with_the_value_and_delta_is_its_floor() -> None:
    rows = of(0.0, 0.05, 0.1, 100.0, 109.0, 111.0)
    assert kept(make(field_="x", relative=0.1, delta=0.1), rows) == [0.0, 100.0, 111.0]
    emitted = run(lambda: make(field_="x", relative=0.1, delta=0.1), rows).emitted
    assert [bound_of(each) for each in emitted] == [0.1, 10.0, pytest.approx(11.1)]


def test_several_fields_keep_a_row_when_one_of_them_moved() -> None:
    function = make(fields={"t": Band(delta=1), "h": Band(delta=5)})
    values: list[dict[str, Any]] = [
        {"t": 20, "h": 50},
        {"t": 20.5, "h": 54},
        {"t": 21.5, "h": 54},
        {"h": 58},
        {"h": 60},
        {"t": 21},
    ]
    emitted = run(lambda: function, [row(FAR + at, each, seq=at) for at, each in enumerate(values)]).emitted
    assert [each.seq for each in emitted] == [0, 2, 4]
    # The row without a temperature says nothing of it, and its bound is not in the row either.
    assert emitted[2].headers == ((DEADBAND_HEADER + "h", 5),)


def test_rows_without_the_field_pass_and_end_nothing() -> None:
    rows = of(20.0, 20.1, 20.1)
    rows.insert(1, row(FAR, {"status": "ok"}, seq=9))
    assert [each.seq for each in run(lambda: make(field_="x", delta=1), rows).emitted] == [0, 9]


@pytest.mark.parametrize("value", [None, "n/a", math.nan, math.inf, 1 << 64])
def test_the_row_after_one_that_is_no_number_is_kept(value: Any) -> None:
    """Without it, the reader of the output would hold on to what is no number."""
    rows = of(20.0, 20.0, 20.0, 20.0)
    rows[1] = Row(FAR, b"k", b"", {"x": value}, seq=1)
    assert [each.seq for each in run(lambda: make(field_="x", delta=1), rows).emitted] == [0, 1, 2]


def test_such_rows_are_rejected_with_a_reason_where_asked() -> None:
    rows = [*of(20.0, "n/a", 20.5, None), row(FAR, {"status": "ok"})]
    chain = run(lambda: make(field_="x", delta=1, missing="reject"), rows)
    assert [each.seq for each in chain.emitted] == [0]
    assert chain.out.rejected() == [
        "deadband: x is not a finite number of at most 64 bits: 'n/a'",
        "deadband: x is not a finite number of at most 64 bits: None",
        "deadband: the payload has no field x",
    ]


def test_the_row_after_a_gap_is_kept() -> None:
    rows = of(20.0, 20.0, 20.0)
    rows.insert(1, Gap("in", 1, 5, "budget", FAR))
    assert [each.seq for each in run(lambda: make(field_="x", delta=1), rows).emitted] == [0, 1]


def test_too_many_series_keep_more_rows_and_break_no_bound() -> None:
    keys = [b"a", b"b", b"c"]
    rows = [row(FAR + at, {"x": 1.0}, keys[at % 3], at) for at in range(9)]
    assert len(run(lambda: make(field_="x", delta=1, keys_max=2), rows).emitted) == 9
    assert len(run(lambda: make(field_="x", delta=1, keys_max=3), rows).emitted) == 3


def test_long_topics_take_no_more_memory_and_are_told_apart() -> None:
    function = make(field_="x", delta=1)
    rows = [row(FAR + at, {"x": 1.0}, b"t/" + b"x" * 60_000 + bytes([65 + at % 2]), at) for at in range(4)]
    assert [each.seq for each in run(lambda: function, rows).emitted] == [0, 1]
    assert max(map(len, stateful(function).values)) <= 128
    assert key_of(rows[0]) != key_of(rows[1])


def test_a_field_inside_of_another_is_reached_with_dots() -> None:
    rows = [row(FAR + at, {"motor": {"rpm": 100 + at}}, seq=at) for at in range(5)]
    assert [each.seq for each in run(lambda: make(field_="motor.rpm", delta=2), rows).emitted] == [0, 3]


def test_two_deadbands_state_the_sum_of_their_bounds() -> None:
    assert with_bounds(((DEADBAND_HEADER + "x", 0.5), ("unit", "C")), ((DEADBAND_HEADER + "x", 0.25),)) == (
        ("unit", "C"),
        (DEADBAND_HEADER + "x", 0.75),
    )


@given(strategies.floats(0, 1e300), strategies.floats(0, 1e300))
def test_the_sum_of_two_bounds_is_not_less_than_both(one: float, other: float) -> None:
    (_, total), *_ = with_bounds(((DEADBAND_HEADER + "x", one),), ((DEADBAND_HEADER + "x", other),))
    assert isinstance(total, float)
    assert exact(total) >= exact(one) + exact(other)
    assert total <= math.nextafter(one + other, math.inf)


def test_the_payload_goes_on_as_the_bytes_that_it_was() -> None:
    (only,) = run(lambda: make(field_="x", delta=1), of(20.0)).emitted
    assert only.payload == b'{"x":20.0}'


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "set either `field`"),
        ({"field_": "x"}, "set `delta` or `relative` for x"),
        ({"fields": {"x": Band()}}, "set `delta` or `relative` for x"),
        ({"fields": {"x": Band(delta=1)}, "delta": 1}, "of each field"),
        ({"field_": "x", "delta": 1, "fields": {"x": Band(delta=1)}}, "set either"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**settings)
