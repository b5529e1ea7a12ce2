"""Check of a pipeline's checkpoint: a folder that can be written, and positions of this stream in it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from spark_sinks.blocking import run
from spark_sinks.completeness.definition import IfChanged, changed_parts, changed_sentence, definition_of
from spark_sinks.completeness.window_numbers import WindowState
from spark_sinks.completeness.window_query import places_of
from spark_sinks.completeness.window_store import stored_state
from spark_sinks.errors import ReadError
from spark_sinks.pipelines.check.folder import check_folder
from spark_sinks.pipelines.check.report import Report
from spark_sinks.pipelines.windows import made_of, window_frame
from spark_sinks.runtime.session import is_connect
from spark_sinks.source.checkpoints import Bookmarks
from spark_sinks.source.history import WentBack
from spark_sinks.source.several import positions
from spark_sinks.source.stream_log import StreamLog
from weft.config.pipelines.pipeline import Pipeline
from weft.storage.object_store import StoreError

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
