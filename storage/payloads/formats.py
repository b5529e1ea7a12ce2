"""Payloads opened step by step, as far as fields need it: the exact way, for payloads with a misfit.

Parts without a field are only checked for syntax, so a row's misfits do not depend on the columns that are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Protocol

import msgspec

from weft.bounds.cbor import UNDEFINED, CborDecoder, CborError
from weft.config.payload_schema.avro import parse_avro
from weft.config.payload_schema.model import DEFINED, PayloadSchema, SchemaFormat
from weft.config.payload_schema.protobuf import parse_descriptors
from weft.protocols.payloads import NESTING_MAX, nests_at_most
from weft.storage.payloads.avro import AvroDecoder
from weft.storage.payloads.misfits import Unreadable
from weft.storage.payloads.protobuf import ProtobufDecoder

PAYLOAD_BYTES_MAX = 1 << 20
"""Longest payload that is decoded. A decoded byte may take 80 bytes of memory; longer payloads are files, not
readings."""
INDEXES_MAX = 64
"""Maximum number of a message's indexes, one for each message that it is declared in."""
Values = tuple[list[Any], int]
"""Values of payloads, and the number of those that cannot be decoded."""
_JSON = msgspec.json.Decoder()
TOO_DEEP = f"its arrays and objects are more than {NESTING_MAX} deep in each other"


class Format(Protocol):
    """A format of payloads."""

    def root(self, payload: bytes) -> Any:
        """Return a whole payload as a part.

        Raises:
            Unreadable: it is not of the format, too long or too deep.
        """

    def opened(self, part: Any) -> Any:
        """Return a part as an object or array of parts, or as a plain value.

        Raises:
            Unreadable: the part has a value that cannot be decoded.
        """

    def plain(self, part: Any) -> Any:
        """Return a part for a field: the items of an array are opened too.

        Raises:
            Unreadable: as ``opened``.
        """


def check_length(payload: bytes) -> None:
    """Refuse a payload that is empty or too long.

    Raises:
        Unreadable: it is.
    """
    if not payload:
        raise Unreadable("it is empty")
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise Unreadable(f"it has {len(payload)} bytes; at most {PAYLOAD_BYTES_MAX} are decoded")


class JsonParts:
    """JSON (RFC 8259). If an object has a name twice, the last value counts."""

    def __init__(self) -> None:
        self._syntax = msgspec.json.Decoder(msgspec.Raw)
        self._object = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._array = msgspec.json.Decoder(list[msgspec.Raw])
        # Decimals keep all digits, which a float would round before a decimal column gets them.
        self._single = msgspec.json.Decoder(float_hook=Decimal)
        self._items = msgspec.json.Decoder(list[Any], float_hook=Decimal)

    def root(self, payload: bytes) -> Any:
        """Return a payload that is JSON in UTF-8."""
        check_length(payload)
        try:
            payload.decode()
            if not nests_at_most(NESTING_MAX, payload):
                raise Unreadable(TOO_DEEP)
            return self._syntax.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Unreadable(f"it is not JSON: {error}") from None

    def opened(self, part: Any) -> Any:
        """Return an object or array of parts, or a value; numbers with a fraction or exponent are decimals."""
        return self._decoded(part, self._array)

    def plain(self, part: Any) -> Any:
        """Return a value, or an array of values: decoded at once, which takes a tenth of the time of each by itself."""
        return self._decoded(part, self._items)

    def _decoded(self, part: Any, array: msgspec.json.Decoder[Any]) -> Any:
        text = bytes(part)
        first = text.lstrip(b" \t\r\n")[:1]
        decoder = self._object if first == b"{" else array if first == b"[" else self._single
        try:
            return decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, ArithmeticError):
            # The syntax is valid, so it is a number of thousands of digits, or a text with half a surrogate pair.
            raise Unreadable("expected a number or text that a column can hold") from None


# The first bytes of maps and arrays (MessagePack specification, "Overview").
_MAPS = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
_ARRAYS = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
_OPENING = _MAPS | _ARRAYS
_NOT_OPENING = bytes(set(range(256)) - _OPENING)


class MsgpackParts:
    """MessagePack. Timestamps (extension -1) are times, other extensions fit no column."""

    def __init__(self) -> None:
        self._syntax = msgspec.msgpack.Decoder(msgspec.Raw)
        self._object = msgspec.msgpack.Decoder(dict[str | int, msgspec.Raw])
        self._array = msgspec.msgpack.Decoder(list[msgspec.Raw])
        self._single = msgspec.msgpack.Decoder()
        self._items = msgspec.msgpack.Decoder(list[Any])

    def root(self, payload: bytes) -> Any:
        """Return a payload that is one value in MessagePack."""
        check_length(payload)
        try:
            if not opens_few(payload) and _too_deep(payload, self.opened):
                raise Unreadable(TOO_DEEP)
            return self._syntax.decode(payload)
        except RecursionError:
            raise Unreadable(TOO_DEEP) from None
        except (msgspec.MsgspecError, ValueError) as error:
            raise Unreadable(f"it is not MessagePack: {error}") from None

    def opened(self, part: Any) -> Any:
        """Return an object or array of parts, or a value."""
        return self._decoded(part, self._array)

    def plain(self, part: Any) -> Any:
        """Return a value, or an array of values, decoded at once."""
        return self._decoded(part, self._items)

    def _decoded(self, part: Any, array: msgspec.msgpack.Decoder[Any]) -> Any:
        data = bytes(part)
        decoder = self._object if data[0] in _MAPS else array if data[0] in _ARRAYS else self._single
        try:
            return decoder.decode(data)
        except msgspec.ValidationError:
            raise Unreadable("expected names that are text or integers") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, OverflowError, TypeError) as error:
            raise Unreadable(f"expected a value that can be decoded: {error}") from None


def opens_few(payload: bytes) -> bool:
    """Return whether the payload has too few bytes of maps and arrays of MessagePack to be nested too deeply."""
    return len(payload) <= NESTING_MAX or len(payload.translate(None, _NOT_OPENING)) <= NESTING_MAX


def _too_deep(payload: bytes, opened: Callable[[Any], Any]) -> bool:
    """Return whether maps and arrays are nested more than ``NESTING_MAX`` deep. It walks level by level, without
    recursion."""
    level: list[Any] = [payload]
    for _ in range(NESTING_MAX + 1):
        inside: list[Any] = []
        for part in level:
            value = opened(part)
            inside += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        level = [part for part in inside if memoryview(part)[0] in _OPENING]
        if not level:
            return False
    return True


class CborParts:
    """CBOR (RFC 8949), decoded as a whole: see ``bounds.cbor`` for its tags."""

    def __init__(self) -> None:
        self._decoder = CborDecoder(NESTING_MAX)

    def root(self, payload: bytes) -> Any:
        """Return the value of a payload."""
        check_length(payload)
        try:
            return self._decoder.decode(payload)
        except CborError as error:
            raise Unreadable(str(error)) from None

    def opened(self, part: Any) -> Any:
        """Return the value; ``undefined`` is null."""
        return None if type(part) is UNDEFINED else part

    def plain(self, part: Any) -> Any:
        """Return the value; ``undefined`` is null within an array, too."""
        value = self.opened(part)
        return [self.opened(each) for each in value] if isinstance(value, list) else value


class DefinedParts:
    """Payloads that only a definition explains, decoded as a whole."""

    def __init__(self, decoder: AvroDecoder | ProtobufDecoder, framing: Callable[[bytes], bytes] | None) -> None:
        self._decoder, self._framing = decoder, framing

    def root(self, payload: bytes) -> Any:
        """Return the value of a payload."""
        # A message of Protobuf with nothing but defaults has no bytes.
        if payload or isinstance(self._decoder, AvroDecoder):
            check_length(payload)
        return self._decoder.decode(payload if self._framing is None else self._framing(payload))

    def opened(self, part: Any) -> Any:
        """Return the value."""
        return part

    def plain(self, part: Any) -> Any:
        """Return the value."""
        return part


def _defined(schema: PayloadSchema) -> DefinedParts:
    definition = schema.definition or ""
    if schema.format == "avro":
        framing = {"confluent": without_id, "single_object": without_fingerprint}.get(schema.framing or "")
        return DefinedParts(AvroDecoder(parse_avro(definition)), framing)
    root = parse_descriptors(definition, schema.message)
    return DefinedParts(ProtobufDecoder(root), without_message_indexes if schema.framing else None)


def parts_of(schema: PayloadSchema) -> Format:
    """Return a new reader of a schema's format."""
    if schema.format in DEFINED:
        return _defined(schema)
    kinds: dict[str, Callable[[], Format]] = {"json": JsonParts, "msgpack": MsgpackParts, "cbor": CborParts}
    return kinds[schema.format]()


def found(value: dict[Any, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the parts of an object under the names of fields. Names may be integers in CBOR and MessagePack (SenML,
    RFC 8428): ``"1"`` matches them too."""
    parts = {}
    for name in names:
        if name in value:
            parts[name] = value[name]
        elif name.isdecimal() and name.isascii() and (number := int(name)) in value:
            parts[name] = value[number]
    return parts


def without_id(payload: bytes) -> bytes:
    """Return a payload without 0 and the four bytes of a schema's id."""
    if len(payload) < 5 or payload[0] != 0:
        raise Unreadable("it does not begin with 0 and the id of a schema, as `framing: confluent` says")
    return payload[5:]


def without_fingerprint(payload: bytes) -> bytes:
    """Return a payload without the ten bytes of Avro's single-object encoding."""
    if len(payload) < 10 or not payload.startswith(b"\xc3\x01"):
        raise Unreadable("it does not begin with C3 01 and a fingerprint, as `framing: single_object` says")
    return payload[10:]


def without_message_indexes(payload: bytes) -> bytes:
    """Return a payload without a schema's id and the indexes of the message in its file."""
    rest = without_id(payload)
    count, at = _zigzag(rest, 0)
    if not 0 <= count <= INDEXES_MAX:
        raise Unreadable(f"it has {count} indexes of a message, at most {INDEXES_MAX} are read")
    for _ in range(count):
        _, at = _zigzag(rest, at)
    return rest[at:]


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 35:
        byte, at = data[at], at + 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
    raise Unreadable("it ends within the indexes of its message, as `framing: confluent` has them")


def whole_values(name: SchemaFormat) -> Callable[[Sequence[bytes]], Values]:
    """Return a decoder of some thousand payloads of a format at a time."""
    if name == "json":
        return _json_values
    return partial(_each, msgspec.msgpack.decode if name == "msgpack" else CborDecoder(NESTING_MAX).decode)


def _json_values(payloads: Sequence[bytes]) -> Values:
    try:
        # Lines of one text take two thirds of the time. A payload of several lines makes another number of values.
        values = _JSON.decode_lines(b"\n".join(payloads))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        values = []
    return (values, 0) if len(values) == len(payloads) else _each(_JSON.decode, payloads)


def _each(decode: Callable[[bytes], Any], payloads: Sequence[bytes]) -> Values:
    values: list[Any] = []
    for payload in payloads:
        try:
            values.append(decode(payload))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
            continue
    return values, len(payloads) - len(values)
