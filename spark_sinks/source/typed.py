"""Typed columns of a read: the option ``schema``, and its columns after those of the stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from spark_sinks.errors import ReadError
from weft.config.errors import ConfigError
from weft.config.load import parse_schema
from weft.config.payload_schema.model import PayloadSchema
from weft.storage.payloads.decoder import MISFIT_COLUMN, decoder_of, typed_fields
from weft.storage.table.rows import BYTES_COLUMN
from weft.storage.table.typed_columns import OWN_COLUMNS, SCHEMA_COLUMN, comment_of

FORMATS = ("json", "cbor", "msgpack")
NONE = "none"
"""Schema of a read without typed columns."""
VERSION_FIELD = next(field for field in OWN_COLUMNS if field.name == SCHEMA_COLUMN)


def declared(
    schema: PayloadSchema | str | Mapping[str, Any] | None, payload_format: str | None = None
) -> PayloadSchema | None:
    """Return the schema that an option or argument declares.

    Raises:
        ReadError: it is not a schema, or there is a format without a schema.
    """
    if payload_format is not None and payload_format not in FORMATS:
        raise ReadError(f"payload_format: expected {', '.join(FORMATS)}; got {payload_format!r}")
    if schema is None and payload_format is not None:
        raise ReadError("payload_format: there is no schema; give its columns with the option schema")
    if schema is None or isinstance(schema, PayloadSchema):
        return schema
    if not isinstance(schema, str | Mapping):
        raise ReadError(
            f"schema: expected a text such as 'temperature float, unit string', or a mapping; got {schema!r}"
        )
    try:
        return parse_schema(schema, payload_format=payload_format)
    except ConfigError as error:
        raise ReadError(str(error)) from None


def is_none(schema: object) -> bool:
    """Return whether an option or argument says that there are no typed columns, also none of a declared schema."""
    return isinstance(schema, str) and schema.strip().lower() == NONE


def with_typed(stored: pa.Schema, schema: PayloadSchema | None, version: int | None = None) -> pa.Schema:
    """Return a stream's columns, followed by the typed ones.

    Args:
        version: that of a declared schema, which has the column ``_schema``, too, at its place in tables.

    Raises:
        ReadError: a field has the name of a topic level.
    """
    if schema is None:
        return stored
    levels = {name.casefold(): name for name in stored.names}
    for name in schema.fields:
        if name.casefold() in levels:
            raise ReadError(
                f"schema: fields.{name}: the stream has a topic level {levels[name.casefold()]}. Name the field "
                f"otherwise, for example `{name}_value`, and set `from: {name}`"
            )
    *fields, misfit = typed_fields(schema)
    return pa.schema([*stored, *fields, *([] if version is None else [VERSION_FIELD]), misfit])


def typed_names(schema: PayloadSchema | None) -> frozenset[str]:
    """Return the names of the typed columns."""
    return frozenset() if schema is None else frozenset({*schema.fields, MISFIT_COLUMN, SCHEMA_COLUMN})


def needed(schema: PayloadSchema | None, columns: list[str], stored: list[str]) -> list[str]:
    """Return the stored columns that a read of ``columns`` needs: those of the payload for typed ones."""
    typed = typed_names(schema)
    if typed.isdisjoint(columns):
        return columns
    payload = [name for name in ("payload", BYTES_COLUMN) if name in stored]
    return list(dict.fromkeys([*(name for name in columns if name not in typed), *payload]))


def typed_arrays(
    batch: pa.RecordBatch, schema: PayloadSchema | None, version: int | None, columns: list[str]
) -> dict[str, pa.Array]:
    """Return those of ``columns`` that are typed, for the rows of a batch."""
    typed = typed_names(schema)
    names = tuple(name for name in columns if name in typed)
    if schema is None or not names:
        return {}
    made = decoder_of(schema, names).columns(payload_bytes(batch))
    return made | {SCHEMA_COLUMN: pa.repeat(pa.scalar(version, pa.int64()), batch.num_rows)}


def payload_bytes(batch: pa.RecordBatch) -> pa.Array:
    """Return the payloads of a batch as they were sent, from whichever column has them."""
    payloads = batch.column("payload").cast(pa.binary())
    if BYTES_COLUMN in batch.schema.names:
        rest = batch.column(BYTES_COLUMN)
        payloads = payloads if rest.null_count == len(rest) else pc.coalesce(payloads, rest)
    return payloads


def commented(columns: StructType, schema: PayloadSchema | None) -> StructType:
    """Return Spark's columns with the units and descriptions of the typed ones as comments."""
    fields = schema.fields if schema is not None else {}
    return StructType([_commented(column, fields.get(column.name)) for column in columns])


def _commented(column: StructField, declared: Any) -> StructField:
    comment = comment_of(declared) if declared is not None else None
    if comment is None:
        return column
    return StructField(column.name, column.dataType, column.nullable, {"comment": comment})


# Typed columns of a DataFrame that has payloads: table files read by Spark itself, or a frame of one's own.

_TYPED = "_typed"


def with_typed_columns(
    frame: DataFrame, schema: PayloadSchema, version: int | None, columns: Sequence[str]
) -> DataFrame:
    """Return a DataFrame with some of the typed columns of a schema behind its own.

    One function of Arrow arrays makes them all. Spark passes it only the payloads, pushes filters of other columns
    below it, and omits it if no typed column is used.

    Args:
        frame: has ``payload``, and ``_payload_bytes`` where payloads are text.
        columns: names of typed columns, a subset of those of ``typed_fields``.
    """
    fields = [field for field in typed_fields(schema) if field.name in columns]
    if SCHEMA_COLUMN in columns:
        frame = frame.withColumn(SCHEMA_COLUMN, F.lit(version).cast("bigint"))
    if not fields:
        return frame
    payload = F.col("payload").cast("binary")
    if BYTES_COLUMN in frame.columns:
        payload = F.coalesce(payload, F.col(BYTES_COLUMN))
    typed = frame.withColumn(_TYPED, _decoded(payload, schema, fields))
    return typed.select(*frame.columns, *(F.col(f"{_TYPED}.`{field.name}`") for field in fields))


def _decoded(payload: Column, schema: PayloadSchema, fields: list[pa.Field]) -> Column:
    names = tuple(field.name for field in fields)

    def decode(payloads: pa.Array) -> pa.Array:
        made = decoder_of(schema, names).columns(payloads.fill_null(b""))
        return pa.StructArray.from_arrays([made[name] for name in names], fields=fields)

    return F.arrow_udf(decode, from_arrow_schema(pa.schema(fields)))(payload)
