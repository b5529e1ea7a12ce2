"""The month of a budget, and its count."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.replication.liveness import SECOND
from weft.replication.policy import PERIODS_MAX, BudgetCount, BudgetRule, period_of, reserve

KATHMANDU = ZoneInfo("Asia/Kathmandu")


def utc(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


@pytest.mark.parametrize(
    ("day", "zone", "at", "name", "end"),
    [
        (1, "UTC", "2026-11-25T12:00", "2026-11-01", "2026-12-01T00:00"),
        (1, "UTC", "2026-12-31T23:59", "2026-12-01", "2027-01-01T00:00"),
        (28, "UTC", "2026-02-27T12:00", "2026-01-28", "2026-02-28T00:00"),
        (15, "UTC", "2026-11-15T00:00", "2026-11-15", "2026-12-15T00:00"),
        (1, "Europe/Berlin", "2026-10-31T22:59", "2026-10-01", "2026-10-31T23:00"),
        (1, "Europe/Berlin", "2026-10-31T23:00", "2026-11-01", "2026-11-30T23:00"),
    ],
)
def test_a_month_begins_on_its_day_at_midnight_of_its_zone(day: int, zone: str, at: str, name: str, end: str) -> None:
    assert period_of(BudgetRule(1, day, ZoneInfo(zone)), utc(at)) == (name, utc(end))


@given(st.integers(1, 28), st.integers(0, 4_000_000_000))
def test_every_moment_is_in_one_month_that_ends_after_it(day: int, seconds: int) -> None:
    rule = BudgetRule(1, day, KATHMANDU)
    period = period_of(rule, seconds * SECOND)
    assert seconds * SECOND < period.end <= (seconds + 32 * 86_400) * SECOND
    assert period_of(rule, period.end - SECOND) == period
    assert period_of(rule, period.end).name > period.name


def test_a_clock_that_was_wrong_comes_back_to_the_count_of_its_month() -> None:
    rule, count = BudgetRule(1000, 1, ZoneInfo("UTC")), BudgetCount({"2026-11-01": 700})
    count.look(rule, utc("2026-11-25"))
    count.add(50)
    for year in range(2040, 2043):
        count.look(rule, utc(f"{year}-01-01"))
        assert count.used == 0
        count.add(1)
    count.look(rule, utc("2026-11-25"))
    assert count.used == 750
    for year in range(1970, 1990):
        count.look(rule, utc(f"{year}-01-01"))
    assert len(count.counts) == PERIODS_MAX


def test_what_keeps_the_link_alive_is_left_to_it() -> None:
    rule = BudgetRule(1_000_000, 1, ZoneInfo("UTC"))
    end = utc("2026-12-01")
    assert reserve(rule, end, utc("2026-11-30"), rate=2.0) == 2 * 86_400
    assert reserve(rule, end, end, rate=2.0) == 0
    assert reserve(rule, end, utc("2026-11-01"), rate=100.0) == 500_000
