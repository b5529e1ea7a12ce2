"""The check: source, steps, sink and checkpoint, in this order."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import NullType

from spark_sinks.blocking import run
from spark_sinks.completeness.row_steps import source_rows
from spark_sinks.completeness.window_state import (
    IfChanged,
    WindowState,
    changed_parts,
    changed_sentence,
    definition_of,
    stored_state,
)
from spark_sinks.completeness.windows import places_of
from spark_sinks.errors import ReadError, SinkError
from spark_sinks.lineage import FROM_COLUMN
from spark_sinks.pipelines.catalog import PipelineError
from spark_sinks.pipelines.job import (
    ChecksRows,
    Report,
    analysed_windows,
    check_tables,
    made_of,
    make_sink,
    output_mode,
    step_name,
    window_frame,
)
from spark_sinks.pipelines.steps import Context, StepGroup, all_steps, explained, is_of_spark, split
from spark_sinks.runtime.session import is_connect
from spark_sinks.runtime.waiting import without_context_logs
from spark_sinks.sinks.delta.sink import check_same_partitions
from spark_sinks.sinks.delta.table import arrow_columns, missing_columns, place_of
from spark_sinks.source.data_source import STREAM, merged, named_streams, positions
from spark_sinks.source.options import parse_options
from spark_sinks.source.readers import Bookmarks
from spark_sinks.source.stream_log import StreamLog, WentBack
from weft.config.errors import KeyPath
from weft.config.pipelines import DeltaTable as DeltaSettings
from weft.config.pipelines import Pipeline
from weft.config.units import is_bucket
from weft.storage.object_store import StoreError
from weft.storage.table.delta import cause_of

# Check of a folder of this machine to write to, which may not exist yet.


def check_folder(setting: KeyPath, folder: str, report: Report) -> bool:
    """Add an error if a folder cannot be written or made. Return whether it can."""
    existing = folder
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing) or "."
    if not os.path.isdir(existing):
        report.refuse(setting, f"{existing} is not a folder. Name another place")
        return False
    if not os.access(existing, os.W_OK | os.X_OK):
        report.refuse(setting, f"{existing} cannot be written by this user. Change its owner, or name another place")
        return False
    return True


# Check of a pipeline's sink against the columns of its last step.

POSITION = ("_shard", "_offset")
"""Columns by which a sink recognises rows that it has already, beside ``_stream`` where there are several."""


def check_target(pipeline: Pipeline, frame: DataFrame, report: Report, *, continues: bool) -> None:
    """Add the errors of the columns for the sink, and of the existing table.

    Args:
        continues: whether the sink has written rows before, so that its table must exist.
    """
    kind, settings = pipeline.sink.kind, pipeline.sink.settings
    path: KeyPath = ("sink", kind)
    if kind == "console":
        return
    _check_names(path, frame, report)
    if kind == "stream":
        _need(path, frame.columns, (*POSITION, "payload"), "a row of a stream", report)
    if kind in ("delta", "jdbc"):
        for setting in ("keys", "order_by", "partition_by"):
            wanted = getattr(settings, setting, None) or ()
            _need((*path, setting), frame.columns, [wanted] if isinstance(wanted, str) else wanted, setting, report)
        if _is_by_position(pipeline):
            wanted = POSITION if len(pipeline.source.all_streams) == 1 else (STREAM, *POSITION)
            _need(path, frame.columns, wanted, "writing each row once", report)
    if kind == "delta":
        _check_table(settings, frame, report, pipeline.checkpoint if continues else None)


def _is_by_position(pipeline: Pipeline) -> bool:
    """Return whether the sink recognises rows by the offsets of their records."""
    settings = pipeline.sink.settings
    if pipeline.window_step is not None or (isinstance(settings, DeltaSettings) and settings.mode == "replace"):
        return False
    return getattr(settings, "order_by", None) is None if isinstance(settings, DeltaSettings) else not settings.keys


def _check_names(path: KeyPath, frame: DataFrame, report: Report) -> None:
    twice = [name for name, count in Counter(map(str.lower, frame.columns)).items() if count > 1]
    if twice:
        report.refuse(path, f"two columns are called {', '.join(twice)}. Name each of them once (AS)")
    void = [field.name for field in frame.schema.fields if isinstance(field.dataType, NullType)]
    if void:
        report.refuse(path, f"column {', '.join(void)} has no type. Cast it, such as CAST(NULL AS STRING)")


def _need(path: KeyPath, columns: Sequence[str], wanted: Iterable[str], purpose: str, report: Report) -> None:
    known = {name.lower() for name in columns}
    missing = [name for name in wanted if name.lower() not in known]
    if missing:
        report.refuse(
            path,
            f"{purpose} needs the column {', '.join(missing)}, which the last step does not make. "
            f"It makes {', '.join(columns)}",
        )


def _check_table(settings: DeltaSettings, frame: DataFrame, report: Report, written_by: str | None) -> None:
    path = ("sink", "delta", "path")
    try:
        # Opened as the sink does, with the options of an endpoint without TLS.
        remote = is_bucket(settings.path)
        uri, options = place_of(settings.path, {}).location() if remote else (settings.path, None)
        if not DeltaTable.is_deltatable(uri, options):
            _check_folder(settings.path, report)
            if written_by is not None:
                report.refuse(path, _gone(settings.path, written_by))
            return
        table = DeltaTable(uri, storage_options=options)
        schema, partition_by = pa.schema(table.schema()), tuple(table.metadata().partition_columns)
    except (DeltaError, OSError, ValueError) as error:
        report.refuse(path, f"{settings.path} cannot be read as a Delta table: {cause_of(error)}. Name another folder")
        return
    try:
        # Compared as the sink does, which accepts an int for a bigint of the table.
        missing_columns(schema, arrow_columns(frame.schema))
        check_same_partitions(settings.path, partition_by, tuple(settings.partition_by or ()))
    except SinkError as error:
        report.refuse(path, str(error))


def _gone(table: str, checkpoint: str) -> str:
    return (
        f"there is no table {table}, and checkpoint {checkpoint} is of a pipeline that has written rows. A new table "
        "would lack them. Put the table back; or move the checkpoint away, too, and the pipeline makes the table again"
    )


def _check_folder(path: str, report: Report) -> None:
    setting: KeyPath = ("sink", "delta", "path")
    if "://" in path or not check_folder(setting, path, report):
        return
    if os.path.lexists(path) and os.listdir(path):
        report.refuse(setting, f"{path} has files and is not a Delta table. Name another place")


# Check of a pipeline's checkpoint: a folder that can be written, and positions of this stream in it.

OFFSETS_BYTES_MAX = 8 << 20
PATH = ("checkpoint",)


def check_checkpoint(
    pipeline: Pipeline, spark: SparkSession, logs: Mapping[str, StreamLog], report: Report, if_changed: IfChanged
) -> None:
    """Add the errors of a checkpoint: one of windows, or one of Spark on a file system of this machine.

    Args:
        logs: stream -> its log; empty when one cannot be read.
    """
    folder = pipeline.checkpoint
    if folder is None:
        return
    if pipeline.window_step is not None:
        if "://" in folder or os.path.isdir(folder):
            _check_state(folder, pipeline, logs.get(pipeline.source.one), report, if_changed)
    elif "://" in folder:
        _check_scheme(folder, spark, report)
    if "://" in folder:
        return
    if check_folder(PATH, folder, report) and logs and os.path.isdir(os.path.join(folder, "offsets")):
        _check_positions(folder, pipeline, logs, report)


def has_written(pipeline: Pipeline, if_changed: IfChanged) -> bool:
    """Return whether the pipeline resumes after written batches, by a checkpoint in a folder of this machine. A
    pipeline that computes all windows again does not."""
    folder = pipeline.checkpoint
    if folder is None or "://" in folder:
        return False
    if pipeline.window_step is not None:
        return if_changed != "recompute" and os.path.isdir(folder) and _has_given(folder)
    try:
        return any(name.isdecimal() for name in os.listdir(os.path.join(folder, "commits")))
    except OSError:
        return False


def _has_given(folder: str) -> bool:
    """Return whether a state records emitted windows; its other errors are reported elsewhere."""
    try:
        text = stored_state(folder)
        return text is not None and json.loads(text).get("given") is True
    except (ReadError, StoreError, ValueError, AttributeError, RecursionError):
        return False


def _check_state(folder: str, pipeline: Pipeline, log: StreamLog | None, report: Report, if_changed: IfChanged) -> None:
    """Add the errors that a query of windows would raise for its stored state."""
    frame = window_frame(pipeline)
    try:
        text = stored_state(folder)
        if text is not None and log is not None:
            state = WindowState.decode(text, log.source, frame.grid.every_us, frame.made_by)
            run(Bookmarks(log).compare(places_of(state)))
            changed = changed_parts(state.definition, definition_of(made_of(pipeline)))
            if changed and if_changed == "refuse":
                report.refuse(PATH, changed_sentence(changed))
    except (ReadError, StoreError) as error:
        report.refuse(PATH, str(error).removeprefix("checkpoint: "))


def _check_scheme(folder: str, spark: SparkSession, report: Report) -> None:
    """Add an error if Spark has no file system for a checkpoint: its pip package has none for object stores."""
    if is_connect(spark):
        return  # Only the server can check this; it reports an error at the start.
    scheme = folder.partition("://")[0]
    jvm, context = spark._jvm, spark.sparkContext._jsc
    assert jvm is not None
    assert context is not None
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, context.hadoopConfiguration())
    except Py4JJavaError:
        report.refuse(
            PATH,
            f"this Spark has no file system for {scheme}://. Name a folder that all machines reach, or add the file "
            "system's package (spark.jars.packages)",
        )


def _check_positions(folder: str, pipeline: Pipeline, logs: Mapping[str, StreamLog], report: Report) -> None:
    offsets = os.path.join(folder, "offsets")
    numbers = [int(name) for name in os.listdir(offsets) if name.isdecimal()]
    if not numbers:
        return
    path = os.path.join(offsets, str(max(numbers)))
    advice = "Name another folder, or move this one away: the sinks keep their own positions"
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read(OFFSETS_BYTES_MAX).splitlines()
        sources = [line for line in lines[2:] if line.strip()]
        if len(sources) != 1:
            raise ValueError(f"it has {len(sources)} sources, and a pipeline has one")
        found = json.loads(sources[0])
        several = {pipeline.source.one: found} if pipeline.source.streams is None else positions(found)
        for stream, log in logs.items():
            if stream in several:
                run(Bookmarks(log).compared(several[stream]))
    except WentBack as error:
        report.refuse(PATH, str(error).removeprefix("checkpoint: "))
    except ReadError as error:
        report.refuse(PATH, f"{str(error).removeprefix('checkpoint: ')}. {advice}")
    except (OSError, ValueError) as error:
        report.refuse(PATH, f"{folder} is the checkpoint of another query: {error}. {advice}")


@without_context_logs()
def check(pipeline: Pipeline, spark: SparkSession, *, if_changed: IfChanged = "refuse") -> Report:
    """Return the errors of a pipeline, and the columns of its steps. No record is read, and nothing is written.

    Python steps are called, with a DataFrame that has no rows.

    Args:
        if_changed: as for the start of the pipeline.
    """
    report, context = Report(), Context(pipeline)
    if pipeline.sink.tables is not None:
        check_tables(pipeline, report)
        return report
    logs = _opened(context, report)
    result = _analysed(pipeline, spark, context, logs, report) if logs else None
    if result is not None:
        if FROM_COLUMN not in result.columns:
            report.doubt(_last(pipeline), f"loses {FROM_COLUMN}: its rows cannot be traced back. Select it, too")
        check_target(pipeline, result, report, continues=has_written(pipeline, if_changed))
    check_checkpoint(pipeline, spark, logs, report, if_changed)
    if report.is_good and result is not None:
        _check_sink(pipeline, result, report)
    return report


def _check_sink(pipeline: Pipeline, result: DataFrame, report: Report) -> None:
    """Add the sink's own findings about its settings and its columns."""
    try:
        sink = make_sink(pipeline)
        if isinstance(sink, ChecksRows):
            sink.check(result)
    except PipelineError as error:
        report.errors.append(error.finding)
    except SinkError as error:
        report.refuse(("sink", pipeline.sink.kind), str(error))
    except Exception as error:
        if not is_of_spark(error):
            raise
        report.refuse(("sink", pipeline.sink.kind), explained(error))


def _opened(context: Context, report: Report) -> dict[str, StreamLog]:
    """Return the logs of the source's streams; none when one cannot be read."""
    try:
        options = context.options()
        several = named_streams(options) or {context.source.all_streams[0]: options}
        return {name: run(_open(given)) for name, given in several.items()}
    except ReadError as error:
        report.refuse(_setting(str(error), context), str(error))
    return {}


async def _open(options: Mapping[str, str]) -> StreamLog:
    log = await StreamLog.open(parse_options(options))
    await log.extend()
    return log


def _setting(message: str, context: Context) -> KeyPath:
    """Return the setting of the source that a message of the reader is about."""
    if message.startswith("the store has no stream"):
        return ("source", "stream" if context.source.streams is None else "streams")
    option, _, rest = message.partition(" ")
    inner = rest.partition(": ")[0].split(".") if option == "schema:" and rest.startswith("fields.") else []
    return ("source", option.strip(":"), *inner)


def _last(pipeline: Pipeline) -> KeyPath:
    return ("steps", len(pipeline.steps) - 1) if pipeline.steps else ("source",)


def _analysed(
    pipeline: Pipeline, spark: SparkSession, context: Context, logs: Mapping[str, StreamLog], report: Report
) -> DataFrame | None:
    """Return the result of the last step, without rows; None when a step is wrong."""
    on_stream, on_batch = split(pipeline)
    try:
        schemas = {name: log.schema for name, log in logs.items()}
        several = pipeline.source.streams is not None
        frame = context.stream(spark, merged(schemas) if several else next(iter(schemas.values())))
    except ReadError as error:
        report.refuse(_setting(str(error), context), str(error))
        return None
    except Exception as error:
        if not is_of_spark(error):
            raise
        report.refuse(("source",), explained(error))
        return None
    report.show("source", frame)
    if pipeline.window_step is not None:
        # As a stream, which has no rows to ask for: steps would get those of a few windows.
        rows = _checked(all_steps(pipeline), source_rows(frame), context, report)
        return None if rows is None else _checked_windows(pipeline, rows, report)
    after = _checked(on_stream, frame, context, report)
    if after is None or not _runs_on_streams(after, on_stream, pipeline, report):
        return None
    return _checked(on_batch, spark.createDataFrame([], after.schema), context, report)


def _checked(part: StepGroup, frame: DataFrame, context: Context, report: Report) -> DataFrame | None:
    try:
        for at, result in part.results(frame, context):
            frame = result
            report.show(step_name(context.pipeline, at), frame)
    except PipelineError as error:
        report.errors.append(error.finding)
        return None
    return frame


def _checked_windows(pipeline: Pipeline, rows: DataFrame, report: Report) -> DataFrame | None:
    try:
        windows = analysed_windows(pipeline, rows)
    except PipelineError as error:
        report.errors.append(error.finding)
        return None
    report.show(step_name(pipeline, len(pipeline.steps) - 1), windows)
    return windows


def _runs_on_streams(frame: DataFrame, part: StepGroup, pipeline: Pipeline, report: Report) -> bool:
    """Return whether Spark can run the steps on a stream: it cannot sort one, for example, or take its first rows."""
    path: KeyPath = ("source",)
    if part.steps:
        at, step = part.steps[-1]
        path = ("steps", at, *step.kinds)
    if not frame.isStreaming:
        report.refuse(path, "returns a DataFrame that is not a stream. Make it from the step's input")
        return False
    if is_connect(frame.sparkSession):
        return True  # Only the server can check this; it reports an error at the start.
    try:
        _check_operators(frame, output_mode(pipeline))
    except Exception as error:
        if not is_of_spark(error):
            raise
        report.refuse(path, _of_streams(error))
        return False
    return True


def _of_streams(error: BaseException) -> str:
    """Return the reason why the steps cannot run on a stream, with advice."""
    text = explained(error)
    if "session window" in text.lower():
        return (
            "makes session windows of Spark, which cannot be written again when late rows come. Use the step `window` "
            "with `gap`, which makes sessions that can, or the shipped pipeline `sessions`"
        )
    if "streaming aggregations" in text:
        return (
            "groups rows of a stream, which has no end at which a group is complete. Use the step `window`, whose "
            "windows end, or the shipped pipeline `sessions`; `mode: batch` groups the rows of each micro-batch alone"
        )
    return f"{text}. Or give the step `mode: batch`"


def _check_operators(frame: DataFrame, mode: str) -> None:
    jvm = frame.sparkSession._jvm
    assert jvm is not None
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    output = jvm.org.apache.spark.sql.streaming.OutputMode
    checker.checkForStreaming(
        frame._jdf.queryExecution().analyzed(), output.Update() if mode == "update" else output.Append()
    )
