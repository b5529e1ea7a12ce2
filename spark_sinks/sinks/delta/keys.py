"""Equality of rows by some columns, a whole table at a time. Nulls equal nulls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def codes_of(columns: Sequence[pa.ChunkedArray]) -> np.ndarray:
    """Return a number per row, from 0 without holes; rows with equal values have equal numbers."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = pa.concat_arrays(encoded.chunks) if encoded.num_chunks else pa.array([], pa.string())
            encoded = encoded if pa.types.is_dictionary(encoded.type) else encoded.dictionary_encode()
        indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        # Codes are made dense again after each column, so the product stays below the square of the number of rows.
        codes = np.unique(codes * (len(encoded.dictionary) + 1) + indices, return_inverse=True)[1]
    return codes


def last_of_each(table: pa.Table, keys: Sequence[str], order: Sequence[str]) -> pa.Table:
    """Return one row per key: the last by ``order``, nulls lowest, and among equal ones the last in the table."""
    if not table.num_rows:
        return table
    ranks: list[Any] = []
    for name in order:
        column = table.column(name)
        ranks += [pc.is_valid(column), column]  # Nulls are lowest: Arrow sorts false first, and nulls last.
    ranks.append(pa.array(np.arange(table.num_rows)))
    ranked = pa.table(ranks, names=[str(at) for at in range(len(ranks))])
    table = table.take(pc.sort_indices(ranked, sort_keys=[(name, "ascending") for name in ranked.column_names]))
    codes = codes_of([table.column(name) for name in keys])
    last = np.zeros(int(codes.max()) + 1, np.int64)
    last[codes] = np.arange(table.num_rows)  # For equal indices, numpy keeps the last value.
    return table.take(pa.array(np.sort(last)))


def match(found: pa.Table, wanted: pa.Table, keys: Sequence[str]) -> np.ndarray:
    """Return for each row of ``found`` the row of ``wanted`` with its key, or -1. ``wanted`` has each key once."""
    columns = [
        pa.chunked_array(
            [*wanted.column(name).chunks, *found.column(name).cast(wanted.schema.field(name).type).chunks],
            wanted.schema.field(name).type,
        )
        for name in keys
    ]
    codes = codes_of(columns)
    rows = np.full(int(codes.max()) + 1 if len(codes) else 0, -1, np.int64)
    rows[codes[: wanted.num_rows]] = np.arange(wanted.num_rows)
    return rows[codes[wanted.num_rows :]]


def later(left: pa.Table, right: pa.Table, order: Sequence[str]) -> np.ndarray:
    """Return for each pair of rows whether the left one comes after the right one by ``order``.

    Nulls are lowest and NaN is highest, as in the sort of the rows of one batch.
    """
    after, equal = np.zeros(left.num_rows, bool), np.ones(left.num_rows, bool)
    for name in order:
        ours, theirs = left.column(name), right.column(name).cast(left.schema.field(name).type)
        no_ours, no_theirs = _bools(pc.is_null(ours)), _bools(pc.is_null(theirs))
        ours_nan, theirs_nan = _are_nan(ours), _are_nan(theirs)
        greater = _bools(pc.fill_null(pc.greater(ours, theirs), False)) | (~no_ours & no_theirs)
        greater |= ours_nan & ~theirs_nan
        same = _bools(pc.fill_null(pc.equal(ours, theirs), False)) | (no_ours & no_theirs) | (ours_nan & theirs_nan)
        after |= equal & greater
        equal &= same
    return after


def _are_nan(values: pa.ChunkedArray) -> np.ndarray:
    if not pa.types.is_floating(values.type):
        return np.zeros(len(values), bool)
    return _bools(pc.fill_null(pc.is_nan(values), False))


def _bools(values: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(values.to_numpy(), bool)
