"""Functions that leave rows out: what they drop, and what they promise of the rest."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import pytest
from hypothesis import strategies

from tests.functions.restart import SECOND, Chain, context, cuts, row, run, same_after_restarts, stateful
from tests.functions.signals import FAR, exact, inputs, near, signals, usable
from tests.support.examples import given
from weft.config.functions.step import Band, Changes, Deadband, Dedupe, Sample, SwingingDoor
from weft.functions.contract import Gap, Row
from weft.functions.series import key_of
from weft.functions.thinning import (
    DEADBAND_HEADER,
    SWINGING_DOOR_HEADER,
    ChangesFunction,
    DeadbandFunction,
    DedupeFunction,
    SampleFunction,
    SwingingDoorFunction,
    with_bounds,
)

# --- A deadband's output says what its input was, within the bound that it states


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
def test_restarts_change_nothing_of_a_deadband(data: strategies.DataObject) -> None:
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


# --- The line through the pivots of a swinging door passes every row within the bound that it states


END = FAR + 10**7 * SECOND
swinging_door_deltas = strategies.one_of(
    strategies.sampled_from([0.1, 0.2, 0.5, 1.0, 1e-12, 1e-300, 5e-324]), strategies.floats(0, 1e300, exclude_min=True)
)


def swinging_door_make(**settings: Any) -> SwingingDoorFunction:
    return SwingingDoorFunction(SwingingDoor(**{"field_": "x", "delta": 0.5, **settings}), context())


def swinging_door_kept(rows: list[Row | Gap], **settings: Any) -> list[int]:
    """Return the numbers of the rows that come out, when time passes in the end."""
    return [each.seq for each in run(lambda: swinging_door_make(**settings), rows, until=END).emitted]


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


@given(signals(), swinging_door_deltas)
def test_the_line_passes_every_row_within_the_bound(rows: list[Row], delta: float) -> None:
    whole = run(lambda: swinging_door_make(delta=delta), rows, until=END)
    lines_pass(rows, {each.seq: each for each in whole.emitted}, delta)


smooth = strategies.lists(strategies.integers(-3, 3), max_size=80).map(
    lambda moves: [sum(moves[: at + 1]) / 8 for at in range(len(moves))]
)
offsets = strategies.sampled_from([0.0, 0.1, 1e6, 1e15, 2.0**53, -1e300])
spans = strategies.sampled_from([1, 997, SECOND // 10, SECOND, 3600 * SECOND])


@given(smooth, offsets, spans, swinging_door_deltas)
def test_the_line_passes_smooth_signals_far_from_zero(
    values: list[float], offset: float, span: int, delta: float
) -> None:
    """Where rounding is largest beside the bound, and where rows are dropped."""
    rows = [row(FAR + at * span, {"x": value + offset}, seq=at) for at, value in enumerate(values)]
    whole = run(lambda: swinging_door_make(delta=delta, max_silence_s=1e8), rows, until=FAR + 2 * 10**17)
    lines_pass(rows, {each.seq: each for each in whole.emitted}, delta)


@given(strategies.data())
def test_restarts_change_nothing_of_a_swinging_door(data: strategies.DataObject) -> None:
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
    same_after_restarts(lambda: swinging_door_make(**settings), rows, data.draw(cuts(len(rows))), until=END)


@given(signals(near, ordered=True))
def test_rows_are_held_no_longer_than_max_silence(rows: list[Row]) -> None:
    """A row waits up to ``max_silence`` after the pivot and then up to the next whole second."""
    chain = Chain(lambda: swinging_door_make(delta=1e9, max_silence_s=5.0))
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
    chain = Chain(lambda: swinging_door_make(keys_max=2, max_silence_s=3.0))
    for each in rows:
        before, count = chain.function.oldest(), len(chain.emitted)
        chain.feed([each])
        for out in chain.emitted[count:]:
            assert (isinstance(each, Row) and out.seq == each.seq) or (before is not None and before <= out.time)


@given(inputs())
def test_nothing_is_lost_but_what_is_near_the_line(rows: list[Row | Gap]) -> None:
    """Every row without a number comes out or is rejected, and so does the last of each series."""
    whole = run(lambda: swinging_door_make(missing="reject"), rows, until=END)
    emitted = {each.seq for each in whole.emitted}
    given_rows = [each for each in rows if isinstance(each, Row)]
    unusable = [each for each in given_rows if not usable(each.values.get("x"))]
    assert len(whole.out.rejected()) == len(unusable)
    assert emitted.isdisjoint(each.seq for each in unusable)
    assert len(emitted) == len(whole.emitted)


def test_a_straight_line_needs_its_ends_only() -> None:
    assert swinging_door_kept(of(*(at / 2 for at in range(60)))) == [0, 59]


def test_a_bend_keeps_the_row_before_it() -> None:
    assert swinging_door_kept(of(0.0, 1.0, 2.0, 3.0, 2.0, 1.0, 0.0)) == [0, 3, 6]


def test_a_step_keeps_both_sides() -> None:
    assert swinging_door_kept(of(0.0, 0.0, 0.0, 10.0, 10.0, 10.0)) == [0, 2, 3, 5]


def test_noise_within_the_bound_is_left_out() -> None:
    assert swinging_door_kept(of(*(0.2 * (-1) ** at for at in range(50))), delta=0.5) == [0, 49]


def test_a_held_row_comes_out_with_time_and_the_line_goes_on() -> None:
    chain = Chain(lambda: swinging_door_make(max_silence_s=10.0))
    chain.feed(of(*([1.0] * 15)))
    assert [each.seq for each in chain.emitted] == [0, 10]
    assert chain.function.oldest() == FAR + 14 * SECOND
    assert chain.function.due() == FAR + 20 * SECOND
    chain.tick_before(FAR + 20 * SECOND + 1)
    assert [each.seq for each in chain.emitted] == [0, 10, 14]


def test_many_rows_that_are_due_at_once_come_out_in_parts() -> None:
    chain = Chain(lambda: swinging_door_make(max_silence_s=10.0))
    rows: list[Row | Gap] = [
        row(FAR + at * SECOND, {"x": 1.0}, b"%d" % key, seq=2 * key + at) for at in range(2) for key in range(2500)
    ]
    chain.feed(rows)
    sizes = [len(chain.function.tick(FAR + 10 * SECOND, chain.out)) for _ in range(4)]
    assert sizes == [1000, 1000, 500, 0]


def test_a_status_message_between_readings_passes_and_a_null_ends_the_line() -> None:
    rows = of(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    rows[2] = row(FAR + 2 * SECOND, {"status": "ok"}, seq=2)
    assert swinging_door_kept(rows) == [0, 2, 5]
    rows[2] = row(FAR + 2 * SECOND, {"x": None}, seq=2)
    assert swinging_door_kept(rows) == [0, 1, 2, 3, 5]


@pytest.mark.parametrize("value", [None, "n/a", math.nan, math.inf, 1 << 64])
def test_a_swinging_door_rejects_such_rows_with_a_reason_where_asked(value: Any) -> None:
    rows = of(1.0, 1.0, 1.0)
    rows[1] = Row(FAR + SECOND, b"k", b"", {"x": value}, seq=1)
    chain = run(lambda: swinging_door_make(missing="reject"), rows, until=END)
    assert [each.seq for each in chain.emitted] == [0, 2]
    assert chain.out.rejected() == [f"swinging_door: x is not a finite number of at most 64 bits: {value!r}"]


def test_no_line_goes_over_a_gap() -> None:
    rows = of(1.0, 1.0, 1.0, 1.0, 1.0)
    rows.insert(3, Gap("in", 3, 9, "expired", FAR + 2 * SECOND))
    assert swinging_door_kept(rows) == [0, 2, 3, 4]


def test_a_gap_without_later_rows_lets_the_held_row_out_at_once() -> None:
    chain = Chain(lambda: swinging_door_make(max_silence_s=3600.0))
    chain.feed([*of(1.0, 1.0), Gap("in", 2, 9, "expired", FAR + SECOND)])
    chain.tick_before(FAR + 3 * SECOND)
    assert [each.seq for each in chain.emitted] == [0, 1]
    assert stateful(chain.function).values == {}


def test_the_time_of_the_device_decides_when_it_is_named() -> None:
    """Readings that come in one burst have one time of the node."""
    rows: list[Row | Gap] = [row(FAR, {"x": float(at), "ts": 1594598424.5 + 10 * at}, seq=at) for at in range(20)]
    assert swinging_door_kept(rows, time="ts") == [0, 19]
    assert swinging_door_kept(rows) == list(range(20))


def test_times_that_step_back_begin_a_new_line() -> None:
    rows = of(1.0, 1.0, 1.0)
    rows += [row(FAR - 5 * SECOND, {"x": 1.0}, seq=3), row(FAR - 4 * SECOND, {"x": 1.0}, seq=4)]
    assert swinging_door_kept(rows) == [0, 2, 3, 4]


def test_a_series_that_is_forgotten_gives_its_row_first() -> None:
    rows: list[Row | Gap] = [
        row(FAR + at, {"x": 1.0}, key, seq=seq)
        for seq, (at, key) in enumerate([(0, b"a"), (1, b"a"), (2, b"b"), (3, b"b"), (4, b"c")])
    ]
    chain = run(lambda: swinging_door_make(keys_max=2), rows)
    assert [each.seq for each in chain.emitted] == [0, 2, 4, 1]
    assert len(stateful(chain.function).values) == 2


def test_a_row_that_no_state_can_hold_comes_out_at_once() -> None:
    rows = of(1.0, 1.0, 1.0, 1.0)
    rows[2] = Row(FAR + 2 * SECOND, b"k", b"", {"x": 1.0, "id": 1 << 70}, seq=2)
    assert swinging_door_kept(rows) == [0, 1, 2, 3]


def test_a_row_of_many_bytes_is_not_held_and_comes_out_at_once() -> None:
    rows: list[Row | Gap] = of(*[1.0] * 6)
    rows[2] = row(FAR + 2 * SECOND, {"x": 1.0, "picture": "p" * 10_000}, seq=2)
    assert swinging_door_kept(rows) == [0, 1, 2, 5]
    chain = run(swinging_door_make, rows)
    assert max(len(str(entry)) for entry in stateful(chain.function).values.values()) < 1_000


# --- What ``changes`` drops repeats the last kept row


few = strategies.sampled_from([0, 0.0, 1, 1.0, True, None, "on", "off", [1], {"a": 1}, math.nan, "x" * 100])


def changes_make(**settings: Any) -> ChangesFunction:
    return ChangesFunction(Changes(**settings), context())


def changes_of(*values: Any) -> list[Row | Gap]:
    return [row(FAR + at * SECOND, {"x": value}, seq=at) for at, value in enumerate(values)]


def changes_kept(rows: list[Row | Gap], **settings: Any) -> list[int]:
    return [each.seq for each in run(lambda: changes_make(**settings), rows).emitted]


@given(strategies.data())
def test_restarts_change_nothing(data: strategies.DataObject) -> None:
    rows = data.draw(inputs())
    settings: dict[str, Any] = data.draw(
        strategies.sampled_from(
            [
                {},
                {"fields": ("x",), "max_silence_s": 3.0},
                {"fields": ("x", "y"), "keys_max": 1, "missing": "reject"},
                {"by": ("y",), "missing": "drop"},
            ]
        )
    )
    same_after_restarts(lambda: changes_make(**settings), rows, data.draw(cuts(len(rows))))


@given(strategies.lists(few, max_size=30))
def test_whole_payloads_that_differ_are_kept_and_repeats_are_not(values: list[Any]) -> None:
    rows = changes_of(*values)
    payloads = [each.payload for each in rows if isinstance(each, Row)]
    assert changes_kept(rows) == [at for at, each in enumerate(payloads) if at == 0 or each != payloads[at - 1]]


def test_equal_values_are_no_change_and_other_types_are_one() -> None:
    assert changes_kept(changes_of(1, 1.0, True, True, 1, "1", None, None, 0.0, -0.0), fields=("x",)) == [
        0,
        2,
        4,
        5,
        6,
        8,
    ]
    rows: list[Row | Gap] = [Row(FAR, b"k", b"", {"x": math.nan}, seq=at) for at in range(3)]
    assert changes_kept(rows, fields=("x",)) == [0]


def test_other_fields_do_not_matter() -> None:
    rows: list[Row | Gap] = [row(FAR + at, {"x": at // 3, "n": at}, seq=at) for at in range(9)]
    assert changes_kept(rows, fields=("x",)) == [0, 3, 6]
    assert changes_kept(rows) == list(range(9))


def test_a_field_that_is_not_there_did_not_change() -> None:
    rows: list[Row | Gap] = [
        row(FAR + at, values, seq=at)
        for at, values in enumerate([{"x": 1, "y": 1}, {"x": 1}, {"y": 2}, {"x": 1}, {"z": 1}, {"x": 2}])
    ]
    assert changes_kept(rows, fields=("x", "y")) == [0, 2, 4, 5]
    assert run(lambda: changes_make(fields=("x", "y"), missing="reject"), rows).out.rejected() == [
        "changes: the payload has no field x or y"
    ]


def test_silence_ends_with_the_next_row_after_max_silence() -> None:
    assert changes_kept(changes_of(*([1] * 10)), max_silence_s=4) == [0, 4, 8]


def test_changes_keep_the_row_after_a_gap() -> None:
    rows = changes_of(1, 1, 1)
    rows.insert(2, Gap("in", 2, 9, "budget", FAR))
    assert changes_kept(rows) == [0, 2]


def test_changed_values_count_where_the_payload_is_yet_to_be_made() -> None:
    rows: list[Row | Gap] = [Row(FAR, b"k", None, {"x": at // 2}, seq=at) for at in range(4)]
    assert changes_kept(rows) == [0, 2]


def test_long_values_take_no_more_memory() -> None:
    function = changes_make()
    run(lambda: function, changes_of("x" * 10_000))
    (entry,) = stateful(function).values.values()
    assert len(msgspec.msgpack.encode(entry)) < 64


@pytest.mark.parametrize("fields", [None, ("x",)])
def test_a_value_that_cannot_be_compared_is_told_of(fields: tuple[str, ...] | None) -> None:
    rows = [Row(FAR, b"k", None, {"x": 1 << 70}, seq=0)]
    chain = run(lambda: changes_make(fields=fields, missing="reject"), rows)
    assert len(chain.out.rejected()) == 1
    assert chain.out.rejected()[0].startswith("changes: a value that cannot be compared")


# --- What ``dedupe`` drops is a repeat; memory bounds what it recognises, and nothing else is lost


moves = strategies.one_of(
    strategies.integers(0, 4 * SECOND), strategies.integers(-4 * SECOND, 0), strategies.just(-1000 * SECOND)
)


def dedupe_make(**settings: Any) -> DedupeFunction:
    return DedupeFunction(Dedupe(**{"within_s": 10.0, **settings}), context())


def dedupe_kept(rows: list[Row], **settings: Any) -> list[int]:
    return [each.seq for each in run(lambda: dedupe_make(**settings), rows).emitted]


def messages(*ids: Any, every: int = SECOND, key: bytes = b"k") -> list[Row]:
    return [row(FAR + at * every, {"id": found, "at": at}, key, at) for at, found in enumerate(ids)]


@strategies.composite
def repeated(draw: strategies.DrawFn) -> list[Row]:
    """Draw messages of which many repeat others."""
    time, rows = FAR, []
    for at in range(draw(strategies.integers(0, 40))):
        time += draw(moves)
        values = {"id": draw(strategies.integers(0, 9)), "at": at}
        rows.append(row(time, values, draw(strategies.sampled_from([b"a", b"b"])), at))
    return rows


@given(strategies.data())
def test_restarts_change_nothing_of_dedupe(data: strategies.DataObject) -> None:
    rows = data.draw(strategies.one_of(inputs(), repeated()))
    settings: dict[str, Any] = data.draw(
        strategies.sampled_from(
            [{}, {"by": ("id",)}, {"by": ("id",), "ids_max": 2}, {"by": ("x", "y"), "missing": "reject"}]
        )
    )
    same_after_restarts(lambda: dedupe_make(**settings), rows, data.draw(cuts(len(rows))))


@given(repeated(), strategies.sampled_from([1, 3, 1000]), strategies.booleans())
def test_what_is_dropped_repeats_a_kept_message(rows: list[Row], ids_max: int, across: bool) -> None:
    """With room for all, what is kept repeats none."""
    emitted = set(dedupe_kept(rows, by=("id",), ids_max=ids_max, across_keys=across))
    times: dict[Any, int] = {}
    for each in rows:
        found = each.values["id"] if across else (each.key, each.values["id"])
        repeats = found in times and abs(each.time - times[found]) < 10 * SECOND
        if each.seq not in emitted:
            assert repeats
        elif ids_max == 1000:
            assert not repeats
        if each.seq in emitted:
            times[found] = each.time


@given(repeated())
def test_the_state_of_dedupe_is_bounded_and_changes_only_with_kept_rows(rows: list[Row]) -> None:
    function = dedupe_make(by=("id",), ids_max=3)
    state = stateful(function)
    for each in rows:
        emitted = run(lambda: function, [each]).emitted
        assert len(state.values) <= 3
        assert bool(state.take_changes()) == bool(emitted)
    assert len(function._order) <= 2 * 3 + 64


def test_repeats_within_the_time_are_dropped_counted_from_the_kept_one() -> None:
    assert dedupe_kept(messages(7, 7, 8, 7, 8, 7, 7, every=3 * SECOND), by=("id",)) == [0, 2, 5]


def test_ids_of_two_devices_are_not_the_same_unless_said() -> None:
    rows = [*messages(1, key=b"a"), *messages(1, key=b"b")]
    assert len(dedupe_kept(rows, by=("id",))) == 2
    assert len(dedupe_kept(rows, by=("id",), across_keys=True)) == 1


def test_without_by_the_whole_payload_counts() -> None:
    rows = [row(FAR + at, {"n": at // 2}, seq=at) for at in range(6)]
    assert dedupe_kept(rows) == [0, 2, 4]
    assert not dedupe_make().reads_values


def test_several_fields_identify_a_message_together() -> None:
    rows = [row(FAR + at, {"a": at // 2, "b": at % 2}, seq=at) for at in range(4)]
    assert len(dedupe_kept(rows + rows, by=("a", "b"))) == 4


def test_messages_without_identity_pass_or_are_rejected() -> None:
    rows = [row(FAR, {"status": "ok"}, seq=at) for at in range(2)]
    assert dedupe_kept(rows, by=("id",)) == [0, 1]
    assert run(lambda: dedupe_make(by=("id",), missing="reject"), rows).out.rejected() == [
        "dedupe: the payload has no field id",
        "dedupe: the payload has no field id",
    ]


def test_memory_is_given_back_when_the_time_is_over() -> None:
    function = dedupe_make(by=("id",))
    run(lambda: function, messages(*range(1000), every=1))
    assert len(stateful(function).values) == 1000
    later = [row(FAR + 20 * SECOND + at, {"id": -at}, seq=at) for at in range(1, 201)]
    run(lambda: function, later)
    assert len(stateful(function).values) == 200


def test_long_ids_take_no_more_memory() -> None:
    function = dedupe_make(by=("id",))
    run(lambda: function, messages("x" * 10_000))
    assert max(map(len, stateful(function).values)) <= 32


# --- A sample keeps the rows that its settings say, of each series for itself


LEVELS = {b"l1/m1": {"line": "l1"}, b"l1/m2": {"line": "l1"}, b"l2/m3": {"line": "l2"}}


def sample_make(**settings: Any) -> SampleFunction:
    return SampleFunction(Sample(**settings), context(LEVELS))


@given(strategies.data())
def test_restarts_change_nothing_of_a_sample(data: strategies.DataObject) -> None:
    rows = data.draw(inputs())
    settings: dict[str, Any] = data.draw(
        strategies.sampled_from(
            [{"every": 3}, {"every": 2, "keys_max": 1}, {"period_s": 2.0}, {"period_s": 60.0, "by": ("y",)}]
        )
    )
    same_after_restarts(lambda: sample_make(**settings), rows, data.draw(cuts(len(rows))))


@given(signals(near), strategies.integers(1, 7))
def test_each_nth_row_of_a_topic_is_kept(rows: list[Row], every: int) -> None:
    emitted = [each.seq for each in run(lambda: sample_make(every=every), rows).emitted]
    by_key: dict[bytes, list[int]] = {}
    for each in rows:
        by_key.setdefault(each.key, []).append(each.seq)
    assert emitted == sorted(seq for numbers in by_key.values() for seq in numbers[::every])


@given(signals(near, ordered=True), strategies.sampled_from([0.5, 1.0, 10.0]))
def test_each_period_keeps_its_first_row(rows: list[Row], period: float) -> None:
    emitted = [each.seq for each in run(lambda: sample_make(period_s=period), rows).emitted]
    first: dict[tuple[bytes, int], int] = {}
    for each in rows:
        first.setdefault((each.key, each.time // round(period * SECOND)), each.seq)
    assert emitted == sorted(first.values())


def test_series_may_be_told_apart_by_a_level_or_a_field() -> None:
    rows = [row(FAR + at, {"unit": at % 2}, key, at) for at, key in enumerate([*LEVELS, *LEVELS])]
    assert [each.seq for each in run(lambda: sample_make(every=10, by=("line",)), rows).emitted] == [0, 2]
    assert [each.seq for each in run(lambda: sample_make(every=10, by=("unit",)), rows).emitted] == [0, 1]


def test_a_clock_that_is_set_back_stops_no_series() -> None:
    rows = [row(FAR, {}), row(FAR - 10**6 * SECOND, {}), row(FAR - 10**6 * SECOND + 1, {})]
    assert len(run(lambda: sample_make(period_s=10), rows).emitted) == 2


def test_payloads_are_not_decoded_where_nobody_looks_at_them() -> None:
    assert not sample_make(every=2).reads_values
    assert not sample_make(every=2, by=("line", "key")).reads_values
    assert sample_make(every=2, by=("unit",)).reads_values


def test_the_series_that_are_remembered_are_bounded() -> None:
    function = sample_make(every=2, keys_max=100)
    rows = [row(FAR, {}, b"%d" % at) for at in range(1000)]
    assert len(run(lambda: function, rows).emitted) == 1000
    assert len(stateful(function).values) <= 100


@pytest.mark.parametrize("settings", [{}, {"every": 2, "period_s": 1.0}])
def test_settings_of_a_sample_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="set either `every`"):
        sample_make(**settings)
