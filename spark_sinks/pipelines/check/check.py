"""The check: source, steps, sink and checkpoint, in this order."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from spark_sinks.blocking import run
from spark_sinks.completeness.definition import IfChanged
from spark_sinks.errors import ReadError, SinkError
from spark_sinks.lineage.columns import FROM_COLUMN
from spark_sinks.pipelines.analysis import explained, is_of_spark
from spark_sinks.pipelines.check.checkpoint import check_checkpoint, has_written
from spark_sinks.pipelines.check.report import Report, step_name
from spark_sinks.pipelines.check.target import check_target
from spark_sinks.pipelines.context import Context
from spark_sinks.pipelines.errors import PipelineError
from spark_sinks.pipelines.sinks import ChecksRows, make_sink, output_mode
from spark_sinks.pipelines.steps import StepGroup, all_steps, split
from spark_sinks.pipelines.tables import check_tables
from spark_sinks.pipelines.windows import analysed_windows, with_own_times
from spark_sinks.runtime.quiet import without_context_logs
from spark_sinks.runtime.session import is_connect
from spark_sinks.source.options import parse_options
from spark_sinks.source.several import merged, named_streams
from spark_sinks.source.stream_log import StreamLog
from weft.config.errors import KeyPath
from weft.config.pipelines.pipeline import Pipeline


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
        check_target(pipeline, result, report, goes_on=has_written(pipeline, if_changed))
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
        empty = with_own_times(pipeline, spark.createDataFrame([], frame.schema))
        rows = _checked(all_steps(pipeline), empty, context, report)
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
    told = explained(error)
    if "session window" in told.lower():
        return (
            "makes session windows of Spark, which cannot be written again when late rows come. Use the step `window` "
            "with `gap`, which makes sessions that can, or the shipped pipeline `sessions`"
        )
    if "streaming aggregations" in told:
        return (
            "groups rows of a stream, which has no end at which a group is complete. Use the step `window`, whose "
            "windows end, or the shipped pipeline `sessions`; `mode: batch` groups the rows of each micro-batch alone"
        )
    return f"{told}. Or give the step `mode: batch`"


def _check_operators(frame: DataFrame, mode: str) -> None:
    jvm = frame.sparkSession._jvm
    assert jvm is not None
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    output = jvm.org.apache.spark.sql.streaming.OutputMode
    checker.checkForStreaming(
        frame._jdf.queryExecution().analyzed(), output.Update() if mode == "update" else output.Append()
    )
