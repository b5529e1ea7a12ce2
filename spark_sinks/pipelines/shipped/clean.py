"""Steps of the pipeline *clean*: drop repeats, and choose the best time of each reading."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.pipelines.catalog import PipelineError
from spark_sinks.pipelines.steps import Context
from weft.config.units import parse_duration

_LANE = ("_edge", "_key")
"""Columns that a message and its repeat have in common: a device publishes to one edge node, under one key."""


def drop_repeats(frame: DataFrame, context: Context, *, within: str = "10m", time: str | None = None) -> DataFrame:
    """Drop messages that repeat an earlier one of the last ``within``.

    A message repeats an earlier one in the log, of the same edge node and key, when

    - the device flagged it as sent again (``_resent``) and the payloads are equal, or
    - ``time`` is given, and both have the same value in that column: the time of the reading in the payload.

    The step searches the log, not a state of Spark: the answer is the same after a restart, after the loss of the
    checkpoint, for late data, and for any division of the stream into micro-batches.

    Raises:
        PipelineError: ``within`` is not a duration, or the rows lack a column.
    """
    try:
        bound = timedelta(seconds=parse_duration(str(within)))
    except ValueError as error:
        raise PipelineError(_place(context), f"within: {error}") from None
    needed = {"_shard", "_offset", "_time", "_resent", "payload", *_LANE, *([time] if time else [])}
    if lost := sorted(needed - set(frame.columns)):
        raise PipelineError(_place(context), f"drop_repeats needs the column {', '.join(lost)}. Make it the first step")
    is_sent_again = F.coalesce(F.col("_resent"), F.lit(False))
    # Without the time of readings only flagged messages can be repeats: they are few, and the others need no search.
    candidates = frame if time else frame.where(is_sent_again)
    span = candidates.agg(F.unix_micros(F.min("_time")), F.unix_micros(F.max("_time"))).first()
    if span is None or span[0] is None:
        return frame
    edges = [row[0] for row in candidates.select("_edge").distinct().collect()]
    columns = ["_shard", "_offset", "_time", "payload", *_LANE, *([time] if time else [])]
    earlier = context.history(
        frame.sparkSession, since=_moment(span[0]) - bound, until=_moment(span[1]) + bound, edges=edges, columns=columns
    )
    before = earlier.select(*(F.col(name).alias(f"before{name}") for name in columns))
    kept = candidates.join(before, _repeats(bound, time), "left_anti")
    return kept if time else frame.where(~is_sent_again).unionByName(kept)


def _repeats(bound: timedelta, time: str | None) -> Column:
    """Return whether a row repeats the earlier one."""
    is_same = F.col("_resent") & (F.col("payload") == F.col("beforepayload"))
    if time is not None:
        is_same |= F.col(time) == F.col(f"before{time}")
    is_earlier = (F.col("_shard") == F.col("before_shard")) & (F.col("before_offset") < F.col("_offset"))
    # In either direction: the edge's clock may have been set back between the two.
    age = F.abs(F.unix_micros("_time") - F.unix_micros("before_time"))
    for name in _LANE:
        is_earlier &= F.col(name) == F.col(f"before{name}")
    return is_earlier & (age <= F.lit(round(bound.total_seconds() * 1_000_000))) & is_same


def settle_times(frame: DataFrame, context: Context, *, column: str | None = None, within: str = "1d") -> DataFrame:
    """Add ``time``, the best known time of a reading, and ``time_from``, its source.

    ``time`` is the payload's own time in ``column`` where it is at most ``within`` away from the edge node's
    (``payload``), else ``_time`` (``edge``; ``hub`` where the hub's clock corrected an edge's clock that was not set).

    Raises:
        PipelineError: ``within`` is not a duration, or there is no such column with times.
    """
    try:
        seconds = parse_duration(str(within))
    except ValueError as error:
        raise PipelineError(_place(context), f"within: {error}") from None
    corrected = F.when(F.col("_clock") == "corrected", F.lit("hub")).otherwise(F.lit("edge"))
    if column is None:
        return frame.withColumn("time", F.col("_time")).withColumn("time_from", corrected)
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    if kinds.get(column) != "timestamp":
        has = f"has the type {kinds[column]}" if column in kinds else "is not there"
        raise PipelineError(_place(context), f"column: {column} {has}. Name a column of type timestamp")
    distance = F.abs(F.col(column).cast("double") - F.col("_time").cast("double"))
    is_near = F.coalesce(distance <= F.lit(seconds), F.lit(False))
    frame = frame.withColumn("time", F.when(is_near, F.col(column)).otherwise(F.col("_time")))
    return frame.withColumn("time_from", F.when(is_near, F.lit("payload")).otherwise(corrected))


def _moment(micros: int) -> datetime:
    """Return a time of Spark. The same value from Python would be in this machine's time zone, without a mark of it."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _place(context: Context) -> tuple[str, int]:
    """Return the place of a step of this module in the pipeline, for errors."""
    own = [at for at, step in enumerate(context.pipeline.steps) if (step.python or "").startswith(f"{__name__}:")]
    return ("steps", own[0] if own else 0)
