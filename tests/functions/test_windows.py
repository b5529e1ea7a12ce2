"""Windows of event times at the edges of time, bounds, and mistakes in settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any
from unittest import mock
from zoneinfo import ZoneInfo

import msgspec
import pytest
from ddsketch import DDSketch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.edge_node.derived import power_cuts
from tests.edge_node.derived.node import definition
from tests.functions.restart import SECOND, Chain, Cut, context, cuts, row, run, same_after_restarts, stateful
from tests.functions.test_sql import sql as sql_sql
from tests.functions.test_window_store import SHAPES, UNTIL, inputs, maker
from tests.functions.window_reference import Times
from tests.support.examples import given as examples_given
from tests.support.slices import SLICE
from tests.support.speed import slowness
from tests.support.steps import STEP_S_MAX, TRIES, quickest_s, worked_s
from weft.config.functions.windows import HOUR_US, Grid, Sql, Window
from weft.edge_node.derived.definitions import Definition
from weft.functions.aggregates import BINS_MAX, Sketches
from weft.functions.chain import Chain as ChainChain
from weft.functions.chain import Outputs
from weft.functions.contract import Context, Function, Gap, Row
from weft.functions.formats import JsonFormat
from weft.functions.select import COLUMNS_MAX
from weft.functions.sql import SqlFunction
from weft.functions.window_plan import EVENT_TIME_END, WindowError, event_time_reader, iso_text, topic_of
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


# --- Shifts and local days on an edge: the hours that the clocks show, and the same results after a restart


BERLIN = "Europe/Berlin"
HOUR = 3600 * SECOND
SHIFTS: dict[str, Any] = {"every_s": 8 * 3600.0, "offset_s": 6 * 3600.0, "zone": BERLIN}


def local_window(**chosen: Any) -> Callable[[], WindowFunction]:
    return lambda: WindowFunction(Window(**{"emit": {"n": "count()"}, **chosen}), context())


def local(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(BERLIN)).timestamp()) * SECOND


def rows(day: str, hours: int = 72) -> list[Row]:
    """A row each half hour, from midnight before the day on."""
    first = local(f"{day}T00:00") - 24 * HOUR
    return [row(first + at * HOUR // 2, {"t": (first + at * HOUR // 2) // SECOND}) for at in range(2 * hours)]


@pytest.mark.parametrize("time", [None, "t"])
@pytest.mark.parametrize(("day", "night"), [("2026-03-29", 7), ("2026-10-25", 9)])
def test_a_night_in_which_clocks_are_set_is_shorter_or_longer(day: str, night: int, time: str | None) -> None:
    given = rows(day)
    places = [Cut(at, restart=True, crash=at % 2 == 0) for at in range(5, len(given), 17)]
    found = same_after_restarts(local_window(time=time, **SHIFTS), given, places, until=given[-1].time + 48 * HOUR)
    grid = Grid(8 * HOUR_US, 6 * HOUR_US, BERLIN)
    expected: dict[str, int] = {}
    for each in given:
        start = grid.start(grid.number(each.time // 1000)) // 1_000_000
        name = datetime.fromtimestamp(start, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        expected[name] = expected.get(name, 0) + 1
    assert {each.values["window_start"]: each.values["count"] for each in found.emitted} == expected
    bounds = [
        [datetime.fromisoformat(each.values[name]) for name in ("window_start", "window_end")] for each in found.emitted
    ]
    assert {(end - start).total_seconds() / 3600 for start, end in bounds} == {8, night}
    assert {start.astimezone(ZoneInfo(BERLIN)).hour for start, _ in bounds} == {6, 14, 22}
    assert all(each.values["complete"] for each in found.emitted)


def test_a_late_row_finds_its_shift_closed_and_one_within_the_lateness_does_not() -> None:
    first = local("2026-10-25T05:59")
    times = [first, first + HOUR, first + 3 * HOUR, first, first + 8 * HOUR, first + 20 * HOUR, first]
    given = [row(first + 30 * HOUR + at, {"t": each // SECOND}) for at, each in enumerate(times)]
    found = run(local_window(time="t", lateness_s=4 * 3600.0, **SHIFTS), given, until=first + 99 * HOUR)
    assert [(each.values["window_start"], each.values["count"]) for each in found.emitted] == [
        ("2026-10-24T20:00:00Z", 2),
        ("2026-10-25T05:00:00Z", 3),
        ("2026-10-25T21:00:00Z", 1),
    ]
    assert len(found.out.rejected()) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"every_s": 3600.0}, "zone has a meaning for windows of 2h and more"),
        ({"every_s": 5 * 3600.0}, "every neither divides a day"),
        ({"gap_s": 60.0}, "zone does not go with gap"),
        ({"every_s": 7200.0, "size_s": 14_400.0}, "zone does not go with size"),
        ({"every_s": 7200.0, "offset_s": 0.5}, "offset is not a whole number of seconds"),
    ],
)
def test_windows_that_have_no_local_time_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(WindowError, match=said):
        local_window(zone=BERLIN, **settings)()


def test_texts_without_an_offset_are_of_the_declared_zone() -> None:
    read = event_time_reader("t", "s", BERLIN)
    assert read("2026-07-01T12:00:00") == local("2026-07-01T12:00")
    assert read("2026-07-01T12:00:00Z") == local("2026-07-01T14:00")
    assert read("2026-10-25T02:30:00") == local("2026-10-25T01:30") + HOUR, "the first of two"
    assert read("2026-03-29T02:30:00") == local("2026-03-29T03:30"), "a time that the clocks left out"
    assert read(1_774_746_000) == 1_774_746_000 * SECOND


# --- Bounds on the memory of windows: what needs more is named and goes to the errors, and what a group needs it gets


LITTLE = 2_000
"""Bytes, for some ten rows."""


def each_second(count: int) -> list[Row]:
    return [row(at * SECOND, {"x": 1.0, "ts": at}, b"k", at) for at in range(count)]


def sql(**chosen: Any) -> Callable[[], SqlFunction]:
    return lambda: SqlFunction(Sql(every_s=60.0, select="SELECT count(*) AS n FROM input", **chosen), context())


@pytest.mark.parametrize(
    "chosen",
    [{"every": 1, "size": 300}, {"every": 1, "size": 1, "event": True, "lateness": 300, "idle": 600}],
    ids=["hopping", "late"],
)
def test_a_group_has_all_the_windows_that_its_settings_need(chosen: dict[str, Any]) -> None:
    """Five minutes, each second: 300 parts are open at once, more than a hundredth of all that may be."""
    make = maker(Times(**chosen), {"n": "count()"}, windows_max=10_000)
    found = run(make, each_second(400), until=HOUR)
    assert found.out.rejected() == []
    assert sum(each.values["n"] for each in found.emitted) == 400 * (chosen["size"])


def kept(found: Chain) -> int:
    return sum(each.values["count"] for each in found.emitted)


@pytest.mark.parametrize(
    "make",
    [maker(Times(every=60, size=60), {"points": "lttb(x, 3)"}, memory_bytes=LITTLE), sql(memory_bytes=LITTLE)],
    ids=["lttb", "sql"],
)
def test_rows_beyond_the_memory_of_all_windows_go_to_the_errors(make: Callable[[], WindowFunction]) -> None:
    rows = [row(at, {"x": 1.0}, b"device/%d" % (at % 5), at) for at in range(100)]
    found = run(make, rows, until=HOUR)
    assert 5 <= kept(found) <= LITTLE // 64
    assert kept(found) + len(found.out.rejected()) == 100
    assert all("bytes already (memory)" in reason for reason in found.out.rejected())
    assert all("or memory" in each.values["missing"] for each in found.emitted)
    # Windows that close give it back.
    later = [row(HOUR + at, {"x": 1.0}, b"device/0", 100 + at) for at in range(5)]
    again = run(make, [*rows, *later], until=2 * HOUR)
    assert again.emitted[-1].values["count"] == 5
    assert again.emitted[-1].values["complete"]
    assert again.function.store.kept_bytes == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("times", [SHAPES[1], SHAPES[4], SHAPES[7]], ids=str)
@given(data=st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_restarts_change_nothing_where_memory_is_short(times: Times, data: st.DataObject) -> None:
    given = data.draw(inputs())
    make = maker(times, {"points": "lttb(x, 3)", "n": "count()"}, memory_bytes=1_024)
    same_after_restarts(make, given, data.draw(cuts(len(given))), until=UNTIL)


def test_rows_of_ever_new_keys_take_no_more_time_than_others() -> None:
    make = maker(Times(every=60, size=60), {"n": "count()"}, keys_max=20_000)
    chain = Chain(make)
    chain.feed([row(1, {"x": 1}, b"device/%d" % at) for at in range(20_000)])
    more = [row(2, {"x": 1}, b"more/%d" % at) for at in range(10_000)]
    usual = worked_s(partial(chain.feed, [row(2, {"x": 1}, b"device/%d" % at) for at in range(10_000)]))
    took = quickest_s(lambda: worked_s(partial(chain.feed, more)), 5 * usual)
    assert len(chain.out.rejected()) % 10_000 == 0
    assert took <= 5 * usual, "looking through all groups for each row takes a hundred times as long"


def test_a_topic_of_many_bytes_makes_no_group() -> None:
    make = maker(Times(every=10, size=10), {"n": "count()"})
    found = run(make, [row(1, {"x": 1}, b"t" * 1_025), row(1, {"x": 1}, b"t" * 1_024)], until=HOUR)
    assert [each.key for each in found.emitted] == [b"t" * 1_024]
    assert found.out.rejected() == ["its topic has more than 1024 bytes; groups need shorter ones"]


@pytest.mark.parametrize("value", [(1 << 64) - 1, -(1 << 63), (1 << 63) + 1])
def test_integers_of_64_bits_stay_what_they_are(value: int) -> None:
    emit = {"least": "min(x)", "most": "max(x)", "first": "first(x)", "last": "last(x)"}
    make = maker(Times(every=10, size=10), emit)
    found = same_after_restarts(make, [row(1, {"x": value})], [], until=HOUR)
    assert [found.emitted[0].values[name] for name in emit] == [value] * 4
    assert all(type(found.emitted[0].values[name]) is int for name in emit)


def test_a_value_that_a_select_cannot_have_is_refused_with_its_row_alone() -> None:
    rows = [row(1, {"x": 1}), row(2, {"x": 10**30}), row(3, {"x\0y": 1, "x": 2})]
    found = run(sql(), rows, until=HOUR)
    assert [each.values["n"] for each in found.emitted] == [2]
    (reason,) = found.out.rejected()
    assert reason.startswith("it has a value that cannot be kept: ")


# --- Windows of many devices: what one of them sends takes its own share, and rows that are cut are named


BIG = 1 << 20
ALL = "SELECT key, group_concat(v, ' ') AS vs FROM input GROUP BY key ORDER BY key"


def fair(topics: list[bytes], most: int) -> list[int]:
    """Return the places of the rows that a window keeps, by brute force: rows are alike in size."""
    kept: list[int] = []
    for at, topic in enumerate(topics):
        counts = Counter(topics[each] for each in kept)
        if len(kept) >= most:
            number = max(counts.values())
            largest = min(each for each in counts if counts[each] == number)
            if largest == topic or number - 1 < counts[topic] + 1:
                continue
            kept.remove(max(each for each in kept if topics[each] == largest))
        kept.append(at)
    return kept


@examples_given(data=st.data(), few=10, many=60)
def test_the_topic_with_the_most_rows_gives_way_first(data: st.DataObject) -> None:
    topics = data.draw(st.lists(st.sampled_from([b"a", b"a", b"a", b"b", b"c", b"d"]), min_size=1, max_size=90))
    most = data.draw(st.sampled_from([1, 3, 7, 70]))
    rows = [row(SECOND + at // 9, {"v": 100 + at}, topic, at) for at, topic in enumerate(topics)]
    found = same_after_restarts(sql_sql(ALL, by=("none",), rows_max=most), rows, data.draw(cuts(len(rows))), until=HOUR)
    kept = fair(topics, most)
    assert {each.values["key"]: each.values["vs"] for each in found.emitted} == {
        topic.decode(): " ".join(str(100 + at) for at in kept if topics[at] == topic)
        for topic in {topics[at] for at in kept}
    }
    cut = Counter(topics[at].decode() for at in range(len(topics)) if at not in kept)
    for each in found.emitted:
        assert each.values["count"] == len(kept)
        name, first, last, count = each.source
        assert (name, count) == ("in", len(kept))
        assert first <= min(kept) <= max(kept) <= last  # type: ignore[operator]
        assert each.values["complete"] is not bool(cut)
        assert all(f"{topic} {number}" in each.values["missing"] for topic, number in cut.items())
    sources = sorted(said[1][5] for said in found.out.said)
    assert sources == sorted(set(range(len(topics))) - set(kept))


def test_one_device_leaves_the_window_to_the_others() -> None:
    """12,000 rows of one device, before and after those of the other: its own are cut."""
    flood = [row(1 + at, {"v": 1}, b"plant/m/mallory", at) for at in range(12_000)]
    good = [row(500 * at + 2, {"v": 2.5}, b"plant/a/b", 20_000 + at) for at in range(24)]
    rows = sorted([*flood, *good], key=lambda each: each.time)
    select = "SELECT count(*) AS n, avg(v) AS v FROM input WHERE key = 'plant/a/b'"
    (result,) = run(sql_sql(select, by=("none",)), rows, until=HOUR).emitted
    assert (result.values["n"], result.values["v"]) == (24, 2.5)
    assert result.values["missing"] == "2024 rows beyond rows_max, size_max or memory: plant/m/mallory 2,024"


@pytest.mark.parametrize(("bound", "kept"), [({"bytes_max": BIG}, 5), ({"memory_bytes": BIG}, 5)])
def test_bytes_are_shared_as_rows_are(bound: dict[str, int], kept: int) -> None:
    flood = [row(1 + at, {"v": 1, "x": "y" * 100_000}, b"m", at) for at in range(20)]
    good = [row(100 + at, {"v": 2, "x": "y" * 100_000}, b"a", 100 + at) for at in range(9)]
    (result,) = run(
        sql_sql("SELECT sum(v = 2) AS a, sum(v = 1) AS m FROM input", by=("none",), **bound),
        [*flood, *good],
        until=HOUR,
    ).emitted
    assert result.values["a"] == kept
    assert kept <= result.values["m"] <= kept + 1


def wide(of: str, number: int, first: int = 0) -> dict[str, int]:
    return {f"{of}{at}": at for at in range(first, first + number)}


@pytest.mark.parametrize(
    ("rows", "left"),
    [
        ([(b"m", wide("x", 600)), (b"a", {"v": 1})], [b"a"]),
        (
            [(b"m", wide("x", 400)), (b"m", wide("y", 400)), (b"a", wide("v", 90)), (b"m", {"x1": 1})],
            [b"a", b"m", b"m"],
        ),
        ([*((b"m", wide("x", 1, at)) for at in range(700)), (b"a", wide("v", 9))], [b"a", *[b"m"] * 488]),
    ],
    ids=["a row", "two rows", "many rows"],
)
def test_rows_of_too_many_fields_cost_a_star_themselves_alone(rows: list[tuple[bytes, Any]], left: list[bytes]) -> None:
    given = [row(at, values, topic, at) for at, (topic, values) in enumerate(rows)]
    found = run(sql_sql("SELECT * FROM input", by=("none",)), given, until=HOUR)
    assert sorted(each.values["key"].encode() for each in found.emitted) == left
    assert {each.values["count"] for each in found.emitted} == {len(left)}
    cut = len(rows) - len(left)
    assert len(found.out.rejected()) == cut
    assert all("fields" in reason for reason in found.out.rejected())
    for each in found.emitted:
        assert not each.values["complete"]
        assert each.values["missing"].endswith(f": m {cut}")


def test_a_star_still_has_as_many_fields_as_before() -> None:
    values = wide("x", COLUMNS_MAX - 3)
    (result,) = run(sql_sql("SELECT * FROM input", by=("none",)), [row(1, values)], until=HOUR).emitted
    assert result.values["complete"]
    assert values.items() <= result.values.items()


async def test_what_gives_way_is_told_in_the_place_of_the_row_that_came_in() -> None:
    """However rows are cut into batches, the stream of errors is the same."""
    given = [(b"m", b'{"v": 1}'), (b"m", b'{"v": 2}'), (b"a", b'{"v": 3}'), (b"a", b"{"), (b"m", b'{"v": 4}')]
    rows = [Row(1 + at, topic, payload, {}, (), at, "in") for at, (topic, payload) in enumerate(given)]
    for batches in ([rows], [rows[:3], rows[3:]], [[each] for each in rows]):
        chain, out = (
            ChainChain([("sql", sql_sql(ALL, by=("none",), rows_max=2)())], JsonFormat(), JsonFormat()),
            Outputs(),
        )
        for batch in batches:
            await chain.process(batch, out)
        assert [each.row.seq for each in out.rejected] == [1, 3, 4]


async def test_the_process_of_selects_says_which_rows_were_cut() -> None:
    function = sql_sql("SELECT key FROM input", by=("none",), results_max=700)()
    star = sql_sql("SELECT * FROM input", by=("none",), results_max=700)()
    rows = [row(at, wide("x", 1, at), b"m", at) for at in range(COLUMNS_MAX + 9)]
    for each, expected in ((function, COLUMNS_MAX + 9), (star, COLUMNS_MAX - 3)):
        out = Outputs()
        await each.process_async(rows, out)
        found = await each.tick_async(60 * SECOND, out)
        await each.close()
        assert len(found) == expected
        assert [each.row.seq for each in out.rejected] == list(range(expected, COLUMNS_MAX + 9))


@pytest.mark.parametrize("time", [0, -1, 1, 200, 70_000, 1 << 33, 1 << 62, -200, -(1 << 40)])
@pytest.mark.parametrize("topic", [b"", b"a", b"a" * 300, b"a" * 70_000])
def test_the_topic_of_a_kept_row_is_read_alone(time: int, topic: bytes) -> None:
    assert topic_of(msgspec.msgpack.encode([time, topic, {"x": 1}, 7, "in"])) == topic


def test_a_full_window_takes_no_step_long() -> None:
    """10,000 topics fill it; then each row of one more makes another give way."""
    rows = [row(1 + at, {"v": 1}, b"t%d" % (at % 5_000), at) for at in range(10_000)]
    more = [row(20_000 + at, {"v": 1}, b"u%d" % at, 20_000 + at) for at in range(1_024)]
    slices: list[list[Row]] = [rows[at : at + 256] for at in range(0, 10_000, 256)]
    slices += [more[at : at + 256] for at in range(0, 1_024, 256)]
    quickest = [float("inf")] * len(slices)
    for _ in range(TRIES):
        function, out = sql_sql(ALL, by=("none",))(), Outputs()
        took = [worked_s(partial(function.process, each, out)) for each in slices]
        assert len(out.rejected) == 1_024
        quickest = list(map(min, quickest, took))
        if max(quickest) < STEP_S_MAX:
            return
    assert max(quickest) < STEP_S_MAX * slowness()


# --- Power cuts through windows of every shape: what comes out is what a node without cuts gives, byte for byte


EMIT = {"mean": "mean(value / 3)", "deviation": "stddev(value)", "p": "quantile(value, 0.9)", "curve": "lttb(value, 4)"}
POWER_CUTS_SHAPES: dict[str, dict[str, Any]] = {
    "hopping": {"every_s": 5.0, "size_s": 15.0},
    "sessions": {"gap_s": 2.0, "longest_s": 20.0},
    # Values as times: rows of the first thousand seconds, in any order.
    "by-event": {"every_s": 50.0, "time": "value", "lateness_s": 100.0, "idle_s": 4.0},
    "late-sessions": {"gap_s": 20.0, "time": "value", "lateness_s": 50.0, "idle_s": 3.0, "by": ("none",)},
    "few": {"every_s": 3.0, "keys_max": 2, "windows_max": 2},
}


def power_cuts_window(**chosen: Any) -> Callable[[], list[tuple[str, Function]]]:
    return lambda: [("window", WindowFunction(Window(emit=EMIT, **chosen), context()))]


def definitions() -> list[Definition]:
    single = [
        definition(name, ["telemetry"], power_cuts_window(**chosen)) for name, chosen in POWER_CUTS_SHAPES.items()
    ]
    return [
        *single,
        definition(
            "of-windows",
            ["hopping"],
            lambda: [("window", WindowFunction(Window(every_s=30.0, emit={"most": "max(mean)"}), context()))],
        ),
    ]


def test_power_cuts_change_no_window() -> None:
    with mock.patch.multiple(power_cuts, definitions=definitions):
        power_cuts.run_cuts(12, seed=1)


@pytest.mark.search
@pytest.mark.timeout(600)
def test_many_power_cuts_change_no_window() -> None:
    with mock.patch.multiple(power_cuts, definitions=definitions):
        power_cuts.run_lives(SLICE.seeds(ci=15, night=150))
