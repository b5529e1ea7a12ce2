"""Windows of event times at the edges of time, bounds, and mistakes in settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from ddsketch import DDSketch
from hypothesis import given
from hypothesis import strategies as st

from tests.functions.restart import SECOND, context, row, run, stateful
from weft.config.functions.windows import Window
from weft.functions.aggregates import BINS_MAX, Sketches
from weft.functions.contract import Context, Function, Gap, Row
from weft.functions.window_plan import EVENT_TIME_END, WindowError, event_time_reader, iso_text
from weft.functions.windows import WindowFunction

NOON = 1_780_000_020 * SECOND


def window(*, around: Context | None = None, **chosen: Any) -> Callable[[], WindowFunction]:
    return lambda: WindowFunction(Window(**{"every_s": 60.0, "emit": {"n": "count()"}, **chosen}), around or context())


def events(*times: Any, key: bytes = b"k") -> list[Row]:
    """Rows that come in one after the other, each a millisecond later."""
    return [row(NOON + at * SECOND // 1000, {"t": each, "x": at}, key, at) for at, each in enumerate(times)]


def starts(
    function: Callable[[], Function], rows: list[Row], until: int = NOON + 86_400 * SECOND
) -> list[tuple[str, int]]:
    return [(each.values["window_start"], each.values["count"]) for each in run(function, rows, until=until).emitted]


# --- event times


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0, "s", 0),
        (1.5, "s", 1_500_000_000),
        (1_594_512_094.3859746, "s", 1_594_512_094_385_974_645),
        (1_774_746_000_123, "ms", 1_774_746_000_123_000_000),
        (1_774_746_000_123_456, "us", 1_774_746_000_123_456_000),
        (1_774_746_000_123_456_789, "ns", 1_774_746_000_123_456_789),
        (1_774_746_000_123.25, "ms", 1_774_746_000_123_250_000),
        ("2026-03-29T01:00:00Z", "s", 1_774_746_000_000_000_000),
        # The hour that summer time leaves out, and the one that winter time has twice: the offset says which.
        ("2026-03-29T03:00:00+02:00", "s", 1_774_746_000_000_000_000),
        ("2026-10-25T02:30:00+02:00", "s", 1_792_888_200_000_000_000),
        ("2026-10-25T02:30:00+01:00", "s", 1_792_891_800_000_000_000),
        ("2026-03-29 01:00:00.000001", "s", 1_774_746_000_000_001_000),
        ("2249-12-31T23:59:59Z", "s", 8_835_955_199_000_000_000),
    ],
)
def test_event_times_are_read_to_the_nanosecond(value: object, unit: str, expected: int) -> None:
    found = event_time_reader("t", unit)(value)
    # A float of seconds has 53 bits, and no more is made of them.
    assert abs(found - expected) <= (200 if isinstance(value, float) else 0)


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.5,
        1e300,
        float("nan"),
        float("inf"),
        1 << 63,
        "1969-12-31T23:59:59Z",
        "2250-01-01T00:00:00Z",
        "noon",
        "",
        None,
        True,
        [],
        {},
        "9999-12-31T23:59:59Z",
        "0001-01-01T00:00:00+23:00",
    ],
)
def test_what_is_no_time_goes_to_the_errors_and_opens_no_window(value: object) -> None:
    found = run(window(time="t"), events(value), until=NOON + 86_400 * SECOND)
    assert found.emitted == []
    assert len(found.out.rejected()) == 1
    assert found.out.rejected()[0].startswith("t is ")
    assert not any(key[:1] == b"w" for key, _ in stateful(found.function).items())


@given(st.integers(0, EVENT_TIME_END - 1), st.sampled_from([0, 3, 6, 9]))
def test_bounds_sort_as_text_like_the_times_that_they_are(time: int, digits: int) -> None:
    text = iso_text(time, digits)
    assert len(text) == 20 + (digits + 1 if digits else 0)
    assert text <= iso_text(time + SECOND, digits)
    assert event_time_reader("t", "s")(iso_text(time, 6)) == time // 1000 * 1000


def test_windows_of_1970_and_2249_are_windows_like_others() -> None:
    rows = events(0, 59.999, 60)
    assert starts(window(time="t"), rows) == [("1970-01-01T00:00:00Z", 2), ("1970-01-01T00:01:00Z", 1)]
    last = events("2249-12-31T23:58:59Z", "2249-12-31T23:59:00Z", "2249-12-31T23:59:59.999999Z")
    found = starts(window(time="t", ahead_s=1e10), last)
    assert found == [("2249-12-31T23:58:00Z", 1), ("2249-12-31T23:59:00Z", 2)]


def test_a_wrong_clock_of_a_device_counts_only_where_the_node_has_a_right_one() -> None:
    year = 365 * 86_400
    wrong = events(NOON // SECOND + year)
    assert "check the clock of the device" in run(window(time="t"), wrong).out.rejected()[0]
    unset = [row(at, {"t": NOON // SECOND + at}) for at in range(3)]
    assert starts(window(time="t"), unset) == [(iso_text(NOON, 0), 3)]


def test_a_wild_clock_opens_no_more_windows_than_it_may() -> None:
    wild = [(at * 7_919_000_003) % (1 << 33) for at in range(5000)]
    found = run(window(time="t", ahead_s=1e10, windows_max=1000), events(*wild))
    assert sum(key[:1] == b"w" for key, _ in stateful(found.function).items()) <= 100
    # Nothing is lost silently: each row is in a window, or in the errors.
    found.tick_before(NOON + 400 * 86_400 * SECOND)
    assert sum(each.values["count"] for each in found.emitted) + len(found.out.rejected()) == 5000


def test_a_device_that_comes_back_with_a_week_of_rows_loses_none() -> None:
    week = [NOON // SECOND - 604_800 + 60 * at for at in range(10_080)]
    found = run(window(time="t", windows_max=1000, lateness_s=60.0), events(*week), until=NOON + 86_400 * SECOND)
    assert found.out.rejected() == []
    assert [each.values["count"] for each in found.emitted] == [1] * 10_080
    ends = [each.values["window_end"] for each in found.emitted]
    assert ends == sorted(ends)


def test_a_device_that_comes_back_is_not_late_because_others_went_on() -> None:
    now = NOON // SECOND
    rows = events(*[now + at for at in range(3)], key=b"there") + events(now - 3600, now - 3599, key=b"back")
    assert sum(count for _, count in starts(window(time="t"), rows)) == 5


def test_late_rows_are_counted_once_and_kept_in_the_errors() -> None:
    base = NOON // SECOND
    rows = [row(NOON + at * SECOND, {"t": base + at}) for at in range(0, 130, 10)]
    late = row(NOON + 131 * SECOND, {"t": base + 5})
    after = row(NOON + 132 * SECOND, {"t": base + 200})
    found = run(window(time="t"), [*rows, late, after], until=NOON + 3600 * SECOND)
    assert [each.values["late"] for each in found.emitted] == [0, 0, 1, 0]
    assert found.out.rejected() == [
        "arrived too late: its time is 2026-05-28T20:27:05.000000Z, and its group's windows up to "
        "2026-05-28T20:29:00Z are closed"
    ]
    dropped = run(window(time="t", late_rows="drop"), [*rows, late, after], until=NOON + 3600 * SECOND)
    assert dropped.out.rejected() == []
    assert dropped.seen() == found.seen()


# --- groups


def test_groups_by_levels_fields_and_their_types() -> None:
    around = context({b"p/l1/m1": {"line": "l1"}, b"p/l2/m1": {"line": "l2"}})
    rows = [
        row(NOON + at, {"shift": shift}, key, at)
        for at, (shift, key) in enumerate(
            [
                (1, b"p/l1/m1"),
                (1.0, b"p/l1/m1"),
                ("1", b"p/l1/m1"),
                (True, b"p/l1/m1"),
                (2.5, b"p/l2/m1"),
                (None, b"p/l1/m1"),
                ([], b"p/l1/m1"),
            ]
        )
    ]
    found = run(window(around=around, by=("line", "shift")), rows, until=NOON + 3600 * SECOND)
    assert [(each.key, each.values["shift"], each.values["count"]) for each in found.emitted] == [
        (b"l1/1", 1, 2),
        (b"l1/1", "1", 1),
        (b"l1/true", True, 1),
        (b"l2/2.5", 2.5, 1),
    ]
    assert found.out.rejected() == [
        "shift is null, which names no group; groups are text, numbers, true or false",
        "shift is a list, which names no group; groups are text, numbers, true or false",
    ]


def test_a_group_without_its_field_goes_to_the_errors() -> None:
    assert run(window(by=("shift",)), events(1)).out.rejected() == ["field shift is missing"]


def test_all_rows_can_be_one_group() -> None:
    found = run(window(by=("none",)), events(1) + events(2, key=b"other"), until=NOON + 3600 * SECOND)
    assert [(each.key, each.values["count"]) for each in found.emitted] == [(b"derived", 2)]


def test_groups_beyond_the_bound_go_to_the_errors_until_windows_close() -> None:
    rows = [row(NOON + at, {}, b"%d" % at) for at in range(5)] + [row(NOON + 61 * SECOND, {}, b"4")]
    found = run(window(keys_max=3), rows, until=NOON + 3600 * SECOND)
    assert [each.key for each in found.emitted] == [b"0", b"1", b"2", b"4"]
    assert found.out.rejected() == ["all 3 groups have open windows (keys_max)"] * 2


def test_silent_groups_make_room_for_new_ones() -> None:
    now = NOON // SECOND
    rows = [row(NOON + at * 600 * SECOND, {"t": now + at * 600}, b"%d" % at) for at in range(50)]
    found = run(window(time="t", keys_max=8), rows, until=NOON + 86_400 * SECOND)
    assert len(found.emitted) == 50
    assert found.out.rejected() == []
    assert sum(key[:1] == b"g" for key, _ in stateful(found.function).items()) <= 8
    found.tick_before(NOON + 400 * 86_400 * SECOND)
    assert list(stateful(found.function).items()) == []


# --- values


@pytest.mark.parametrize(
    ("emit", "values", "expected"),
    [
        ("sum(x)", [1, 2, 3], 6),
        ("sum(x)", [(1 << 62), (1 << 62), (1 << 62)], 3.0 * (1 << 62)),
        ("sum(x)", [1e308, 1e308], None),
        ("mean(x)", [True, False, False, True], 0.5),
        ("max(x)", [1 << 80, 3], float(1 << 80)),
        ("count(x)", [None, 1, None, "a"], 2),
        ("mean(x)", [None, None], None),
        ("min(x)", [None, 4, None, 3], 3),
        ("stddev(x)", [1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16], 5.477225575051661),
        ("stddev(x)", [5], None),
        ("first(x)", ["on", "off"], "on"),
        ("last(x)", ["on", True], True),
        ("quantile(x, 1)", [-5.0, 0, 0.0], 0.0),
    ],
)
def test_aggregates(emit: str, values: list[Any], expected: object) -> None:
    rows = [row(NOON + at, {"x": each}) for at, each in enumerate(values)]
    found = run(window(emit={"y": emit}), rows, until=NOON + 3600 * SECOND)
    assert found.out.rejected() == []
    assert [(type(each.values["y"]), each.values["y"]) for each in found.emitted] == [(type(expected), expected)]


@pytest.mark.parametrize("value", ["a", [], {}, float("nan"), float("-inf"), b"x"])
def test_what_is_no_number_is_counted_nowhere(value: object) -> None:
    rows = [Row(NOON, b"k", b"", {"x": value}), row(NOON + 1, {"x": 1})]
    found = run(window(emit={"y": "sum(x)", "n": "count()"}), rows, until=NOON + 3600 * SECOND)
    assert [(each.values["y"], each.values["n"]) for each in found.emitted] == [(1, 1)]
    assert len(found.out.rejected()) == 1


@given(st.lists(st.floats(-1e307, 1e307), min_size=1, max_size=200), st.floats(0, 1))
def test_a_quantile_is_off_by_its_accuracy_at_most(values: list[float], wanted: float) -> None:
    sketches = Sketches(0.01)
    bins: dict[int, int] = {}
    for each in values:
        sketches.adder()(bins, each)
    (found,) = sketches.quantiles(bins, (wanted,))
    assert found is not None
    ordered = sorted(values)
    rank = wanted * (len(values) - 1)
    near = (ordered[int(rank)], ordered[min(int(rank) + 1, len(values) - 1)])
    assert any(abs(found - each) <= 0.0101 * abs(each) + 1e-300 for each in near)


def test_a_quantile_of_the_largest_numbers_is_a_number() -> None:
    sketches = Sketches(0.01)
    bins: dict[int, int] = {}
    for each in (1.7976931348623157e308, -1.7976931348623157e308, 5e-324):
        sketches.adder()(bins, each)
    low, middle, high = sketches.quantiles(bins, (0, 0.5, 1))
    assert low is not None
    assert high is not None
    assert middle == 0
    assert -low == high > 1.6e308


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.sampled_from([0, 0.25, 0.5, 0.9, 1]))
def test_quantiles_are_those_of_the_library(values: list[float], wanted: float) -> None:
    library, sketches = DDSketch(0.02), Sketches(0.02)
    bins: dict[int, int] = {}
    for each in values:
        library.add(each)
        sketches.adder()(bins, each)
    assert sketches.quantiles(bins, (wanted,)) == [library.get_quantile_value(wanted)]


def test_a_sketch_of_wild_values_stays_small_and_keeps_its_upper_quantiles() -> None:
    sketches = Sketches(0.001)
    add = sketches.adder()
    bins: dict[int, int] = {}
    values = [10.0 ** (at % 600 - 300) * (1 + at / 7919) for at in range(20_000)]
    for each in values:
        add(bins, each)
    assert len(bins) <= BINS_MAX
    assert sum(bins.values()) == 20_000
    (found,) = sketches.quantiles(bins, (0.99,))
    exact = sorted(values)[int(0.99 * 19_999)]
    assert found is not None
    assert abs(found - exact) <= 0.002 * exact


# --- gaps


def test_a_gap_is_named_in_the_windows_around_it() -> None:
    rows = [row(NOON + at * SECOND, {}, seq=at) for at in (10, 70)]
    gap = Gap("in", 120, 151, "expired", NOON + 70 * SECOND)
    later = [row(NOON + at * SECOND, {}, seq=200 + at) for at in (200, 250, 310)]
    found = run(window(), [*rows, gap, *later], until=NOON + 3600 * SECOND)
    assert [(each.values["complete"], each.values.get("missing")) for each in found.emitted] == [
        (True, None),
        (False, "in 120-150: expired"),
        (False, "in 120-150: expired"),
        (True, None),
        (True, None),
    ]
    assert list(stateful(found.function).items()) == []


def test_many_gaps_take_little_room() -> None:
    inputs: list[Row | Gap] = [row(NOON, {}, seq=0)]
    for at in range(1, 200):
        inputs += [Gap("in", at * 10, at * 10 + 1, "budget", NOON + at), row(NOON + at, {}, seq=at * 10 + 1)]
    found = run(window(), inputs, until=NOON + 61 * SECOND)
    (result,) = found.emitted
    assert not result.values["complete"]
    assert len(result.values["missing"]) < 400
    assert "10: budget and later ones" in result.values["missing"]


# --- parts


def test_ten_thousand_windows_that_close_together_come_in_parts_and_in_order() -> None:
    function = window()()
    found = run(lambda: function, [row(NOON + at, {}, b"k%05d" % (9999 - at)) for at in range(10_000)])
    due = function.due()
    assert due == NOON + 60 * SECOND
    while len(found.emitted) < 1000:
        part = function.tick(due, found.out)
        assert len(part) <= function.windows_a_tick
        assert function.due() == due
        found.emitted += part
    found.save(restart=True)
    found.tick_before(due + SECOND)
    assert [each.key for each in found.emitted] == [b"k%05d" % (9999 - at) for at in range(10_000)]


def test_the_state_of_a_window_is_small() -> None:
    function = window(emit={"n": "count()", "mean": "mean(x)", "max": "max(x)"})
    found = run(function, [row(NOON + at, {"x": 20.0 + at}, b"plant/line-1/machine-07") for at in range(3)])
    ((key, value),) = stateful(found.function).items()
    assert len(key) + len(msgspec.msgpack.encode(value)) < 80


# --- settings


@pytest.mark.parametrize(
    ("chosen", "error"),
    [
        ({"every_s": None}, "a window needs every (such as 1m), or gap"),
        ({"gap_s": 5.0}, "every does not go with gap"),
        ({"every_s": 60.0, "size_s": 90.0}, "size is not a multiple of every"),
        ({"every_s": 0.001, "size_s": 86_400.0}, "size is more than 10,000 times every"),
        ({"every_s": None, "gap_s": 60.0, "longest_s": 30.0}, "longest is not longer than gap"),
        ({"offset_s": 60.0}, "offset is not shorter than every"),
        ({"lateness_s": 5.0}, "lateness and idle need time"),
        ({"by": ("none", "line")}, "by: none must be alone"),
        ({"by": ("a..b",)}, "expected a field such as rms or motor.rpm"),
        ({"time": ".t"}, "expected a field such as rms or motor.rpm"),
        ({"emit": {"n": "count"}}, "n: 'count' is not an aggregate; write one such as max(rms)"),
        ({"emit": {"n": "avg(x)"}}, "n: avg is not an aggregate. Known here: count, envelope, first"),
        ({"emit": {"n": "max(x, y)"}}, "n: max takes 1 argument, got 2"),
        ({"emit": {"n": "quantile(x, 99)"}}, "n: the second argument of quantile is a number from 0 to 1"),
        ({"emit": {"n": "max(x.y)"}}, "emit: x.y: column"),
        ({"emit": {"n": "max(__import__('os'))"}}, "emit: __import__('os'): column"),
        ({"emit": {"late": "count()"}}, "emit: late: every result has such a field"),
        ({"emit": {"a": "envelope(x)", "a_min": "min(x)"}}, "emit: a_min: something else has this name"),
    ],
)
def test_a_mistake_in_the_settings_is_explained(chosen: dict[str, Any], error: str) -> None:
    with pytest.raises(WindowError) as caught:
        window(**chosen)()
    assert error in str(caught.value)
