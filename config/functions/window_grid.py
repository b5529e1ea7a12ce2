"""Windows of a fixed length by number, in UTC or by the clocks of a time zone.

Window k of a grid without a zone holds the moments ``[offset + k * every, offset + (k + 1) * every)``, counted from
1970 in UTC. With a zone, the same times are read from that zone's clocks: a window begins at the first instant at which
they show its start or a later time. So days of Berlin have 23, 24 or 25 hours, and each instant is in exactly one
window. A start that the clocks leave out is the instant at which they are set forward; a window whose times are left
out entirely is empty.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

DAY_US = 86_400_000_000
HOUR_US = 3_600_000_000
FIRST_YEAR, END_YEAR = 1990, 2060
"""Years in which changes of a zone's clocks count. Before and after, the offset of the nearest of them holds: tables of
a zone without an end would be tables of guesses, since laws change first."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
NEVER_US, ALWAYS_US = -(1 << 62), 1 << 62
_ZONES_MAX = 64
"""Maximum number of zones and grids whose tables are kept."""


class Change(NamedTuple):
    """A time from which a zone's clocks have an offset."""

    from_us: int
    """Microseconds since 1970; ``NEVER_US`` for the first."""
    offset_us: int
    """Local time minus UTC."""


class Piece(NamedTuple):
    """The time between two changes of the clocks, as a grid divides it."""

    from_us: int
    offset_us: int
    reached: int
    """Highest number of a window that began before this time."""
    reached_start_us: int
    """Start of that window."""
    until_us: int
    """Start of the next piece."""
    last_end_us: int
    """End of the last window that begins before the next piece."""


@dataclass(frozen=True)
class Grid:
    """Windows of a fixed length, numbered in the order of time."""

    every_us: int
    offset_us: int = 0
    """Start of window 0 after 1970-01-01T00:00, in UTC or by the zone's clocks."""
    zone: str | None = None
    """Name of an IANA time zone; None for UTC."""

    def number(self, time_us: int) -> int:
        """Return the number of the window that holds a time, in microseconds since 1970."""
        if self.zone is None:
            return (time_us - self.offset_us) // self.every_us
        pieces = pieces_of(self)
        piece = pieces[bisect_right(pieces, time_us, key=_from) - 1]
        return max((time_us + piece.offset_us - self.offset_us) // self.every_us, piece.reached)

    def start(self, number: int) -> int:
        """Return the first time of a window, in microseconds since 1970. It is the end of the window before it."""
        if self.zone is None:
            return self.offset_us + number * self.every_us
        return _start(self, pieces_of(self), number)

    def ceiling(self, time_us: int) -> int:
        """Return the number of the first window that starts at a time or later."""
        return self.number(time_us - 1) + 1

    @property
    def text(self) -> str:
        """Return offset and zone for comparison with another grid; empty without both."""
        return f"offset {self.offset_us} us, zone {self.zone or 'UTC'}" if self.offset_us or self.zone else ""


def grid_problem(every_us: int, offset_us: int, zone: str | None) -> tuple[str, str] | None:
    """Return the setting of a grid that does not go with the others, and the remedy; None when all is well."""
    if not 0 <= offset_us < every_us:
        return "offset", "is not shorter than every. Windows repeat with every, so take the rest"
    if zone is None or every_us % DAY_US == 0 or (DAY_US % every_us == 0 and every_us >= 2 * HOUR_US):
        return None
    if every_us < 2 * HOUR_US:
        return "zone", (
            "has a meaning for windows of 2h and more. Shorter ones are the same in all zones: take it out. Set offset "
            "for a zone whose hours do not begin with those of UTC"
        )
    return "every", "does not divide a day into equal parts, or is no number of whole days; a zone needs one of these"


@lru_cache(_ZONES_MAX)
def changes_of(zone: str) -> tuple[Change, ...]:
    """Return the changes of a zone's clocks, ascending."""
    info = ZoneInfo(zone)
    first, end = (_microseconds(datetime(year, 1, 1, tzinfo=UTC)) for year in (FIRST_YEAR, END_YEAR))
    changes = [Change(NEVER_US, _offset(info, first))]
    for day in range(first, end, DAY_US):
        low, high = day, day + DAY_US
        after = _offset(info, high)
        if after == changes[-1].offset_us:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _offset(info, middle) == after else (middle, high)
        changes.append(Change(high, after))
    return tuple(changes)


@lru_cache(_ZONES_MAX)
def pieces_of(grid: Grid) -> tuple[Piece, ...]:
    """Return the pieces of a grid with a zone, ascending."""
    assert grid.zone is not None
    changes = changes_of(grid.zone)
    untils = [*(change.from_us for change in changes[1:]), ALWAYS_US]
    reached, starts = [NEVER_US], [NEVER_US]
    for (from_us, offset_us), until in zip(changes, untils, strict=True):
        last = (until - 1 + offset_us - grid.offset_us) // grid.every_us
        if last > reached[-1]:
            reached.append(last)
            starts.append(max(last * grid.every_us + grid.offset_us - offset_us, from_us))
        else:  # The clocks were set back before the next window began.
            reached.append(reached[-1])
            starts.append(starts[-1])
    found = [
        Piece(*change, last, start, until, ALWAYS_US)
        for change, until, last, start in zip(changes, untils, reached[:-1], starts[:-1], strict=True)
    ]
    return tuple(
        piece._replace(last_end_us=_start(grid, found, last + 1))
        for piece, last in zip(found, reached[1:], strict=True)
    )


def _start(grid: Grid, pieces: Sequence[Piece], number: int) -> int:
    piece = pieces[max(bisect_left(pieces, number, key=_reached) - 1, 0)]
    return max(number * grid.every_us + grid.offset_us - piece.offset_us, piece.from_us)


def _from(piece: Piece) -> int:
    return piece.from_us


def _reached(piece: Piece) -> int:
    return piece.reached


def _offset(info: ZoneInfo, time_us: int) -> int:
    offset = (_EPOCH + timedelta(microseconds=time_us)).astimezone(info).utcoffset()
    assert offset is not None
    return offset // _MICROSECOND


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND
