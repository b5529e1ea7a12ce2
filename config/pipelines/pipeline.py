"""Model of a pipeline's YAML file, and the checks of it that need no Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated

from msgspec import Meta, field

from weft.config.errors import Finding, KeyPath
from weft.config.fields import AVAILABLE_NOW
from weft.config.functions.window_grid import grid_problem
from weft.config.payload_schema.model import PayloadSchema, check_schema
from weft.config.payload_schema.types import field_type
from weft.config.pipelines.sinks import PipelineSink
from weft.config.pipelines.source import DimensionTable, Names, PipelineSource
from weft.config.pipelines.steps import SESSION_COLUMNS, VIEW_NAME, WINDOW_START, Step, WindowStep
from weft.config.units import parse_duration, quoted
from weft.config.values import Duration, Section

INPUT = "input"
"""Name by which SQL reads the rows of the step before it."""
STEPS_MAX = 64
TABLES_MAX = 32
_STREAM = "_stream"
"""Column with the stream of a row of several."""
OWN_COLUMNS = (WINDOW_START, "window_end", "_complete", "_log_end", "_late")
"""Columns of every window beside its groups and aggregates."""
Trigger = Annotated[str, Meta(min_length=1, extra_json_schema={"x-unit": "trigger"})]
Checkpoint = Annotated[str, Meta(min_length=1, extra_json_schema={"x-unit": "location"})]
PipelineName = Annotated[
    str, Meta(pattern="^[a-z0-9][a-z0-9_-]{0,63}$", extra_json_schema={"examples": ["machine-hours"]})
]


class Complete(Section, frozen=True, kw_only=True):
    """Conditions under which a window is written."""

    edges: Annotated[
        Names,
        Meta(description="Edge nodes that a complete window waits for: `all`, or a list of names."),
    ] = ("all",)
    grace_s: Annotated[
        Duration,
        Meta(
            description="Time after the end of a window at which it is written with `_complete = false` if it is not "
            "complete by then. It is written again when the missing records have come."
        ),
    ] = field(default=600.0, name="grace")
    retired_after_s: Annotated[
        Annotated[Duration, Meta(ge=3600)] | None,
        Meta(
            description="Silence after which an edge node no longer holds later windows back. It counts again when it "
            "comes back. Unset: edges that the hub has retired."
        ),
    ] = field(default=None, name="retired_after")
    peers: Annotated[
        bool,
        Meta(
            description="As `peers` of the hub. With `true` a window waits for records that another cluster may have "
            "and this one lacks."
        ),
    ] = False

    @property
    def only(self) -> tuple[str, ...] | None:
        """Return the edges that count; None for all."""
        return None if self.edges == ("all",) else self.edges


class Pipeline(Section, frozen=True, kw_only=True):
    """A pipeline: rows of a stream go through steps into a sink, micro-batch after micro-batch."""

    name: Annotated[PipelineName, Meta(description="Name of the pipeline. The sinks keep its positions under it.")]
    source: Annotated[PipelineSource, Meta(description="Stream, or streams, whose records are the rows.")]
    tables: Annotated[
        Annotated[dict[str, DimensionTable], Meta(max_length=TABLES_MAX)],
        Meta(
            description="Tables that SQL of the steps reads by their names, such as the names of machines. They are "
            "read for each micro-batch: a step that names one, and all after it, have `mode: batch`."
        ),
    ] = field(default_factory=dict)
    steps: Annotated[
        Annotated[tuple[Step, ...], Meta(max_length=STEPS_MAX)],
        Meta(description="Steps between source and sink, in their order."),
    ] = ()
    complete: Annotated[
        Complete | None, Meta(description="When a window is written. Only with a `window` step. Unset: the defaults.")
    ] = None
    sink: Annotated[PipelineSink, Meta(description="Place of the rows that come out of the last step. Name one.")]
    trigger: Annotated[
        Trigger,
        Meta(
            description="Time from one micro-batch to the next, such as `1m`; or `available_now`: read what there is "
            "now, and end."
        ),
    ] = "1m"
    checkpoint: Annotated[
        Checkpoint | None,
        Meta(
            description="Folder where Spark stores the pipeline's position. On a cluster it is one that the driver "
            "and all executors reach. Required for every sink but `console` and `tables`."
        ),
    ] = None

    @property
    def trigger_s(self) -> float | None:
        """Return the seconds from one micro-batch to the next; None for ``available_now``."""
        return None if self.trigger == AVAILABLE_NOW else parse_duration(self.trigger)

    @property
    def window_step(self) -> Step | None:
        """Return the step with the windows, which is the last one, or None."""
        return self.steps[-1] if self.steps and self.steps[-1].window is not None else None


def check_pipeline(pipeline: Pipeline) -> list[Finding]:
    """Return the problems of a pipeline that its file alone shows."""
    return [*_source(pipeline), *_dimensions(pipeline), *_steps(pipeline), *_sink(pipeline)]


def _source(pipeline: Pipeline) -> Iterator[Finding]:
    source = pipeline.source
    if source.stream is None and source.streams is None:
        yield Finding(("source", "stream"), "is missing. Name the stream, or several with `streams`")
    if source.streams is not None:
        yield from _several(pipeline, source.streams)
    for name, given in (("stream", source.stream), ("tenant", source.tenant)):
        if "*" in (given or "") and pipeline.sink.kind != "tables":
            yield Finding(
                ("source", name), f"expected one name, got {quoted(given or '')}. `*` is for the sink `tables` only"
            )
    if source.schema is not None:
        yield from check_schema(source.schema, ("source", "schema"))
    for name, text in (("since", source.since), ("until", source.until)):
        try:
            datetime.fromisoformat((text or "2024-05-01").strip())
        except ValueError:
            yield Finding(("source", name), f"expected a time such as 2024-05-01T06:00:00Z, got {quoted(text or '')}")
    if source.until is not None and pipeline.window_step is not None:
        yield Finding(("source", "until"), "cuts the last window, which would then be called complete. Take it out")


def _several(pipeline: Pipeline, streams: Sequence[str]) -> Iterator[Finding]:
    """Yield the settings that take one stream only, because they compare offsets of one log."""
    path: KeyPath = ("source", "streams")
    kind, settings = pipeline.sink.chosen
    if pipeline.source.stream is not None:
        yield Finding(path, "excludes `stream`, which names one. Take one of the two out")
    if twice := [name for at, name in enumerate(streams) if name in streams[:at]]:
        yield Finding(path, f"names {', '.join(twice)} twice. Name each stream once")
    if patterns := [name for name in streams if "*" in name]:
        yield Finding(
            path,
            f"expected names, got {quoted(patterns[0])}. A sink keeps its positions by the streams' names: write them "
            "out",
        )
    if pipeline.window_step is not None:
        yield Finding(path, "has no meaning with a `window` step: windows are of one stream. Name it in `stream`")
    keys = getattr(settings, "keys", None)
    if kind in ("stream", "tables") or (kind == "jdbc" and not keys):
        yield Finding(
            ("sink", kind),
            "takes the rows of one stream, whose offsets it keeps. Use delta"
            + (", or name `keys` and `order_by`" if kind == "jdbc" else ", or a pipeline for each stream"),
        )
    elif keys and settings.order_by is None and _STREAM not in keys:
        yield Finding(
            ("sink", kind, "order_by"),
            "is missing. Offsets of several streams do not say which of two rows is the newer. Name a column that "
            "does, such as _received, or have `_stream` among the keys",
        )


def _dimensions(pipeline: Pipeline) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for name, table in pipeline.tables.items():
        path: KeyPath = ("tables", name)
        if not VIEW_NAME.fullmatch(name):
            yield Finding(path, f"expected a name of letters, digits and _, got {quoted(name)}. SQL reads it by it")
        elif name.lower() == INPUT:
            yield Finding(path, "`input` always is what the step before made. Choose another name")
        elif (other := seen.setdefault(name.lower(), name)) != name:
            yield Finding(path, f"is the same table as {other}: names may not differ in case only")
        if table.delta is not None:
            for setting, given in (("columns", table.columns is not None), ("delimiter", table.delimiter != ",")):
                if given:
                    yield Finding((*path, setting), "is for `csv` only: a Delta table has types. Take it out")
        for column, type_ in (table.columns or {}).items():
            if (kind := field_type(type_)).item is not None or kind.name == "binary" or kind.unit is not None:
                yield Finding(
                    (*path, "columns", column),
                    f"expected bool, int, float, string, timestamp or decimal for a column of CSV, got {kind}",
                )
    if pipeline.tables and pipeline.sink.kind == "tables":
        yield Finding(("tables",), "has no meaning with the sink `tables`, which takes no steps. Take it out")


def _steps(pipeline: Pipeline) -> Iterator[Finding]:
    seen: dict[str, int] = {INPUT: 0}
    tables = {name.lower(): name for name in pipeline.tables}
    for at, step in enumerate(pipeline.steps):
        path = ("steps", at)
        if len(step.kinds) != 1:
            yield Finding(path, f"expected one of sql, python and window, got {' and '.join(step.kinds) or 'none'}")
        if step.options and step.python is None:
            yield Finding((*path, "options"), "is only for a `python` step. Take it out")
        if step.window is not None and at + 1 < len(pipeline.steps):
            yield Finding((*path, "window"), "is not the last step. Put later steps before it, or into its `emit`")
        name = (step.name or "").lower()
        if name == INPUT:
            yield Finding((*path, "name"), "`input` always is what the step before made. Choose another name")
        elif name in tables:
            yield Finding((*path, "name"), f"is the name of the table {tables[name]}, too. Choose another one")
        elif name and name in seen:
            yield Finding((*path, "name"), f"is the name of step {seen[name]}, too. Give each step its own name")
        if name:
            seen.setdefault(name, at + 1)
        if step.window is not None:
            yield from _window(step.window, (*path, "window"))
            yield from _times(step.window, pipeline.source.schema, (*path, "window"))
    if pipeline.complete is not None and "all" in pipeline.complete.edges and pipeline.complete.only is not None:
        yield Finding(("complete", "edges"), "expected `all`, or names of edges; got both. `all` waits for these, too")
    if pipeline.complete is not None and pipeline.window_step is None:
        yield Finding(("complete",), "needs a `window` step, and there is none. Add one, or take `complete` out")


def _window(window: WindowStep, path: KeyPath) -> Iterator[Finding]:
    """Yield columns of a window that have the name of another one. Names that differ in case only are the same."""
    taken = dict.fromkeys(OWN_COLUMNS, "a column that every window has")
    taken |= {} if window.gap_s is None else dict.fromkeys(SESSION_COLUMNS, "a column that every session has")
    for name in window.by or ():
        if name.lower() in taken:
            yield Finding((*path, "by"), f"{name} is {taken[name.lower()]}. Take it out")
        taken.setdefault(name.lower(), "in `by` already")
    for name in window.emit:
        if name.lower() in taken:
            yield Finding((*path, "emit", name), f"{name} is {taken[name.lower()]}. Choose another name")
        taken.setdefault(name.lower(), "in `emit` already")


def _times(window: WindowStep, schema: PayloadSchema | None, path: KeyPath) -> Iterator[Finding]:
    every, offset = (round(seconds * 1_000_000) for seconds in (window.every_s, window.offset_s))
    if (problem := grid_problem(every, offset, window.zone)) is not None:
        yield Finding((*path, problem[0]), problem[1])
    if window.gap_s is not None and window.gap_s >= window.every_s:
        yield Finding((*path, "gap"), "is not shorter than `every`, in which sessions are cut. Take a longer `every`")
    if window.time is None:
        if window.late_s is not None:
            yield Finding((*path, "late"), "needs `time`, the field with the time of the event. Set it, or take it out")
        return
    field_ = None if schema is None else schema.fields.get(window.time)
    if field_ is None:
        yield Finding(
            (*path, "time"),
            f"expected a field of `source.schema`, got {quoted(window.time)}. Declare it there, with type timestamp",
        )
    elif field_.type.name != "timestamp":
        yield Finding(
            (*path, "time"),
            f"expected a field with type timestamp, or timestamp(ms) for numbers; {window.time} is {field_.type}",
        )


def _window_keys(window: WindowStep, kind: str, keys: Sequence[str]) -> Iterator[Finding]:
    """Yield the problems with keys by which windows are written: with fewer, one window would replace another."""
    wanted = window.keys
    if sorted(keys) != sorted(wanted):
        message = (
            f"expected {', '.join(wanted)}, which name the row of a window; got {', '.join(keys)}. Or leave it out"
        )
        yield Finding(("sink", kind, "keys"), message)


def _sink(pipeline: Pipeline) -> Iterator[Finding]:
    kind, settings = pipeline.sink.kind, pipeline.sink.settings
    has_windows = pipeline.window_step is not None
    if has_windows and not settings.takes_windows:
        yield Finding(
            ("sink", kind), "cannot take windows: a window that is written again replaces a row. Use delta or jdbc"
        )
    if kind == "tables":
        yield from _tables(pipeline)
    elif kind != "console" and pipeline.checkpoint is None:
        yield Finding(("checkpoint",), f"is missing, and a sink of kind {kind} needs one. Name a folder for it")
    if pipeline.window_step is not None and getattr(settings, "keys", None) is not None:
        assert pipeline.window_step.window is not None
        yield from _window_keys(pipeline.window_step.window, kind, settings.keys)
    if kind == "delta":
        path = ("sink", "delta")
        if pipeline.checkpoint is not None and _share_a_folder(pipeline.checkpoint, settings.path):
            message = "and the table are one folder, or one is in the other: cleaning the table would delete the rest"
            yield Finding(("checkpoint",), f"{message}. Name a folder of its own")
        if has_windows and settings.mode != "upsert":
            yield Finding((*path, "mode"), f"expected upsert, because windows are written again; got {settings.mode}")
        if settings.mode == "upsert" and settings.keys is None and not has_windows:
            yield Finding((*path, "keys"), "is missing. `upsert` needs the columns that identify a row")
        if settings.mode != "upsert" and settings.keys is not None:
            yield Finding((*path, "keys"), f"has a meaning with `mode: upsert` only, and the mode is {settings.mode}")
        if settings.order_by is not None and (settings.mode != "upsert" or has_windows):
            yield Finding((*path, "order_by"), "is only for `mode: upsert` without windows. Take it out")
        if settings.mode == "replace" and settings.partition_by is None:
            yield Finding((*path, "partition_by"), "is missing. `replace` needs the columns of the partitions")


def _tables(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield what has no meaning where rows are all of the records, as they are."""
    source = pipeline.source
    for name, given in (
        ("edges", source.edges),
        ("keys", source.keys),
        ("schema", source.schema),
        ("since", source.since),
        ("until", source.until),
    ):
        if given is not None:
            yield Finding(
                ("source", name), "has no meaning with the sink `tables`: a table has all records. Take it out"
            )
    for name, present in (("steps", pipeline.steps), ("checkpoint", pipeline.checkpoint)):
        if present:
            yield Finding(
                (name,), "has no meaning with the sink `tables`: its rows and positions are the log's. Take it out"
            )


def _share_a_folder(one: str, other: str) -> bool:
    """Return whether two folders are the same, or one is in the other."""
    first, second = (os.path.normpath(each.removeprefix("file://")) + "/" for each in (one, other))
    return first.startswith(second) or second.startswith(first)
