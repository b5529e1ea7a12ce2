"""Payloads in JSON (RFC 8259)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypedDict

import msgspec

from weft.edge_node.functions.contract import Path, Values
from weft.edge_node.functions.formats.bounds import DEPTH_MAX, PAYLOAD_BYTES_MAX, TOO_DEEP, VALUE, check_length
from weft.edge_node.functions.payloads import PayloadError
from weft.protocols.payloads import nests_at_most

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
