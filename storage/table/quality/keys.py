"""Numbers for the values of several columns in a row, equal for equal values, in every process.

They have 64 bits: among a million rows, two with different values have one number by chance once in 40 million times.
They guard against chance and not against a sender who looks for such values: it would count its own rows as repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
LONG_BYTES = 1 << 10
"""Length from which on a text is hashed alone. Shorter ones of many rows are hashed together."""
SLICE_ROWS = 1 << 10
"""Rows that are hashed together: with ``LONG_BYTES``, it bounds the memory for it to some 30 MB."""
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and factors of splitmix64 (Steele, Lea and Flood, 2014)."""


def can_be_key(kind: pa.DataType) -> bool:
    """Return whether values of a type can be compared here."""
    return not (pa.types.is_nested(kind) or pa.types.is_dictionary(kind))


def key_hashes(batch: pa.RecordBatch | pa.Table, columns: Sequence[str]) -> Hashes:
    """Return a number for each row; 0 where one of the columns is null."""
    total = np.zeros(batch.num_rows, np.uint64)
    is_null = np.zeros(batch.num_rows, np.bool_)
    for name in columns:
        column = batch.column(name)
        values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        total = _mixed(total * np.uint64(_BASE) + _hashes(values))
        if values.null_count:
            is_null |= values.is_null().to_numpy(zero_copy_only=False)
    total[total == 0] = 1
    total[is_null] = 0
    return total


def _hashes(values: pa.Array) -> Hashes:
    kind = values.type
    if pa.types.is_decimal(kind):
        return _of_texts(values.cast(pa.string()))
    if pa.types.is_floating(kind):
        numbers = values.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
        return _mixed((numbers + 0.0).view(np.uint64))  # which makes 0 of -0
    if pa.types.is_boolean(kind):
        return _mixed(values.fill_null(False).cast(pa.uint64()).to_numpy(zero_copy_only=False))
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return _mixed(values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64))
    return _of_texts(values)


def _of_texts(values: pa.Array) -> Hashes:
    found = np.empty(len(values), np.uint64)
    for first in range(0, len(values), SLICE_ROWS):
        part = values.slice(first, SLICE_ROWS).cast(pa.binary()).fill_null(b"")
        ends = np.frombuffer(part.buffers()[1], np.int32)[part.offset : part.offset + len(part) + 1]
        is_long = np.diff(ends) > LONG_BYTES
        into = found[first : first + len(part)]
        if not is_long.any():
            into[:] = _together(part, ends)
            continue
        into[is_long] = [_alone(text) for text in part.filter(pa.array(is_long)).to_pylist()]
        short = part.filter(pa.array(~is_long))
        into[~is_long] = _together(short, np.frombuffer(short.buffers()[1], np.int32)[: len(short) + 1])
    return found


def _alone(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def _together(texts: pa.Array, ends: np.ndarray[Any, np.dtype[np.int32]]) -> Hashes:
    """Return for each text the value of a polynomial with its bytes, taken as a difference of sums over all bytes."""
    if not len(texts):
        return np.zeros(0, np.uint64)
    data = texts.buffers()[2]
    codes = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    at = (ends - ends[0]).astype(np.int64)
    powers, inverses = _powers(1 << len(codes).bit_length())
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum((codes.astype(np.uint64) + 1) * powers[: len(codes)], out=sums[1:])
    lengths = np.diff(at).astype(np.uint64)
    return _mixed((sums[at[1:]] - sums[at[:-1]]) * inverses[at[:-1]] + lengths * np.uint64(_BASE))


@lru_cache(maxsize=4)
def _powers(count: int) -> tuple[Hashes, Hashes]:
    """Return powers of the base and of its inverse, in the arithmetic of 64 bits."""
    found = []
    for base in (_BASE, _INVERSE):
        factors = np.full(count, base, np.uint64)
        factors[0] = 1
        found.append(np.cumprod(factors))
    return found[0], found[1]


def _mixed(numbers: Hashes) -> Hashes:
    for shift, factor in _STEPS:
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    mixed: Hashes = numbers ^ (numbers >> np.uint64(31))
    return mixed
