"""Payloads that are one number, one text, or opaque bytes: the field ``value``."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from weft.edge_node.functions.contract import Values
from weft.edge_node.functions.formats.bounds import VALUE, check_length
from weft.edge_node.functions.payloads import PayloadError

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
