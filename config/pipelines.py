"""Model of a pipeline's YAML file, and the checks of it that need no Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, field

from weft.config.errors import Finding, KeyPath
from weft.config.functions.windows import grid_problem
from weft.config.payload_schema.model import PayloadSchema, check_schema, field_type
from weft.config.schema import AVAILABLE_NOW
from weft.config.units import Count, Duration, OneOf, Path, Section, Size, Store, Urls, Zone, parse_duration, quoted

# Settings of what a pipeline reads: a stream, or several, of a hub's store, and tables beside them.

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Names = Annotated[tuple[str, ...], Meta(min_length=1, max_length=10_000)]
StreamNames = Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)]
Text = Annotated[str, Meta(min_length=1)]


class PipelineSource(Section, frozen=True, kw_only=True):
    """Stream that the pipeline reads, or several, in the store of their hub. Credentials of an object store come from
    the environment."""

    store: Annotated[Store, Meta(description="Root of the hub's store, as the hub's `store`.")]
    stream: Annotated[Name | None, Meta(description="Name of the stream. Give this or `streams`.")] = None
    streams: Annotated[
        StreamNames | None,
        Meta(
            description="Names of several streams of the tenant, read as one. Each row has the name of its stream in "
            "the column `_stream`, and null in columns that its stream lacks. A name may be added later."
        ),
    ] = None
    tenant: Annotated[Name, Meta(description="Tenant of the stream.")] = "default"
    edges: Annotated[
        Names | None, Meta(description="Edge nodes whose records are read. Unset: records of all edge nodes.")
    ] = None
    keys: Annotated[
        Names | None,
        Meta(description="Keys of the records that are read; topic filters match as in MQTT. Unset: all keys."),
    ] = None
    schema: Annotated[
        PayloadSchema | None,
        Meta(
            description="Format of the payloads, and their fields that become typed columns. A value that does not fit "
            "is null and is named in `_misfit`."
        ),
    ] = None
    since: Annotated[
        Text | None,
        Meta(
            description="Earliest `_time` of the records that are read, as ISO 8601 text; without an offset it is UTC. "
            "Unset: from the first record of the log on."
        ),
    ] = None
    until: Annotated[
        Text | None,
        Meta(
            description="Only records with an earlier `_time` are read, as ISO 8601 text; with `since`, a bounded "
            "backfill of a day. Not with a `window` step. Unset: all later records."
        ),
    ] = None
    records_per_trigger_max: Annotated[
        Count | None,
        Meta(description="Maximum number of records of one micro-batch, shared evenly by the shards of the log."),
    ] = field(default=1_000_000, name="max_records_per_trigger")

    @property
    def one(self) -> str:
        """Return the stream of a pipeline that reads one."""
        assert self.stream is not None
        return self.stream

    @property
    def all_streams(self) -> tuple[str, ...]:
        """Return the names of the streams."""
        return (self.one,) if self.streams is None else self.streams


ColumnType = Annotated[str, Meta(extra_json_schema={"x-unit": "field_type"})]


class DimensionTable(OneOf, frozen=True, kw_only=True):
    """Table beside the stream, which SQL of the steps reads by its name, such as to join the names of machines. It is
    read again for each micro-batch."""

    noun: ClassVar[str] = "table"
    beside: ClassVar[tuple[str, ...]] = ("columns", "delimiter")

    csv: Annotated[
        Path | None, Meta(description="File of comma-separated values in UTF-8 whose first line has the column names.")
    ] = None
    delta: Annotated[
        Store | None,
        Meta(description="Folder of a Delta table, `s3://bucket/path`, `gs://bucket/path` or `az://container/path`."),
    ] = None
    columns: Annotated[
        Annotated[dict[str, ColumnType], Meta(min_length=1, max_length=256)] | None,
        Meta(
            description="Types of columns of the CSV file, as in `source.schema`: name -> type. Other columns are "
            "`string`. An empty value is null."
        ),
    ] = None
    delimiter: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1)],
        Meta(description="Character between two values of the CSV file, such as `;`."),
    ] = ","


# Settings of the sinks of pipelines.

MiB = 1 << 20


class SinkSettings(Section, frozen=True, kw_only=True):
    """Base class of the settings of sinks."""

    takes_windows: ClassVar[bool] = False
    """True of a kind that replaces rows by their keys, or keeps none. A window is written again when records of it come
    late: a sink that only adds rows would then have it twice."""


class DeltaTable(SinkSettings, frozen=True, kw_only=True):
    """A Delta table. Each row is in it exactly once, also after a kill or a lost checkpoint."""

    takes_windows: ClassVar[bool] = True

    path: Annotated[
        Store, Meta(description="Folder of the table, `s3://bucket/path`, `gs://bucket/path` or `az://container/path`.")
    ]
    mode: Annotated[
        Literal["append", "upsert", "replace"],
        Meta(
            description="`append` adds rows. `upsert` replaces the rows that have the same `keys`. `replace` replaces "
            "whole partitions of `partition_by`."
        ),
    ] = "append"
    keys: Annotated[
        Names | None,
        Meta(
            description="Columns that identify a row. Required with `upsert`; for windows they are `window_start` and "
            "the columns of `by`."
        ),
    ] = None
    order_by: Annotated[
        Names | None,
        Meta(
            description="With `upsert`: columns that decide which of two rows with the same keys is newer. Unset: "
            "the record's place in the log, `_shard` and `_offset`; for windows `_log_end`."
        ),
    ] = None
    partition_by: Annotated[
        Names | None, Meta(description="Columns by whose values the table is partitioned into folders.")
    ] = None


class StreamTarget(SinkSettings, frozen=True, kw_only=True):
    """A Weft stream. Rows go over the link protocol and are in its log exactly once."""

    hub: Annotated[Urls, Meta(description="Addresses of the hub's nodes, such as `https://hub.example.com`.")]
    stream: Annotated[Name, Meta(description="Name of the stream that gets the rows.")]
    tenant: Annotated[Name, Meta(description="Tenant of that stream.")] = "default"
    topics: Annotated[
        Names | None,
        Meta(description="Patterns of the rows' keys, such as `alerts/{machine}`, for named columns of the stream."),
    ] = None
    payload: Annotated[
        Literal["bytes", "text", "json"], Meta(description="Kind of the payloads, as for the streams of an edge node.")
    ] = "bytes"
    token_file: Annotated[
        Path | None, Meta(description="File with the token that the hub asks for. Unset: the variable `WEFT_TOKEN`.")
    ] = None
    ca_file: Annotated[
        Path | None, Meta(description="File with the certificates that sign the hub's. Unset: those of the system.")
    ] = None
    spread: Annotated[
        Count,
        Meta(
            le=64,
            description="Number of edges that the rows come from, each in another shard of the hub: 1, 2, 4, 8, 16, 32 "
            "or 64. A pipeline may continue with another number, each row still once.",
        ),
    ] = 1


class Jdbc(SinkSettings, frozen=True, kw_only=True):
    """A table of PostgreSQL. A micro-batch is one transaction, and each row is in the table exactly once."""

    takes_windows: ClassVar[bool] = True

    url: Annotated[
        Text,
        Meta(
            description="Address of the database without a password: `jdbc:postgresql://HOST:PORT/DATABASE?user=NAME`."
        ),
    ]
    table: Annotated[Name, Meta(description="Table that gets the rows: `NAME` or `SCHEMA.NAME`.")]
    keys: Annotated[
        Names | None, Meta(description="Columns that identify a row: it replaces the row with the same values.")
    ] = None
    order_by: Annotated[
        Name | None,
        Meta(
            description="With `keys`: column whose highest value decides which of two rows stays. Unset for windows: "
            "`_log_end`."
        ),
    ] = None
    password_file: Annotated[
        Path | None, Meta(description="File on the driver with the password. Unset: `PGPASSWORD` or `~/.pgpass`.")
    ] = None


class Kafka(SinkSettings, frozen=True, kw_only=True):
    """A topic of Kafka. Every row arrives, and a row may arrive twice."""

    brokers: Annotated[Text, Meta(description="Addresses of brokers, such as `kafka-1:9092,kafka-2:9092`.")]
    topic: Annotated[Name, Meta(description="Topic that gets the rows.")]
    key: Annotated[Text | None, Meta(description="SQL expression of the messages' key. `null` for none.")] = "_key"
    value: Annotated[
        Text | None, Meta(description="SQL expression of the messages' value. Unset: the payload as it was sent.")
    ] = None
    options_file: Annotated[
        Path | None,
        Meta(
            description="File of `name=value` lines with further options of the Kafka client. Passwords belong there."
        ),
    ] = None


class HubTables(SinkSettings, frozen=True, kw_only=True):
    """The streams' own tables in the hub's store. The pipeline makes them instead of the hub while it runs, and each
    record is a row exactly once. `stream` and `tenant` of the source may have a `*`."""

    joined_size: Annotated[
        Size,
        Meta(
            ge=16 * MiB,
            le=1 << 30,
            description="Size up to which small files are joined, as `tables.joined_size` of the hub.",
        ),
    ] = 512 * MiB
    streams_at_once: Annotated[
        Count, Meta(le=64, description="Number of streams whose jobs the cluster runs at the same time.")
    ] = 8


class Console(SinkSettings, frozen=True, kw_only=True):
    """Standard output, to try a pipeline. Nothing is kept."""

    takes_windows: ClassVar[bool] = True

    rows_max: Annotated[Count, Meta(le=10_000, description="Maximum number of rows shown of each micro-batch.")] = (
        field(default=20, name="rows")
    )


class PipelineSink(OneOf, frozen=True, kw_only=True):
    """Place of the rows that come out of the last step; exactly one."""

    noun: ClassVar[str] = "sink"

    delta: Annotated[
        DeltaTable | None, Meta(extra_json_schema={"x-short": "path"}, description="A table in Delta.")
    ] = None
    stream: Annotated[StreamTarget | None, Meta(description="Another stream of a Weft hub.")] = None
    jdbc: Annotated[Jdbc | None, Meta(description="A table of a database such as PostgreSQL.")] = None
    kafka: Annotated[Kafka | None, Meta(description="A topic of Kafka.")] = None
    tables: Annotated[
        HubTables | None, Meta(description="The streams' own tables in the hub's store. Without steps.")
    ] = None
    console: Annotated[Console | None, Meta(description="Standard output, to try a pipeline.")] = None

    @property
    def kind(self) -> str:
        """Return the name of the sink that is given."""
        return self.chosen[0]

    @property
    def settings(self) -> Any:
        """Return the settings of the sink that is given."""
        return self.chosen[1]


# Settings of a pipeline's steps.

SQL_CHARACTERS_MAX = 65_536
WINDOW_START, LOG_END = "window_start", "_log_end"
SESSION_COLUMNS = ("session_start", "session_end")
VIEW_NAME = re.compile("[A-Za-z][A-Za-z0-9_]{0,62}")
"""Form of a name by which SQL reads rows."""
ViewName = Annotated[str, Meta(pattern=f"^{VIEW_NAME.pattern}$", extra_json_schema={"examples": ["readings", "warm"]})]
Function = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
        extra_json_schema={"examples": ["my_steps:clean"]},
    ),
]
Options = dict[str, Any]
SqlText = Annotated[str, Meta(min_length=1, max_length=SQL_CHARACTERS_MAX)]
Aggregates = Annotated[dict[str, SqlText], Meta(min_length=1, max_length=256)]


class WindowStep(Section, frozen=True, kw_only=True):
    """Aggregates of windows, one row for each window and group. `complete` says when windows are written."""

    every_s: Annotated[
        Duration,
        Meta(ge=1, le=366 * 86_400, description="Length of a window. Windows start at its multiples since 1970, UTC."),
    ] = field(name="every")
    gap_s: Annotated[
        Annotated[Duration, Meta(ge=0.001)] | None,
        Meta(
            description="Silence that ends a session, shorter than `every`. Rows are then sessions of each group, with "
            "`session_start` and `session_end`; they are cut where a window ends, and written while it continues."
        ),
    ] = field(default=None, name="gap")
    offset_s: Annotated[
        Duration,
        Meta(
            ge=0,
            description="Shift of the starts against full multiples of `every`: `every: 8h` with `offset: 6h` has "
            "shifts from 06:00.",
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
            description="Field of `source.schema` with the time of the event, a `timestamp`. Windows are made by it, "
            "and written again when late events come. Unset: `_time`, when the edge node received the record."
        ),
    ] = None
    late_s: Annotated[
        Annotated[Duration, Meta(ge=0, le=366 * 86_400)] | None,
        Meta(
            description="Longest time after its event at which a record is received, such as `6h` for devices that "
            "buffer up to six hours. A window is complete when the stream has passed it by this time. Unset: not "
            "known; `_complete` is then null where no edge node is missing. Only with `time`."
        ),
    ] = field(default=None, name="late")
    ahead_s: Annotated[
        Duration,
        Meta(
            ge=0,
            le=366 * 86_400,
            description="Longest time by which an event may be later than the receipt of its record. Records beyond "
            "it are in no window, and counted. Only with `time`.",
        ),
    ] = field(default=86_400.0, name="ahead")
    by: Annotated[Names | None, Meta(description="Columns that make a group. Unset: one group of all rows.")] = None
    emit: Annotated[
        Aggregates, Meta(description="Columns of the result: name -> SQL aggregate, such as `rms_max: max(rms)`.")
    ]

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the columns that name a row of the result."""
        return (WINDOW_START, *(self.by or ()), *(() if self.gap_s is None else SESSION_COLUMNS[:1]))


class Step(Section, frozen=True, kw_only=True):
    """One step: `sql`, `python` or `window`. Steps run in their order; each reads `input`, which is what the step
    before it made."""

    name: Annotated[
        ViewName | None, Meta(description="Name by which SQL of later steps may read the rows that this step makes.")
    ] = None
    sql: Annotated[
        SqlText | None, Meta(description="A SELECT of Spark SQL. The table `input` has the rows of the step before it.")
    ] = None
    python: Annotated[
        Function | None,
        Meta(
            description="Function `module:function` that takes a DataFrame and returns one. The module is installed, "
            "or a file in the folder of the pipeline."
        ),
    ] = None
    options: Annotated[
        Options, Meta(description="Arguments of the function, by name. Values are text, numbers, lists and mappings.")
    ] = field(default_factory=dict)
    mode: Annotated[
        Literal["stream", "batch"],
        Meta(
            description="Rows that the step gets. `stream`: the streaming DataFrame, on which Spark's operators with "
            "state work. `batch`: those of one micro-batch, as a plain DataFrame. All steps after it are `batch`, too."
        ),
    ] = "stream"
    window: Annotated[
        WindowStep | None,
        Meta(description="Aggregates of windows that know when they are complete. It is the last step."),
    ] = None

    @property
    def kinds(self) -> list[str]:
        """Return which of ``sql``, ``python`` and ``window`` are given; exactly one is right."""
        return [kind for kind in ("sql", "python", "window") if getattr(self, kind) is not None]


INPUT = "input"
"""Name by which SQL reads the rows of the step before it."""
STEPS_MAX = 64
TABLES_MAX = 32
_STREAM = "_stream"
"""Column with the stream of a row of several."""
OWN_COLUMNS = (WINDOW_START, "window_end", "_complete", LOG_END, "_late")
"""Columns of every window beside its groups and aggregates."""
Trigger = Annotated[str, Meta(min_length=1, extra_json_schema={"x-unit": "trigger"})]
Checkpoint = Annotated[str, Meta(min_length=1, extra_json_schema={"x-unit": "location"})]
PipelineName = Annotated[
    str, Meta(pattern="^[a-z0-9][a-z0-9_-]{0,63}$", extra_json_schema={"examples": ["machine-hours"]})
]


class Complete(Section, frozen=True, kw_only=True):
    """Conditions under which a window is written."""

    edges: Annotated[
        Names, Meta(description="Edge nodes that a complete window waits for: `all`, or a list of names.")
    ] = ("all",)
    grace_s: Annotated[
        Duration,
        Meta(
            description="Time after the end of a window at which it is written with `_complete = false` if it is not "
            "complete by then. It is written again when the missing records have arrived."
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
        yield Finding(("source", "until"), "cuts the last window, which would then be reported as complete. Remove it")


def _several(pipeline: Pipeline, streams: Sequence[str]) -> Iterator[Finding]:
    """Yield the settings that take one stream only, because they compare offsets of one log."""
    path: KeyPath = ("source", "streams")
    kind, settings = pipeline.sink.chosen
    if pipeline.source.stream is not None:
        yield Finding(path, "excludes `stream`. Remove one of the two")
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
            "writes the rows of one stream, whose offsets it keeps. Use delta"
            + (", or name `keys` and `order_by`" if kind == "jdbc" else ", or a pipeline for each stream"),
        )
    elif keys and settings.order_by is None and _STREAM not in keys:
        yield Finding(
            ("sink", kind, "order_by"),
            "is missing. Offsets of several streams do not order two rows. Name a column that does, such "
            "as _received, or have `_stream` among the keys",
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
                    yield Finding((*path, setting), "is for `csv` only: a Delta table has types. Remove it")
        for column, type_ in (table.columns or {}).items():
            if (kind := field_type(type_)).item is not None or kind.name == "binary" or kind.unit is not None:
                yield Finding(
                    (*path, "columns", column),
                    f"expected bool, int, float, string, timestamp or decimal for a column of CSV, got {kind}",
                )
    if pipeline.tables and pipeline.sink.kind == "tables":
        yield Finding(("tables",), "has no meaning with the sink `tables`, which has no steps. Remove it")


def _steps(pipeline: Pipeline) -> Iterator[Finding]:
    seen: dict[str, int] = {INPUT: 0}
    tables = {name.lower(): name for name in pipeline.tables}
    for at, step in enumerate(pipeline.steps):
        path = ("steps", at)
        if len(step.kinds) != 1:
            yield Finding(path, f"expected one of sql, python and window, got {' and '.join(step.kinds) or 'none'}")
        if step.options and step.python is None:
            yield Finding((*path, "options"), "is only for a `python` step. Remove it")
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
        yield Finding(("complete",), "needs a `window` step, and has none. Add one, or remove `complete`")


def _window(window: WindowStep, path: KeyPath) -> Iterator[Finding]:
    """Yield columns of a window that have the name of another one. Names that differ in case only are the same."""
    taken = dict.fromkeys(OWN_COLUMNS, "a column that every window has")
    taken |= {} if window.gap_s is None else dict.fromkeys(SESSION_COLUMNS, "a column that every session has")
    for name in window.by or ():
        if name.lower() in taken:
            yield Finding((*path, "by"), f"{name} is {taken[name.lower()]}. Remove it")
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
        yield Finding((*path, "gap"), "is not shorter than `every`, in which sessions are cut. Set a longer `every`")
    if window.time is None:
        if window.late_s is not None:
            yield Finding(
                (*path, "late"), "needs `time`, the field with the time of the event. Set it, or remove this setting"
            )
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
            ("sink", kind), "does not support windows: a window that is written again replaces a row. Use delta or jdbc"
        )
    if kind == "tables":
        yield from _tables(pipeline)
    elif kind != "console" and pipeline.checkpoint is None:
        yield Finding(("checkpoint",), f"is missing, and a sink of kind {kind} needs one. Name a folder for it")
    if pipeline.window_step is not None and getattr(settings, "keys", None) is not None:
        assert pipeline.window_step.window is not None
        yield from _window_keys(pipeline.window_step.window, kind, settings.keys)
    order_by = getattr(settings, "order_by", None)
    if has_windows and order_by is not None and order_by not in (LOG_END, [LOG_END], (LOG_END,)):
        got = order_by if isinstance(order_by, str) else ", ".join(order_by)
        message = f"expected {LOG_END}, by which windows replace each other; got {got}. Or leave it out"
        yield Finding(("sink", kind, "order_by"), message)
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
        if settings.order_by is not None and settings.mode != "upsert":
            yield Finding((*path, "order_by"), "is only for `mode: upsert`. Remove it")
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
            yield Finding(("source", name), "has no meaning with the sink `tables`: a table has all records. Remove it")
    for name, present in (("steps", pipeline.steps), ("checkpoint", pipeline.checkpoint)):
        if present:
            yield Finding(
                (name,), "has no meaning with the sink `tables`: its rows and positions are the log's. Remove it"
            )


def _share_a_folder(one: str, other: str) -> bool:
    """Return whether two folders are the same, or one is in the other."""
    first, second = (os.path.normpath(each.removeprefix("file://")) + "/" for each in (one, other))
    return first.startswith(second) or second.startswith(first)
