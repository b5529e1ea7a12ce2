"""Arrays of values that fit their fields."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Any

import pyarrow as pa

from weft.config.payload_schema.types import FieldType
from weft.storage.payloads.fits import BASE64, decimal_of, int_of, microseconds
from weft.storage.payloads.misfits import Misfit

TIMESTAMP = pa.timestamp("us", tz="UTC")
_SIMPLE = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    BASE64: pa.binary(),
    "timestamp": TIMESTAMP,
}
_WHOLE = frozenset({int, NoneType})


def arrow_type(kind: FieldType) -> pa.DataType:
    """Return the Arrow type of a column, as Spark accepts it."""
    if kind.item is not None:
        return pa.list_(arrow_type(kind.item))
    return pa.decimal128(kind.digits, kind.scale) if kind.name == "decimal" else _SIMPLE[kind.name]


def array_of(kind: FieldType, values: Sequence[Any]) -> pa.Array:
    """Return the column of values that fit, or are null.

    Raises:
        Misfit: one of them does not fit after all; ``fit`` finds out which one.
    """
    try:
        return pa.array(_plain(kind, values), arrow_type(kind))
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise Misfit(str(error)) from None


def _plain(kind: FieldType, values: Sequence[Any]) -> Sequence[Any]:
    """Return values that Arrow converts without changing them."""
    if kind.item is not None:
        item = kind.item
        if item.name in ("int", "timestamp", "decimal"):
            return [each if each is None else _plain(item, each) for each in values]
        return values
    if kind.name == "timestamp":
        return [each if each is None else microseconds(kind, each) for each in values]
    if kind.name == "decimal":
        return [each if each is None else decimal_of(kind, each) for each in values]
    # Arrow cuts 1.5 to 1 where the column is of integers.
    if kind.name == "int" and not _WHOLE.issuperset(map(type, values)):
        return [each if each is None else int_of(kind, each) for each in values]
    return values
