"""A pipeline as a streaming query."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_sinks.completeness.definition import IfChanged
from spark_sinks.completeness.window_query import WindowQuery
from spark_sinks.pipelines.context import Context
from spark_sinks.pipelines.sinks import Sink, make_sink, output_mode
from spark_sinks.pipelines.steps import StepGroup, split
from spark_sinks.pipelines.tables import tables_job
from spark_sinks.pipelines.windows import start_windows
from spark_sinks.runtime.waiting import interrupted_shortly
from spark_sinks.tables.query import TablesQuery
from weft.config.pipelines.pipeline import Pipeline


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
