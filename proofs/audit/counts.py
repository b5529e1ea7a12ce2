"""Counts of present, doubled or missing numbers, by runs instead of rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.protocols.ranges import RangeSet

K = TypeVar("K", bound=Hashable)
LaneKey = tuple[str, str]
"""(edge, log id in hexadecimal): a lane within one stream."""
Array = np.ndarray[Any, np.dtype[Any]]


class SeqCounts(Generic[K]):
    """Per key the seen sequence numbers (or offsets), and the count of those seen again."""

    def __init__(self) -> None:
        self.held: dict[K, RangeSet] = defaultdict(RangeSet)
        self.doubled: dict[K, int] = defaultdict(int)

    def add(self, key: K, first: int, end: int) -> None:
        """Count ``[first, end)``."""
        held = self.held[key]
        fresh = sum(stop - start for start, stop in held.missing(first, end))
        self.doubled[key] += end - first - fresh
        held.add(first, end)

    def merge(self, other: SeqCounts[K]) -> None:
        """Add the counts of another one. The order of merges does not matter."""
        for key, ranges in other.held.items():
            for first, end in ranges:
                self.add(key, first, end)
        for key, count in other.doubled.items():
            self.doubled[key] += count

    def add_rows(self, keys: Sequence[K], codes: Array, numbers: Array) -> None:
        """Count many numbers at once; the cost in Python is per run, not per number.

        Args:
            keys: the keys that the codes stand for.
            codes: an index into ``keys`` per row.
            numbers: u64 per row.
        """
        for code, first, end in runs(codes, numbers):
            self.add(keys[code], first, end)


class OriginCounts(Generic[K]):
    """Per key the number of rows of each origin; rows of devices are not counted."""

    def __init__(self) -> None:
        self.counts: dict[K, Counter[str]] = defaultdict(Counter)

    def merge(self, other: OriginCounts[K]) -> None:
        """Add the counts of another one."""
        for key, counts in other.counts.items():
            self.counts[key].update(counts)

    def add_rows(self, keys: Sequence[K], codes: Array, column: pa.Array) -> None:
        """Count the rows of a column of origins.

        Args:
            keys: the keys that the codes stand for.
            codes: an index into ``keys`` per row.
        """
        if column.null_count == len(column):
            return
        named = np.asarray(column.is_valid())
        texts, origins = coded(column.drop_null())
        pairs, counts = np.unique(np.stack((codes[named], origins)), axis=1, return_counts=True)
        for key, origin, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
            self.counts[keys[key]][texts[origin]] += count


def runs(codes: Array, numbers: Array) -> Iterator[tuple[int, int, int]]:
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


def lanes_of(batch: pa.RecordBatch) -> tuple[list[LaneKey], Array]:
    """Return the lanes of rows, and for each row the index of its lane."""
    names = pc.binary_join_element_wise(batch.column("_edge"), batch.column("_log"), "/")
    values, codes = coded(names)
    return [(edge, log) for edge, _, log in (value.rpartition("/") for value in values)], codes


def without(ranges: RangeSet, others: RangeSet) -> RangeSet:
    """Return the numbers of ``ranges`` that are not in ``others``."""
    return ranges.minus(others)
