"""Payloads opened step by step, as far as fields need it: the exact way, for payloads with a misfit.

Parts without a field are only checked for syntax, so a row's misfits do not depend on the columns that are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Protocol

import msgspec

from spark_sinks.payloads.misfits import Unreadable
from weft.bounds.cbor import UNDEFINED, CborDecoder, CborError
from weft.config.payload_schema.model import SchemaFormat
from weft.protocols.payloads import NESTING_MAX, nests_at_most

PAYLOAD_BYTES_MAX = 1 << 20
"""Longest payload that is decoded. A decoded byte may take 80 bytes of memory; longer payloads are files, not
readings."""
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
        text = bytes(part)
        first = text.lstrip(b" \t\r\n")[:1]
        decoder = self._object if first == b"{" else self._array if first == b"[" else self._single
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
        data = bytes(part)
        decoder = self._object if data[0] in _MAPS else self._array if data[0] in _ARRAYS else self._single
        try:
            return decoder.decode(data)
        except msgspec.ValidationError:
            raise Unreadable("expected names that are text or integers") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, OverflowError) as error:
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


def parts_of(name: SchemaFormat) -> Format:
    """Return a new reader of a format."""
    kinds: dict[str, Callable[[], Format]] = {"json": JsonParts, "msgpack": MsgpackParts, "cbor": CborParts}
    return kinds[name]()


def plain(parts: Format, part: Any) -> Any:
    """Return a part for a field: the items of an array are opened too.

    Raises:
        Unreadable: see ``Format.opened``.
    """
    value = parts.opened(part)
    return [parts.opened(each) for each in value] if isinstance(value, list) else value


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
