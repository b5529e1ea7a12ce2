"""Values from CBOR (RFC 8949) that strangers send, decoded by cbor2 within bounds.

No tag makes an object of Python: bignums become integers, decimal fractions and bigfloats become floats. Other tags are
replaced by their value: a time (0 and 1) by its text or its seconds since 1970. Tags that refer to other parts of the
payload (25 and 29) are refused, and so are two equal names in a map.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import cbor2

INTEGER_BYTES_MAX = 1_785
"""Longest integer: 4,300 digits, Python's limit for integers as text, which also holds for JSON."""
QUICK_BYTES_MAX = 4 << 10
"""Longest payload in which arrays may be keys of maps while it is decoded. Their hashes are predictable: 14,000
colliding ones fit into 256 KiB, and would take seconds. In 4 KiB it is a millisecond."""
UNDEFINED = type(cbor2.undefined)
"""Type of the value ``undefined``."""


class CborError(ValueError):
    """A payload that is not one item of CBOR, or has a part that is not supported."""


class CborDecoder:
    """A decoder of whole payloads. It keeps cbor2's decoders, which take long to make."""

    def __init__(self, depth_max: int) -> None:
        """Make a decoder that refuses arrays and maps nested more than ``depth_max`` deep."""
        self._quick = _decoder(depth_max, any_keys=True)
        # Arrays as keys can be made to collide (QUICK_BYTES_MAX). This decoder allows only text and bytes.
        self._careful = _decoder(depth_max, any_keys=False)

    def decode(self, payload: bytes) -> Any:
        """Return the item of CBOR, which may have indefinite lengths.

        Raises:
            CborError: the payload is not one item of CBOR, is too deep, or has integers as keys and is longer than
                ``QUICK_BYTES_MAX``.
        """
        decoder = self._quick if len(payload) <= QUICK_BYTES_MAX else self._careful
        decoder.fp = file = io.BytesIO(payload)
        try:
            value = decoder.decode()
        except CborError:
            raise
        except (cbor2.CBORError, ValueError, OverflowError, TypeError) as error:
            if isinstance(error.__cause__, CborError):  # raised in a tag
                raise error.__cause__ from None
            raise CborError(f"it is not CBOR that can be decoded: {error}") from None
        if (end := file.tell()) < len(payload):
            raise CborError(f"after an item of CBOR of {end} bytes there are {len(payload) - end} more")
        return value


def _decoder(depth_max: int, *, any_keys: bool) -> cbor2.CBORDecoder:
    return cbor2.CBORDecoder(
        io.BytesIO(),
        semantic_decoders=_TAGS,
        tag_hook=_unknown,
        max_depth=depth_max,
        allow_duplicate_keys=False,
        strict_hashable_types=not any_keys,
    )


# --- tags

Tag = Callable[[Any, bool], Any]
"""Function of a tagged value that returns its meaning; the flag is True if it must be immutable, as in a key."""


def _inside(value: Any, _immutable: bool) -> Any:
    return value


def _unknown(tag: cbor2.CBORTag, _immutable: bool) -> Any:
    return tag.value


def _bignum(value: Any, _immutable: bool) -> int:
    if not isinstance(value, bytes) or len(value) > INTEGER_BYTES_MAX:
        raise CborError(f"an integer of any length is not a byte string of at most {INTEGER_BYTES_MAX} bytes")
    return int.from_bytes(value)


def _negative_bignum(value: Any, immutable: bool) -> int:
    return -1 - _bignum(value, immutable)


def _decimal(value: Any, _immutable: bool) -> float:
    exponent, mantissa = _pair(value)
    # Correctly rounded, and cheap for any exponent, while 10 ** exponent might take all memory.
    return _finite(float(f"{mantissa}e{exponent}"))


def _bigfloat(value: Any, _immutable: bool) -> float:
    exponent, mantissa = _pair(value)
    try:
        return _finite(math.ldexp(mantissa, exponent))
    except OverflowError:
        return _finite(math.inf)


def _pair(value: Any) -> tuple[int, int]:
    if not (isinstance(value, list | tuple) and len(value) == 2 and type(value[0]) is type(value[1]) is int):
        raise CborError("a decimal fraction or bigfloat is not a pair of integers")
    return value[0], value[1]


def _finite(number: float) -> float:
    if math.isinf(number):
        raise CborError("a decimal fraction or bigfloat is too large for a number")
    return number


def _refuse_reference(_value: Any, _immutable: bool) -> NoReturn:
    raise CborError("it has tag 25 or 29, a reference to another part of it, which is not supported")


# cbor2 makes objects of these: dates, regular expressions, e-mails. A payload from a stranger must not make any.
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
