"""Payloads in CBOR (RFC 8949), by cbor2."""

from __future__ import annotations

import cbor2

from weft.bounds.cbor import UNDEFINED, CborDecoder, CborError
from weft.functions.contract import PayloadError, Values
from weft.functions.formats import DEPTH_MAX, Readings, check_depth, check_length, fields_of


class CborFormat:
    """CBOR. Two equal names in a map are refused.

    Bignums become integers, decimal fractions and bigfloats become floats, undefined becomes null. Other tags are
    replaced by their value: a time (0 and 1) by its text or its seconds since 1970. Tags that refer to other parts of
    the payload (25 and 29) are refused.
    """

    def __init__(self) -> None:
        self._decoder = CborDecoder(DEPTH_MAX)

    def decode(self, payload: bytes) -> Values:
        """Return the fields of an item of CBOR, which may have indefinite lengths.

        Raises:
            PayloadError: it is not one item of CBOR, too long or too deep, or has integers as keys and is longer than
                ``bounds.cbor.QUICK_BYTES_MAX``.
        """
        check_length(payload)
        try:
            return fields_of(self._decoder.decode(payload), _READINGS)
        except CborError as error:
            raise PayloadError(str(error)) from None

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


_READINGS: Readings = {UNDEFINED: lambda _: None}
