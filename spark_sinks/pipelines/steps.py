"""Steps of a pipeline, applied to a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame

from spark_sinks.pipelines.analysis import explained, is_of_spark
from spark_sinks.pipelines.context import Context
from spark_sinks.pipelines.dimensions import opened_tables, tables_read
from spark_sinks.pipelines.errors import PipelineError
from spark_sinks.pipelines.functions import call
from spark_sinks.pipelines.sql_text import SeveralStatements, one_statement
from weft.config.errors import KeyPath
from weft.config.pipelines.pipeline import INPUT, Pipeline
from weft.config.pipelines.steps import Step


@dataclass(frozen=True)
class StepGroup:
    """Steps that follow each other, with their places in the file."""

    steps: tuple[tuple[int, Step], ...]

    def apply(self, frame: DataFrame, context: Context) -> DataFrame:
        """Return the result of the steps for a DataFrame.

        Raises:
            PipelineError: a step cannot be applied.
        """
        for _, result in self.results(frame, context):
            frame = result
        return frame

    def results(self, frame: DataFrame, context: Context) -> Iterator[tuple[int, DataFrame]]:
        """Yield the place and the result of each step. A named step is a view for the following ones, and so are the
        pipeline's tables, read now."""
        pipeline = context.pipeline
        read = {name for _, step in self.steps for name in tables_read(pipeline, step)}
        named = opened_tables(pipeline, read, frame.sparkSession) if read else {}
        for at, step in self.steps:
            frame = _applied(at, step, frame, named, context)
            if step.name is not None:
                named[step.name] = frame
            yield at, frame


def split(pipeline: Pipeline) -> tuple[StepGroup, StepGroup]:
    """Return the steps on the streaming DataFrame, and those on the rows of a micro-batch; the window step is in
    neither. A step that reads a table is on micro-batches: on a stream, the table would be read once for all of them.
    """
    plain = [(at, step) for at, step in enumerate(pipeline.steps) if step.window is None]
    first = next((at for at, step in plain if step.mode == "batch" or tables_read(pipeline, step)), len(plain))
    return StepGroup(tuple(plain[:first])), StepGroup(tuple(plain[first:]))


def all_steps(pipeline: Pipeline) -> StepGroup:
    """Return all steps before the window step."""
    return StepGroup(tuple((at, step) for at, step in enumerate(pipeline.steps) if step.window is None))


def _applied(at: int, step: Step, frame: DataFrame, named: dict[str, DataFrame], context: Context) -> DataFrame:
    if step.python is not None:
        return call(step, frame, context, ("steps", at, "python"))
    assert step.sql is not None
    return select(step.sql, frame, named, ("steps", at, "sql"))


def select(text: str, frame: DataFrame, named: dict[str, DataFrame], path: KeyPath) -> DataFrame:
    """Return the rows of a SELECT over ``input`` and the named steps before it.

    Raises:
        PipelineError: the text is not a SELECT, or names columns, tables or functions that do not exist.
    """
    try:
        statement = one_statement(text)
    except SeveralStatements:
        raise PipelineError(path, "has several statements. Write one SELECT, and a step for each of them") from None
    if not statement.strip():
        raise PipelineError(path, "has no SELECT. Write one that reads `input`")
    spark = frame.sparkSession
    for name, rows in {INPUT: frame, **named}.items():
        rows.createOrReplaceTempView(name)
    try:
        # In parentheses only a query is valid: a DROP or an INSERT on its own would run as soon as Spark parses it.
        return spark.sql(f"SELECT * FROM (\n{statement}\n)")  # noqa: S608
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise PipelineError(path, explained(error, [INPUT, *named], lines_before=1)) from None
