"""The DataFrame of windows: from the rows of a stream to one row per window and key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.completeness.event_time import LATE_COLUMN, TIME_COLUMN, EventTime, NewRows, found_in, windows_of_all
from spark_sinks.completeness.window_columns import END_COLUMN, START_COLUMN, with_window
from spark_sinks.errors import ReadError
from spark_sinks.lineage.columns import FROM_COLUMN, merged, of_record
from weft.config.functions.window_grid import Grid
from weft.protocols.ranges import Range, RangeSet

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
    """Function that parses, filters or renames rows before they are aggregated. It keeps ``window_start`` and
    ``window_end``, and for windows of event time ``_time``."""
    event: EventTime | None = None
    """Time by which rows belong to windows; None for ``_time``."""
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
            ReadError: ``prepare`` loses the window.
        """
        found = frame if self.event is None else self.event.usable(frame)
        found = with_window(found, self.grid, self.times[-1])
        if self.prepare is not None:
            kept = (START_COLUMN, END_COLUMN) if self.event is None else (START_COLUMN, END_COLUMN, TIME_COLUMN)
            found = _checked("prepare", self.prepare(found), kept)
        return found

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
            broken: ranges of windows with records that came after the declared bound, of which it is not known whether
                they are complete.
            quiet_us: time up to which sessions that have ended are complete, also in windows that are not; None for no
                time.

        Raises:
            ReadError: the aggregate is not valid, or its result lacks a key.
        """
        rows = self.rows(frame)
        made = _checked("aggregate", self._aggregated(rows), (START_COLUMN, END_COLUMN, *self.by))
        # Far below all times of Spark where no window is complete.
        complete = F.unix_micros(END_COLUMN) <= F.lit(max(self.grid.start(complete_end), _LOWEST))
        if self.gap_us is not None and quiet_us is not None:
            complete |= F.unix_micros(SESSION_END) <= F.lit(max(quiet_us, _LOWEST))
        for each in opened:
            complete &= ~self._among(each)
        # Without a bound, a device may still hold records of any window: then none is known to be complete.
        known = F.lit(self.event is None or self.event.late_us is not None)
        for each in broken:
            known &= ~self._among(each)
        if self.gap_us is not None and self._counts_late:
            known &= F.col(LATE_COLUMN) == 0  # it may have been given out as complete before such a row joined it
        complete = F.when(complete & ~known, F.lit(None)).otherwise(complete)
        made = made.withColumn(COMPLETE_COLUMN, complete)
        return made.withColumn(LOG_END_COLUMN, F.lit(log_end).cast("bigint"))

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
