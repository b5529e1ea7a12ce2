"""The DataFrame of windows: from the rows of a stream to one row per window and key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.errors import ReadError
from spark_sinks.lineage.columns import FROM_COLUMN, merged, of_record
from weft.protocols.ranges import Range, RangeSet

START_COLUMN, END_COLUMN, COMPLETE_COLUMN = "window_start", "window_end", "_complete"
LOG_END_COLUMN = "_log_end"
"""Column that orders versions of a row: the number of records that the stream's log had when it was computed."""
Step = Callable[[DataFrame], DataFrame]
Aggregate = Mapping[str, str | Column] | Step | str
"""One row per window and key: expressions by the name of their column, ``{"mean": "avg(temperature)"}``; SQL over the
view ``{rows}``; or a function of DataFrames. The latter two keep ``window_start`` and ``window_end``."""
_NUMBER = "_weft_window"
_LINEAGE = ("_edge", "_log", "_seq")


@dataclass(frozen=True, slots=True)
class WindowFrame:
    """Computation of windows."""

    every_us: int
    by: tuple[str, ...]
    aggregate: Aggregate
    prepare: Step | None = None
    """Function that parses, filters or renames rows before they are aggregated. It keeps ``window_start`` and
    ``window_end``."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the columns that name a row of the result."""
        return (START_COLUMN, *self.by)

    def within(self, frame: DataFrame, windows: Sequence[Range]) -> DataFrame:
        """Return the stream's rows that lie in the given windows, which must be few."""
        numbers = ", ".join(str(number) for first, end in windows for number in range(first, end))
        named = frame.withColumn(_NUMBER, window_number(self.every_us))
        # As text: a thousand single literals would be a thousand calls of Java.
        return named.where(F.expr(f"{_NUMBER} IN ({numbers})")).drop(_NUMBER)

    def rows(self, frame: DataFrame) -> DataFrame:
        """Return the stream's rows with the window of each, prepared.

        Raises:
            ReadError: ``prepare`` loses the window.
        """
        start = window_number(self.every_us) * F.lit(self.every_us)
        found = frame.withColumn(START_COLUMN, F.timestamp_micros(start))
        found = found.withColumn(END_COLUMN, F.timestamp_micros(start + F.lit(self.every_us)))
        if self.prepare is not None:
            found = _checked("prepare", self.prepare(found), (START_COLUMN, END_COLUMN))
        return found

    def windows(
        self, frame: DataFrame, complete_end: int, log_end: int, opened: Iterable[tuple[int, int]] = ()
    ) -> DataFrame:
        """Return one row per window and key of a stream's rows.

        Args:
            complete_end: number below which windows are complete.
            log_end: number of records that the log has.
            opened: ranges of windows over open gaps, which are not complete.

        Raises:
            ReadError: the aggregate is not valid, or its result lacks a key.
        """
        rows = self.rows(frame)
        made = _checked("aggregate", self._aggregated(rows), (START_COLUMN, END_COLUMN, *self.by))
        # Far below all times of Spark where no window is complete.
        end = max(complete_end * self.every_us, -(1 << 62))
        ends = F.unix_micros(F.col(END_COLUMN))
        complete = ends <= F.lit(end)
        for first, last in opened:
            # Compared by window_end, which for window k is the start of window k + 1.
            complete &= ~ends.between(F.lit(max((first + 1) * self.every_us, -(1 << 62))), F.lit(last * self.every_us))
        made = made.withColumn(COMPLETE_COLUMN, complete)
        return made.withColumn(LOG_END_COLUMN, F.lit(log_end).cast("bigint"))

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
        columns = [column.alias(name) for name, column in made.items()]
        return rows.groupBy(START_COLUMN, END_COLUMN, *self.by).agg(*columns)


def _lineage(rows: DataFrame, aggregate: Mapping[str, str | Column]) -> Mapping[str, str | Column]:
    """Return the expressions, and the lineage column if the rows have the columns that identify their records."""
    if FROM_COLUMN in aggregate:
        return aggregate
    if FROM_COLUMN in rows.columns:
        return {**aggregate, FROM_COLUMN: merged(FROM_COLUMN)}
    return {**aggregate, FROM_COLUMN: merged(of_record())} if set(_LINEAGE) <= set(rows.columns) else aggregate


def window_number(every_us: int) -> Column:
    """Return the number of the window of ``_time``; a time at a border belongs to the later window."""
    micros = F.unix_micros(F.col("_time"))
    # pmod is never negative: moments before 1970 belong to the window below them. The dividend is a multiple of the
    # divisor, and such a quotient is exact in doubles up to the year 2255.
    return ((micros - F.pmod(micros, F.lit(every_us))) / F.lit(every_us)).cast("bigint")


def numbers_of(frame: DataFrame, every_us: int) -> RangeSet:
    """Return the windows that have rows of a frame with ``_time``. The executors reduce them to distinct numbers."""
    numbers = frame.select(window_number(every_us).alias("number")).distinct().coalesce(1)
    found = RangeSet()
    for row in numbers.orderBy("number").toLocalIterator():
        found.add(row[0], row[0] + 1)
    return found


def _checked(what: str, frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    if not isinstance(frame, DataFrame) and not hasattr(frame, "columns"):
        raise ReadError(f"{what}: expected a function that returns a DataFrame; it returned {type(frame).__name__}")
    lost = [name for name in columns if name not in frame.columns]
    if lost:
        raise ReadError(f"{what}: the result has no column {', '.join(lost)}; it has {', '.join(frame.columns)}")
    return frame
