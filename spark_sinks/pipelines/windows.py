"""A pipeline with a window step, as a query of complete windows."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.completeness.checkpoint import Checkpoint
from spark_sinks.completeness.definition import IfChanged
from spark_sinks.completeness.event_time import EventTime
from spark_sinks.completeness.moment import Complete
from spark_sinks.completeness.window_columns import END_COLUMN, START_COLUMN, with_window
from spark_sinks.completeness.window_frame import WindowFrame
from spark_sinks.completeness.window_query import WindowQuery
from spark_sinks.completeness.windows import complete_windows
from spark_sinks.pipelines.analysis import explained, is_of_spark, is_own, marked, plan_of
from spark_sinks.pipelines.context import Context, with_lineage
from spark_sinks.pipelines.errors import PipelineError
from spark_sinks.pipelines.sinks import make_sink
from spark_sinks.pipelines.steps import all_steps
from spark_sinks.source.positions import parse_moment
from weft.config.errors import KeyPath
from weft.config.functions.window_grid import Grid
from weft.config.pipelines.pipeline import Pipeline
from weft.config.pipelines.schema_text import schema_text
from weft.config.pipelines.steps import WindowStep

TIME = "_time"
_OTHER_TIME = (
    "makes a {0} that is not the source's own, or is not seen to be. Windows are found by the source's, and would "
    "lose rows"
)
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
    grid: Grid
    time: str
    """Column with the time by which windows are made."""

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Return the rows with the window of each.

        Raises:
            PipelineError: a step cannot be applied, or a column with a time is lost.
        """
        since = self.context.source.since
        if since is not None:
            frame = frame.where(F.col(TIME) >= F.lit(parse_moment("since", since)))
        frame = with_lineage(frame.drop(START_COLUMN, END_COLUMN))
        frame = with_own_times(self.context.pipeline, frame)
        rows = all_steps(self.context.pipeline).apply(frame, self.context)
        need_time(self.context.pipeline, rows)
        return with_window(rows, self.grid, self.time)


def window_frame(pipeline: Pipeline) -> WindowFrame:
    """Return the computation of a pipeline's windows."""
    step = window_step(pipeline)
    grid = Grid(_micros(step.every_s), _micros(step.offset_s), step.zone)
    prepared = Prepared(Context(pipeline), grid, step.time or TIME)
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


def with_own_times(pipeline: Pipeline, frame: DataFrame) -> DataFrame:
    """Return rows of the source, for the steps, whose times ``need_time`` knows again."""
    return marked(frame, _times(pipeline))


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
            raise PipelineError(
                path, f"loses {time}, and windows are made of it. Select it, too, and leave it as it is"
            )
        if (kind := rows.schema[time].dataType.simpleString()) != "timestamp":
            raise PipelineError(path, f"makes {time} a {kind}, and windows are made of it. Leave it a timestamp")
        if not is_own(rows, time):
            raise PipelineError(path, f"{_OTHER_TIME.format(time)}. {_INSTEAD[time == TIME]}")


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
    return replace(frame, prepare=None).windows(rows, 0, 0)
