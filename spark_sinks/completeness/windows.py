"""Windows of a stream with a column that reports their completeness."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark.sql import SparkSession

from spark_sinks.completeness.checkpoint import Checkpoint
from spark_sinks.completeness.definition import Definition, IfChanged, definition_of
from spark_sinks.completeness.event_time import EventTime
from spark_sinks.completeness.moment import ALL, Complete, duration_ns
from spark_sinks.completeness.window_frame import Aggregate, Step, WindowFrame
from spark_sinks.completeness.window_query import WindowQuery, WindowSteps
from spark_sinks.completeness.window_store import Sink, StateFile, WindowStore
from spark_sinks.errors import ReadError
from spark_sinks.source.options import ReadOptions, parse_names, parse_options, source_options
from spark_sinks.source.typed import declared
from weft.config.functions.window_grid import Grid, grid_problem
from weft.config.payload_schema.model import PayloadSchema
from weft.config.units import quoted

EVERY_NS_MIN = 1_000_000_000


def complete_windows(
    spark: SparkSession,
    stream: str,
    *,
    store: str | os.PathLike[str],
    every: str | timedelta,
    gap: str | timedelta | None = None,
    aggregate: Aggregate,
    sink: Sink,
    by: Collection[str] = (),
    offset: str | timedelta = "0s",
    zone: str | None = None,
    time: EventTime | Mapping[str, Any] | str | None = None,
    prepare: Step | None = None,
    complete: Complete | Mapping[str, object] | None = None,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    trigger: str | timedelta | None = "10s",
    heal_every: str | timedelta = "1m",
    tenant: str = "default",
    edges: Collection[str] | None = None,
    keys: Collection[str] | None = None,
    schema: PayloadSchema | str | Mapping[str, Any] | None = None,
    payload_format: str | None = None,
    name: str | None = None,
    store_options: Mapping[str, str] | None = None,
) -> WindowQuery:
    """Start a query that keeps windows of a stream up to date, each row with ``_complete``.

    A window ``[start, end)`` of ``_time`` is emitted with ``_complete`` true when the stream is complete up to its end,
    by the state of the log below the offsets that were read. A window that is not complete after the grace is emitted
    with ``_complete`` false, and again when it has changed or become complete. Each time it is computed from all of its
    records, so the result is that of a batch query. It replaces all its rows, including rows of groups that it no
    longer has, in one commit of ``DeltaSink`` or ``JdbcSink``; a function as a sink has to do so itself. The sink is
    right after a kill at any instant and after the loss of the checkpoint. Windows without rows are not emitted.

    Args:
        every: length of the windows, from 1s on, aligned to 1970 in UTC; ``offset`` shifts their starts.
        gap: silence that ends a session; rows are then sessions, cut where windows end. None makes windows.
        zone: IANA time zone by whose clocks windows begin; for windows of 2h or more. Days have 23 to 25 hours.
        time: time of the events: ``EventTime``, its fields, or its column alone; None takes ``_time``.
        aggregate: expressions by column name, as ``{"mean": "avg(temperature)"}``, to which the lineage column
            ``_from`` is added; SQL, as ``SELECT window_start, window_end, machine, count(*) AS n FROM {rows} GROUP BY
            ALL``; or a function from rows to windows.
        sink: receiver of the rows: ``DeltaSink`` or ``JdbcSink`` with ``keys=["window_start", *by]`` and
            ``order_by="_log_end"``, or a function of a DataFrame and a number that grows.
        by: columns that name a row within its window.
        prepare: function that parses, filters or renames rows before they are aggregated.
        complete: rule for when a window counts as complete: ``Complete``, or its fields.
        checkpoint: place of position and pending windows: ``Checkpoint``, or its folder; None: a start computes all.
        trigger: time between two steps over the log; None does one step, emits all due windows and ends.
        heal_every: minimum time between two rounds that emit changed windows again.
        edges: only records of these edges; ``complete`` then waits only for them, unless it names others.
        keys: only records with these keys or topic filters.
        schema: fields of the payloads that become typed columns, with ``payload_format`` as in ``read``.
        name: name of the query, in errors and progress.

    Raises:
        ReadError: an argument is not valid.
    """
    options = parse_options(source_options(stream, tenant, store, store_options))
    typed = declared(schema, payload_format)
    options = _selected(options, edges, keys, typed)
    grid, event, names = _grid(every, offset, zone), _event_time(time, typed), _names("by", by) if by else ()
    frame = WindowFrame(grid, names, aggregate, prepare, event, _gap_us(gap, grid, aggregate))
    file, definition, if_changed = _opened(checkpoint, _made_of(options, frame), store_options)
    steps = WindowSteps(
        spark, options, frame, _rule(complete, options.edges), WindowStore(sink, file),
        heal_s=duration_ns("heal_every", heal_every) / 1e9, definition=definition, if_changed=if_changed,
    )  # fmt: skip
    return WindowQuery(spark, steps, name=name or stream, interval_s=_interval_s(trigger))


def _interval_s(trigger: str | timedelta | None) -> float | None:
    return None if trigger is None else duration_ns("trigger", trigger) / 1e9


def _selected(
    options: ReadOptions,
    edges: Collection[str] | None,
    keys: Collection[str] | None,
    schema: PayloadSchema | None,
) -> ReadOptions:
    return replace(
        options,
        edges=None if edges is None else frozenset(_names("edges", edges)),
        keys=None if keys is None else _names("keys", keys),
        schema=schema,
    )


def _opened(
    checkpoint: Checkpoint | str | os.PathLike[str] | None,
    made_of: Mapping[str, object],
    store_options: Mapping[str, str] | None,
) -> tuple[StateFile | None, Definition, IfChanged]:
    """Return the file of the state, the definition of the windows, and the action when the state has another one."""
    if checkpoint is None:
        return None, definition_of(made_of), "refuse"
    kept = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    file = StateFile(os.fspath(kept.folder), store_options if kept.options is None else kept.options)
    return file, definition_of(made_of if kept.definition is None else kept.definition), kept.if_changed


def _made_of(options: ReadOptions, frame: WindowFrame) -> dict[str, object]:
    of_rows = {"schema": options.schema, "edges": options.edges, "keys": options.keys}
    made: dict[str, object] = {"aggregate": frame.aggregate, "by": frame.by, "prepare": frame.prepare, **of_rows}
    made |= {} if frame.event is None else {"time": str(frame.event)}
    return made if frame.gap_us is None else {**made, "gap": frame.gap_us}


def _gap_us(gap: str | timedelta | None, grid: Grid, aggregate: Aggregate) -> int | None:
    if gap is None:
        return None
    gap_us = duration_ns("gap", gap) // 1000
    if not 0 < gap_us < grid.every_us:
        raise ReadError(f"gap: expected a silence shorter than every, in which sessions are cut; got {gap!r}")
    if not isinstance(aggregate, Mapping):
        raise ReadError("gap: sessions need aggregate as expressions by column name")
    return gap_us


def _grid(every: str | timedelta, offset: str | timedelta, zone: str | None) -> Grid:
    if zone is not None:
        try:
            ZoneInfo(zone)
        except (ValueError, TypeError, OSError, ZoneInfoNotFoundError):
            raise ReadError(
                f"zone: expected a time zone of this machine's database such as Europe/Berlin, got {quoted(str(zone))}."
                " Without the database, install tzdata"
            ) from None
    grid = Grid(_every_us(every), duration_ns("offset", offset) // 1000, zone)
    if (problem := grid_problem(grid.every_us, grid.offset_us, zone)) is not None:
        raise ReadError(f"{problem[0]}: {problem[1]}")
    return grid


def _event_time(given: EventTime | Mapping[str, Any] | str | None, schema: PayloadSchema | None) -> EventTime | None:
    if given is None or isinstance(given, EventTime):
        time = given
    else:
        named = _known("time", {"column": given} if isinstance(given, str) else given, EventTime)
        if not isinstance(named.get("column"), str):
            raise ReadError("time: expected the name of a field of the schema as column")
        time = EventTime(**named)
    field = None if schema is None or time is None else schema.fields.get(time.column)
    if time is not None and (field is None or field.type.name != "timestamp"):
        raise ReadError(
            f"time: expected a field of the schema with type timestamp, or timestamp(ms) for numbers; {time.column!r} "
            f"is {'no field of it' if field is None else field.type}"
        )
    return time


def _known(option: str, given: Mapping[str, Any], made: type) -> dict[str, Any]:
    """Return settings of a class by name."""
    known = made.__dataclass_fields__  # type: ignore[attr-defined]
    if unknown := [name for name in given if name not in known]:
        raise ReadError(f"{option}: no such setting {', '.join(unknown)}; the settings are {', '.join(known)}")
    return dict(given)


def _every_us(every: str | timedelta) -> int:
    every_ns = duration_ns("every", every)
    if every_ns < EVERY_NS_MIN or every_ns % 1000:
        raise ReadError(f"every: expected a duration of 1s or more, in whole microseconds; got {every!r}")
    return every_ns // 1000


def _rule(complete: Complete | Mapping[str, object] | None, edges: Collection[str] | None) -> Complete:
    """Return the rule; by default, the edges to wait for are those whose records are read."""
    rule = complete if isinstance(complete, Complete) else Complete(**_known("complete", complete or {}, Complete))
    return replace(rule, edges=sorted(edges)) if edges is not None and rule.edges == ALL else rule


def _names(option: str, given: Collection[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        return parse_names(option, given)
    names = tuple(given)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ReadError(f"{option}: expected one name or more; got {given!r}")
    return names
