"""The past of a micro-batch's machines, read from the log.

The shipped pipelines with a memory keep no state in Spark: their result for a record depends on earlier records of the
same machine in the log, and they read the log for it. So the result is the same after a restart, after the loss of the
checkpoint, for late data, and for any division of the stream into micro-batches
(``docs/decisions/0103-the-log-is-the-state.md``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.pipelines.context import Context, with_lineage
from spark_sinks.pipelines.errors import PipelineError
from spark_sinks.pipelines.steps import StepGroup
from weft.config.errors import KeyPath
from weft.config.units import parse_duration

EDGE = "_edge"
NEW = "_new"
"""Column of ``rows_with_past``: true for the rows of the micro-batch."""
POSITION = ("_shard", "_offset")
SHARDS_MAX = 4096
EDGES_MAX = 10_000
"""Maximum number of edge nodes by whose names the history is pruned; beyond it, all are read."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Span:
    """Part of a micro-batch from one shard. All records of an edge node are in one shard."""

    shard: int
    first: int
    end: int
    """Offset after the last row."""
    earliest_us: int
    latest_us: int
    edges: tuple[str, ...]


def rows_with_past(
    frame: DataFrame, context: Context, by: str, *, before: timedelta, after: timedelta = timedelta()
) -> DataFrame:
    """Return the rows of a micro-batch and the surrounding rows of the same machines, with the column ``_new``.

    A machine is a value of ``by`` at one edge node. Its rows have a ``_time`` at most ``before`` earlier and ``after``
    later than one of its rows in the micro-batch. The log is read as it was at the end of the micro-batch, without
    later rows, and the steps before this one are applied. Rows without ``by`` are left out.

    Raises:
        PipelineError: the rows lack a necessary column.
    """
    need(frame, context, (*POSITION, EDGE, "_time", by))
    spans = spans_of(frame)
    if not spans:
        return frame.where(F.col(by).isNotNull()).withColumn(NEW, F.lit(True))
    since = _EPOCH + timedelta(microseconds=min(span.earliest_us for span in spans)) - before
    until = _EPOCH + timedelta(microseconds=max(span.latest_us for span in spans) + 1) + after
    edges = sorted({edge for span in spans for edge in span.edges})
    history = context.history(
        frame.sparkSession,
        since=since,
        until=until,
        edges=edges if len(edges) <= EDGES_MAX else None,
        below={span.shard: span.end for span in spans},
    )
    known = _same_steps(with_lineage(history), context).select(*frame.columns)
    touched = frame.groupBy(F.col(EDGE).alias("_edge_of"), F.col(by).alias("_machine_of")).agg(
        (F.min("_time") - interval(before)).alias("_from_time"),
        (F.max("_time") + interval(after)).alias("_to_time"),
    )
    is_near = (F.col("_time") >= F.col("_from_time")) & (F.col("_time") <= F.col("_to_time"))
    is_same = (F.col(EDGE) == F.col("_edge_of")) & (F.col(by) == F.col("_machine_of"))
    rows = known.join(F.broadcast(touched), is_same & is_near).drop(*touched.columns)
    return rows.withColumn(NEW, _is_new(spans))


def spans_of(frame: DataFrame) -> list[Span]:
    """Return the offsets of a micro-batch, by shard."""
    found = frame.groupBy("_shard").agg(
        F.min("_offset").alias("first"),
        (F.max("_offset") + 1).alias("end"),
        F.min(F.unix_micros("_time")).alias("earliest"),
        F.max(F.unix_micros("_time")).alias("latest"),
        F.collect_set(EDGE).alias("edges"),
    )
    return [Span(row[0], row[1], row[2], row[3], row[4], tuple(row[5])) for row in found.take(SHARDS_MAX)]


def _is_new(spans: Iterable[Span]) -> Column:
    """Return whether a row is of the micro-batch, which has a contiguous range of each shard's offsets."""
    found = F.lit(False)
    for span in spans:
        found |= (F.col("_shard") == span.shard) & (F.col("_offset") >= span.first)
    return found


def _same_steps(history: DataFrame, context: Context) -> DataFrame:
    at = place(context)[1]
    steps = tuple((n, step) for n, step in enumerate(context.pipeline.steps[:at]))
    return StepGroup(steps).apply(history, context)


def place(context: Context) -> tuple[str, int]:
    """Return the pipeline's place of the step of this folder that reads the past, for errors."""
    folder = __name__.rpartition(".")[0]
    steps = context.pipeline.steps
    own = [at for at, step in enumerate(steps) if (step.python or "").startswith(f"{folder}.")]
    return ("steps", own[0] if own else len(steps))


def need(frame: DataFrame, context: Context, wanted: Iterable[str]) -> None:
    """Check that rows have some columns.

    Raises:
        PipelineError: they lack one.
    """
    lost = [name for name in wanted if name not in frame.columns]
    if lost:
        path: KeyPath = place(context)
        raise PipelineError(path, f"needs the column {', '.join(lost)}. Select it in the step before")


def duration(context: Context, name: str, text: str) -> timedelta:
    """Return the value of an option that is a duration.

    Raises:
        PipelineError: it is not a duration, or not positive.
    """
    try:
        found = timedelta(seconds=parse_duration(str(text)))
    except ValueError as error:
        raise PipelineError((*place(context), "options", name), str(error)) from None
    if found <= timedelta():
        raise PipelineError((*place(context), "options", name), f"expected a positive duration, got {text!r}")
    return found


def number(context: Context, name: str, value: Any, *, least: float, most: float) -> float:
    """Return the value of an option that is a number.

    Raises:
        PipelineError: it is not a number, or out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        path = (*place(context), "options", name)
        raise PipelineError(path, f"expected a number from {least:g} to {most:g}, got {value!r}")
    return value


def interval(span: timedelta) -> Column:
    """Return a span as a value of Spark."""
    return F.expr(f"make_dt_interval(0, 0, 0, {span.total_seconds():.6f})")
