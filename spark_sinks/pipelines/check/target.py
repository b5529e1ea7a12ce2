"""Check of a pipeline's sink against the columns of its last step."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame
from pyspark.sql.types import NullType

from spark_sinks.errors import SinkError
from spark_sinks.pipelines.check.folder import check_folder
from spark_sinks.pipelines.check.report import Report
from spark_sinks.sinks.delta.arguments import check_same_partitions
from spark_sinks.sinks.delta.columns import arrow_columns, missing_columns
from spark_sinks.sinks.delta.place import place_of
from spark_sinks.source.several import STREAM
from weft.config.errors import KeyPath
from weft.config.pipelines.pipeline import Pipeline
from weft.config.pipelines.sinks import DeltaTable as DeltaSettings
from weft.config.units import is_bucket
from weft.storage.table.delta.calls import cause_of

POSITION = ("_shard", "_offset")
"""Columns by which a sink recognises rows that it has already, beside ``_stream`` where there are several."""


def check_target(pipeline: Pipeline, frame: DataFrame, report: Report, *, goes_on: bool) -> None:
    """Add the errors of the columns for the sink, and of the existing table.

    Args:
        goes_on: whether the sink has written rows before, so that its table must exist.
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
        _check_table(settings, frame, report, pipeline.checkpoint if goes_on else None)


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
        report.refuse(setting, f"{path} has files and is no Delta table. Name another place")
