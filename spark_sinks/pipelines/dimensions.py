"""Tables beside the stream, such as the names of machines: read by the driver, and joined by SQL of the steps."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.errors import SinkError
from spark_sinks.pipelines.errors import PipelineError
from spark_sinks.sinks.delta.place import place_of
from spark_sinks.source.positions import in_utc
from weft.config.errors import KeyPath
from weft.config.payload_schema.types import FieldType, field_type
from weft.config.pipelines.pipeline import Pipeline
from weft.config.pipelines.source import DimensionTable
from weft.config.pipelines.steps import Step
from weft.storage.payloads.values import arrow_type
from weft.storage.table.delta.calls import cause_of

BYTES_MAX = 256 << 20
"""Maximum size of a table's files, which the driver reads for each micro-batch."""
BROADCAST_BYTES_MAX = 64 << 20
"""Size in memory up to which Spark sends a table to each executor, instead of sorting both sides of a join."""
_SENTENCE_CHARACTERS_MAX = 200


def tables_read(pipeline: Pipeline, step: Step) -> list[str]:
    """Return the tables of the pipeline whose names are in a step's SQL."""
    words = {word.lower() for word in re.findall(r"\w+", step.sql or "")}
    return [name for name in pipeline.tables if name.lower() in words]


def opened_tables(pipeline: Pipeline, names: Collection[str], spark: SparkSession) -> dict[str, DataFrame]:
    """Return tables as they are now, by name. Each is read once and whole: Delta at its newest version.

    Raises:
        PipelineError: one cannot be read.
    """
    return {name: _frame(spark, read_table(name, pipeline.tables[name])) for name in names}


def _frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    frame = spark.createDataFrame(table)
    return F.broadcast(frame) if table.nbytes <= BROADCAST_BYTES_MAX else frame


def read_table(name: str, settings: DimensionTable) -> pa.Table:
    """Return the rows of a table.

    Raises:
        PipelineError: it is not there, is too large, or has a value or a name of a column that does not fit.
    """
    path: KeyPath = ("tables", name, settings.chosen[0])
    table = _of_csv(path, settings) if settings.csv is not None else _of_delta(path, settings.delta or "")
    seen: dict[str, str] = {}
    for at, column in enumerate(table.column_names, 1):
        if not column.strip():
            raise PipelineError(path, f"column {at} has no name. Write one into the first line")
        if (other := seen.setdefault(column.lower(), column)) != column or table.column_names.count(column) > 1:
            raise PipelineError(path, f"two columns are called {other}. Name each of them once")
    return table


def _of_csv(path: KeyPath, settings: DimensionTable) -> pa.Table:
    assert settings.csv is not None
    form = csv.ParseOptions(delimiter=settings.delimiter, newlines_in_values=True)
    try:
        with open(settings.csv, "rb") as file:
            _check_size(path, os.fstat(file.fileno()).st_size)
            data = pa.py_buffer(file.read(BYTES_MAX))
        names = csv.open_csv(pa.BufferReader(data), parse_options=form).schema.names
        # Text at first: a type found out from the values would change with them, and the sink's column has one.
        text = csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        table = csv.read_csv(pa.BufferReader(data), parse_options=form, convert_options=text)
    except OSError as error:
        raise PipelineError(path, f"{settings.csv} cannot be read: {error.strerror or error}") from None
    except pa.ArrowException as error:
        raise PipelineError(path, f"{settings.csv} is no table with names in its first line: {_short(error)}") from None
    for column, type_ in (settings.columns or {}).items():
        if column not in table.column_names:
            has = ", ".join(table.column_names)
            raise PipelineError((*path[:2], "columns", column), f"{settings.csv} has no such column. It has {has}")
        values = _typed((*path[:2], "columns", column), field_type(type_), table.column(column))
        table = table.set_column(table.column_names.index(column), column, values)
    return table


def _typed(path: KeyPath, kind: FieldType, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts as values of a type.

    Raises:
        PipelineError: one has another form.
    """
    try:
        return _converted(kind, texts)
    except ValueError:
        for row, text in enumerate(texts, 1):
            try:
                _converted(kind, pa.chunked_array([pa.array([text.as_py()], pa.string())]))
            except ValueError:
                value = _short(repr(text.as_py()))
                raise PipelineError(path, f"row {row} has {value}, which is no {kind}. Correct it there") from None
        raise


def _converted(kind: FieldType, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    if kind.name != "timestamp":
        return pc.cast(texts, arrow_type(kind))
    moments = (None if text is None else in_utc(datetime.fromisoformat(text.strip())) for text in texts.to_pylist())
    return pa.chunked_array([pa.array(moments, arrow_type(kind))])


def _of_delta(path: KeyPath, uri: str) -> pa.Table:
    try:
        where, options = place_of(uri, {}).location()
        if not DeltaTable.is_deltatable(where, options or None):
            raise PipelineError(path, f"{uri} is no Delta table. Correct the path")
        table = DeltaTable(where, storage_options=options or None)
        sizes = pa.table(table.get_add_actions(flatten=True)).column("size_bytes")
        _check_size(path, pc.sum(sizes).as_py() or 0)
        return table.to_pyarrow_table()
    except (DeltaError, SinkError, OSError, ValueError, pa.ArrowException) as error:
        if isinstance(error, PipelineError):
            raise
        raise PipelineError(path, f"{uri} cannot be read as a Delta table: {_short(cause_of(error))}") from None


def _check_size(path: KeyPath, size: int) -> None:
    if size > BYTES_MAX:
        raise PipelineError(
            path,
            f"has {size >> 20} MiB, and the driver reads at most {BYTES_MAX >> 20} MiB for each micro-batch. Make a "
            "smaller table of the rows and columns that the steps need",
        )


def _short(error: object) -> str:
    """Return a text as one line of bounded length."""
    line = " ".join(str(error).split()).rstrip(".")
    return line if len(line) <= _SENTENCE_CHARACTERS_MAX else f"{line[:_SENTENCE_CHARACTERS_MAX]}..."
