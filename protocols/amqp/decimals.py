"""Decimal numbers of AMQP 1.0: IEEE 754-2008 in binary integer decimal encoding (part 1, sections 1.6.13 to 1.6.15)."""

from __future__ import annotations

from decimal import Decimal
from typing import Final, NamedTuple


class _Form(NamedTuple):
    width: int
    """Bytes."""
    exponent_bits: int
    coefficient_bits: int
    bias: int
    digits: int


_FORMS: Final = {
    0x74: _Form(4, 8, 23, 101, 7),
    0x84: _Form(8, 10, 53, 398, 16),
    0x94: _Form(16, 14, 113, 6176, 34),
}
"""Type code -> form."""
DECIMAL64: Final = 0x84


def read_decimal(code: int, data: bytes) -> Decimal | None:
    """Return the number; None for infinities and NaN, and for an encoding that ``write_decimal`` would not choose."""
    form = _FORMS[code]
    bits = 8 * form.width - 1
    encoded = int.from_bytes(data, "big")
    sign, rest = encoded >> bits, encoded & ((1 << bits) - 1)
    if rest >> (bits - 4) == 0b1111:
        return None  # infinity or not a number
    if rest >> (bits - 2) == 0b11:  # a coefficient whose first bits are 100
        shift = form.coefficient_bits - 2
        exponent = rest >> shift & ((1 << form.exponent_bits) - 1)
        coefficient = 0b100 << shift | rest & ((1 << shift) - 1)
    else:
        exponent = rest >> form.coefficient_bits
        coefficient = rest & ((1 << form.coefficient_bits) - 1)
    if coefficient >= 10**form.digits:
        return None  # stands for zero
    return Decimal((sign, tuple(map(int, str(coefficient))), exponent - form.bias))


def write_decimal(code: int, value: Decimal) -> bytes | None:
    """Return the encoded number; None if the form has no room for it."""
    form = _FORMS[code]
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return None
    coefficient, biased = int("".join(map(str, digits))), exponent + form.bias
    if coefficient >= 10**form.digits or not 0 <= biased < 3 << (form.exponent_bits - 2):
        return None
    bits = 8 * form.width - 1
    if coefficient < 1 << form.coefficient_bits:
        rest = biased << form.coefficient_bits | coefficient
    else:
        shift = form.coefficient_bits - 2
        rest = 0b11 << (bits - 2) | biased << shift | coefficient & ((1 << shift) - 1)
    return (sign << bits | rest).to_bytes(form.width, "big")
