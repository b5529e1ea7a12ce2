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

_DEEP_BYTES = 512
"""Shortest payload that may meet the decoder's own limit of depth, which depends on the stack that is left."""


_Scalar = str | int | float | bool | None


def _seconds(time: datetime) -> float:
    return time.timestamp()


_READINGS: Readings = {datetime: _seconds}


def _refuse_extension(code: int, _data: memoryview) -> Any:
    raise PayloadError(f"it has a value of extension type {code}; only timestamps (-1) are known")


class MsgpackFormat:
    """MessagePack. Of a name that comes twice in a map, the last one counts.

    Timestamps (extension type -1) become seconds since 1970, to the microsecond. Other extensions are refused.
    """

    def __init__(self) -> None:
        self._decode = msgspec.msgpack.Decoder(ext_hook=_refuse_extension).decode
        # For long payloads: maps and arrays of scalars, which is what spectra and the like are, and of anything.
        self._flat_map = msgspec.msgpack.Decoder(dict[str | int, _Scalar]).decode
        self._flat_array = msgspec.msgpack.Decoder(list[_Scalar]).decode
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
        except PayloadError:
            raise
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
            # The same words wherever it is decoded: it depends on the stack whether the depth or an error comes first.
            reason = str(error) if len(payload) < _DEEP_BYTES else f"or {TOO_DEEP}"
            raise PayloadError(f"it is not MessagePack: {reason}") from None
        return fields_of(value, _READINGS)

    def encode(self, values: Values) -> bytes:
        """Return a map of MessagePack, in the order of the fields. A float takes 64 bits, an integer as few as it can.

        Raises:
            PayloadError: MessagePack cannot hold them.
        """
        try:
            return self._encode(values)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise PayloadError(f"MessagePack cannot hold its fields: {error}") from None

    def _apart(self, payload: bytes | msgspec.Raw, depth: int) -> Any:
        first = memoryview(payload)[0] if payload else 0xC0
        if first == 0x80:
            return {}
        is_map = first & 0xF0 == 0x80 or first in (0xDE, 0xDF)
        if not is_map and first & 0xF0 != 0x90 and first not in (0xDC, 0xDD):
            return self._decode(payload)
        if depth >= DEPTH_MAX:
            raise PayloadError(TOO_DEEP)
        try:
            return self._flat_map(payload) if is_map else self._flat_array(payload)
        except msgspec.ValidationError:
            pass
        # In place: what was not decoded yet and what it became are not in memory at the same time.
        if is_map:
            items: dict[str | int, Any] = self._any_map(payload)
            for key, each in items.items():
                items[key] = self._apart(each, depth + 1)
            return items
        values: list[Any] = self._any_array(payload)
        for at, each in enumerate(values):
            values[at] = self._apart(each, depth + 1)
        return values
