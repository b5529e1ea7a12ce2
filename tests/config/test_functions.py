"""Functions are read as a plant engineer writes them, and a mistake names its line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.config.errors import ConfigError
from weft.config.functions.step import FunctionStep
from weft.config.functions.windows import DAY_US, HOUR_US, Grid, grid_problem
from weft.config.load import changed_settings, parse
from weft.config.models import EdgeConfig
from weft.config.schema import schema, settings

STREAM = "node: a\ndata_dir: /data\nstreams:\n  hot:\n    from: t/#\n    functions:\n"


def functions(lines: str) -> tuple[FunctionStep, ...]:
    return parse(STREAM + lines, "edge.yaml", EdgeConfig).config.streams["hot"].functions


def test_each_entry_is_one_function() -> None:
    first, second = functions("      - where: rms >= 0\n      - set: {fahrenheit: temperature * 1.8 + 32}\n")
    assert first.chosen == ("where", "rms >= 0")
    assert second.chosen == ("set", {"fahrenheit": "temperature * 1.8 + 32"})


@pytest.mark.parametrize(("written", "nulls"), [("", False), ("reject", False), ("null", True), ('"null"', True)])
def test_a_function_says_what_a_missing_field_is(written: str, nulls: bool) -> None:
    beside = f"        missing: {written}\n" if written else ""
    (step,) = functions(f"      - where: rms >= 0\n{beside}")
    assert step.chosen == ("where", "rms >= 0")
    assert step.takes_nulls is nulls


@pytest.mark.parametrize(
    ("written", "expression"),
    [
        ("true", "True"),
        ("3", "3"),
        ("-1e-3", "-1e-3"),
        ("null", "None"),
        ('"true"', "true"),
        ("on", "on"),
        ("'\"press 7\"'", '"press 7"'),
    ],
)
def test_an_expression_may_look_like_another_value_of_yaml(written: str, expression: str) -> None:
    (step,) = functions(f"      - set: {{x: {written}}}\n")
    assert step.set_ == {"x": expression}


def test_fields_are_selected_by_name_or_as_new_ones() -> None:
    names, one, mapping = functions("      - select: [a, b]\n      - select: a\n      - select: {rpm: motor.rpm}\n")
    assert (names.select, one.select, mapping.select) == (("a", "b"), ("a",), {"rpm": "motor.rpm"})


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (
            "      - where: a\n        select: b",
            "edge.yaml:7: streams.hot.functions[0]: expected one function, got where and select",
        ),
        (
            "      - where: a\n      - whre: x",
            "edge.yaml:8: streams.hot.functions[1].whre: is not a function. Did you mean where?",
        ),
        ("      - missing: null", "functions[0]: expected one function, got nothing. Known here: where"),
        ("      - where: a\n        missing: 0", "functions[0].missing: expected"),
        ("      - {}", "edge.yaml:7: streams.hot.functions[0]: expected one function, got nothing. Known here: where"),
        (
            "      - where: # rms",
            "edge.yaml:7: streams.hot.functions[0].where: expected an expression such as "
            "rms > 2.5, got nothing. A # begins a comment",
        ),
        ("      - set: {}", "functions[0].set: expected names with their values: `NAME: VALUE`, got nothing"),
        ("      - set:", "functions[0].set: expected names with their values: `NAME: VALUE`, got nothing"),
        ("      - set: [a]", "functions[0].set: expected names with their values: `NAME: VALUE`, got a list"),
        ("      where: a", "edge.yaml:6: streams.hot.functions: expected a list of entries that begin with a dash"),
        ("      - select: [[a]]", "edge.yaml:7: streams.hot.functions[0].select[0]: expected text"),
    ],
)
def test_a_mistake_names_its_line_and_what_was_expected(lines: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        functions(lines)
    assert error in str(caught.value)


def test_a_change_names_the_function() -> None:
    def config(lines: str) -> EdgeConfig:
        return parse(STREAM + lines, "edge.yaml", EdgeConfig).config

    one, other, more = (
        config(each) for each in ("      - where: a", "      - where: b", "      - where: a\n      - where: c")
    )
    assert changed_settings(one, other) == ["streams.hot.functions[0].where"]
    assert changed_settings(one, more) == ["streams.hot.functions"]


def test_the_schema_allows_one_function_an_entry() -> None:
    definition = schema(EdgeConfig)["$defs"]["FunctionStep"]
    assert (definition["minProperties"], definition["maxProperties"]) == (1, 2)  # `missing` may stand beside it
    assert {"required": ["where"]} in definition["oneOf"]
    assert {"required": ["missing"]} not in definition["oneOf"]
    assert definition["properties"]["where"]["anyOf"][0]["type"] == ["string", "number", "boolean"]
    assert {"streams.<name>.functions[]", "streams.<name>.functions[].where"} <= {
        setting.path for setting in settings(EdgeConfig)
    }


# --- Windows by the clocks of a zone: each instant is in one window, also when the clocks are set


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE_US = 60_000_000
BERLIN = "Europe/Berlin"
SPRING, AUTUMN = "2026-03-29", "2026-10-25"


def us(text: str, zone: str = "UTC", fold: int = 0) -> int:
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return (moment - EPOCH) // timedelta(microseconds=1)


def hours(grid: Grid, first: int, count: int) -> list[float]:
    return [(grid.start(k + 1) - grid.start(k)) / HOUR_US for k in range(first, first + count)]


@pytest.mark.parametrize(("day", "length"), [(SPRING, 23), (AUTUMN, 25), ("2026-07-01", 24)])
def test_local_days_have_the_hours_that_the_clocks_show(day: str, length: int) -> None:
    grid = Grid(DAY_US, zone=BERLIN)
    number = grid.number(us(f"{day}T12:00", BERLIN))
    assert grid.start(number) == us(f"{day}T00:00", BERLIN)
    assert hours(grid, number - 1, 3) == [24, length, 24]
    assert {grid.number(grid.start(number)), grid.number(grid.start(number + 1) - 1)} == {number}


def test_shifts_begin_at_the_same_time_of_day_all_year() -> None:
    grid = Grid(8 * HOUR_US, 6 * HOUR_US, BERLIN)
    for day, night in ((SPRING, 7), (AUTUMN, 9)):
        late = grid.number(us(f"{day}T00:30", BERLIN))
        assert hours(grid, late - 1, 3) == [8, night, 8]
        assert grid.start(late + 1) == us(f"{day}T06:00", BERLIN)


def test_the_doubled_hour_is_in_one_window_and_the_skipped_one_in_none() -> None:
    grid = Grid(2 * HOUR_US, zone=BERLIN)
    doubled = [us(f"{AUTUMN}T02:30", BERLIN, fold) for fold in (0, 1)]
    assert doubled[1] - doubled[0] == HOUR_US
    assert len({grid.number(each) for each in doubled}) == 1
    before, after = (grid.number(us(f"{SPRING}T{clock}", BERLIN)) for clock in ("01:59", "03:00"))
    assert (after - before, hours(grid, before, 2)) == (1, [2, 1])


def test_a_day_that_a_zone_left_out_is_an_empty_window() -> None:
    """Samoa had no 30 December 2011."""
    grid = Grid(DAY_US, 6 * HOUR_US, "Pacific/Apia")
    number = grid.number(us("2011-12-29T12:00", "Pacific/Apia"))
    assert hours(grid, number, 3) == [18, 6, 24]
    assert hours(Grid(DAY_US, zone="Pacific/Apia"), number, 3) == [24, 0, 24]


GRIDS = st.builds(
    lambda every, share, zone: Grid(every * HOUR_US, every * share * 15 * MINUTE_US // 96 * 24, zone),
    st.sampled_from([2, 3, 4, 6, 8, 12, 24, 48, 168]),
    st.integers(0, 15),
    st.sampled_from(
        [
            BERLIN,
            "America/New_York",
            "Australia/Lord_Howe",
            "Africa/Casablanca",
            "Asia/Kolkata",
            "Pacific/Apia",
            "America/St_Johns",
            None,
        ]
    ),
)


@given(GRIDS, st.integers(2005, 2040), st.integers(0, 365))
def test_a_window_begins_when_the_clocks_first_show_its_start(grid: Grid, year: int, day: int) -> None:
    """Against the definition, quarter of an hour by quarter of an hour."""
    info, step = ZoneInfo(grid.zone or "UTC"), 15 * MINUTE_US
    first = us(f"{year}-01-01T00:00") + day * DAY_US
    highest = None
    for at in range(first - 10 * DAY_US, first + 3 * DAY_US, step):
        local = (EPOCH + timedelta(microseconds=at)).astimezone(info).replace(tzinfo=UTC)
        shown = ((local - EPOCH) // timedelta(microseconds=1) - grid.offset_us) // grid.every_us
        highest = shown if highest is None else max(highest, shown)
        if at >= first:
            assert grid.number(at) == highest
            assert grid.start(highest) <= at < grid.start(highest + 1)


@given(GRIDS, st.integers(-(10**15), 4 * 10**15))
def test_starts_and_numbers_agree_at_all_times(grid: Grid, time: int) -> None:
    number = grid.number(time)
    start = grid.start(number)
    assert start <= time < grid.start(number + 1)
    assert grid.number(start) == number, "the window itself, not an empty one of the same start"
    assert grid.number(start - 1) < number
    assert grid.start(grid.ceiling(time)) >= time


@pytest.mark.parametrize(
    ("every", "offset", "zone", "setting"),
    [
        (HOUR_US, HOUR_US, None, "offset"),
        (HOUR_US, 0, BERLIN, "zone"),
        (5 * HOUR_US, 0, BERLIN, "every"),
        (36 * HOUR_US, 0, BERLIN, "every"),
        (2 * HOUR_US, 0, BERLIN, None),
        (7 * DAY_US, 6 * HOUR_US, BERLIN, None),
        (5 * HOUR_US, HOUR_US, None, None),
    ],
)
def test_settings_that_contradict_each_other_are_named(
    every: int, offset: int, zone: str | None, setting: str | None
) -> None:
    found = grid_problem(every, offset, zone)
    assert (found and found[0]) == setting
