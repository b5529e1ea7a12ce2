"""Payloads in CBOR (RFC 8949), by cbor2."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import cbor2

from weft.edge_node.functions.contract import Values
from weft.edge_node.functions.formats.bounds import (
    DEPTH_MAX,
    INTEGER_BYTES_MAX,
    QUICK_BYTES_MAX,
    Readings,
    check_depth,
    check_length,
    fields_of,
)
from weft.edge_node.functions.payloads import PayloadError


class CborFormat:
    """CBOR. Two equal names in a map are refused.

    Bignums become integers, decimal fractions and bigfloats become floats, undefined becomes null. Of other tags the
    value inside is taken: of a time (0 and 1) its text or its seconds since 1970. Tags that refer to other parts of the
    payload (25 and 29) are refused.
    """

    def __init__(self) -> None:
        self._quick = _decoder(any_keys=True)
        # Arrays as keys can be made to collide (bounds.QUICK_BYTES_MAX). This decoder takes text and bytes alone.
        self._careful = _decoder(any_keys=False)

    def decode(self, payload: bytes) -> Values:
        """Return the fields of an item of CBOR, which may have indefinite lengths.

        Raises:
            PayloadError: it is not one item of CBOR, too long or too deep, or has integers as keys and is longer than
                ``QUICK_BYTES_MAX``.
        """
        if len(payload) <= QUICK_BYTES_MAX:
            decoder = self._quick
        else:
            check_length(payload)
            decoder = self._careful
        decoder.fp = file = io.BytesIO(payload)
        try:
            value = decoder.decode()
        except PayloadError:
            raise
        except (cbor2.CBORError, ValueError, OverflowError, TypeError) as error:
            if isinstance(error.__cause__, PayloadError):  # raised in a tag
                raise error.__cause__ from None
            raise PayloadError(f"it is not CBOR that can be decoded: {error}") from None
        if (end := file.tell()) < len(payload):
            raise PayloadError(f"after an item of CBOR of {end} bytes there are {len(payload) - end} more")
        return fields_of(value, _READINGS)

    def encode(self, values: Values) -> bytes:
        """Return a map of CBOR with definite lengths, in the order of the fields. A float takes 64 bits.

        Raises:
            PayloadError: CBOR cannot hold them.
        """
        check_depth(values)  # cbor2 overflows the stack of the process where values are some thousand deep.
        try:
            payload: bytes = cbor2.dumps(values)
        except (cbor2.CBORError, TypeError, ValueError, OverflowError) as error:
            raise PayloadError(f"CBOR cannot hold its fields: {error}") from None
        return payload


def _decoder(*, any_keys: bool) -> cbor2.CBORDecoder:
    return cbor2.CBORDecoder(
        io.BytesIO(),
        semantic_decoders=_TAGS,
        tag_hook=_unknown,
        max_depth=DEPTH_MAX,
        allow_duplicate_keys=False,
        strict_hashable_types=not any_keys,
    )


# --- tags

Tag = Callable[[Any, bool], Any]
"""Function that returns what a tagged value stands for; told whether it has to be immutable, as in a key."""


def _inside(value: Any, _immutable: bool) -> Any:
    return value


def _unknown(tag: cbor2.CBORTag, _immutable: bool) -> Any:
    return tag.value


def _bignum(value: Any, _immutable: bool) -> int:
    if not isinstance(value, bytes) or len(value) > INTEGER_BYTES_MAX:
        raise PayloadError(f"an integer of any length is no byte string of at most {INTEGER_BYTES_MAX} bytes")
    return int.from_bytes(value)


def _negative_bignum(value: Any, immutable: bool) -> int:
    return -1 - _bignum(value, immutable)


def _decimal(value: Any, _immutable: bool) -> float:
    exponent, mantissa = _pair(value)
    # Correctly rounded, and short work for any exponent, where 10 ** exponent might take all memory.
    return _finite(float(f"{mantissa}e{exponent}"))


def _bigfloat(value: Any, _immutable: bool) -> float:
    exponent, mantissa = _pair(value)
    try:
        return _finite(math.ldexp(mantissa, exponent))
    except OverflowError:
        return _finite(math.inf)


def _pair(value: Any) -> tuple[int, int]:
    if not (isinstance(value, list | tuple) and len(value) == 2 and type(value[0]) is type(value[1]) is int):
        raise PayloadError("a decimal fraction or bigfloat is not a pair of integers")
    return value[0], value[1]


def _finite(number: float) -> float:
    if math.isinf(number):
        raise PayloadError("a decimal fraction or bigfloat is too large for a number")
    return number


def _refuse_reference(_value: Any, _immutable: bool) -> NoReturn:
    raise PayloadError("it has tag 25 or 29, a reference to another part of it, which is not supported")


# cbor2 makes objects of these: dates, regular expressions, e-mails. None of that is wanted of a stranger.
_MEANT = (0, 1, 24, 28, 30, 35, 36, 37, 48, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
_TAGS: Mapping[int, Tag] = {
    **dict.fromkeys(_MEANT, _inside),
    2: _bignum,
    3: _negative_bignum,
    4: _decimal,
    5: _bigfloat,
    25: _refuse_reference,
    29: _refuse_reference,
}
_READINGS: Readings = {type(cbor2.undefined): lambda _: None}
