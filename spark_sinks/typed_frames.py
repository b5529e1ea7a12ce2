"""Typed columns of a DataFrame that has payloads: table files read by Spark itself, or a frame of one's own."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from weft.config.payload_schema.model import PayloadSchema
from weft.config.pipelines.schema_text import schema_text
from weft.storage.payloads.decoder import decoder_of, typed_fields
from weft.storage.table.payload_columns import BYTES_COLUMN

_TYPED = "_typed"


def with_typed_columns(frame: DataFrame, schema: PayloadSchema, columns: Sequence[str]) -> DataFrame:
    """Return a DataFrame with some of the typed columns of a schema behind its own.

    One function of Arrow arrays makes them all. Spark passes it only the payloads, pushes filters of other columns
    below it, and omits it if no typed column is used.

    Args:
        frame: has ``payload``, and ``_payload_bytes`` where payloads are text.
        columns: names of typed columns, a subset of those of ``typed_fields``.
    """
    fields = [field for field in typed_fields(schema) if field.name in columns]
    if not fields:
        return frame
    payload = F.col("payload").cast("binary")
    if BYTES_COLUMN in frame.columns:
        payload = F.coalesce(payload, F.col(BYTES_COLUMN))
    typed = frame.withColumn(_TYPED, _decoded(payload, schema_text(schema), fields))
    return typed.select(*frame.columns, *(F.col(f"{_TYPED}.`{field.name}`") for field in fields))


def _decoded(payload: Column, schema: str, fields: list[pa.Field]) -> Column:
    names = tuple(field.name for field in fields)

    def decode(payloads: pa.Array) -> pa.Array:
        made = decoder_of(schema, names).columns(payloads.fill_null(b""))
        return pa.StructArray.from_arrays([made[name] for name in names], fields=fields)

    return F.arrow_udf(decode, from_arrow_schema(pa.schema(fields)))(payload)
