"""Settings of windows: the rows of each, the time at which it closes, and its results."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple
from zoneinfo import ZoneInfo

from msgspec import Meta, field

from weft.config.functions.settings import FIELDS_MAX, FunctionSettings
from weft.config.units import Count, Duration, Expression, MiB, Size, Zone

By = Annotated[tuple[str, ...], Meta(min_length=1, max_length=16)]
Emit = Annotated[dict[str, Expression], Meta(min_length=1, max_length=FIELDS_MAX)]
"""Name of a field -> aggregate of an expression."""

Length = Annotated[Duration, Meta(ge=0.001, le=366 * 86_400)]
DAY_S = 86_400.0


class Windowing(FunctionSettings, frozen=True, kw_only=True):
    """Windows over the rows of a stream."""

    every_s: Annotated[
        Length | None,
        Meta(
            description="Distance between the starts of windows, counted from 1970 in UTC: `every: 1m` has windows "
            "from each full minute to the next."
        ),
    ] = field(default=None, name="every")
    size_s: Annotated[
        Length | None,
        Meta(
            description="Length of a window, a multiple of `every`: windows then overlap (hopping). "
            "Unset: as long as `every`."
        ),
    ] = field(default=None, name="size")
    gap_s: Annotated[
        Length | None,
        Meta(
            description="Silence that ends a session. A window then holds the rows of one group that follow each "
            "other faster. Not together with `every`."
        ),
    ] = field(default=None, name="gap")
    longest_s: Annotated[Length, Meta(description="Longest session. A row beyond it begins a new one.")] = field(
        default=DAY_S, name="longest"
    )
    offset_s: Annotated[
        Duration,
        Meta(
            ge=0,
            description="Shift of the starts against full multiples of `every`: `every: 1d` with `offset: 5h` has "
            "days from 05:00 UTC.",
        ),
    ] = field(default=0.0, name="offset")
    zone: Annotated[
        Zone | None,
        Meta(
            description="Time zone by whose clocks windows start, such as Europe/Berlin; for windows of 2h or more "
            "that divide a day, or of whole days. A day in which clocks are set has 23 or 25 hours. Unset: UTC."
        ),
    ] = None
    time: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Field with the time of the event: ISO 8601 text, or a number. "
            "Unset: the time at which the node received the record."
        ),
    ] = None
    time_zone: Annotated[
        Zone,
        Meta(
            description="Time zone of texts in the `time` field that name no offset. Where its clocks show a time "
            "twice, the first is used."
        ),
    ] = "UTC"
    time_unit: Annotated[
        Literal["s", "ms", "us", "ns"], Meta(description="Unit of a number in the `time` field, counted since 1970.")
    ] = "s"
    lateness_s: Annotated[
        Duration,
        Meta(
            ge=0,
            le=366 * DAY_S,
            description="How much older a row may be than the newest of its group. A window closes when an event "
            "of its group is this much later than its end. Only with `time`.",
        ),
    ] = field(default=0.0, name="lateness")
    idle_s: Annotated[
        Length | None,
        Meta(
            description="Silence of a group after which its windows close. Unset: the length of a window (or "
            "`gap`) and `lateness`. Only with `time`."
        ),
    ] = field(default=None, name="idle")
    ahead_s: Annotated[
        Duration,
        Meta(
            ge=0,
            description="How far the time of an event may be after the time at which the node received it. Rows "
            "beyond it go to the errors: a wrong clock would close the windows of its group early. "
            "Only with `time`.",
        ),
    ] = field(default=DAY_S, name="ahead")
    late_rows: Annotated[
        Literal["errors", "drop"],
        Meta(
            description="Destination of rows that arrive after all their windows closed. `late` counts them either "
            "way. `errors` keeps them in the stream of errors."
        ),
    ] = "errors"
    by: Annotated[
        By,
        Meta(
            description="Grouping of the rows: `key` (the topic), `none` (all rows), or names of topic levels and "
            "fields: `by: [line, machine]`. Each group has its own windows."
        ),
    ] = ("key",)
    keys_max: Annotated[
        Count, Meta(le=1_000_000, description="Maximum number of groups. Rows of further groups go to the errors.")
    ] = 20_000
    windows_max: Annotated[
        Count,
        Meta(
            le=10_000_000,
            description="Maximum number of open windows of all groups; for hopping windows, of their parts of length "
            "`every`. One group may have a hundredth of them, and at least 100, or as many as its `size` and "
            "`lateness` need. Rows beyond go to the errors.",
        ),
    ] = 100_000
    memory_bytes: Annotated[
        Size,
        Meta(
            ge=1 << 10,
            description="Most memory for the rows that `lttb` and `sql` keep, of all open windows together. Rows "
            "beyond go to the errors, and their windows are incomplete.",
        ),
    ] = field(default=64 * MiB, name="memory")

    @property
    def new_key(self) -> tuple[str, ...] | None:
        """Return the names whose values make the key of a result; None where it is the topic."""
        return None if self.by == ("key",) else () if self.by == ("none",) else self.by


class Window(Windowing, frozen=True, kw_only=True):
    """Aggregates of windows, one row for each window and group."""

    emit: Annotated[
        Emit,
        Meta(
            description="Fields of the result: name -> aggregate, such as `rms_max: max(rms)`. Aggregates are "
            "`count`, `sum`, `mean`, `min`, `max`, `first`, `last`, `stddev`, `median`, "
            "`quantile(x, 0.99)`, `envelope` and `lttb(x, 100)`."
        ),
    ]
    accuracy: Annotated[
        float,
        Meta(
            ge=0.001,
            le=0.1,
            description="Largest relative error of quantiles. A tenth of it needs ten times the memory.",
        ),
    ] = 0.01
    rows_max: Annotated[
        Count,
        Meta(
            le=1_000_000,
            description="Maximum number of rows in a window, or in a part of length `every`, that `lttb` reads. "
            "Rows beyond go to the errors, and the window is incomplete.",
        ),
    ] = 10_000


class Sql(Windowing, frozen=True, kw_only=True):
    """A SELECT over the rows of each window, run when the window closes."""

    select: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=16_384,
            description="One SELECT of SQLite over the table `input`: the fields of the rows, the topic's levels, "
            "`key` and `time` (seconds since 1970).",
        ),
    ]
    rows_max: Annotated[
        Count,
        Meta(
            le=1_000_000,
            description="Maximum number of rows of a window, or of a part of length `every`. Topics have equal shares. "
            "Rows beyond go to the errors, and the window is incomplete.",
        ),
    ] = 10_000
    bytes_max: Annotated[
        Size,
        Meta(
            ge=4096,
            le=16 << 20,
            description="Maximum size of these rows. Rows beyond go to the errors, and the window is incomplete.",
        ),
    ] = field(default=4 << 20, name="size_max")
    steps_max: Annotated[
        Count,
        Meta(
            description="Maximum work of one SELECT, in steps of SQLite's virtual machine: about 20 million a second. "
            "A SELECT beyond it is stopped, and an error is written in place of its rows."
        ),
    ] = 10_000_000
    results_max: Annotated[
        Count, Meta(le=100_000, description="Maximum number of rows that one SELECT returns. More are an error.")
    ] = 1_000


# Windows of a fixed length by number, in UTC or by the clocks of a time zone.
#
# Window k of a grid without a zone holds the moments ``[offset + k * every, offset + (k + 1) * every)``, counted from
# 1970 in UTC. With a zone, the same times are read from that zone's clocks: a window begins at the first instant at
# which they show its start or a later time. So days of Berlin have 23, 24 or 25 hours, and each instant is in exactly
# one window. A start that the clocks leave out is the instant at which they are set forward; a window whose times are
# left out entirely is empty.

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
        return "offset", "is not shorter than every. Windows repeat with every, so use the remainder"
    if zone is None or every_us % DAY_US == 0 or (DAY_US % every_us == 0 and every_us >= 2 * HOUR_US):
        return None
    if every_us < 2 * HOUR_US:
        return "zone", (
            "has a meaning for windows of 2h and more. Shorter ones are the same in all zones: remove it. Set offset "
            "for a zone whose hours do not begin with those of UTC"
        )
    return "every", "neither divides a day into equal parts nor is a whole number of days; a zone needs one of these"


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
