"""Windows by the time of events: the rows that they count, and the windows in which new rows lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.completeness.moment import duration_ns
from spark_sinks.completeness.window_columns import END_COLUMN, START_COLUMN, with_window
from spark_sinks.completeness.window_reach import TakenIn
from weft.config.functions.window_grid import Grid
from weft.config.units import format_duration
from weft.protocols.ranges import Range, RangeSet

TIME_COLUMN = "_time"
_REASON = "_weft_reason"
LATE_COLUMN = "_late"
"""Number of rows of a window or session that were taken in after its declared bound."""
_FIRST, _END, _CLOCK_SET = (
    int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000 for year in (1970, 2250, 2020)
)
"""Times of events lie between the first two. An edge whose clock is before the third has not set it."""


@dataclass(frozen=True, slots=True)
class EventTime:
    """The time by which rows belong to windows, where it is not the time at which edges took them in."""

    column: str
    """Field of the schema with the time of the event, a ``timestamp``."""
    late: str | timedelta | None = None
    """Declared bound: the longest time after its event at which an edge takes a record in. A window is complete when
    the stream is complete up to this time after its end. None: it is not known what devices still hold, and
    ``_complete`` is null where it would be true."""
    ahead: str | timedelta = "1d"
    """Longest time by which an event may be after the time at which its record was taken in. Records beyond it are in
    no window; ``rejected`` of ``lastProgress`` counts them."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ReadError: one is not valid.
        """
        self.late_us  # noqa: B018
        self.ahead_us  # noqa: B018

    @property
    def late_us(self) -> int | None:
        """Return the bound in microseconds; None where none is known."""
        return None if self.late is None else duration_ns("late", self.late) // 1000

    @property
    def ahead_us(self) -> int:
        """Return ``ahead`` in microseconds."""
        return duration_ns("ahead", self.ahead) // 1000

    @property
    def bound_us(self) -> int:
        """Return the time after the end of a window until which its records are waited for."""
        return self.late_us or 0

    def usable(self, frame: DataFrame) -> DataFrame:
        """Return the rows that windows count."""
        return frame.where(self.reason().isNull())

    def late_rows(self, *, of_sessions: bool = False) -> Column:
        """Return the number of rows of a window that were taken in after the bound, as an aggregate.

        A session is complete before its window ends. What was taken in after the window's end alone would not be all
        that may change it then, so the bound of its rows counts from the time of each event.
        """
        begin = F.unix_micros(F.col(f"`{self.column}`")) if of_sessions else F.unix_micros(END_COLUMN)
        return F.count_if(F.unix_micros(TIME_COLUMN) >= begin + F.lit(self.bound_us))

    def broken(self, seen: Iterable[TakenIn], grid: Grid) -> list[Range]:
        """Return the windows with records that were taken in after the bound."""
        late = self.late_us
        if late is None:
            return []
        numbers = (each.number for each in seen if each.latest_us >= grid.start(each.number + 1) + late)
        return [(number, number + 1) for number in numbers]

    def reason(self) -> Column:
        """Return the reason why windows do not count a row; null where they do."""
        event = F.unix_micros(F.col(f"`{self.column}`"))
        taken = F.unix_micros(TIME_COLUMN)
        ahead = format_duration(self.ahead_us / 1e6)
        return (
            F.when(event.isNull(), f"{self.column} is missing, null or no time")
            .when((event < _FIRST) | (event >= _END), f"{self.column} is outside 1970 to 2250")
            .when(
                (event > taken + F.lit(self.ahead_us)) & (taken >= _CLOCK_SET),
                f"{self.column} is more than {ahead} after the record was taken in",
            )
        )


@dataclass(frozen=True, slots=True)
class NewRows:
    """New rows, by window."""

    windows: RangeSet
    seen: list[TakenIn] = field(default_factory=list)
    """Their windows one by one; only for windows of event time, and for sessions."""
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Number of rows that no window counts, by reason."""


def found_in(frame: DataFrame, grid: Grid, event: EventTime | None, *, each: bool) -> NewRows:
    """Return the windows of rows with ``_time`` and the time of the event. The executors reduce them to one row for
    each window.

    Args:
        each: whether to look at each window's times; otherwise only at the windows.
    """
    if event is None and not each:
        return NewRows(windows_of_all(frame, grid, TIME_COLUMN))
    windows = RangeSet()
    time = TIME_COLUMN if event is None else event.column
    reason = F.lit(None).cast("string") if event is None else event.reason()
    named = with_window(frame.withColumn(_REASON, reason), grid, time)
    taken = F.unix_micros(TIME_COLUMN)
    start = F.when(F.col(_REASON).isNull(), F.unix_micros(START_COLUMN)).alias("start")
    last = F.max(F.unix_micros(F.col(f"`{time}`")))
    counted = named.groupBy(start, _REASON).agg(F.min(taken), F.max(taken), last, F.count("*"))
    seen, rejected = [], {}
    for began, why, earliest, latest, at, rows in _ordered(counted):
        if why is not None:
            rejected[why] = rows
            continue
        number = grid.number(began)
        windows.add(number, number + 1)
        seen.append(TakenIn(number, earliest, latest, at))
    return NewRows(windows, seen, rejected)


def windows_of_all(frame: DataFrame, grid: Grid, time: str) -> RangeSet:
    """Return the windows that hold times of rows, whether they count there or not."""
    micros = F.unix_micros(F.col(f"`{time}`"))
    usable = frame.where((micros >= _FIRST) & (micros < _END)) if time != TIME_COLUMN else frame
    windows = RangeSet()
    for row in _ordered(with_window(usable, grid, time).select(_start()).distinct()):
        number = grid.number(row[0])
        windows.add(number, number + 1)
    return windows


def _start() -> Column:
    return F.unix_micros(START_COLUMN).alias("start")


def _ordered(frame: DataFrame) -> Iterator[Row]:
    return frame.coalesce(1).orderBy("start").toLocalIterator()
