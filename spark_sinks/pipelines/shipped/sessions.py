"""Step of the pipeline *sessions*: the time that each machine spent in each state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.lineage import FROM_COLUMN, FROM_TYPE, joined, merged
from spark_sinks.pipelines.catalog import PipelineError
from spark_sinks.pipelines.steps import Context, StepGroup, with_lineage
from weft.config.errors import KeyPath
from weft.config.units import parse_duration

# The past of a micro-batch's machines, read from the log.
#
# The shipped pipelines with a memory keep no state in Spark: their result for a record depends on earlier records of
# the same machine in the log, and they read the log for it. So the result is the same after a restart, after the loss
# of the checkpoint, for late data, and for any division of the stream into micro-batches. State of
# `dropDuplicatesWithinWatermark` would drop late rows: those of an edge that was offline for two days.

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
        (F.min("_time") - interval(before)).alias("_from_time"), (F.max("_time") + interval(after)).alias("_to_time")
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


_NEEDED = (*POSITION, "_time", EDGE, FROM_COLUMN, "machine", "state")
_DAY = timedelta(days=1)
DOWN = "down"
_PART = (
    "struct<_first_offset:bigint,_shard:int,_suffix:string,state:string,started_at:timestamp,"
    f"ended_at:timestamp,records:bigint,is_open:boolean,{FROM_COLUMN}:{FROM_TYPE},_offset:bigint>"
)
_MACHINE = (EDGE, "machine")


def find_sessions(frame: DataFrame, context: Context, *, silence: str = "5m", remember: str = "1d") -> DataFrame:
    """Return the sessions that the new records change: runs of records of one machine in one state.

    A session begins with a record that has another state than the one before it, comes more than ``silence`` after it,
    or is the first of a day (UTC). It ends where the next one begins, or with its last record if the machine is silent
    after it. The silence itself, up to ``remember``, is a session in the state ``down``. A longer silence remains a
    hole. The order is that of ``_time``, so an edge node's outage makes no silence: its records come later with their
    own times, and the sessions are computed again.

    ``session_id`` is made of the edge node, the machine and the place in the log of the record that began the session,
    or ended the silence; ``_offset`` is the last record that counts for the row. Upserted by ``session_id``, the table
    is a function of the log. If a record no longer begins a session, because a late record comes before it, its row is
    written with ``is_void = true`` and null times.

    Args:
        frame: rows with ``machine`` and ``state`` (strings), and ``_shard, _offset, _time, _edge, _from``.
        silence: longest time between two records of a machine without the state ``down``.
        remember: longest silence that is detected. Each micro-batch reads the machines' records of this time and up to
            a day around its own.

    Raises:
        PipelineError: an option is not a duration, ``remember`` is shorter than ``silence``, or a column is missing.
    """
    need(frame, context, _NEEDED)
    gap, memory = duration(context, "silence", silence), duration(context, "remember", remember)
    if memory < gap:
        message = f"expected at least the silence of {silence}, got {remember!r}"
        raise PipelineError((*place(context), "options", "remember"), message)
    # A session reaches up to a day beyond a record; the records before and after it, up to `remember` away, bound it.
    around = _DAY + memory + memory
    rows = rows_with_past(frame.select(*_NEEDED), context, "machine", before=around, after=around)
    marked = _marked(rows.where(F.col("state").isNotNull()), gap, memory)
    return _sessions(marked)


def _marked(rows: DataFrame, gap: timedelta, memory: timedelta) -> DataFrame:
    """Return the records with marks for the beginning of a session or the end of a silence."""
    machine = Window.partitionBy(*_MACHINE)
    in_time = machine.orderBy("_time", "_offset")
    rows = (
        rows.withColumn("_before", F.lag(F.struct("_time", "_offset", "state", FROM_COLUMN)).over(in_time))
        .withColumn("_after", F.lead(F.struct("_time", "_offset")).over(in_time))
        .withColumn("_lowest", F.min(F.when(F.col(NEW), F.col("_time"))).over(machine))
        .withColumn("_highest", F.max(F.when(F.col(NEW), F.col("_time"))).over(machine))
        .withColumn("_first_new", F.min(F.when(F.col(NEW), F.col("_offset"))).over(machine))
        .withColumn("_passed", F.unix_micros("_time") - F.unix_micros("_before._time"))
        .withColumn("_to_come", F.unix_micros("_after._time") - F.unix_micros("_time"))
    )
    is_known, is_heard = _holds(F.col("_passed") <= _us(memory)), _holds(F.col("_to_come") <= _us(memory))
    begins = ~is_known | (F.col("_passed") > _us(gap)) | (F.col("_before.state") != F.col("state"))
    begins |= F.to_date("_before._time") != F.to_date("_time")
    # greatest() and max() skip nulls.
    pair = F.greatest("_offset", F.when(is_known, F.col("_before._offset")))
    # Sessions that records of the micro-batch may have changed, and all of whose records were read. A record can be in
    # a session that began up to a day before it, or be the one after it, or the one before it.
    is_near = (F.col("_time") >= F.col("_lowest") - interval(_DAY + memory)) & (
        F.col("_time") <= F.col("_highest") + interval(memory)
    )
    rows = (
        rows.withColumn("_near", is_near)
        .withColumn("_begins", begins)
        .withColumn("_silent", is_known & (F.col("_passed") > _us(gap)))
        # The record before it has a higher offset, so it came later: before that, this one may have begun a session.
        .withColumn("_moved", is_known & (F.col("_before._offset") > F.col("_offset")))
        .withColumn("_next", F.when(F.col("_to_come") <= _us(gap), F.col("_after._time")).otherwise(F.col("_time")))
        .withColumn("_heard", is_heard)
        .withColumn("_pair", pair)
        .withColumn("_cause", F.greatest("_pair", F.when(is_heard, F.col("_after._offset"))))
    )
    return rows.withColumn("_number", F.sum(F.col("_begins").cast("int")).over(in_time))


def _sessions(marked: DataFrame) -> DataFrame:
    """Return sessions, silences, and the void rows of records that no longer begin either.

    Each record is processed once: the silence that it ended is in an array with its session.
    """
    silence = _ended(F.struct("_time", "_offset", "_shard"), is_void=False)
    no_silence = _ended(F.struct("_time", "_offset", "_shard"), is_void=True)
    no_session = _ended(F.struct("_time", "_offset", "_shard"), is_void=True, suffix="")
    ended = F.array(
        F.when(F.col("_near") & F.col("_silent"), silence),
        F.when(F.col("_near") & F.col("_moved") & ~F.col("_silent"), no_silence),
        F.when(F.col("_near") & F.col("_moved") & ~F.col("_begins"), no_session),
    )
    runs = (
        marked.withColumn("_ended", F.array_compact(ended))
        .groupBy(*_MACHINE, "_number")
        .agg(
            F.min(F.struct("_time", "_offset", "_shard", "state", "_near")).alias("_first"),
            F.max(F.struct("_time", "_offset", "_next", "_heard")).alias("_last"),
            F.count("*").alias("_records"),
            merged().alias("_ranges"),
            F.max("_cause").alias("_cause"),
            F.first("_first_new").alias("_first_new"),
            F.flatten(F.collect_list("_ended")).alias("_ended"),
        )
    )
    running = _part(
        F.col("_first"),
        "",
        F.col("_first.state"),
        F.col("_first._time"),
        F.col("_last._next"),
        records=F.col("_records"),
        is_open=~F.col("_last._heard"),
        ranges=F.col("_ranges"),
        cause=F.col("_cause"),
    )
    parts = F.array_compact(F.concat(F.array(F.when(F.col("_first._near"), running)), "_ended"))
    # A row without a new record is unchanged since an earlier micro-batch wrote it.
    changed = F.filter(parts, lambda part: part["_offset"] >= F.col("_first_new"))
    rows = runs.select(*_MACHINE, F.explode(changed).alias("_part")).select(*_MACHINE, "_part.*")
    number = F.concat_ws("-", F.col("_shard").cast("string"), F.col("_first_offset").cast("string"))
    return rows.select(
        F.concat(EDGE, F.lit("/"), "machine", F.lit("/"), number, "_suffix").alias("session_id"),
        EDGE,
        "machine",
        "state",
        "started_at",
        "ended_at",
        ((F.unix_micros("ended_at") - F.unix_micros("started_at")) / F.lit(1e6)).alias("duration_s"),
        "records",
        "is_open",
        F.col("started_at").isNull().alias("is_void"),
        FROM_COLUMN,
        "_shard",
        "_offset",
    )


def _ended(own: Column, *, is_void: bool, suffix: str = "-down") -> Column:
    """Return the silence that a record ends, or the void row of a record."""
    nothing = F.lit(None)
    return _part(
        own,
        suffix,
        nothing.cast("string") if is_void else F.lit(DOWN),
        nothing.cast("timestamp") if is_void else F.col("_before._time"),
        nothing.cast("timestamp") if is_void else F.col("_time"),
        records=F.lit(0).cast("bigint"),
        is_open=F.lit(False),
        ranges=joined(F.concat(f"_before.{FROM_COLUMN}", FROM_COLUMN)),
        cause=F.col("_pair"),
    )


def _part(
    first: Column,
    suffix: str,
    state: Column,
    start: Column,
    end: Column,
    *,
    records: Column,
    is_open: Column,
    ranges: Column,
    cause: Column,
) -> Column:
    """Return a row of the result as a struct: its first record, its own columns, and its lineage."""
    named = {
        "_first_offset": first["_offset"],
        "_shard": first["_shard"],
        "_suffix": F.lit(suffix),
        "state": state,
        "started_at": start,
        "ended_at": end,
        "records": records,
        "is_open": is_open,
        FROM_COLUMN: ranges,
        "_offset": cause,
    }
    # All parts have one type, or they could not be in one array.
    return F.struct(*(column.alias(name) for name, column in named.items())).cast(_PART)


def _holds(condition: Column) -> Column:
    """Return a condition that is false where it is unknown."""
    return F.coalesce(condition, F.lit(False))


def _us(span: timedelta) -> int:
    return round(span.total_seconds() * 1_000_000)
