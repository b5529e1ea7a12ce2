"""Counts of numbers that are present, doubled or missing, by runs instead of rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from weft.protocols.ranges import RangeSet

K = TypeVar("K", bound=Hashable)
Array = np.ndarray[Any, np.dtype[Any]]


class SeqCounts(Generic[K]):
    """Per key the sequence numbers (or offsets) that were seen, and how many were seen again."""

    def __init__(self) -> None:
        self.held: dict[K, RangeSet] = defaultdict(RangeSet)
        self.doubled: dict[K, int] = defaultdict(int)

    def add(self, key: K, first: int, end: int) -> None:
        """Count ``[first, end)``."""
        held = self.held[key]
        fresh = sum(stop - start for start, stop in held.missing(first, end))
        self.doubled[key] += end - first - fresh
        held.add(first, end)

    def add_rows(self, keys: Sequence[K], codes: Array, numbers: Array) -> None:
        """Count many numbers at once; the cost in Python is per run, not per number.

        Args:
            keys: the keys that the codes stand for.
            codes: an index into ``keys`` per row.
            numbers: u64 per row.
        """
        for code, first, end in _runs(codes, numbers):
            self.add(keys[code], first, end)


def _runs(codes: Array, numbers: Array) -> Iterator[tuple[int, int, int]]:
    """Yield (code, first, end) of maximal runs; a number that occurs twice is in two runs."""
    if not len(codes):
        return
    order = np.lexsort((numbers, codes))
    codes, numbers = codes[order], numbers[order]
    breaks = np.flatnonzero((codes[1:] != codes[:-1]) | (numbers[1:] != numbers[:-1] + np.uint64(1))) + 1
    starts, stops = np.concatenate(([0], breaks)), np.concatenate((breaks, [len(codes)]))
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        yield int(codes[start]), int(numbers[start]), int(numbers[stop - 1]) + 1


def unsigned(column: pa.Array) -> Array:
    """Return a column of integers as u64. Sequence numbers from 2**63 on are stored in it as negative ones."""
    return np.asarray(column.to_numpy(zero_copy_only=False), np.int64).view(np.uint64)


def coded(column: pa.Array) -> tuple[list[Any], Array]:
    """Return the distinct values of a column, and for each row the index of its value."""
    encoded = column.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)


def without(ranges: RangeSet, others: RangeSet) -> RangeSet:
    """Return the numbers of ``ranges`` that are not in ``others``."""
    left = ranges.copy()
    for first, end in others:
        left.remove(first, end)
    return left
