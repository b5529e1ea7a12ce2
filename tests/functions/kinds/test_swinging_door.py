"""The line through the pivots of a swinging door passes every row within the bound that it states."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import strategies

from tests.functions.kinds.signals import FAR, exact, inputs, near, signals, usable
from tests.functions.restart import SECOND, Chain, context, cuts, row, run, same_after_restarts, stateful
from tests.support.examples import given
from weft.config.functions.step import SwingingDoor
from weft.functions.contract import Gap, Row
from weft.functions.thinning import SWINGING_DOOR_HEADER, SwingingDoorFunction

END = FAR + 10**7 * SECOND
deltas = strategies.one_of(
    strategies.sampled_from([0.1, 0.2, 0.5, 1.0, 1e-12, 1e-300, 5e-324]), strategies.floats(0, 1e300, exclude_min=True)
)


def make(**settings: Any) -> SwingingDoorFunction:
    return SwingingDoorFunction(SwingingDoor(**{"field_": "x", "delta": 0.5, **settings}), context())


def of(*values: Any, every: int = SECOND) -> list[Row | Gap]:
    return [row(FAR + at * every, {"x": value}, seq=at) for at, value in enumerate(values)]


def kept(rows: list[Row | Gap], **settings: Any) -> list[int]:
    """Return the numbers of the rows that come out, when time passes in the end."""
    return [each.seq for each in run(lambda: make(**settings), rows, until=END).emitted]


def lines_pass(rows: list[Row], emitted: dict[int, Row], delta: float) -> None:
    """Check each dropped row against the pivots before and after it, without any rounding."""
    for key in {each.key for each in rows}:
        series = [each for each in rows if each.key == key and "x" in each.values]
        for at, each in enumerate(series):
            if each.seq in emitted:
                continue
            before = next(other for other in reversed(series[:at]) if other.seq in emitted)
            after = next((other for other in series[at:] if other.seq in emitted), None)
            assert usable(before.values["x"])
            assert (SWINGING_DOOR_HEADER + "x", delta) in emitted[before.seq].headers
            value, start = exact(each.values["x"]), exact(before.values["x"])
            if (each.time, value) == (before.time, start):
                continue  # repeats the pivot
            assert after is not None, "the last row of a series comes out"
            assert usable(after.values["x"])
            assert before.time < each.time <= after.time
            end = exact(after.values["x"])
            line = start + (end - start) * (each.time - before.time) / (after.time - before.time)
            assert abs(line - value) <= exact(delta)
            # As anyone would compute it, in doubles.
            first, last, part = before.values["x"], after.values["x"], each.time - before.time
            if abs(first) < 1e300 and abs(last) < 1e300:
                rounded = first + (last - first) * (part / (after.time - before.time))
                assert abs(exact(rounded) - value) <= exact(delta) + exact(max(abs(first), abs(last))) * exact(2**-49)


@given(signals(), deltas)
def test_the_line_passes_every_row_within_the_bound(rows: list[Row], delta: float) -> None:
    whole = run(lambda: make(delta=delta), rows, until=END)
    lines_pass(rows, {each.seq: each for each in whole.emitted}, delta)


smooth = strategies.lists(strategies.integers(-3, 3), max_size=80).map(
    lambda moves: [sum(moves[: at + 1]) / 8 for at in range(len(moves))]
)
offsets = strategies.sampled_from([0.0, 0.1, 1e6, 1e15, 2.0**53, -1e300])
spans = strategies.sampled_from([1, 997, SECOND // 10, SECOND, 3600 * SECOND])


@given(smooth, offsets, spans, deltas)
def test_the_line_passes_smooth_signals_far_from_zero(
    values: list[float], offset: float, span: int, delta: float
) -> None:
    """Where rounding is largest beside the bound, and where rows are dropped."""
    rows = [row(FAR + at * span, {"x": value + offset}, seq=at) for at, value in enumerate(values)]
    whole = run(lambda: make(delta=delta, max_silence_s=1e8), rows, until=FAR + 2 * 10**17)
    lines_pass(rows, {each.seq: each for each in whole.emitted}, delta)


@given(strategies.data())
def test_restarts_change_nothing(data: strategies.DataObject) -> None:
    """Nor do gaps, time that passes, or series that are forgotten."""
    ordered = data.draw(strategies.booleans())
    rows = data.draw(inputs(ordered=ordered))
    settings: dict[str, Any] = data.draw(
        strategies.sampled_from(
            [
                {"max_silence_s": 60.0},
                {"max_silence_s": 2.0},
                {"max_silence_s": 2.0, "keys_max": 1, "missing": "reject"},
                {"time": "y", "missing": "drop", "max_silence_s": 9.0},
                {"by": ("y",), "delta": 1e300, "max_silence_s": 9.0},
            ]
        )
    )
    if not ordered:
        settings = {**settings, "max_silence_s": 1e6}  # a tick is never later than a row that follows
    same_after_restarts(lambda: make(**settings), rows, data.draw(cuts(len(rows))), until=END)


@given(signals(near, ordered=True))
def test_rows_are_held_no_longer_than_max_silence(rows: list[Row]) -> None:
    """A row waits up to ``max_silence`` after the pivot and then up to the next whole second."""
    chain = Chain(lambda: make(delta=1e9, max_silence_s=5.0))
    for each in rows:
        chain.feed([each])
        oldest = chain.function.oldest()
        if oldest is not None:
            assert oldest <= each.time
            due = chain.function.due()
            assert due is not None
            assert due <= each.time + 6 * SECOND
    chain.tick_before(END)
    assert chain.function.oldest() is None
    assert chain.function.due() is None


@given(inputs())
def test_oldest_is_never_later_than_a_row_that_still_comes_out(rows: list[Row | Gap]) -> None:
    chain = Chain(lambda: make(keys_max=2, max_silence_s=3.0))
    for each in rows:
        before, count = chain.function.oldest(), len(chain.emitted)
        chain.feed([each])
        for out in chain.emitted[count:]:
            assert (isinstance(each, Row) and out.seq == each.seq) or (before is not None and before <= out.time)


@given(inputs())
def test_nothing_is_lost_but_what_is_near_the_line(rows: list[Row | Gap]) -> None:
    """Every row without a number comes out or is rejected, and so does the last of each series."""
    whole = run(lambda: make(missing="reject"), rows, until=END)
    emitted = {each.seq for each in whole.emitted}
    given_rows = [each for each in rows if isinstance(each, Row)]
    unusable = [each for each in given_rows if not usable(each.values.get("x"))]
    assert len(whole.out.rejected()) == len(unusable)
    assert emitted.isdisjoint(each.seq for each in unusable)
    assert len(emitted) == len(whole.emitted)


def test_a_straight_line_needs_its_ends_only() -> None:
    assert kept(of(*(at / 2 for at in range(60)))) == [0, 59]


def test_a_bend_keeps_the_row_before_it() -> None:
    assert kept(of(0.0, 1.0, 2.0, 3.0, 2.0, 1.0, 0.0)) == [0, 3, 6]


def test_a_step_keeps_both_sides() -> None:
    assert kept(of(0.0, 0.0, 0.0, 10.0, 10.0, 10.0)) == [0, 2, 3, 5]


def test_noise_within_the_bound_is_left_out() -> None:
    assert kept(of(*(0.2 * (-1) ** at for at in range(50))), delta=0.5) == [0, 49]


def test_a_held_row_comes_out_with_time_and_the_line_goes_on() -> None:
    chain = Chain(lambda: make(max_silence_s=10.0))
    chain.feed(of(*([1.0] * 15)))
    assert [each.seq for each in chain.emitted] == [0, 10]
    assert chain.function.oldest() == FAR + 14 * SECOND
    assert chain.function.due() == FAR + 20 * SECOND
    chain.tick_before(FAR + 20 * SECOND + 1)
    assert [each.seq for each in chain.emitted] == [0, 10, 14]


def test_many_rows_that_are_due_at_once_come_out_in_parts() -> None:
    chain = Chain(lambda: make(max_silence_s=10.0))
    rows: list[Row | Gap] = [
        row(FAR + at * SECOND, {"x": 1.0}, b"%d" % key, seq=2 * key + at) for at in range(2) for key in range(2500)
    ]
    chain.feed(rows)
    sizes = [len(chain.function.tick(FAR + 10 * SECOND, chain.out)) for _ in range(4)]
    assert sizes == [1000, 1000, 500, 0]


def test_a_status_message_between_readings_passes_and_a_null_ends_the_line() -> None:
    rows = of(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    rows[2] = row(FAR + 2 * SECOND, {"status": "ok"}, seq=2)
    assert kept(rows) == [0, 2, 5]
    rows[2] = row(FAR + 2 * SECOND, {"x": None}, seq=2)
    assert kept(rows) == [0, 1, 2, 3, 5]


@pytest.mark.parametrize("value", [None, "n/a", math.nan, math.inf, 1 << 64])
def test_such_rows_are_rejected_with_a_reason_where_asked(value: Any) -> None:
    rows = of(1.0, 1.0, 1.0)
    rows[1] = Row(FAR + SECOND, b"k", b"", {"x": value}, seq=1)
    chain = run(lambda: make(missing="reject"), rows, until=END)
    assert [each.seq for each in chain.emitted] == [0, 2]
    assert chain.out.rejected() == [f"swinging_door: x is not a finite number of at most 64 bits: {value!r}"]


def test_no_line_goes_over_a_gap() -> None:
    rows = of(1.0, 1.0, 1.0, 1.0, 1.0)
    rows.insert(3, Gap("in", 3, 9, "expired", FAR + 2 * SECOND))
    assert kept(rows) == [0, 2, 3, 4]


def test_a_gap_without_later_rows_lets_the_held_row_out_at_once() -> None:
    chain = Chain(lambda: make(max_silence_s=3600.0))
    chain.feed([*of(1.0, 1.0), Gap("in", 2, 9, "expired", FAR + SECOND)])
    chain.tick_before(FAR + 3 * SECOND)
    assert [each.seq for each in chain.emitted] == [0, 1]
    assert stateful(chain.function).values == {}


def test_the_time_of_the_device_decides_when_it_is_named() -> None:
    """Readings that come in one burst have one time of the node."""
    rows: list[Row | Gap] = [row(FAR, {"x": float(at), "ts": 1594598424.5 + 10 * at}, seq=at) for at in range(20)]
    assert kept(rows, time="ts") == [0, 19]
    assert kept(rows) == list(range(20))


def test_times_that_step_back_begin_a_new_line() -> None:
    rows = of(1.0, 1.0, 1.0)
    rows += [row(FAR - 5 * SECOND, {"x": 1.0}, seq=3), row(FAR - 4 * SECOND, {"x": 1.0}, seq=4)]
    assert kept(rows) == [0, 2, 3, 4]


def test_a_series_that_is_forgotten_gives_its_row_first() -> None:
    rows: list[Row | Gap] = [
        row(FAR + at, {"x": 1.0}, key, seq=seq)
        for seq, (at, key) in enumerate([(0, b"a"), (1, b"a"), (2, b"b"), (3, b"b"), (4, b"c")])
    ]
    chain = run(lambda: make(keys_max=2), rows)
    assert [each.seq for each in chain.emitted] == [0, 2, 4, 1]
    assert len(stateful(chain.function).values) == 2


def test_a_row_that_no_state_can_hold_comes_out_at_once() -> None:
    rows = of(1.0, 1.0, 1.0, 1.0)
    rows[2] = Row(FAR + 2 * SECOND, b"k", b"", {"x": 1.0, "id": 1 << 70}, seq=2)
    assert kept(rows) == [0, 1, 2, 3]


def test_a_row_of_many_bytes_is_not_held_and_comes_out_at_once() -> None:
    rows: list[Row | Gap] = of(*[1.0] * 6)
    rows[2] = row(FAR + 2 * SECOND, {"x": 1.0, "picture": "p" * 10_000}, seq=2)
    assert kept(rows) == [0, 1, 2, 5]
    chain = run(make, rows)
    assert max(len(str(entry)) for entry in stateful(chain.function).values.values()) < 1_000
