"""Values of fields: checks that they fit a type, and arrays of fitting values."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from types import NoneType
from typing import Any

import pyarrow as pa

from spark_sinks.payloads.misfits import Misfit, expected
from weft.config.payload_schema.types import DECIMAL_DIGITS_MAX, TIME_UNITS, FieldType

TIMESTAMP = pa.timestamp("us", tz="UTC")
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1
BASE64 = "base64"
"""Name of the type ``binary`` in JSON, which has no bytes: they are text in base64."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIME_MIN = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_TIME_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""Times that Spark and Python can both show: the years 1 to 9999."""
_SIMPLE = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    BASE64: pa.binary(),
    "timestamp": TIMESTAMP,
}
_CONTEXT = Context(prec=DECIMAL_DIGITS_MAX)
_WHOLE = frozenset({int, NoneType})
Fit = Callable[[Any], Any]


def arrow_type(kind: FieldType) -> pa.DataType:
    """Return the Arrow type of a column, as Spark accepts it."""
    if kind.item is not None:
        return pa.list_(arrow_type(kind.item))
    return pa.decimal128(kind.digits, kind.scale) if kind.name == "decimal" else _SIMPLE[kind.name]


def in_json(kind: FieldType) -> FieldType:
    """Return the type of the values in JSON."""
    if kind.item is not None:
        return kind._replace(item=in_json(kind.item))
    return kind._replace(name=BASE64) if kind.name == "binary" else kind


def fit(kind: FieldType, value: Any) -> Any:
    """Return a value that is not null in the form for ``array_of``.

    Raises:
        Misfit: it does not fit the type.
    """
    return _FITS[kind.name](kind, value)


def _bool(kind: FieldType, value: Any) -> bool:
    if type(value) is not bool:
        raise expected(kind, value)
    return value


def _int(kind: FieldType, value: Any) -> int:
    number = value
    if type(value) is Decimal:
        number = float(value)
    if type(number) is float and number.is_integer():
        number = int(number)
    if type(number) is not int or not INT_MIN <= number <= INT_MAX:
        raise expected(kind, value)
    return number


def _float(kind: FieldType, value: Any) -> float:
    if type(value) is float:
        return value  # also NaN and infinity, which CBOR and MessagePack have
    if type(value) is int or type(value) is Decimal:
        try:
            number = float(value)
        except OverflowError:
            raise expected(kind, value) from None
        if abs(number) != float("inf"):
            return number
    raise expected(kind, value)


def _string(kind: FieldType, value: Any) -> str:
    if type(value) is not str:
        raise expected(kind, value)
    return value


def _binary(kind: FieldType, value: Any) -> bytes:
    if type(value) is bytes:
        return value
    raise expected(kind, value)


def _base64(kind: FieldType, value: Any) -> bytes:
    # RFC 4648 section 4, with padding.
    if type(value) is str:
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            pass
    raise expected(kind, value)


def _decimal(kind: FieldType, value: Any) -> Decimal:
    number = value
    try:
        if type(value) is str or type(value) is int:
            number = Decimal(value)
        elif type(value) is float:
            number = Decimal(
                repr(value)
            )  # the shortest text of this float, most likely the digits that the device sent
    except (InvalidOperation, ValueError):
        raise expected(kind, value) from None
    if type(number) is not Decimal or not number.is_finite() or not _has_room(kind, number):
        raise expected(kind, value)
    return number.quantize(Decimal(1).scaleb(-kind.scale), context=_CONTEXT)


def _has_room(kind: FieldType, number: Decimal) -> bool:
    """Return whether the digits fit without rounding. Zeros at the end do not count: 1.50 is 1.5."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    significant = len(digits)
    while significant and digits[significant - 1] == 0:
        significant -= 1
    if not significant:
        return True
    exponent += len(digits) - significant
    return -exponent <= kind.scale and significant + exponent <= kind.digits - kind.scale


def microseconds(kind: FieldType, value: Any) -> int:
    """Return the microseconds since 1970 of a time, rounded down; a float, whose fraction is binary, to the nearest.

    Raises:
        Misfit: it is not a time of the years 1 to 9999.
    """
    found: int | None = None
    try:
        if type(value) is datetime:  # the timestamps of MessagePack
            found = (value - _EPOCH) // _MICROSECOND
        elif kind.unit is None:
            if type(value) is str:
                found = (_in_utc(datetime.fromisoformat(value)) - _EPOCH) // _MICROSECOND
        elif type(value) is int:
            found = value * TIME_UNITS[kind.unit] // 1000
        elif type(value) is float or type(value) is Decimal:
            found = round(float(value) * TIME_UNITS[kind.unit] / 1000)
    except (ValueError, OverflowError):
        pass
    if found is None or not _TIME_MIN <= found <= _TIME_MAX:
        raise expected(kind, value)
    return found


def _in_utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def _time(kind: FieldType, value: Any) -> Any:
    microseconds(kind, value)
    return value


def _array(kind: FieldType, value: Any) -> list[Any]:
    if type(value) is not list:
        raise expected(kind, value)
    assert kind.item is not None
    return [each if each is None else _element(kind.item, index, each) for index, each in enumerate(value)]


def _element(kind: FieldType, index: int, value: Any) -> Any:
    try:
        return fit(kind, value)
    except Misfit as misfit:
        raise Misfit(f"[{index}]: {misfit}") from None


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
        return [each if each is None else _decimal(kind, each) for each in values]
    # Arrow cuts 1.5 to 1 where the column is of integers.
    if kind.name == "int" and not _WHOLE.issuperset(map(type, values)):
        return [each if each is None else _int(kind, each) for each in values]
    return values


_FITS: dict[str, Callable[[FieldType, Any], Any]] = {
    "bool": _bool,
    "int": _int,
    "float": _float,
    "string": _string,
    "binary": _binary,
    BASE64: _base64,
    "timestamp": _time,
    "decimal": _decimal,
    "array": _array,
}
