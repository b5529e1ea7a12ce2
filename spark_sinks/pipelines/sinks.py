"""Sinks of pipelines, made from their settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec
from pyspark.sql import DataFrame

from spark_sinks.completeness.window_frame import LOG_END_COLUMN
from spark_sinks.errors import SinkError
from spark_sinks.pipelines.errors import PipelineError
from weft.config.pipelines.pipeline import Pipeline
from weft.config.pipelines.sinks import Console, DeltaTable, Jdbc, Kafka, StreamTarget

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
    from spark_sinks.sinks.delta.arguments import check_outside

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
