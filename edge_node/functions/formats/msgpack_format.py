"""Payloads in MessagePack."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from weft.edge_node.functions.contract import Values
from weft.edge_node.functions.formats.bounds import (
    DEPTH_MAX,
    QUICK_BYTES_MAX,
    TOO_DEEP,
    Readings,
    check_length,
    fields_of,
)
from weft.edge_node.functions.payloads import PayloadError

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
