"""Windows by the clocks of a zone: each instant is in one window, also when the clocks are set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.config.functions.windows import DAY_US, HOUR_US, Grid, grid_problem

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
