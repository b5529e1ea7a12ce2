"""A pipeline as a streaming query."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StreamingQuery

from spark_sinks.blocking import run
from spark_sinks.completeness.row_steps import (
    OtherRows,
    OtherTime,
    check_aggregates,
    check_rows,
    check_text,
    source_rows,
)
from spark_sinks.completeness.watermark import Complete
from spark_sinks.completeness.window_frame import END_COLUMN, LOG_END_COLUMN, START_COLUMN, EventTime, WindowFrame
from spark_sinks.completeness.window_state import Checkpoint, IfChanged
from spark_sinks.completeness.windows import WindowQuery, complete_windows
from spark_sinks.errors import ReadError, SinkError
from spark_sinks.pipelines.catalog import PipelineError
from spark_sinks.pipelines.steps import (
    Context,
    StepGroup,
    all_steps,
    explained,
    is_of_spark,
    plan_of,
    split,
    with_lineage,
)
from spark_sinks.runtime.session import NEEDED, is_connect
from spark_sinks.runtime.waiting import interrupted_shortly
from spark_sinks.source.data_source import WeftSource
from spark_sinks.source.options import ReadOptions, parse_moment, with_environment
from spark_sinks.source.stream_log import open_hub
from spark_sinks.tables.query import TablesJob, TablesQuery
from weft.config.errors import Finding, KeyPath
from weft.config.functions.windows import Grid
from weft.config.load import schema_text
from weft.config.pipelines import Console, DeltaTable, Jdbc, Kafka, Pipeline, StreamTarget, WindowStep
from weft.storage.chunk_log import first_logs
from weft.storage.presence import Claim

# Sinks of pipelines, made from their settings.

Sink = Callable[[DataFrame, int], None]
"""A sink: called with the rows of each micro-batch and the batch's number."""


@runtime_checkable
class ChecksRows(Protocol):
    """Sink that can check the columns of its rows before the first batch."""

    def check(self, frame: DataFrame) -> None:
        """Check the columns of future rows.

        Raises:
            SinkError: the sink cannot write them.
        """


@dataclass(frozen=True)
class ConsoleSink:
    """Prints the first rows of each micro-batch. It promises nothing: rows are shown again after a restart."""

    settings: Console

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Print the rows of a micro-batch."""
        rows = frame.take(self.settings.rows_max + 1)
        for row in rows[: self.settings.rows_max]:
            print(msgspec.json.encode(row.asDict(recursive=True), enc_hook=str).decode(), flush=True)  # noqa: T201
        if len(rows) > self.settings.rows_max:
            print(f"... micro-batch {batch_id} has more rows", flush=True)  # noqa: T201


def make_sink(pipeline: Pipeline) -> Sink:
    """Return the sink of a pipeline. It opens nothing before it is called.

    Raises:
        PipelineError: its settings do not suit each other.
    """
    kind, settings = pipeline.sink.chosen
    try:
        return _MAKERS[kind](pipeline, settings)
    except SinkError as error:
        raise PipelineError(("sink", kind), str(error)) from None


def _console(_: Pipeline, settings: Console) -> Sink:
    return ConsoleSink(settings)


def _delta(pipeline: Pipeline, settings: DeltaTable) -> Sink:
    from spark_sinks.sinks import DeltaSink
    from spark_sinks.sinks.delta.sink import check_outside

    source = pipeline.source
    named: dict[str, Any] = {"name": pipeline.name, "partition_by": settings.partition_by or ()}
    if pipeline.window_step is not None:
        # A window is computed again from more of the log: the version from the longer log replaces the other.
        named |= {"keys": settings.keys or window_keys(pipeline), "order_by": LOG_END_COLUMN}
    elif settings.mode == "replace":
        named |= {"replace_partitions": True}
    else:
        named |= {"keys": settings.keys, "order_by": settings.order_by}
        if settings.order_by is None:
            named |= {"store": source.store, "stream": source.all_streams, "tenant": source.tenant}
    sink = DeltaSink(settings.path, **named)
    check_outside(sink.place, source.store)
    return sink


def _stream(pipeline: Pipeline, settings: StreamTarget) -> Sink:
    from spark_sinks.sinks import SourceStream, StreamSink, TargetStream

    source = pipeline.source
    return StreamSink(
        TargetStream(
            settings.hub, settings.stream, source.store, settings.tenant, settings.token_file, settings.ca_file
        ),
        pipeline.name,
        source=SourceStream(source.one, source.store, source.tenant),
        topics=settings.topics or (),
        payload=settings.payload,
        spread=settings.spread,
    )


def window_keys(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the columns that name a row of windows: the start of its window, its group, and that of a session."""
    step = pipeline.window_step
    assert step is not None
    assert step.window is not None
    return step.window.keys


def _jdbc(pipeline: Pipeline, settings: Jdbc) -> Sink:
    from spark_sinks.sinks import JdbcSink

    has_windows = pipeline.window_step is not None
    keys = settings.keys or (window_keys(pipeline) if has_windows else ())
    return JdbcSink(
        settings.url,
        settings.table,
        keys=keys,
        order_by=LOG_END_COLUMN if has_windows else settings.order_by,
        name=None if keys else pipeline.name,
        password_file=settings.password_file,
        store=None if keys else pipeline.source.store,
        stream=None if keys else pipeline.source.one,
        tenant=pipeline.source.tenant,
    )


def _kafka(_: Pipeline, settings: Kafka) -> Sink:
    from spark_sinks.sinks import KafkaSink

    return KafkaSink(
        settings.brokers, settings.topic, key=settings.key, value=settings.value, options_file=settings.options_file
    )


_MAKERS: dict[str, Callable[[Pipeline, Any], Sink]] = {
    "console": _console,
    "delta": _delta,
    "jdbc": _jdbc,
    "kafka": _kafka,
    "stream": _stream,
}


def output_mode(pipeline: Pipeline) -> str:
    """Return Spark's output mode: a sink that replaces rows by their keys gets only the changed rows of an
    aggregate."""
    settings = pipeline.sink.settings
    return "update" if getattr(settings, "keys", None) else "append"


# A pipeline with a window step, as a query of complete windows.

TIME = "_time"
_INSTEAD = {
    True: "Select `_time` as it is. For windows by a time in the payload, declare that field in `source.schema` as a "
    "timestamp, and name it in the window step: `time: FIELD`",
    False: "Select it as it is; a field with another unit or path is declared so in `source.schema`",
}
_OTHER_ROWS = re.compile(r"^\W*(Window|Generate)\b", re.MULTILINE)
"""Operators in a plan that mix rows of several groups, or make several rows of one."""


@dataclass(frozen=True)
class Prepared:
    """The steps before the windows, applied to rows of the stream. Windows are made by the times of their result."""

    context: Context

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Return the rows of the last step.

        Raises:
            PipelineError: a step cannot be applied, or a column with a time is lost.
        """
        since = self.context.source.since
        if since is not None:
            frame = frame.where(F.col(TIME) >= F.lit(parse_moment("since", since)))
        frame = with_lineage(frame.drop(START_COLUMN, END_COLUMN))
        rows = all_steps(self.context.pipeline).apply(frame, self.context)
        need_time(self.context.pipeline, rows)
        return rows.drop(START_COLUMN, END_COLUMN)


def window_frame(pipeline: Pipeline) -> WindowFrame:
    """Return the computation of a pipeline's windows."""
    step = window_step(pipeline)
    grid = Grid(_micros(step.every_s), _micros(step.offset_s), step.zone)
    prepared = Prepared(Context(pipeline))
    gap = None if step.gap_s is None else _micros(step.gap_s)
    return WindowFrame(grid, step.by or (), dict(step.emit), prepared, _event_time(step), gap)


def _event_time(step: WindowStep) -> EventTime | None:
    if step.time is None:
        return None
    late = None if step.late_s is None else timedelta(seconds=step.late_s)
    return EventTime(step.time, late, timedelta(seconds=step.ahead_s))


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


def window_step(pipeline: Pipeline) -> WindowStep:
    """Return the settings of the pipeline's window step, which must exist."""
    step = pipeline.window_step
    assert step is not None
    assert step.window is not None
    return step.window


def made_of(pipeline: Pipeline) -> dict[str, object]:
    """Return the definition of the pipeline's windows, by the names in its file. Trigger and sink are not part of it: a
    change of these leaves the windows as they are."""
    step, source = window_step(pipeline), pipeline.source
    before = [each for each in pipeline.steps if each.window is None]
    of_time = {} if step.time is None else {"time": f"{step.time} {step.late_s} {step.ahead_s}"}
    if step.gap_s is not None:
        of_time["gap"] = str(step.gap_s)
    if pipeline.tables:
        of_time["tables"] = msgspec.json.encode(pipeline.tables, order="sorted").decode()
    return {
        "source.edges": source.edges,
        "source.keys": source.keys,
        "source.schema": None if source.schema is None else schema_text(source.schema),
        "source.since": source.since,
        "steps": msgspec.json.encode(before, order="sorted").decode(),
        "by": step.by or (),
        "emit": step.emit,
        **of_time,
    }


def start_windows(
    pipeline: Pipeline, spark: SparkSession, *, once: bool = False, if_changed: IfChanged = "refuse"
) -> WindowQuery:
    """Start a pipeline with a window step.

    Args:
        once: emit the windows that are due now and end, whatever the trigger of the pipeline is.
        if_changed: as for ``Checkpoint``.

    Raises:
        ReadError: the store holds no such stream.
    """
    source, frame, step = pipeline.source, window_frame(pipeline), window_step(pipeline)
    every = None if once else pipeline.trigger_s
    return complete_windows(
        spark,
        source.one,
        store=source.store,
        tenant=source.tenant,
        edges=source.edges,
        keys=source.keys,
        schema=source.schema,
        every=timedelta(seconds=step.every_s),
        gap=None if step.gap_s is None else timedelta(seconds=step.gap_s),
        offset=timedelta(seconds=step.offset_s),
        zone=step.zone,
        time=frame.event,
        by=frame.by,
        aggregate=frame.aggregate,
        prepare=frame.prepare,
        sink=make_sink(pipeline),
        complete=rule_of(pipeline),
        checkpoint=_checkpoint(pipeline, if_changed),
        trigger=None if every is None else timedelta(seconds=every),
        name=pipeline.name,
    )


def _checkpoint(pipeline: Pipeline, if_changed: IfChanged) -> Checkpoint | None:
    folder = pipeline.checkpoint
    return None if folder is None else Checkpoint(folder, definition=made_of(pipeline), if_changed=if_changed)


def rule_of(pipeline: Pipeline) -> Complete:
    """Return the rule for when a window of the pipeline is emitted."""
    settings = pipeline.complete
    if settings is None:
        return Complete()
    return Complete(
        edges="all" if settings.only is None else settings.only,
        grace=timedelta(seconds=settings.grace_s),
        retired_after=None if settings.retired_after_s is None else timedelta(seconds=settings.retired_after_s),
        peers=settings.peers,
    )


def _times(pipeline: Pipeline) -> list[str]:
    """Return the columns that decide to which window a row belongs."""
    time = window_step(pipeline).time
    return [TIME] if time is None else [TIME, time]


def need_time(pipeline: Pipeline, rows: DataFrame) -> None:
    """Check that the rows still have the source's own times, by which windows are made.

    The windows to compute are found by the times in the log. With other times, a window would be computed from a part
    of its rows, and replace the whole one.

    Raises:
        PipelineError: they do not.
    """
    path: KeyPath = ("steps", len(pipeline.steps) - 2)
    for time in _times(pipeline):
        if time not in rows.columns:
            raise PipelineError(path, f"drops {time}, which windows need. Keep it in the SELECT, unchanged")
        if (kind := rows.schema[time].dataType.simpleString()) != "timestamp":
            raise PipelineError(path, f"makes {time} a {kind}, and windows are made of it. Leave it a timestamp")
    try:
        check_rows(rows, _times(pipeline))
    except OtherTime as error:
        raise PipelineError(path, f"{error}. {_INSTEAD[error.column == TIME]}") from None
    except OtherRows as error:
        raise PipelineError(path, str(error)) from None


def analysed_windows(pipeline: Pipeline, rows: DataFrame) -> DataFrame:
    """Return the windows of rows that earlier steps made; without rows there are none, and the columns are the same.

    Raises:
        PipelineError: an aggregate or a group names a missing column; the error names the first one.
    """
    step, at = window_step(pipeline), len(pipeline.steps) - 1
    need_time(pipeline, rows)
    missing = [name for name in step.by or () if name not in rows.columns]
    if missing:
        raise PipelineError(
            ("steps", at, "window", "by"),
            f"there is no column {', '.join(missing)} here. There is {', '.join(rows.columns)}",
        )
    frame = replace(window_frame(pipeline), prepare=None)
    of_windows = source_rows(frame.rows(rows)).groupBy(START_COLUMN)
    for name, expression in step.emit.items():
        try:
            made = of_windows.agg(F.expr(expression).alias(name))
            made.schema  # noqa: B018
        except Exception as error:
            if not is_of_spark(error):
                raise
            raise PipelineError(("steps", at, "window", "emit", name), explained(error)) from None
        if found := _OTHER_ROWS.search(plan_of(made)):
            what = "looks at the rows of other groups" if found[1] == "Window" else "makes several rows of one"
            raise PipelineError(
                ("steps", at, "window", "emit", name),
                f"{what}. Windows are computed again a few at a time: expected an aggregate of the group's own rows",
            )
        try:
            check_text(expression)
            check_aggregates(made, START_COLUMN)
        except OtherRows as error:
            raise PipelineError(("steps", at, "window", "emit", name), str(error)) from None
    return frame.windows(rows, 0, 0)


# Weft's code and the user's, sent to the executors of a cluster along with a job.

PACKAGES = ("weft", "spark_sinks", "pyspark_weft")
ENDINGS = (".py", ".yaml", "py.typed")
FILES_MAX = 5_000
"""Maximum number of files of one package that is sent along; larger packages must be installed."""
_OURS = {*PACKAGES}


def ship(spark: SparkSession, pipeline: Pipeline) -> None:
    """Send the code that a pipeline needs to the executors, so that they run the same version as the driver.

    These are Weft itself and the modules of the pipeline's Python steps that are not installed. Compiled libraries
    cannot be sent: a first small task checks that they are installed.

    Raises:
        PipelineError: a package is too large to be sent.
        MissingLibraries: executors lack libraries that must be installed there.
    """
    if is_connect(spark):
        with tempfile.TemporaryDirectory(prefix="weft-code-") as folder:
            spark.addArtifact(_archive(folder, pipeline), pyfile=True)
    else:
        # Executors fetch the code from this path when they start, and a lost executor may be replaced hours later.
        # Spark removes its temporary folder when the session ends, not before.
        folder = tempfile.mkdtemp(prefix="weft-code-", dir=spark.sparkContext._temp_dir)
        spark.sparkContext.addPyFile(_archive(folder, pipeline))
    # Registered again: an earlier registration does not include the files that were added since.
    spark.dataSource.register(WeftSource)
    missing = _missing_on_executors(spark)
    if missing:
        raise MissingLibraries(missing)


# The code goes along with the job: an installation of one version on all executors would stop all pipelines at each
# upgrade until every machine has it.
def _archive(folder: str, pipeline: Pipeline) -> str:
    path = os.path.join(folder, "weft_code.zip")
    write_archive(path, code_of(pipeline))
    return path


class MissingLibraries(RuntimeError):
    """The error when executors lack compiled libraries."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"the executors' Python lacks {missing}. These libraries are compiled and cannot be sent along: "
            'install "weft-fabric[spark]" there, and set PYSPARK_PYTHON to the path of that Python'
        )


def code_of(pipeline: Pipeline) -> Iterator[str]:
    """Yield the packages and modules to send: Weft's, and those of the Python steps that are not installed libraries.

    Raises:
        PipelineError: a step's module is compiled.
    """
    yield from PACKAGES
    for at, step in enumerate(pipeline.steps):
        if step.python is None:
            continue
        name = step.python.partition(":")[0].partition(".")[0]
        if name not in _OURS and name not in sys.stdlib_module_names and _is_own(name, at):
            yield name


def _is_own(name: str, at: int) -> bool:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return spec is not None and spec.submodule_search_locations is not None
    if "site-packages" in spec.origin or "dist-packages" in spec.origin:
        return False  # A library, which must be installed on the executors, like every other one.
    if not spec.origin.endswith(".py"):
        message = f"module {name} is compiled and cannot be sent to executors. Install it there"
        raise PipelineError(("steps", at, "python"), message)
    return True


def write_archive(path: str, packages: Iterable[str]) -> None:
    """Write a zip from which Python can import some packages and modules.

    Raises:
        PipelineError: a package has more than ``FILES_MAX`` files.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in dict.fromkeys(packages):
            spec = importlib.util.find_spec(name)
            assert spec is not None
            for file, inside in _files(name, spec.origin, list(spec.submodule_search_locations or ())):
                archive.write(file, inside)


def _files(name: str, origin: str | None, folders: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (file, path in the archive) for each file of a module or a package."""
    if not folders:
        assert origin is not None
        yield origin, f"{name}.py"
        return
    count = 0
    for folder in folders:
        # In a working copy weft/config and so on are links to folders beside it.
        for place, inner, files in os.walk(folder, followlinks=True):
            inner[:] = [each for each in inner if each != "__pycache__"]
            for file in files:
                if file.endswith(ENDINGS):
                    count += 1
                    if count > FILES_MAX:
                        raise PipelineError(("steps",), f"package {name} has more than {FILES_MAX} files. Install it")
                    inside = os.path.join(name, os.path.relpath(os.path.join(place, file), folder))
                    yield os.path.join(place, file), inside


def _missing_on_executors(spark: SparkSession) -> str:
    """Return the names of the libraries that an executor lacks."""
    needed = [name for name in NEEDED if name not in _OURS]

    def look(_: int) -> str:
        import importlib.util

        return ", ".join(name for name in needed if importlib.util.find_spec(name) is None)

    # Without Arrow: pyarrow may be what is missing.
    missing = F.udf(look, "string", useArrow=False)
    rows = spark.range(0, 2, 1, 2).select(missing("id").alias("missing")).distinct().collect()
    return max((row["missing"] for row in rows), default="")


# Result of a check.


class StepColumns(NamedTuple):
    """The columns that a step makes, in their order."""

    step: str
    """``source``, the number of the step with its name, or ``sink``."""
    columns: dict[str, str]
    """Name -> type, as Spark writes it."""


@dataclass
class Report:
    """Findings of a check. The pipeline can start if there are no errors."""

    errors: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    steps: list[StepColumns] = field(default_factory=list)
    """Columns of the source and of each step up to the first one that is wrong."""

    @property
    def is_good(self) -> bool:
        """Return whether the pipeline can start."""
        return not self.errors

    def refuse(self, path: KeyPath, message: str) -> None:
        """Add an error."""
        self.errors.append(Finding(path, message))

    def doubt(self, path: KeyPath, message: str) -> None:
        """Add a warning."""
        self.warnings.append(Finding(path, message))

    def show(self, step: str, frame: DataFrame) -> None:
        """Add the columns of a step."""
        self.steps.append(StepColumns(step, {each.name: each.dataType.simpleString() for each in frame.schema.fields}))


def step_name(pipeline: Pipeline, at: int) -> str:
    """Return a step's name for people: its number from 1 and its name."""
    name = pipeline.steps[at].name
    return f"step {at + 1}" + (f" ({name})" if name else "")


# A pipeline with the sink ``tables``: the hub's own tables, made by Spark.


def tables_job(pipeline: Pipeline, *, once: bool = False) -> TablesJob:
    """Return the job of a pipeline.

    Args:
        once: make one round, whatever the trigger of the pipeline is.
    """
    source, sink = pipeline.source, pipeline.sink.tables
    assert sink is not None
    options = with_environment({}, os.environ, source.store)
    return TablesJob(
        pipeline.name,
        ReadOptions(source.store, "tables", store_options=tuple(sorted(options.items()))),
        source.tenant,
        source.one,
        None if once else pipeline.trigger_s,
        sink.joined_size,
        sink.streams_at_once,
    )


def check_tables(pipeline: Pipeline, report: Report) -> None:
    """Add the findings about the store and its streams. Nothing is written."""
    job = tables_job(pipeline)
    try:
        found = run(_streams(job))
    except ReadError as error:
        report.refuse(("source", "store"), str(error))
        return
    claim = Claim(job.name, 0, job.tenants, job.streams)
    if not any(map(claim.covers, found)):
        report.doubt(("source", "stream"), f"no stream of the store is {job.tenants}/{job.streams} yet")


async def _streams(job: TablesJob) -> list[tuple[str, str]]:
    store, cluster = await open_hub(job.access)
    found: dict[tuple[str, str], None] = {}
    logs = first_logs(store, cluster)
    while logs:  # one after the other: each may be large, and only names are kept
        log = logs.pop()
        state = await log.load()
        found |= dict.fromkeys(state.next_offset)
        logs += map(log.new_shard, state.splits)
    return list(found)


@dataclass(frozen=True)
class MicroBatch:
    """Work on the rows of one micro-batch: the steps on batches, then the sink.

    It can be pickled: with Spark Connect it runs in a process of the server.
    """

    context: Context
    steps: StepGroup
    sink: Sink

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Apply the steps and hand the rows to the sink."""
        with interrupted_shortly():
            self.sink(self.steps.apply(frame, self.context), batch_id)


def start(
    pipeline: Pipeline, spark: SparkSession, *, once: bool = False, if_changed: IfChanged = "refuse"
) -> StreamingQuery | WindowQuery | TablesQuery:
    """Start a pipeline and return its query.

    Args:
        once: read the records that there are now and end, whatever the trigger of the pipeline is.
        if_changed: action for windows that another definition of the pipeline made, as for ``Checkpoint``.

    Raises:
        PipelineError: a step cannot be applied; ``check`` detects this before.
        ReadError: the store holds no such stream.
    """
    if pipeline.sink.tables is not None:
        return TablesQuery(tables_job(pipeline, once=once), spark)
    if pipeline.window_step is not None:
        return start_windows(pipeline, spark, once=once, if_changed=if_changed)
    context = Context(pipeline)
    on_stream, on_batch = split(pipeline)
    frame = on_stream.apply(context.stream(spark), context)
    writer = frame.writeStream.foreachBatch(MicroBatch(context, on_batch, make_sink(pipeline)))
    writer = writer.queryName(pipeline.name).outputMode(output_mode(pipeline))
    if pipeline.checkpoint is not None:  # else Spark makes a folder on the driver's machine, and removes it at the end
        writer = writer.option("checkpointLocation", pipeline.checkpoint)
    every = None if once else pipeline.trigger_s
    if every is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(every * 1000)} milliseconds").start()
