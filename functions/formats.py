"""Payload formats that need no library beyond msgspec: JSON, MessagePack, numbers, text, bytes and structs."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import NoneType
from typing import Any, Literal, NamedTuple, NoReturn, TypedDict

import msgspec

from weft.config.functions.settings import StructField
from weft.functions.contract import Path, PayloadError, Values
from weft.protocols.payloads import nests_at_most

# Bounds that hold for payloads of every format, and the conversion of a decoded payload to fields.
#
# A payload of a stranger may expand to much more memory than it has bytes: a byte of MessagePack is an empty map. A
# decoded payload takes at most ``MEMORY_PER_BYTE`` bytes for each of its own, so callers that decode many payloads at
# once count their bytes.

PAYLOAD_BYTES_MAX = 256 << 10
"""Longest payload that is decoded. Readings have hundreds of bytes, a spectrum of 8,192 values 72 KiB; longer ones are
files, which would decode to 80 times their size in the memory of a small node."""
MEMORY_PER_BYTE = 80
"""Memory for each byte of a payload: an empty map of MessagePack is one byte here, and 72 in a list of Python."""
DEPTH_MAX = 32
"""Deepest nesting of lists and mappings. Decoders have limits of their own that depend on the remaining stack; with
this one the same payload is refused everywhere."""
QUICK_BYTES_MAX = 4 << 10
"""Longest payload, or piece of one, that is decoded even if lists are keys of its mappings, which are refused
afterwards. Their hashes are predictable: 14,000 colliding ones fit into 256 KiB, and would take seconds. In 4 KiB it is
a millisecond."""

VALUE = "value"
"""Field of a payload that is one number, text or list."""

TOO_DEEP = f"its lists and mappings are more than {DEPTH_MAX} deep in each other"
"""Reason of a refusal, the same in every decoder."""

_TEXT = frozenset({str})
_CONTAINERS = frozenset({dict, list})
_PLAIN = frozenset({str, int, float, bool, bytes, NoneType})
Readings = Mapping[type, Callable[[Any], Any]]
"""Type of a library -> function that converts it to a value of fields."""
_NONE: Readings = {}


def check_length(payload: bytes) -> None:
    """Refuse payloads that are longer than ``PAYLOAD_BYTES_MAX``.

    Raises:
        PayloadError: the payload is longer.
    """
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise PayloadError(f"it has {len(payload)} bytes; at most {PAYLOAD_BYTES_MAX} are decoded")


def fields_of(value: Any, others: Readings = _NONE) -> Values:
    """Return the fields of a library's decoded value, which may be changed by this.

    Keys that are integers become text. A value other than a mapping becomes the field ``value``.

    Args:
        others: conversions of types that are neither a list nor a mapping nor among those of ``Values``.

    Raises:
        PayloadError: it has a value that fields cannot have.
    """
    # When it is encoded again it is in a mapping, one level deeper, and must still be decodable.
    return _mapping(value, others, 0) if type(value) is dict else {VALUE: _plain(value, others, 1)}


def check_depth(values: Values) -> None:
    """Refuse fields in which lists and mappings are more than ``DEPTH_MAX`` deep.

    Raises:
        PayloadError: they are.
    """
    if not _PLAIN.issuperset(map(type, values.values())):
        _measure(values, 0)


def _measure(value: Any, depth: int) -> None:
    if isinstance(value, dict):
        inside: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        inside = value
    else:
        return
    _check_depth(depth)
    if not _PLAIN.issuperset(map(type, inside)):
        for each in inside:
            _measure(each, depth + 1)


def _plain(value: Any, others: Readings, depth: int) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        return _mapping(value, others, depth)
    if kind is list:
        _check_depth(depth)
        if not _PLAIN.issuperset(map(type, value)):
            is_deepest = depth + 1 == DEPTH_MAX
            for index, each in enumerate(value):
                if each or is_deepest or type(each) not in _CONTAINERS:  # empty ones need no change
                    value[index] = _plain(each, others, depth + 1)
        return value
    if (reading := others.get(kind)) is not None:
        return reading(value)
    return _refuse(kind)


def _mapping(value: dict[Any, Any], others: Readings, depth: int) -> Values:
    if depth >= DEPTH_MAX:
        raise PayloadError(TOO_DEEP)
    if not value:
        return value
    # These two checks of all keys and values run in C: most mappings are flat, and cost nothing more.
    if not _TEXT.issuperset(map(type, value)):
        value = _with_text_keys(value)
    if not _PLAIN.issuperset(map(type, value.values())):
        for key, each in value.items():
            if type(each) not in _PLAIN:
                value[key] = _plain(each, others, depth + 1)
    return value


def _with_text_keys(value: dict[Any, Any]) -> Values:
    """Return a mapping whose integer keys are text: devices save bytes with them, as in SenML (RFC 8428)."""
    found: Values = {}
    for key, each in value.items():
        if type(key) is not str and type(key) is not int:
            raise PayloadError(f"a name of a field is of the type {type(key).__name__}; only text and integers can be")
        found[str(key)] = each
    if len(found) < len(value):
        raise PayloadError("two names of fields are the same integer, once as a number and once as text")
    return found


def _check_depth(depth: int) -> None:
    if depth >= DEPTH_MAX:
        raise PayloadError(TOO_DEEP)


def _refuse(kind: type) -> NoReturn:
    raise PayloadError(f"it has a value of the type {kind.__name__}, which fields cannot have")


# Payloads in JSON (RFC 8259).

_LIST = ord("[")
_PARTS_DEPTH_MAX = 8
"""Longest path that is decoded alone; deeper fields are decoded with the field around them."""


class JsonFormat:
    """JSON. The last one of equal names in an object counts.

    JSON has no bytes and no NaN: ``encode`` writes bytes as text in base64 (RFC 4648), and NaN and the infinities as
    null, as RFC 8949 section 6.1 suggests.
    """

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder().decode
        self._encode = msgspec.json.Encoder().encode

    def decoder(self, paths: frozenset[Path]) -> Callable[[bytes], Values]:
        """Return a decoder for some fields: the others are checked without creating objects.

        In a message of 240 bytes with ten fields, one field takes a quarter of the time of all.
        """
        decode_some: Callable[[bytes], Any] = msgspec.json.Decoder(
            _shape(path[:_PARTS_DEPTH_MAX] for path in paths)
        ).decode
        decode_all = self.decode

        def decode(payload: bytes) -> Values:
            # The fast part of the checks of ``decode``. The decoder does not check text in other fields, so a payload
            # that may not be UTF-8 is decoded as a whole.
            if len(payload) <= PAYLOAD_BYTES_MAX and _opens_few(payload):
                try:
                    if not payload.isascii():
                        payload.decode()
                    some: Values = decode_some(payload)
                    return some
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    pass  # ``decode`` reports the problem, or handles a field that is not an object.
            return decode_all(payload)

        return decode

    def decode(self, payload: bytes) -> Values:
        """Return the fields of a JSON value.

        Raises:
            PayloadError: it is not JSON, too long or too deep.
        """
        check_length(payload)
        if not _opens_few(payload) and not nests_at_most(DEPTH_MAX, payload):
            raise PayloadError(TOO_DEEP)
        try:
            value = self._decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PayloadError(f"it is not JSON: {error}") from None
        # JSON has no other types than those of fields, and its names are text.
        if type(value) is dict:
            return value
        # When it is encoded again it is in an object, one level deeper, and must still be decodable.
        if not nests_at_most(DEPTH_MAX - 1, payload):
            raise PayloadError(TOO_DEEP)
        return {VALUE: value}

    def encode(self, values: Values) -> bytes:
        """Return an object of JSON without white space, its names in the order of the fields.

        Raises:
            PayloadError: JSON cannot hold them.
        """
        try:
            return self._encode(values)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise PayloadError(f"JSON cannot hold its fields: {error}") from None


def _opens_few(payload: bytes) -> bool:
    """Return whether a payload has so few lists and objects that their nesting cannot be too deep."""
    # Most messages have no list, and objects open only at their beginning. This check takes less than half the time of
    # counting, which would be a third of the time of a message. The byte is a number: a search for bytes would be ten
    # times slower.
    if _LIST not in payload and payload.rfind(b"{") < DEPTH_MAX:
        return True
    return payload.count(b"{") + payload.count(b"[") <= DEPTH_MAX


def _shape(paths: Iterable[Path]) -> Any:
    """Return a type whose decoder creates only the fields at some paths."""
    inner: dict[str, set[Path]] = {}
    for path in sorted(paths):
        inner.setdefault(path[0], set()).add(path[1:])
    fields = {name: Any if () in rest else _shape(rest) | None for name, rest in inner.items()}
    return TypedDict("Fields", fields, total=False)  # type: ignore[operator]


# Payloads in MessagePack.

_PIECE_BYTES = QUICK_BYTES_MAX - 3
"""Maximum bytes of items that are decoded as one array, whose head takes three."""
_DEEP_BYTES = 512
"""Shortest payload that may meet the decoder's own limit of depth, which depends on the stack that is left."""
_DEEP_OR_WRONG = f"it is not MessagePack, or {TOO_DEEP}"


def _seconds(time: datetime) -> float:
    return time.timestamp()


_READINGS: Readings = {datetime: _seconds}


def _refuse_extension(code: int, _data: memoryview) -> Any:
    raise PayloadError(f"it has a value of extension type {code}; only timestamps (-1) are known")


class MsgpackFormat:
    """MessagePack. The last one of equal names in a map counts.

    Timestamps (extension type -1) become seconds since 1970, to the microsecond. Other extensions are refused.
    """

    def __init__(self) -> None:
        self._decode = msgspec.msgpack.Decoder(ext_hook=_refuse_extension).decode
        # For long payloads: only numbers, as in spectra, and any values.
        self._numbers = msgspec.msgpack.Decoder(list[int | float]).decode
        self._any_map = msgspec.msgpack.Decoder(dict[str | int, msgspec.Raw]).decode
        self._any_array = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
        self._encode = msgspec.msgpack.Encoder().encode

    def decode(self, payload: bytes) -> Values:
        """Return the fields of a value in MessagePack.

        Raises:
            PayloadError: it is not MessagePack, too long or too deep.
        """
        try:
            if len(payload) <= QUICK_BYTES_MAX:
                value = self._decode(payload)
            else:
                check_length(payload)
                value = self._apart(payload, 0)
            return fields_of(value, _READINGS)
        except PayloadError as error:
            if str(error) == TOO_DEEP and len(payload) >= _DEEP_BYTES:
                raise PayloadError(_DEEP_OR_WRONG) from None
            raise
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
            # The same text everywhere: the stack decides whether the depth or an error comes first.
            reason = f"it is not MessagePack: {error}" if len(payload) < _DEEP_BYTES else _DEEP_OR_WRONG
            raise PayloadError(reason) from None

    def encode(self, values: Values) -> bytes:
        """Return a map of MessagePack, in the order of the fields. A float takes 64 bits, an integer as few as
        possible.

        Raises:
            PayloadError: MessagePack cannot hold them.
        """
        try:
            return self._encode(values)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise PayloadError(f"MessagePack cannot hold its fields: {error}") from None

    def _apart(self, payload: bytes | memoryview, depth: int) -> Any:
        """Decode a long payload in pieces that are short enough to be decoded at once."""
        if depth > DEPTH_MAX:  # Each level reads all of its content.
            raise PayloadError(TOO_DEEP)
        if len(payload) <= QUICK_BYTES_MAX:
            return self._decode(payload)
        first = payload[0]
        if first & 0xF0 == 0x80 or first in (0xDE, 0xDF):
            items: dict[str | int, Any] = self._any_map(payload)
            for key, each in items.items():
                items[key] = self._apart(memoryview(each), depth + 1)
            return items
        if first & 0xF0 == 0x90 or first in (0xDC, 0xDD):
            try:
                return self._numbers(payload)
            except msgspec.ValidationError:
                return self._joined(self._any_array(payload), depth)
        return self._decode(payload)

    def _joined(self, items: list[msgspec.Raw], depth: int) -> list[Any]:
        """Decode the items of an array: short consecutive ones together."""
        found: list[Any] = []
        piece: list[msgspec.Raw] = []
        size = 0
        items.reverse()
        while items:
            item = items.pop()  # freed once it is decoded
            length = len(item)
            if piece and size + length > _PIECE_BYTES:
                found += self._decode(_array(piece))
                piece, size = [], 0
            if length > _PIECE_BYTES:
                found.append(self._apart(memoryview(item), depth + 1))
                continue
            piece.append(item)
            size += length
        if piece:
            found += self._decode(_array(piece))
        return found


def _array(items: list[msgspec.Raw]) -> bytes:
    return b"\xdc" + len(items).to_bytes(2) + b"".join(items)


# Payloads that are one number, one text, or opaque bytes: the field ``value``.

NUMBER_BYTES_MAX = 64
"""Longest payload that is a number, white space included; a double needs 24 characters at most."""
_NUMBER = re.compile(rb"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*")
"""Numbers of devices, also in forms that JSON does not have: ``+5``, ``007``, ``.5`` and ``5.``"""


class NumberFormat:
    """A number as text, such as ``21.5``; white space around it is ignored. NaN and infinities are refused."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(int | float).decode
        self._encode = msgspec.json.Encoder().encode

    def decode(self, payload: bytes) -> Values:
        """Return the number as the field ``value``: an integer without a point and an exponent, else a float.

        Raises:
            PayloadError: it is not a number.
        """
        try:
            if len(payload) <= NUMBER_BYTES_MAX:
                return {VALUE: self._decode(payload)}
        except msgspec.MsgspecError:
            if match := _NUMBER.fullmatch(payload):
                return {VALUE: _number(match[1])}
        raise PayloadError(f"it is not a number such as 21.5: {payload[:NUMBER_BYTES_MAX]!r}")

    def encode(self, values: Values) -> bytes:
        """Return the field ``value`` as a number.

        Raises:
            PayloadError: there are other fields, or it is not a finite number.
        """
        value = _only(values, "number")
        if type(value) is not int and type(value) is not float:
            raise PayloadError(f"its field `value` is of the type {type(value).__name__}; expected a number")
        if type(value) is float and not math.isfinite(value):
            raise PayloadError(f"its field `value` is {value}; expected a finite number")
        try:
            text = self._encode(value)
        except ValueError:  # Python writes no integers of more than 4,300 digits.
            text = b""
        if not 0 < len(text) <= NUMBER_BYTES_MAX:
            raise PayloadError(f"its field `value` has more than {NUMBER_BYTES_MAX} digits")
        return text


class TextFormat:
    """Text in UTF-8."""

    def decode(self, payload: bytes) -> Values:
        """Return the text as the field ``value``.

        Raises:
            PayloadError: it is not UTF-8, or too long.
        """
        check_length(payload)
        try:
            return {VALUE: payload.decode()}
        except UnicodeDecodeError as error:
            raise PayloadError(f"it is not UTF-8: {error.reason} at byte {error.start}") from None

    def encode(self, values: Values) -> bytes:
        """Return the field ``value``.

        Raises:
            PayloadError: there are other fields, or it is not text.
        """
        value = _only(values, "text")
        if type(value) is not str:
            raise PayloadError(f"its field `value` is of the type {type(value).__name__}; expected text")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise PayloadError(f"its field `value` has no UTF-8: {error.reason}") from None


class BytesFormat:
    """Opaque bytes."""

    def decode(self, payload: bytes) -> Values:
        """Return the bytes as the field ``value``.

        Raises:
            PayloadError: there are too many.
        """
        check_length(payload)
        return {VALUE: payload}

    def encode(self, values: Values) -> bytes:
        """Return the field ``value``.

        Raises:
            PayloadError: there are other fields, or it is not bytes.
        """
        value = _only(values, "bytes")
        if type(value) is not bytes:
            raise PayloadError(f"its field `value` is of the type {type(value).__name__}; expected bytes")
        return value


def _only(values: Values, name: str) -> Any:
    """Return the value of the only field."""
    if len(values) != 1 or VALUE not in values:
        names = ", ".join(f"`{field}`" for field in list(values)[:4]) or "no fields"
        raise PayloadError(f"a payload of the format `{name}` has only the field `value`; this row has {names}")
    return values[VALUE]


def _number(text: bytes) -> int | float:
    if text.lstrip(b"+-").isdigit():
        return int(text)
    number = float(text)
    if math.isinf(number):
        raise PayloadError(f"the number {text.decode()} is too large for a double")
    return number


# Payloads that are a row of bytes with fields at fixed places, from small devices and PLCs.

STRUCT_BYTES_MAX = 64 << 10
"""Longest payload of this format."""
EXACT = 1 << 50
"""Largest ratio of a number to its step at which scaling in doubles, forth and back, gives the same integer."""

_CODES = {
    "bool": "?",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "f16": "e",
    "f32": "f",
    "f64": "d",
}
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
