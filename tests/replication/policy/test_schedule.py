"""Windows of local time, with the days on which clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.replication.liveness import SECOND
from weft.replication.policy import DayWindow, StreamWindows

BERLIN = ZoneInfo("Europe/Berlin")


def windows(*pairs: tuple[str, str], days: set[int] | None = None, zone: ZoneInfo = BERLIN) -> StreamWindows:
    found = tuple(DayWindow(time.fromisoformat(begin), time.fromisoformat(end)) for begin, end in pairs)
    return StreamWindows(("bulk*",), found, zone, frozenset(days or range(7)))


def utc(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


def open_minutes(entry: StreamWindows, day: str) -> list[str]:
    """The UTC times at which the windows open or shut in the two days around a midnight, by quarters of an hour."""
    found, before = [], False
    for quarter in range(-12 * 4, 36 * 4):
        at = utc(day) + quarter * 900 * SECOND
        is_open, until = entry.state(at)
        assert until > at
        if is_open != before:
            found.append(f"{datetime.fromtimestamp(at // SECOND, UTC):%dT%H:%M}")
        before = is_open
    return found


@pytest.mark.parametrize(
    ("day", "pair", "expected"),
    [
        ("2026-11-25", ("01:00", "05:00"), ["25T00:00", "25T04:00", "26T00:00", "26T04:00"]),
        ("2026-11-25", ("22:00", "02:00"), ["24T21:00", "25T01:00", "25T21:00", "26T01:00"]),
        ("2026-03-29", ("01:00", "05:00"), ["29T00:00", "29T03:00", "29T23:00", "30T03:00"]),  # three hours
        ("2026-10-25", ("01:00", "05:00"), ["24T23:00", "25T04:00", "26T00:00", "26T04:00"]),  # five
        ("2026-03-29", ("02:15", "02:45"), ["29T01:15", "29T01:45", "30T00:15", "30T00:45"]),  # skipped: 03:15 then
        ("2026-10-25", ("02:15", "02:45"), ["25T00:15", "25T01:45", "26T01:15", "26T01:45"]),  # to the second 02:45
        ("2026-03-29", ("02:30", "03:15"), ["29T01:00", "29T01:15", "30T00:30", "30T01:15"]),  # 03:00, at the jump
        ("2026-03-29", ("02:30", "03:30"), ["29T01:00", "29T01:30", "30T00:30", "30T01:30"]),
        ("2026-10-25", ("02:30", "03:15"), ["25T00:30", "25T02:15", "26T01:30", "26T02:15"]),
    ],
)
def test_a_window_opens_and_shuts_by_the_clock_on_the_wall(
    day: str, pair: tuple[str, str], expected: list[str]
) -> None:
    assert open_minutes(windows(pair), day) == expected


def test_days_are_those_on_which_a_window_begins() -> None:
    entry = windows(("22:00", "02:00"), days={4}, zone=ZoneInfo("UTC"))  # Friday
    assert open_minutes(entry, "2026-11-27") == ["27T22:00", "28T02:00"]
    assert entry.opens_at(utc("2026-11-28T03:00")) == utc("2026-12-04T22:00")


@given(
    st.lists(st.tuples(st.times(), st.times()), min_size=1, max_size=3),
    st.sets(st.integers(0, 6), min_size=1),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    st.integers(0, 400 * 86_400),
)
def test_nothing_changes_before_the_time_that_is_named(
    pairs: list[tuple[time, time]], days: set[int], zone: str, offset: int
) -> None:
    entry = StreamWindows(
        ("*",),
        tuple(DayWindow(a.replace(microsecond=0), b.replace(microsecond=0)) for a, b in pairs),
        ZoneInfo(zone),
        frozenset(days),
    )
    at = utc("2026-01-01") + offset * SECOND
    is_open, until = entry.state(at)
    assert at < until <= at + timedelta(days=9).total_seconds() * SECOND
    for part in range(1, 5):
        assert entry.state(at + (until - at) * part // 5)[0] == is_open
    opens = entry.opens_at(at)
    assert entry.state(opens)[0]
    assert is_open == (opens == at)
