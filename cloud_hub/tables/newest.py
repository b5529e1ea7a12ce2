"""The newest row of each key, as a pure function of rows.

Of a lane's rows of a key, the one with the highest sequence number counts, in whatever order the rows came. Of the
lanes of a key, the one whose row the hub received last wins: by time, then shard, then offset. If that row is a
tombstone, the key has no row. The state is what counts of each lane. So rows may be taken in any portions, in any order
and more than once, and the result is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.table.columns import TOMBSTONE_COLUMN

LANES_PER_KEY_MAX = 8
"""Maximum number of lanes of a key beside the winner whose rows are kept, the last received ones."""
HIDDEN_US = 7 * 86_400_000_000
"""Time, by the hub's clock in the log, for which tombstones and rows of a key's other lanes are kept."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
Numbers = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Newest(NamedTuple):
    """Numbers of rows; those of neither kind are older than another one of their lane, or beyond a bound."""

    visible: Numbers
    """The row of each key that has one."""
    hidden: Numbers
    """Tombstones, and the rows of a key's other lanes."""


def newest(rows: pa.Table, keys: Sequence[str], now_us: int) -> Newest:
    """Return the rows that count. Rows without a value in one of the columns of the key do not.

    Args:
        keys: columns of the key.
        now_us: microseconds since 1970: hidden rows are as old as both this clock and the hub's in the log say, since
            either may be ahead.
    """
    if not rows.num_rows:
        return Newest(np.empty(0, np.int64), np.empty(0, np.int64))
    key = codes(rows, keys)
    lane, received = codes(rows, ("_edge", "_log")), _numbers(rows, "_received")
    shard, offset = _numbers(rows, "_shard"), _numbers(rows, "_offset")
    order = np.lexsort((_numbers(rows, "_seq"), lane, key))
    found = order[_lasts(key[order], lane[order]) & (key[order] >= 0)]
    found = found[np.lexsort((offset[found], shard[found], received[found], key[found]))]
    is_winner = _lasts(key[found])
    is_tombstone = rows.column(TOMBSTONE_COLUMN).to_numpy()[found]
    is_young = received[found] > min(int(received.max()), now_us) - HIDDEN_US
    is_kept = ~is_winner & _near_end(key[found])
    hidden = (is_kept | (is_winner & is_tombstone)) & is_young
    return Newest(found[is_winner & ~is_tombstone], found[hidden])


def codes(rows: pa.Table, columns: Sequence[str]) -> Numbers:
    """Return a number for each row, equal for rows with equal values of the columns; -1 where one is null."""
    total = np.zeros(rows.num_rows, np.int64)
    is_null = np.zeros(rows.num_rows, np.bool_)
    for name in columns:
        encoded = rows.column(name).combine_chunks().dictionary_encode()
        found = encoded.indices.fill_null(-1).to_numpy().astype(np.int64)
        is_null |= found < 0
        total = total * (len(encoded.dictionary) + 1) + found
        if len(columns) > 2:  # the product of many columns would not fit into 64 bits
            total = np.unique(total, return_inverse=True)[1].astype(np.int64)
    total[is_null] = -1
    return total


def hashes(rows: pa.Table, keys: Sequence[str]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return a number of 32 bits for the key of each row, the same in every process. Null counts as an empty text."""
    total = np.zeros(rows.num_rows, np.uint64)
    for name in keys:
        encoded = rows.column(name).cast(pa.string()).fill_null("").combine_chunks().dictionary_encode()
        values = np.fromiter(map(_hash, encoded.dictionary.to_pylist()), np.uint64, len(encoded.dictionary))
        # The multiplication spreads what CRCs of similar names have in common over the upper half.
        total = (total ^ values[encoded.indices.to_numpy()]) * _MIX
    return (total >> np.uint64(32)).astype(np.uint32)


def _hash(value: str) -> int:
    return crc32(value.encode())


def of_keys(rows: pa.Table, wanted: pa.Table, keys: Sequence[str]) -> Mask:
    """Return for each row whether ``wanted`` has a row with its key."""
    if len(keys) == 1:
        values = wanted.column(keys[0]).combine_chunks()
        found: Mask = pc.is_in(rows.column(keys[0]).combine_chunks(), value_set=values).to_numpy(zero_copy_only=False)
        return found
    both = codes(pa.concat_tables([rows.select(keys), wanted.select(keys)]), keys)
    return np.isin(both[: rows.num_rows], both[rows.num_rows :])


def young(hidden: pa.Table, rows: pa.Table, now_us: int) -> pa.Table:
    """Return the hidden rows that are kept when the hub has received ``rows``; ``now_us`` as of ``newest``."""
    if not (hidden.num_rows and rows.num_rows):
        return hidden
    last_us = min(int(_numbers(rows, "_received").max()), now_us)
    is_young: Mask = _numbers(hidden, "_received") > last_us - HIDDEN_US
    return hidden.filter(pa.array(is_young))


def _numbers(rows: pa.Table, name: str) -> Numbers:
    column = rows.column(name)
    found: Numbers = (column.cast(pa.int64()) if column.type != pa.int64() else column).to_numpy()
    return found


def _lasts(*ordered: Numbers) -> Mask:
    """Return whether each element is the last of a run of equal ones."""
    ends = np.ones(len(ordered[0]), np.bool_)
    if len(ends) > 1:
        ends[:-1] = np.logical_or.reduce([each[1:] != each[:-1] for each in ordered])
    return ends


def _near_end(ordered: Numbers) -> Mask:
    """Return whether each element is among the last ones of a run of equal ones."""
    ends = np.flatnonzero(_lasts(ordered))
    end_of = ends[np.searchsorted(ends, np.arange(len(ordered)))]
    return end_of - np.arange(len(ordered)) <= LANES_PER_KEY_MAX
