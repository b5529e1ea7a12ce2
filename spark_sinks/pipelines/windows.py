"""A pipeline with a window step, as a query of complete windows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.completeness.checkpoint import Checkpoint
from spark_sinks.completeness.definition import IfChanged
from spark_sinks.completeness.moment import Complete
from spark_sinks.completeness.window_frame import END_COLUMN, START_COLUMN, WindowFrame, window_number
from spark_sinks.completeness.window_query import WindowQuery
from spark_sinks.completeness.windows import complete_windows
from spark_sinks.payloads.decoder import typed_fields
from spark_sinks.payloads.frames import with_typed_columns
from spark_sinks.pipelines.analysis import explained, is_of_spark, plan_of
from spark_sinks.pipelines.context import Context, with_lineage
from spark_sinks.pipelines.errors import PipelineError
from spark_sinks.pipelines.sinks import make_sink
from spark_sinks.pipelines.steps import all_steps
from spark_sinks.source.positions import parse_moment
from weft.config.errors import KeyPath
from weft.config.pipelines.pipeline import Pipeline
from weft.config.pipelines.schema_text import schema_text
from weft.config.pipelines.steps import WindowStep

TIME = "_time"
_OTHER_ROWS = re.compile(r"^\W*(Window|Generate)\b", re.MULTILINE)
"""Operators in a plan that mix rows of several groups, or make several rows of one."""


@dataclass(frozen=True)
class Prepared:
    """The steps before the windows, applied to rows of the stream. Windows are made by the ``_time`` of their
    result."""

    context: Context
    every_us: int

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Return the rows with the window of each.

        Raises:
            PipelineError: a step cannot be applied, or ``_time`` is lost.
        """
        since = self.context.source.since
        if since is not None:
            frame = frame.where(F.col(TIME) >= F.lit(parse_moment("since", since)))
        frame = with_lineage(_typed(frame.drop(START_COLUMN, END_COLUMN), self.context))
        rows = all_steps(self.context.pipeline).apply(frame, self.context)
        need_time(self.context.pipeline, rows)
        start = window_number(self.every_us) * F.lit(self.every_us)
        rows = rows.withColumn(START_COLUMN, F.timestamp_micros(start))
        return rows.withColumn(END_COLUMN, F.timestamp_micros(start + F.lit(self.every_us)))


def _typed(frame: DataFrame, context: Context) -> DataFrame:
    schema = context.source.schema
    return (
        frame if schema is None else with_typed_columns(frame, schema, [field.name for field in typed_fields(schema)])
    )


def window_frame(pipeline: Pipeline) -> WindowFrame:
    """Return the computation of a pipeline's windows."""
    step = window_step(pipeline)
    every_us = round(step.every_s * 1_000_000)
    return WindowFrame(every_us, step.by or (), dict(step.emit), Prepared(Context(pipeline), every_us))


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
    return {
        "source.edges": source.edges,
        "source.keys": source.keys,
        "source.schema": None if source.schema is None else schema_text(source.schema),
        "source.since": source.since,
        "steps": msgspec.json.encode(before, order="sorted").decode(),
        "by": step.by or (),
        "emit": step.emit,
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
    source, frame = pipeline.source, window_frame(pipeline)
    every = None if once else pipeline.trigger_s
    return complete_windows(
        spark,
        source.stream,
        store=source.store,
        tenant=source.tenant,
        edges=source.edges,
        keys=source.keys,
        every=timedelta(microseconds=frame.every_us),
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


def need_time(pipeline: Pipeline, rows: DataFrame) -> None:
    """Check that the rows still have the time by which windows are made.

    Raises:
        PipelineError: they do not.
    """
    path: KeyPath = ("steps", len(pipeline.steps) - 2)
    if TIME not in rows.columns:
        raise PipelineError(path, f"loses {TIME}, and windows are made of it. Select it, too, and leave it as it is")
    if (kind := rows.schema[TIME].dataType.simpleString()) != "timestamp":
        raise PipelineError(path, f"makes {TIME} a {kind}, and windows are made of it. Leave it a timestamp")


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
    for name, expression in step.emit.items():
        try:
            made = rows.agg(F.expr(expression).alias(name))
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
    frame = window_frame(pipeline)
    return WindowFrame(frame.every_us, frame.by, frame.aggregate).windows(rows, 0, 0)
