"""Windows of local time in which streams may be sent."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from fnmatch import fnmatchcase
from typing import NamedTuple
from zoneinfo import ZoneInfo

from weft.config.units import parse_window
from weft.replication.liveness import SECOND

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
LOOK_DAYS = 8
"""Days ahead whose windows are looked at: each day of the week, and today's again."""

JUMP_S_MAX = 86_400
"""Most that clocks skip at once: a day, as in Samoa in 2011."""


class DayWindow(NamedTuple):
    """A window of local time, from ``begin`` to before ``end``; one that does not end later than it begins ends on the
    next day."""

    begin: time
    end: time


@dataclass(frozen=True)
class StreamWindows:
    """The windows of some streams."""

    streams: tuple[str, ...]
    """Patterns of their names."""
    windows: tuple[DayWindow, ...]
    zone: ZoneInfo
    days: frozenset[int] = frozenset(range(7))
    """Days of the week on which a window begins, Monday 0."""

    @classmethod
    def of(cls, streams: tuple[str, ...], between: Iterable[str], days: Iterable[str], zone: str) -> StreamWindows:
        """Return the windows of a schedule's entry.

        Args:
            between: windows such as ``01:00-05:00``.
            days: names of days of the week, as in ``DAYS``.
            zone: name in the IANA database.
        """
        windows = tuple(DayWindow(*parse_window(text)) for text in between)
        return cls(streams, windows, ZoneInfo(zone), frozenset(map(DAYS.index, days)))

    def has(self, stream: str) -> bool:
        """Return whether the windows are those of a stream."""
        return any(fnmatchcase(stream, pattern) for pattern in self.streams)

    def state(self, wall: int) -> tuple[bool, int]:
        """Return whether a window is open at ``wall``, and a time until which that holds at least; ns since 1970."""
        now = wall // SECOND
        is_open, until = False, now + LOOK_DAYS * 86_400
        today = datetime.fromtimestamp(now, self.zone).date()
        for begin, end in self._around(today):
            if begin <= now < end:
                is_open = True
            until = min([until, *(edge for edge in (begin, end) if edge > now)])
        return is_open, until * SECOND

    def opens_at(self, wall: int) -> int:
        """Return the time from which a window is open, at ``wall`` or later; ns since 1970."""
        now = wall // SECOND
        today = datetime.fromtimestamp(now, self.zone).date()
        return SECOND * min((max(begin, now) for begin, end in self._around(today) if end > now), default=now)

    def _around(self, today: date) -> Iterator[tuple[int, int]]:
        """Iterate over the windows from yesterday on, as seconds since 1970."""
        for ahead in range(-1, LOOK_DAYS):
            day = today + timedelta(days=ahead)
            if day.weekday() in self.days:
                for begin, end in self.windows:
                    last = day if end > begin else day + timedelta(days=1)
                    closes = self._instant(last, end, fold=1)
                    yield self._begin(day, begin, closes), closes

    def _begin(self, day: date, at: time, closes: int) -> int:
        """Return seconds since 1970 of a window's begin, which is before its end.

        A window may begin in a skipped hour and end soon after it: 02:30 to 03:15. An hour later it would begin behind
        its end and never open, so it begins when the clocks jump, as a clock on the wall shows.
        """
        opens = self._instant(day, at, fold=0)
        if opens < closes:
            return opens
        after = datetime.fromtimestamp(opens, self.zone).utcoffset()
        # Behind the jump is every second with the offset of ``opens``, which is at most the jump's length behind it.
        return bisect_left(
            range(opens + 1), True, opens - JUMP_S_MAX, opens,
            key=lambda second: datetime.fromtimestamp(second, self.zone).utcoffset() == after,
        )  # fmt: skip

    def _instant(self, day: date, at: time, *, fold: int) -> int:
        """Return seconds since 1970.

        Where clocks go back, a window begins at the first of the two times and ends at the second. A time that clocks
        skip is taken with the offset from before, so that a window inside of the skipped hour is an hour later.
        """
        local = datetime.combine(day, at, self.zone)
        first, second = local.timestamp(), local.replace(fold=1).timestamp()
        is_skipped = first > second  # PEP 495: in a gap, fold=0 is the later of the two
        return int(first if is_skipped or fold == 0 else second)
