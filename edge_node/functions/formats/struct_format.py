"""Payloads that are a row of bytes with fields at fixed places, from small devices and PLCs."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from weft.config.functions.formats import StructField
from weft.edge_node.functions.contract import Values
from weft.edge_node.functions.payloads import PayloadError

STRUCT_BYTES_MAX = 64 << 10
"""Longest payload of this format."""
EXACT = 1 << 50
"""Largest ratio of a number to its step at which scaling in doubles, forth and back, gives the same integer."""

_CODES = {
    "bool": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "f16": "e", "f32": "f", "f64": "d",
}  # fmt: skip
_LENGTH = re.compile(r"(text|bytes|skip)\[(\d+)\]")


class _Field(NamedTuple):
    name: str
    kind: Literal["bool", "integer", "float", "text", "bytes"]
    size: int
    is_scaled: bool
    scale: float
    offset: float


class StructFormat:
    """Consecutive fields without padding. The payload has exactly their bytes.

    An integer with a scale or an offset becomes a float, and back the same integer. Lists of readings in one payload
    are not supported: such payloads can be decoded by a ``python`` function.
    """

    def __init__(self, byte_order: Literal["big", "little"], fields: Sequence[StructField]) -> None:
        """Prepare for payloads with these fields.

        Raises:
            ValueError: the fields contradict each other; the message names one and the remedy.
        """
        if not fields:
            raise ValueError("a struct has no fields: name them in `fields`")
        self._fields = [_checked(each) for each in fields if not each.type_.startswith("skip")]
        self._names = [each.name for each in self._fields]
        if twice := next((name for name in self._names if self._names.count(name) > 1), None):
            raise ValueError(f"two fields are called {twice}: give each a name of its own")
        self._struct = struct.Struct(_order(byte_order) + "".join(map(_code, fields)))
        if self._struct.size > STRUCT_BYTES_MAX:
            raise ValueError(f"the fields have {self._struct.size} bytes; at most {STRUCT_BYTES_MAX} are possible")
        self._known = frozenset(self._names)
        # Most fields are the values of ``struct``. The others are handled one by one.
        self._read = [each for each in self._fields if each.is_scaled or each.kind == "text"]

    def decode(self, payload: bytes) -> Values:
        """Return the fields.

        Raises:
            PayloadError: the payload has another length, or a text in it is not UTF-8.
        """
        if len(payload) != self._struct.size:
            raise PayloadError(f"it has {len(payload)} bytes; its fields take {self._struct.size}")
        values: Values = dict(zip(self._names, self._struct.unpack(payload), strict=True))
        for name, kind, _, _, scale, offset in self._read:
            if kind == "text":
                values[name] = _text(name, values[name])
            else:
                values[name] = values[name] * scale + offset
        return values

    def encode(self, values: Values) -> bytes:
        """Return a payload with these fields; skipped bytes are zero.

        Raises:
            PayloadError: a field is missing, has another type, or does not fit; or there are further fields.
        """
        if values.keys() != self._known:
            raise PayloadError(self._difference(values))
        try:
            return self._struct.pack(*(_packed(each, values[each.name]) for each in self._fields))
        except (struct.error, OverflowError) as error:
            raise PayloadError(f"its fields do not fit: {error}") from None

    def _difference(self, values: Values) -> str:
        if missing := [name for name in self._names if name not in values]:
            return f"the field `{missing[0]}` is missing: a struct has all of its fields"
        more = [name for name in values if name not in self._names]
        return f"a struct of this stream has no field `{more[0]}`: leave it out with `select`"


def _order(byte_order: str) -> str:
    return "<" if byte_order == "little" else ">"


def _code(given: StructField) -> str:
    if match := _LENGTH.fullmatch(given.type_):
        return f"{match[2]}{'x' if match[1] == 'skip' else 's'}"
    return _CODES[given.type_]


def _checked(given: StructField) -> _Field:
    """Return the checked form of a field.

    Raises:
        ValueError: it has no name, or a scale that its type cannot have.
    """
    name, type_ = given.name, given.type_
    if not name:
        raise ValueError(f"a field of the type {type_} has no name: give it one, or the type skip[N]")
    is_scaled = given.scale != 1 or given.offset != 0
    if match := _LENGTH.fullmatch(type_):
        kind, size = match[1], int(match[2])
    else:
        kind = "bool" if type_ == "bool" else "float" if type_[0] == "f" else "integer"
        size = 1 if type_ == "bool" else int(type_[1:]) // 8
    if is_scaled:
        _check_scale(given, kind, size)
    return _Field(name, kind, size, is_scaled, given.scale, given.offset)  # type: ignore[arg-type]


def _check_scale(given: StructField, kind: str, size: int) -> None:
    scale, offset = given.scale, given.offset
    if kind not in ("integer", "float"):
        raise ValueError(f"{given.name}: a field of the type {given.type_} has neither scale nor offset")
    if not (math.isfinite(scale) and math.isfinite(offset)) or not scale:
        raise ValueError(f"{given.name}: scale and offset have to be finite, and scale not 0")
    if kind == "float":
        return
    if size == 8:
        raise ValueError(
            f"{given.name}: a field of 64 bits has neither scale nor offset, for doubles hold 53 bits: use `set`"
        )
    largest = float(1 << 8 * size)
    if not math.isfinite(largest * scale) or largest + abs(offset / scale) > EXACT:
        raise ValueError(f"{given.name}: the offset {offset} is too large for the scale {scale}: steps would be lost")


def _text(name: str, raw: bytes) -> str:
    try:
        return raw.rstrip(b"\0").decode()
    except UnicodeDecodeError as error:
        raise PayloadError(f"its field `{name}` is not UTF-8: {error.reason} at byte {error.start}") from None


def _packed(wanted: _Field, value: Any) -> Any:
    """Return the value for ``struct`` to write.

    Raises:
        PayloadError: the value has another type than the field, or does not fit.
    """
    kind, given = wanted.kind, type(value)
    if kind == "text" and given is str:
        return _sized(wanted, _utf8(wanted.name, value))
    if kind == "bytes" and given is bytes:
        if len(value) != wanted.size:
            raise PayloadError(f"its field `{wanted.name}` has {len(value)} bytes; it takes exactly {wanted.size}")
        return value
    if kind == "bool" and given is bool:
        return value
    if given is int or given is float:
        if kind == "float":
            return (value - wanted.offset) / wanted.scale if wanted.is_scaled else value
        if kind == "integer":
            return _integer(wanted, value)
    raise PayloadError(f"its field `{wanted.name}` is of the type {given.__name__}; expected {_EXPECTED[kind]}")


_EXPECTED = {"bool": "true or false", "integer": "a number", "float": "a number", "text": "text", "bytes": "bytes"}


def _integer(wanted: _Field, value: int | float) -> int:
    if not math.isfinite(value):
        raise PayloadError(f"its field `{wanted.name}` is {value}; an integer has to be finite")
    if wanted.is_scaled:
        return round((value - wanted.offset) / wanted.scale)
    if value != int(value):
        raise PayloadError(f"its field `{wanted.name}` is {value}; give it a scale, or use round() in `set`")
    return int(value)


def _utf8(name: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise PayloadError(f"its field `{name}` has no UTF-8: {error.reason}") from None


def _sized(wanted: _Field, value: bytes) -> bytes:
    if len(value) > wanted.size:
        raise PayloadError(f"its field `{wanted.name}` takes {len(value)} bytes of UTF-8; it has {wanted.size}")
    return value
