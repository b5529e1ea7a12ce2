"""Conversion of values of both versions of AMQP to headers of records, and back with their types.

A record's header has text, bytes, integers of 64 signed bits, floats of 64 bits, booleans and nil. A value of another
type is stored as the nearest of these, and the header ``amqp.types`` keeps the types as a JSON object of header names
and kinds. docs/reference/message-headers.md has the list of kinds.

Values are Python's. Types that Python does not distinguish are classes of this module, subclasses of the number or
text.
"""

from __future__ import annotations

import base64
import calendar
import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple
from uuid import UUID

from weft.protocols.batch import HeaderPairs, HeaderValue

# Decimal numbers of AMQP 1.0: IEEE 754-2008 in binary integer decimal encoding (part 1, sections 1.6.13 to 1.6.15).


class _Form(NamedTuple):
    width: int
    """Bytes."""
    exponent_bits: int
    coefficient_bits: int
    bias: int
    digits: int


_FORMS: Final = {0x74: _Form(4, 8, 23, 101, 7), 0x84: _Form(8, 10, 53, 398, 16), 0x94: _Form(16, 14, 113, 6176, 34)}
"""Type code -> form."""
DECIMAL64: Final = 0x84


def read_decimal(code: int, data: bytes) -> Decimal | None:
    """Return the number; None for infinities and NaN, and for an encoding that ``write_decimal`` would not choose."""
    form = _FORMS[code]
    bits = 8 * form.width - 1
    encoded = int.from_bytes(data, "big")
    sign, rest = encoded >> bits, encoded & ((1 << bits) - 1)
    if rest >> (bits - 4) == 0b1111:
        return None  # infinity or not a number
    if rest >> (bits - 2) == 0b11:  # a coefficient whose first bits are 100
        shift = form.coefficient_bits - 2
        exponent = rest >> shift & ((1 << form.exponent_bits) - 1)
        coefficient = 0b100 << shift | rest & ((1 << shift) - 1)
    else:
        exponent = rest >> form.coefficient_bits
        coefficient = rest & ((1 << form.coefficient_bits) - 1)
    if coefficient >= 10**form.digits:
        return None  # stands for zero
    return Decimal((sign, tuple(map(int, str(coefficient))), exponent - form.bias))


def write_decimal(code: int, value: Decimal) -> bytes | None:
    """Return the encoded number; None if the form has no room for it."""
    form = _FORMS[code]
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return None
    coefficient, biased = int("".join(map(str, digits))), exponent + form.bias
    if coefficient >= 10**form.digits or not 0 <= biased < 3 << (form.exponent_bits - 2):
        return None
    bits = 8 * form.width - 1
    if coefficient < 1 << form.coefficient_bits:
        rest = biased << form.coefficient_bits | coefficient
    else:
        shift = form.coefficient_bits - 2
        rest = 0b11 << (bits - 2) | biased << shift | coefficient & ((1 << shift) - 1)
    return (sign << bits | rest).to_bytes(form.width, "big")


TYPES: Final = "amqp.types"
"""Header with the types of the headers whose type is none of a record's."""
TABLE: Final = "F"
ARRAY: Final = "A"
_YEAR_10_000: Final = 253_402_300_800
_YEAR_0: Final = -62_167_219_200
_DATE: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{3}))?Z", re.ASCII)
_SECONDS: Final = re.compile(r"(-?\d{1,20})(?:\.(\d{3}))?", re.ASCII)
_INT64: Final = range(-(1 << 63), 1 << 63)
"""To be tested only with an ``int``: for a subclass, Python would compare with every number of the range."""

Kind = Any
"""Type of a value beyond its header's type: a word; for a table an object and for an array a list of its values' kinds;
None for none."""


class Int8(int):
    """Integer of 8 bits."""

    __slots__ = ()


class UInt8(int):
    """Integer of 8 unsigned bits."""

    __slots__ = ()


class Int16(int):
    """Integer of 16 bits."""

    __slots__ = ()


class UInt16(int):
    """Integer of 16 unsigned bits."""

    __slots__ = ()


class Int32(int):
    """Integer of 32 bits, in a version where this is not the default."""

    __slots__ = ()


class UInt32(int):
    """Integer of 32 unsigned bits."""

    __slots__ = ()


class Int64(int):
    """Integer of 64 bits, although fewer would be enough."""

    __slots__ = ()


class UInt64(int):
    """Integer of 64 unsigned bits."""

    __slots__ = ()


class Float32(float):
    """Float of 32 bits."""

    __slots__ = ()


class Symbol(str):
    """Text of a symbol: ASCII names that a specification gives."""

    __slots__ = ()


class Char(str):
    """One character of Unicode."""

    __slots__ = ()


class Timestamp(int):
    """Seconds since 1970."""

    __slots__ = ()


class Milliseconds(int):
    """Time in milliseconds since 1970."""

    __slots__ = ()


class Opaque(NamedTuple):
    """A decimal number of AMQP 1.0, as it was encoded."""

    code: int
    data: bytes

    def __str__(self) -> str:
        number = read_decimal(self.code, self.data)
        return self.data.hex() if number is None else str(number)


class Encoded(bytes):
    """A value in the encoding of AMQP 1.0 that has no other form: an array, or a value with a descriptor."""

    __slots__ = ()


_SCALARS: Final[Mapping[type, tuple[str, type]]] = {
    Int8: ("b", int),
    UInt8: ("B", int),
    Int16: ("s", int),
    UInt16: ("u", int),
    Int32: ("I", int),
    UInt32: ("i", int),
    Int64: ("l", int),
    UInt64: ("ulong", int),
    Float32: ("f", float),
    Symbol: ("symbol", str),
    Char: ("char", str),
    UUID: ("uuid", str),
    Encoded: ("encoded", bytes),
}
"""Class -> kind, and type of its header."""
_OF_KIND: Final[Mapping[str, type]] = {kind: cls for cls, (kind, _) in _SCALARS.items()}
_DECIMALS: Final = {0x74: "decimal32", 0x84: "decimal64", 0x94: "decimal128"}
_DECIMAL_CODES: Final = {kind: code for code, kind in _DECIMALS.items()}


def as_header(value: Any) -> tuple[HeaderValue, Kind]:
    """Return a value for a header, and its kind; None for a value of a header's own types."""
    if value is None or type(value) in (str, bytes, bool, float):
        return value, None
    found = _SCALARS.get(type(value))
    if found is not None:
        kind, plain = found
        if plain is int and int(value) not in _INT64:
            return str(int(value)), kind
        return plain(value), kind
    if isinstance(value, Decimal):
        return str(value), "D"
    if isinstance(value, Timestamp | Milliseconds):
        return _time_text(value), "T"
    if isinstance(value, Opaque):
        number = read_decimal(value.code, value.data)
        return (value.data if number is None else str(number)), _DECIMALS[value.code]
    if isinstance(value, dict | list):
        plain_value, kind = _to_json(value)
        return json.dumps(plain_value, ensure_ascii=False, separators=(",", ":")), kind
    if isinstance(value, int):
        return (int(value) if int(value) in _INT64 else str(int(value))), None
    return str(value), None


def from_header(value: HeaderValue, kind: Kind) -> Any:
    """Return the original value of ``as_header``; the header's own if its kind does not fit it."""
    if kind is None:
        return value
    try:
        if isinstance(kind, dict | list) or kind in (TABLE, ARRAY):
            return _from_json(json.loads(value), kind) if isinstance(value, str) else value
        return _scalar(value, kind)
    except (ValueError, TypeError, InvalidOperation, RecursionError, OverflowError):
        return value


def kinds_of(headers: HeaderPairs) -> Mapping[str, Kind]:
    """Return the kinds of a record's headers by name."""
    for name, value in headers:
        if name == TYPES and isinstance(value, str):
            try:
                found = json.loads(value)
            except (ValueError, RecursionError):
                return {}
            return found if isinstance(found, dict) else {}
    return {}


def kinds_header(kinds: Mapping[str, Kind]) -> HeaderPairs:
    """Return the header for kinds, if there are any."""
    if not kinds:
        return ()
    return ((TYPES, json.dumps(kinds, ensure_ascii=False, separators=(",", ":"))),)


def _scalar(value: Any, kind: str) -> Any:
    if kind == "T":
        return _time_of(value)
    if kind == "D":
        return Decimal(value)
    if kind in _DECIMAL_CODES:
        code = _DECIMAL_CODES[kind]
        data = value if isinstance(value, bytes) else write_decimal(code, Decimal(value))
        return value if data is None else Opaque(code, data)
    cls = _OF_KIND.get(kind)
    # A function may have replaced the header's value by one that does not fit the publisher's type.
    is_text_of_int = kind == "ulong" and type(value) is str
    if cls is None or (type(value) is not _SCALARS[cls][1] and not is_text_of_int) or not _fits(value, kind):
        return value
    return cls(value)


def _fits(value: Any, kind: str) -> bool:
    if kind in _RANGES:
        return int(value) in _RANGES[kind]
    if kind == "f":
        return not math.isfinite(value) or abs(value) <= _FLOAT32_MAX
    if kind == "symbol":
        return str(value).isascii()
    return kind != "char" or len(value) == 1


_FLOAT32_MAX: Final = (2 - 2.0**-23) * 2.0**127
_RANGES: Final[Mapping[str, range]] = {
    "b": range(-(1 << 7), 1 << 7),
    "B": range(1 << 8),
    "s": range(-(1 << 15), 1 << 15),
    "u": range(1 << 16),
    "I": range(-(1 << 31), 1 << 31),
    "i": range(1 << 32),
    "l": _INT64,
    "ulong": range(1 << 64),
}


# --- times


def _time_text(value: Timestamp | Milliseconds) -> str:
    """Return a time in the form of RFC 3339; for years that it lacks, seconds since 1970."""
    seconds, rest = (int(value), 0) if isinstance(value, Timestamp) else divmod(int(value), 1000)
    fraction = f".{rest:03}" if rest else ""
    return f"{_date(seconds)}{fraction}Z" if _YEAR_0 <= seconds < _YEAR_10_000 else f"{seconds}{fraction}"


def _date(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    # Years of 365.2425 days that begin in March, so that the leap day is the last one, counted in eras of 400 years.
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5 - 1
    month += 3 if month < 10 else -9
    year += era * 400 + (month <= 2)
    return f"{year:04}-{month:02}-{day:02}T{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def _time_of(value: Any) -> Timestamp | Milliseconds:
    """Return the time that ``_time_text`` wrote, or seconds. Raises ``ValueError`` for anything else."""
    if isinstance(value, int):
        return Timestamp(value)
    match = _DATE.fullmatch(value)
    if match is not None:
        year, month, day, hour, minute, second = map(int, match.groups()[:6])
        # The module `calendar` has neither year 0 nor 10,000; days repeat every four hundred years.
        early = year < 400
        seconds = calendar.timegm((year + 400 * early, month, day, hour, minute, second)) - 146_097 * 86_400 * early
        fraction = match[7]
    else:
        match = _SECONDS.fullmatch(value)
        if match is None:
            raise ValueError(value)
        seconds, fraction = int(match[1]), match[2]
    return Timestamp(seconds) if fraction is None else Milliseconds(1000 * seconds + int(fraction))


# --- tables and arrays


def _to_json(value: Any) -> tuple[Any, Kind]:
    """Return a value for JSON, and its kind."""
    if isinstance(value, dict):
        pairs = {name: _to_json(each) for name, each in value.items()}
        table = {name: each for name, (each, _) in pairs.items()}
        kinds = {name: kind for name, (_, kind) in pairs.items() if kind not in (None, TABLE, ARRAY)}
        only = next(iter(table)) if len(table) == 1 else ""
        return ({f"${only}": table[only]} if only.startswith("$") else table), kinds or TABLE
    if isinstance(value, list):
        each_of = [_to_json(each) for each in value]
        has_kinds = any(kind not in (None, TABLE, ARRAY) for _, kind in each_of)
        return [each for each, _ in each_of], ([kind for _, kind in each_of] if has_kinds else ARRAY)
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}, None
    if isinstance(value, Timestamp):
        return {"$timestamp": int(value)}, None
    if isinstance(value, Milliseconds):
        return {"$timestamp": _time_text(value)}, None
    plain, kind = as_header(value)
    if isinstance(plain, bytes):
        return {"$bytes": base64.b64encode(plain).decode()}, kind
    if isinstance(plain, float) and not math.isfinite(plain):
        return {"$float": repr(plain)}, kind
    return plain, kind


_TAGS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "$bytes": base64.b64decode,
    "$decimal": Decimal,
    "$timestamp": _time_of,
    "$float": float,
}


def _from_json(value: Any, kind: Kind) -> Any:
    if isinstance(value, list):
        kinds = kind if isinstance(kind, list) and len(kind) == len(value) else [None] * len(value)
        return [_from_json(each, own) for each, own in zip(value, kinds, strict=True)]
    if not isinstance(value, dict):
        return value if kind is None else _scalar(value, kind)
    own_kinds: dict[str, Kind] = kind if isinstance(kind, dict) else {}
    if len(value) == 1:
        ((name, only),) = value.items()
        if name in _TAGS:
            plain = _TAGS[name](only)
            return plain if kind is None else _scalar(plain, kind)
        if name.startswith("$$"):
            return {name[1:]: _from_json(only, own_kinds.get(name[1:]))}
    return {name: _from_json(each, own_kinds.get(name)) for name, each in value.items()}
