"""Shifts and local days on an edge: the hours that the clocks show, and the same results after a restart."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.functions.restart import SECOND, Cut, context, row, run, same_after_restarts
from weft.config.functions.windows import HOUR_US, Grid, Window
from weft.functions.contract import Row
from weft.functions.window_plan import WindowError, event_time_reader
from weft.functions.windows import WindowFunction

BERLIN = "Europe/Berlin"
HOUR = 3600 * SECOND
SHIFTS: dict[str, Any] = {"every_s": 8 * 3600.0, "offset_s": 6 * 3600.0, "zone": BERLIN}


def window(**chosen: Any) -> Callable[[], WindowFunction]:
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
    found = same_after_restarts(window(time=time, **SHIFTS), given, places, until=given[-1].time + 48 * HOUR)
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
    found = run(window(time="t", lateness_s=4 * 3600.0, **SHIFTS), given, until=first + 99 * HOUR)
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
        window(zone=BERLIN, **settings)()


def test_texts_without_an_offset_are_of_the_declared_zone() -> None:
    read = event_time_reader("t", "s", BERLIN)
    assert read("2026-07-01T12:00:00") == local("2026-07-01T12:00")
    assert read("2026-07-01T12:00:00Z") == local("2026-07-01T14:00")
    assert read("2026-10-25T02:30:00") == local("2026-10-25T01:30") + HOUR, "the first of two"
    assert read("2026-03-29T02:30:00") == local("2026-03-29T03:30"), "a time that the clocks left out"
    assert read(1_774_746_000) == 1_774_746_000 * SECOND
