"""A column of payloads as the columns of a table: unchanged bytes, or text beside the bytes that are not text."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from weft.protocols.payloads import PayloadKind, is_json, keeps

BYTES_COLUMN = "_payload_bytes"
"""Column of the payloads that are not of their stream's kind; null in all other rows."""


def payload_fields(kind: PayloadKind) -> list[pa.Field]:
    """Return the fields of a table for a payload kind."""
    if kind is PayloadKind.BYTES:
        return [pa.field("payload", pa.binary(), nullable=False)]
    return [pa.field("payload", pa.string()), pa.field(BYTES_COLUMN, pa.binary())]


def payload_columns(payloads: pa.Array, kind: PayloadKind) -> dict[str, pa.Array]:
    """Return the columns of ``payload_fields`` for payloads without nulls.

    Each payload is in exactly one of the columns, bit for bit: text is its bytes, checked and unchanged.
    """
    if kind is PayloadKind.BYTES:
        return {"payload": payloads}
    text = _as_text(payloads)
    if text is not None and kind is PayloadKind.TEXT:
        return _all_kept(text)
    kept = list(map(is_json if text is not None else _check(kind), payloads.to_pylist()))
    if text is not None and all(kept):
        return _all_kept(text)
    mask = pa.array(kept, pa.bool_())
    nothing = pa.scalar(None, pa.binary())
    found = pc.if_else(mask, payloads, nothing).cast(pa.string())
    return {"payload": found, BYTES_COLUMN: pc.if_else(mask, nothing, payloads)}


def _as_text(payloads: pa.Array) -> pa.Array | None:
    """Return the payloads as text without a copy, or None if one of them is not UTF-8. Arrow checks each on its own."""
    try:
        return payloads.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def _all_kept(text: pa.Array) -> dict[str, pa.Array]:
    return {"payload": text, BYTES_COLUMN: pa.nulls(len(text), pa.binary())}


def _check(kind: PayloadKind) -> Callable[[bytes], bool]:
    return lambda payload: keeps(kind, payload)
