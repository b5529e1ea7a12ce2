"""The DataFrame of windows: from the rows of a stream to one row per window and key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.completeness.row_steps import (
    ASKS_FOR_ROWS,
    OtherRows,
    check_aggregates,
    check_rows,
    check_text,
    source_rows,
    without_rows,
)
from spark_sinks.completeness.watermark import duration_ns
from spark_sinks.completeness.window_state import TakenIn
from spark_sinks.errors import ReadError
from spark_sinks.lineage import FROM_COLUMN, merged, of_record
from weft.config.functions.windows import NEVER_US, Grid, pieces_of
from weft.config.units import format_duration
from weft.protocols.ranges import Range, RangeSet

# Columns with the start and the end of the window that holds a time, as a grid has them.

START_COLUMN, END_COLUMN = "window_start", "window_end"
_PIECE, _LOCAL, _BEGAN = "_weft_piece", "_weft_local", "_weft_began"
_GRIDS_MAX = 64


def with_window(frame: DataFrame, grid: Grid, time: str) -> DataFrame:
    """Return rows with ``window_start`` and ``window_end`` of the window that holds a timestamp column.

    A time at a border belongs to the later window; without a time, both are null.
    """
    micros = F.unix_micros(F.col(f"`{time}`"))
    if grid.zone is None:
        start = _floor(micros, grid)
        return _named(frame, start, start + F.lit(grid.every_us))
    # The tables of the zone come from Python, which also reads and closes windows by them: those of Java may be older.
    found = frame.withColumn(_PIECE, F.expr(_piece(grid, f"unix_micros(`{time}`)")))
    found = found.withColumn(_LOCAL, _floor(micros + F.col(f"{_PIECE}.offset"), grid))
    # What the clocks show again after they were set back is in the window that was open then.
    reached = F.col(_LOCAL) <= F.col(f"{_PIECE}.reached")
    began = F.greatest(F.col(_LOCAL) - F.col(f"{_PIECE}.offset"), F.col(f"{_PIECE}.from"))
    found = found.withColumn(_BEGAN, F.when(reached, F.col(f"{_PIECE}.reached_start")).otherwise(began))
    local_end = F.greatest(F.col(_LOCAL), F.col(f"{_PIECE}.reached")) + F.lit(grid.every_us)
    end = local_end - F.col(f"{_PIECE}.offset")
    end = F.when(end <= F.col(f"{_PIECE}.until"), end).otherwise(F.col(f"{_PIECE}.last_end"))
    return _named(found, F.col(_BEGAN), end).drop(_PIECE, _LOCAL, _BEGAN)


def _named(frame: DataFrame, start: Column, end: Column) -> DataFrame:
    frame = frame.withColumn(START_COLUMN, F.timestamp_micros(start))
    return frame.withColumn(END_COLUMN, F.timestamp_micros(end))


def _floor(micros: Column, grid: Grid) -> Column:
    # pmod is never negative: moments before 1970 belong to the window below them.
    return micros - F.pmod(micros - F.lit(grid.offset_us), F.lit(grid.every_us))


def _piece(grid: Grid, micros: str) -> str:
    """Return the expression of the piece of a grid that holds a time."""
    return f"element_at({_table(grid)}, {_choice([piece.from_us for piece in pieces_of(grid)], 1, micros)})"


@lru_cache(_GRIDS_MAX)
def _table(grid: Grid) -> str:
    rows = []
    for piece in pieces_of(grid):
        first = piece.from_us == NEVER_US
        reached = NEVER_US if first else grid.offset_us + piece.reached * grid.every_us
        named = {
            "from": piece.from_us,
            "offset": piece.offset_us,
            "reached": reached,
            "reached_start": piece.reached_start_us,
            "until": piece.until_us,
            "last_end": piece.last_end_us,
        }
        rows.append(f"named_struct({', '.join(f'{name!r}, {value}L' for name, value in named.items())})")
    return f"array({', '.join(rows)})"


def _choice(starts: Sequence[int], first: int, micros: str) -> str:
    """Return the expression of the number of the last start at or before a time: a search by halves."""
    if len(starts) == 1:
        return str(first)
    half = len(starts) // 2
    before, after = _choice(starts[:half], first, micros), _choice(starts[half:], first + half, micros)
    return f"IF({micros} < {starts[half]}L, {before}, {after})"


# Windows by the time of events: the rows that they count, and the windows in which new rows lie.

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
    """Longest time by which an event may be later than the receipt of its record. Records beyond it are in
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
                f"{self.column} is more than {ahead} after the record was received",
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


COMPLETE_COLUMN = "_complete"
LOG_END_COLUMN = "_log_end"
"""Column that orders versions of a row: the number of records that the stream's log had when it was computed."""
Step = Callable[[DataFrame], DataFrame]
Aggregate = Mapping[str, str | Column] | Step | str
"""One row per window and key: expressions by the name of their column, ``{"mean": "avg(temperature)"}``; SQL over the
view ``{rows}``; or a function of DataFrames. The latter two keep ``window_start`` and ``window_end``."""
_LINEAGE = ("_edge", "_log", "_seq")
_LOWEST = -(1 << 62)
SESSION_START, SESSION_END = "session_start", "session_end"
"""Times of a session's first and last row."""
_BEGINS, _SESSION = "_weft_begins", "_weft_session"


@dataclass(frozen=True, slots=True)
class WindowFrame:
    """Computation of windows."""

    grid: Grid
    by: tuple[str, ...]
    aggregate: Aggregate
    prepare: Step | None = None
    """Function that parses, filters or renames rows before they are aggregated, each by itself. It keeps
    ``window_start`` and ``window_end``, or the time by which windows are made; and for those of event time ``_time``.
    """
    event: EventTime | None = None
    """Time by which rows belong to windows; None for ``_time``."""
    # Sessions end at the border of their window, so they follow from its rows alone. Over all time, each late row
    # could move all later cuts.
    gap_us: int | None = None
    """Silence that ends a session, where rows of the result are sessions; None for windows."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the columns that name a row of the result."""
        return (START_COLUMN, *self.by) if self.gap_us is None else (START_COLUMN, *self.by, SESSION_START)

    @property
    def made_by(self) -> str:
        """Return what the numbers of windows mean, for comparison with those of a sink; empty for plain windows."""
        time = "" if self.event is None else f"time {self.event.column}"
        return ", ".join(filter(None, (self.grid.text, time)))

    @property
    def times(self) -> list[str]:
        """Return the columns that decide to which window a row belongs."""
        return [TIME_COLUMN] if self.event is None else [TIME_COLUMN, self.event.column]

    def found(self, frame: DataFrame) -> NewRows:
        """Return the windows that rows with ``times`` lie in."""
        return found_in(frame, self.grid, self.event, each=self.gap_us is not None)

    def all_windows(self, frame: DataFrame) -> RangeSet:
        """Return the windows that rows with ``times`` name, counted or not."""
        return windows_of_all(frame, self.grid, self.times[-1])

    def within(self, frame: DataFrame, windows: Sequence[Range]) -> DataFrame:
        """Return the stream's rows that lie in the given windows, which must be few."""
        starts = ", ".join(str(self.grid.start(number)) for first, end in windows for number in range(first, end))
        named = with_window(frame, self.grid, self.times[-1])
        # As text: a thousand single literals would be a thousand calls of Java.
        return named.where(F.expr(f"unix_micros({START_COLUMN}) IN ({starts})")).drop(START_COLUMN, END_COLUMN)

    def rows(self, frame: DataFrame) -> DataFrame:
        """Return the stream's rows with the window of each, prepared.

        Raises:
            ReadError: ``prepare`` loses the window, makes another one, or looks at more than a row.
        """
        found = frame if self.event is None else self.event.usable(frame)
        found = with_window(found, self.grid, self.times[-1])
        if self.prepare is None:
            return found
        made = _checked("prepare", self.prepare(source_rows(found)), ())
        has_windows = START_COLUMN in made.columns
        own = [START_COLUMN, END_COLUMN] if has_windows else [self.times[-1]]
        own += self.times if self.event is not None or self.gap_us is not None else []
        made = _checked("prepare", made, own)
        try:
            check_rows(made, dict.fromkeys(own))
        except ReadError as error:
            raise ReadError(f"prepare: {error}") from None
        return made if has_windows else with_window(made, self.grid, self.times[-1])

    def try_without_rows(self, frame: DataFrame) -> None:
        """Prepare rows with the columns of a frame, of which there are none.

        Raises:
            ReadError: as ``rows``; ``prepare`` asks for rows.
        """
        if self.prepare is None:
            return
        try:
            self.rows(without_rows(frame))
        except PySparkException as error:
            if ASKS_FOR_ROWS not in str(error):
                raise
            raise OtherRows(
                "prepare: it asks for rows, such as by count or collect. It would get those of a few windows alone. "
                "Return a DataFrame that is made of the given one"
            ) from None

    def windows(
        self,
        frame: DataFrame,
        complete_end: int,
        log_end: int,
        *,
        opened: Iterable[Range] = (),
        broken: Iterable[Range] = (),
        quiet_us: int | None = None,
    ) -> DataFrame:
        """Return one row per window and key of a stream's rows.

        Args:
            complete_end: number below which windows are complete.
            log_end: number of records that the log has.
            opened: ranges of windows over open gaps, which are not complete.
            broken: ranges of windows with records that came after the declared bound. Of an aggregate as SQL or a
                function, which does not say which rows they are in, it is not known whether any is complete.
            quiet_us: time up to which sessions that have ended are complete, also in windows that are not; None for no
                time.

        Raises:
            ReadError: the aggregate is not valid, or its result lacks a key.
        """
        rows = self.rows(frame)
        made = _checked("aggregate", self._aggregated(source_rows(rows)), (START_COLUMN, END_COLUMN, *self.by))
        self._check_aggregates(made)
        # Far below all times of Spark where no window is complete.
        complete = F.unix_micros(END_COLUMN) <= F.lit(max(self.grid.start(complete_end), _LOWEST))
        if self.gap_us is not None and quiet_us is not None:
            complete |= F.unix_micros(SESSION_END) <= F.lit(max(quiet_us, _LOWEST))
        for each in opened:
            complete &= ~self._among(each)
        # Without a bound, a device may still hold records of any window: then none is known to be complete.
        known = F.lit(self.event is None or self.event.late_us is not None)
        if self._counts_late and isinstance(self.aggregate, Mapping):
            # Of each row: it may have been given out as complete before a late record joined it, and the others of
            # its window have kept the bound.
            known &= F.col(LATE_COLUMN) == 0
        else:
            for each in broken:
                known &= ~self._among(each)
        complete = F.when(complete & ~known, F.lit(None)).otherwise(complete)
        made = made.withColumn(COMPLETE_COLUMN, complete)
        return made.withColumn(LOG_END_COLUMN, F.lit(log_end).cast("bigint"))

    def _check_aggregates(self, made: DataFrame) -> None:
        given = self.aggregate.values() if isinstance(self.aggregate, Mapping) else [self.aggregate]
        try:
            for text in given:
                if isinstance(text, str):
                    check_text(text)
            check_aggregates(made, START_COLUMN)
        except ReadError as error:
            raise ReadError(f"aggregate: {error}") from None

    def _among(self, windows: Range) -> Column:
        first, end = (max(self.grid.start(number), _LOWEST) for number in windows)
        return F.unix_micros(START_COLUMN).between(F.lit(first), F.lit(end - 1))

    @property
    def _counts_late(self) -> bool:
        return self.event is not None and self.event.late_us is not None

    def _aggregated(self, rows: DataFrame) -> DataFrame:
        if isinstance(self.aggregate, str):
            return rows.sparkSession.sql(self.aggregate, rows=rows)
        if callable(self.aggregate):
            return self.aggregate(rows)
        _checked("by", rows, self.by)
        made = {
            name: F.expr(value) if isinstance(value, str) else value
            for name, value in _lineage(rows, self.aggregate).items()
        }
        if self.event is not None and self._counts_late:
            made[LATE_COLUMN] = self.event.late_rows(of_sessions=self.gap_us is not None)
        if self.gap_us is not None:
            return sessions_of(rows, self.by, self.times[-1], self.gap_us, made)
        columns = [column.alias(name) for name, column in made.items()]
        return rows.groupBy(START_COLUMN, END_COLUMN, *self.by).agg(*columns)


def _lineage(rows: DataFrame, aggregate: Mapping[str, str | Column]) -> Mapping[str, str | Column]:
    """Return the expressions, and the lineage column if the rows have the columns that identify their records."""
    if FROM_COLUMN in aggregate:
        return aggregate
    if FROM_COLUMN in rows.columns:
        return {**aggregate, FROM_COLUMN: merged(FROM_COLUMN)}
    return {**aggregate, FROM_COLUMN: merged(of_record())} if set(_LINEAGE) <= set(rows.columns) else aggregate


def _checked(what: str, frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    if not isinstance(frame, DataFrame) and not hasattr(frame, "columns"):
        raise ReadError(f"{what}: expected a function that returns a DataFrame; it returned {type(frame).__name__}")
    lost = [name for name in columns if name not in frame.columns]
    if lost:
        raise ReadError(f"{what}: the result has no column {', '.join(lost)}; it has {', '.join(frame.columns)}")
    return frame


def sessions_of(rows: DataFrame, by: Sequence[str], time: str, gap_us: int, made: Mapping[str, Column]) -> DataFrame:
    """Return one row per session and group.

    A row begins a session when it is its group's first of the window, or ``gap_us`` or more after the one before it. So
    a session is a function of the rows of its window alone, whatever the order in which they came.

    Args:
        rows: have ``window_start`` and ``window_end``.
        time: column by which rows follow each other.
        made: aggregates by the names of their columns.
    """
    group = Window.partitionBy(START_COLUMN, *by).orderBy(time)
    micros = F.unix_micros(F.col(f"`{time}`"))
    passed = micros - F.lag(micros).over(group)
    begins = (passed.isNull() | (passed >= F.lit(gap_us))).cast("bigint")
    numbered = rows.withColumn(_BEGINS, begins).withColumn(
        _SESSION, F.sum(_BEGINS).over(group.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    )
    bounds = [F.min(f"`{time}`").alias(SESSION_START), F.max(f"`{time}`").alias(SESSION_END)]
    columns = [column.alias(name) for name, column in made.items()]
    grouped = numbered.groupBy(START_COLUMN, END_COLUMN, *by, _SESSION).agg(*bounds, *columns)
    return grouped.drop(_SESSION)
