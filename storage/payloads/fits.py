"""Checks that values of payloads fit the types of their fields, without Arrow: edges check payloads, too."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from functools import lru_cache
from types import NoneType
from typing import Any

from weft.config.payload_schema.types import DECIMAL_DIGITS_MAX, TIME_UNITS, FieldType
from weft.storage.payloads.misfits import Misfit, expected

INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1
BASE64 = "base64"
"""Name of the type ``binary`` in JSON, which has no bytes: they are text in base64."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIME_MIN = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_TIME_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""Times that Spark and Python can both show: the years 1 to 9999."""
_CONTEXT = Context(prec=DECIMAL_DIGITS_MAX, traps=[Inexact, InvalidOperation])
EXACT_MAX = 1 << 53
"""Number below which a float of 64 bits is whole only if the number was: larger ones may have been rounded to it."""
_NOT_A_NUMBER = Decimal("NaN")
_WHOLE = frozenset({int, NoneType})
_DECIMALS = frozenset({Decimal, NoneType})
_NOTHING = frozenset({NoneType})
_AS_THEY_ARE: dict[str, frozenset[type[Any]]] = {
    "bool": frozenset({bool, NoneType}),
    "float": frozenset({float, NoneType}),
    "string": frozenset({str, NoneType}),
    "binary": frozenset({bytes, NoneType}),
}
"""Type of items -> classes of items that fit as they are."""


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


def int_of(kind: FieldType, value: Any) -> int:
    """Return a whole number, which may be written 1.0.

    Raises:
        Misfit: it is none of 64 bits.
    """
    number = value
    if type(value) is Decimal:
        number = float(value)
        if abs(number) >= EXACT_MAX:  # by its digits: as a float, 9007199254740993.5 would be a whole number
            is_whole = INT_MIN <= value <= INT_MAX and value == value.to_integral_value()
            number = int(value) if is_whole else None
    # Beyond, each float is a whole number, whatever was rounded to it. Of JSON, the exact way has the digits.
    if type(number) is float and number.is_integer() and abs(number) < EXACT_MAX:
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


def decimal_of(kind: FieldType, value: Any) -> Decimal:
    """Return a number that has room in a type of so many digits.

    Raises:
        Misfit: it has none, or is no number.
    """
    exponent, limit, whole_limit = _room(kind.digits, kind.scale)
    if type(value) is int:
        if -whole_limit < value < whole_limit:
            return Decimal(value)
        raise expected(kind, value)
    number = value
    try:
        if type(value) is str:
            number = Decimal(value)
        elif type(value) is float:
            # The shortest text of this float, most likely the digits that the device sent.
            number = Decimal(repr(value))
        # Signals where it would have to round.
        found: Decimal = number.quantize(exponent, context=_CONTEXT) if type(number) is Decimal else _NOT_A_NUMBER
    except (DecimalException, ValueError):
        raise expected(kind, value) from None
    if not found.is_finite() or not -limit < found < limit:
        raise expected(kind, value)
    return found


@lru_cache(maxsize=64)
def _room(digits: int, scale: int) -> tuple[Decimal, Decimal, int]:
    """Return the exponent of a type's numbers, and the least number that is too large for it, also as an integer."""
    limit = 10 ** (digits - scale)
    return Decimal(1).scaleb(-scale), Decimal(limit), limit


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
    types = set(map(type, value))
    # Looked at in C: an array may have tens of thousands of items.
    if types <= _AS_THEY_ARE.get(kind.item.name, _NOTHING):
        return value
    if kind.item.name in {"int", "decimal"} and types <= _WHOLE:
        numbers = value if NoneType not in types else [each for each in value if each is not None]
        least, most = _whole_limits(kind.item)
        if not numbers or (min(numbers) >= least and max(numbers) <= most):
            return value
    if kind.item.name == "decimal" and types <= _DECIMALS:
        return _decimals(kind.item, value)
    return [each if each is None else _element(kind.item, index, each) for index, each in enumerate(value)]


def _whole_limits(kind: FieldType) -> tuple[int, int]:
    """Return the least and the largest whole number of a type."""
    if kind.name == "int":
        return INT_MIN, INT_MAX
    most = _room(kind.digits, kind.scale)[2] - 1
    return -most, most


def _decimals(kind: FieldType, value: list[Any]) -> list[Any]:
    """Return numbers that have room in a type of so many digits, each as ``decimal_of`` does.

    Raises:
        Misfit: one of them has none.
    """
    exponent, limit, _ = _room(kind.digits, kind.scale)
    found: list[Any] = []
    try:
        for each in value:
            found.append(None if each is None else each.quantize(exponent, None, _CONTEXT))
        numbers = [each for each in found if each is not None]
        if numbers and not (min(numbers) > -limit and max(numbers) < limit):
            found = found[: next(at for at, each in enumerate(found) if each is not None and not -limit < each < limit)]
    except DecimalException:
        if len(found) == len(value):  # comparisons with NaN signal
            found = found[: next(at for at, each in enumerate(found) if each is not None and each.is_nan())]
    rest = range(len(found), len(value))
    return found + [None if value[at] is None else _element(kind, at, value[at]) for at in rest]


def _element(kind: FieldType, index: int, value: Any) -> Any:
    try:
        return fit(kind, value)
    except Misfit as misfit:
        raise Misfit(f"[{index}]: {misfit}") from None


_FITS: dict[str, Callable[[FieldType, Any], Any]] = {
    "bool": _bool,
    "int": int_of,
    "float": _float,
    "string": _string,
    "binary": _binary,
    BASE64: _base64,
    "timestamp": _time,
    "decimal": decimal_of,
    "array": _array,
}
