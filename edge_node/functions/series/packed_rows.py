"""Rows as bytes, for functions that remember whole rows in their state."""

from __future__ import annotations

import msgspec

from weft.edge_node.functions.contract import Row

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def pack_row(row: Row) -> bytes:
    """Return a row as bytes.

    Raises:
        ValueError: a value is not one that a state can hold, such as an integer of more than 64 bits.
    """
    try:
        return _encode((row.time, row.key, row.payload, row.values, row.headers, row.seq, row.input, row.source))
    except (OverflowError, TypeError, RecursionError, ValueError) as error:
        raise ValueError(f"a value that cannot be remembered: {error}") from None


def unpack_row(packed: bytes) -> Row:
    """Return the row that ``pack_row`` was given."""
    time, key, payload, values, headers, seq, stream, *more = _decode(packed)
    source = tuple(more[0]) if more else ()  # an earlier release kept none
    return Row(time, key, payload, values, tuple((name, value) for name, value in headers), seq, stream, source=source)
