"""Bytes of a link in a month, counted on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from weft.replication.liveness import SECOND

PERIODS_MAX = 4
"""Months whose counts are kept: a clock that was wrong for a while comes back to the right one's."""
RESERVE_PART = 2
"""Part of the budget that keeping the link alive may hold back at most."""


class BudgetRule(NamedTuple):
    """A monthly budget."""

    size: int
    """Bytes of a month, of both directions."""
    day: int
    """Day of the month on which the next month begins, 1 to 28."""
    zone: ZoneInfo


class Period(NamedTuple):
    """A month of a budget."""

    name: str
    """Date of its first day."""
    end: int
    """Time of its end, ns since 1970."""


def period_of(rule: BudgetRule, wall: int) -> Period:
    """Return the month at ``wall``, ns since 1970."""
    local = datetime.fromtimestamp(wall // SECOND, rule.zone)
    first = local.replace(day=rule.day, hour=0, minute=0, second=0, microsecond=0, fold=0)
    if first > local:
        first = (first.replace(day=1) - timedelta(days=1)).replace(day=rule.day)
    after = (first.replace(day=28) + timedelta(days=4)).replace(day=rule.day)
    return Period(first.date().isoformat(), int(after.timestamp()) * SECOND)


class BudgetCount:
    """The bytes of a link by month. They are kept over restarts by its owner: ``counts``."""

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self.counts = dict(counts or {})
        """Name of a period -> its bytes, the last used at the end."""
        self.period = Period("", 0)

    def look(self, rule: BudgetRule, wall: int) -> None:
        """Find the month at ``wall``. A clock that goes back leads to the earlier month's count."""
        period = period_of(rule, wall)
        if period != self.period:
            self.period = period
            self.counts[period.name] = self.counts.pop(period.name, 0)
            for name in list(self.counts)[:-PERIODS_MAX]:
                del self.counts[name]

    @property
    def used(self) -> int:
        """Return the bytes of this month."""
        return self.counts.get(self.period.name, 0)

    def add(self, size: int) -> None:
        """Count bytes of this month."""
        self.counts[self.period.name] = self.used + size


def reserve(rule: BudgetRule, end: int, wall: int, rate: float) -> int:
    """Return the bytes of the budget that keep the link alive until the month's end, at ``rate`` bytes a second: data
    must leave them. At most half of the budget."""
    return min(rule.size // RESERVE_PART, int(max(0, end - wall) / SECOND * rate))
