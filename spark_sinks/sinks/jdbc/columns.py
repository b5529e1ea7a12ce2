"""Columns of a DataFrame on their way into PostgreSQL: their types in Spark, in the copied text and in the table."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_sinks.errors import SinkError

NAME_BYTES_MAX = 63
"""Longest identifier of PostgreSQL, which truncates longer ones silently: two columns could become one."""
EPOCH = "(to_timestamp({0} / 1000000) + mod({0}, 1000000) * interval '1 microsecond')"
"""A time of microseconds since 1970, exact: a double alone loses microseconds after the year 2255."""
_JSON_NUL = r"(?<!\\)((?:\\\\)*)\\u0000"
"""An escaped NUL in JSON text, with an even number of backslashes before it: after an odd number it is plain text."""
REPLACEMENT = "\ufffd"


class ColumnTypes(NamedTuple):
    """Types in PostgreSQL for one type of Spark."""

    copied: str
    """Type of the column for COPY."""
    stored: str
    """Type of the column in a table that the sink makes."""
    value: str = "{0}"
    """SQL that converts the copied value to the stored one."""


class StagedColumn(NamedTuple):
    """A column of a batch."""

    name: str
    kind: ColumnTypes


_KINDS: dict[type[T.DataType], ColumnTypes] = {
    T.BooleanType: ColumnTypes("boolean", "boolean"),
    T.ByteType: ColumnTypes("smallint", "smallint"),
    T.ShortType: ColumnTypes("smallint", "smallint"),
    T.IntegerType: ColumnTypes("integer", "integer"),
    T.LongType: ColumnTypes("bigint", "bigint"),
    T.FloatType: ColumnTypes("real", "real"),
    T.DoubleType: ColumnTypes("double precision", "double precision"),
    T.StringType: ColumnTypes("text", "text"),
    T.VarcharType: ColumnTypes("text", "text"),
    T.CharType: ColumnTypes("text", "text"),
    T.BinaryType: ColumnTypes("bytea", "bytea"),
    T.DateType: ColumnTypes("integer", "date", "(date '1970-01-01' + {0})"),
    T.TimestampType: ColumnTypes("bigint", "timestamptz", EPOCH),
    T.TimestampNTZType: ColumnTypes("timestamp", "timestamp"),
    T.ArrayType: ColumnTypes("jsonb", "jsonb"),
    T.MapType: ColumnTypes("jsonb", "jsonb"),
    T.StructType: ColumnTypes("jsonb", "jsonb"),
}


def columns_of(schema: T.StructType) -> list[StagedColumn]:
    """Return the columns of a batch in their order.

    Raises:
        SinkError: a column has a type without a counterpart in PostgreSQL, or a name that is too long.
    """
    return [StagedColumn(_checked(field.name), _kind(field)) for field in schema.fields]


def _checked(name: str) -> str:
    if len(name.encode()) > NAME_BYTES_MAX or "\0" in name or not name:
        raise SinkError(f"column {name!r}: PostgreSQL takes names of 1 to {NAME_BYTES_MAX} bytes; rename it with alias")
    return name


def _kind(field: T.StructField) -> ColumnTypes:
    if isinstance(field.dataType, T.DecimalType):
        typed = f"numeric({field.dataType.precision}, {field.dataType.scale})"
        return ColumnTypes(typed, typed)
    kind = _KINDS.get(type(field.dataType))
    if kind is None:
        raise SinkError(
            f"column {field.name}: the type {field.dataType.simpleString()} cannot be written; cast it to another"
        )
    return kind


def as_copied(frame: DataFrame) -> DataFrame:
    """Return the frame's columns as strings, numbers and booleans, which CSV can hold without loss.

    PostgreSQL's text and jsonb cannot hold a NUL character, and a device may send one: U+FFFD replaces it, so that such
    a row does not stop the query.
    """
    return frame.select(*(_copied(field).alias(field.name) for field in frame.schema.fields))


def _copied(field: T.StructField) -> Column:
    column, kind = F.col(f"`{field.name.replace('`', '``')}`"), field.dataType
    if isinstance(kind, T.StringType | T.VarcharType | T.CharType):
        return F.translate(column, "\0", REPLACEMENT)
    if isinstance(kind, T.BinaryType):
        return F.concat(F.lit("\\x"), F.hex(column))
    if isinstance(kind, T.DateType):
        return F.unix_date(column)
    if isinstance(kind, T.TimestampType):
        return F.unix_micros(column)
    if isinstance(kind, T.DecimalType | T.TimestampNTZType):
        return column.cast("string")
    if isinstance(kind, T.ArrayType | T.MapType | T.StructType):
        return F.regexp_replace(F.to_json(column), _JSON_NUL, "$1" + REPLACEMENT)
    return column
