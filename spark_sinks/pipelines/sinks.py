"""Sinks of pipelines, made from their settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from spark_sinks.errors import SinkError
from spark_sinks.pipelines.errors import PipelineError
from weft.config.pipelines.pipeline import Pipeline
from weft.config.pipelines.sinks import Console, Jdbc

Sink = Callable[[DataFrame, int], None]
"""A sink: called with the rows of each micro-batch and the batch's number."""


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
    if kind not in _MAKERS:
        raise PipelineError(("sink", kind), f"a sink of kind {kind} cannot be run yet. Use {' or '.join(_MAKERS)}")
    try:
        return _MAKERS[kind](pipeline.name, settings)
    except SinkError as error:
        raise PipelineError(("sink", kind), str(error)) from None


def _console(_: str, settings: Console) -> Sink:
    return ConsoleSink(settings)


def _jdbc(name: str, settings: Jdbc) -> Sink:
    from spark_sinks.sinks import JdbcSink

    return JdbcSink(
        settings.url,
        settings.table,
        keys=settings.keys or (),
        newest_by=settings.newest_by,
        query=None if settings.keys else name,
        password_file=settings.password_file,
    )


_MAKERS: dict[str, Callable[[str, Any], Sink]] = {"console": _console, "jdbc": _jdbc}


def output_mode(pipeline: Pipeline) -> str:
    """Return Spark's output mode: a sink that replaces rows by their keys takes the changed ones of an aggregate."""
    settings = pipeline.sink.settings
    return "update" if getattr(settings, "keys", None) else "append"
