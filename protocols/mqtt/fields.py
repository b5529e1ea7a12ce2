"""Values -> the bytes of a packet's fields (section 1.5)."""

from __future__ import annotations

VARIABLE_MAX = 268_435_455
"""Largest variable byte integer, and largest remaining length: four bytes of seven bits (section 2.2.3)."""

TEXT_BYTES_MAX = 65_535


def variable(value: int) -> bytes:
    """Encode a variable byte integer in one to four bytes.

    Raises:
        ValueError: over ``VARIABLE_MAX``.
    """
    if value < 128:
        return bytes((value,))
    if value > VARIABLE_MAX:
        raise ValueError(f"a packet of {value} bytes; MQTT has room for {VARIABLE_MAX}")
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def u16(value: int) -> bytes:
    """Encode a two byte integer."""
    return value.to_bytes(2, "big")


def text(value: str | bytes) -> bytes:
    """Encode a string or binary data with its length before it.

    Raises:
        ValueError: over ``TEXT_BYTES_MAX``.
    """
    data = value.encode() if isinstance(value, str) else value
    if len(data) > TEXT_BYTES_MAX:
        raise ValueError(f"a field of {len(data)} bytes; MQTT has room for {TEXT_BYTES_MAX}")
    return len(data).to_bytes(2, "big") + data
