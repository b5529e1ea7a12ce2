"""Places of rows: their numbers by lane and their offsets by shard, as runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from weft.protocols.ranges import Range, RangeSet
from weft.storage.table.deletions import RANGES_MAX
from weft.storage.table.errors import TableError

TYPES = {
    "_shard": pa.int32(), "_offset": pa.int64(), "_edge": pa.string(), "_log": pa.string(), "_seq": pa.int64(),
}  # fmt: skip
"""Columns that name a row."""
PLACE = [*TYPES]


class Places:
    """A collector of places."""

    def __init__(self) -> None:
        self.lanes: dict[tuple[str, str], RangeSet] = defaultdict(RangeSet)
        """(edge, log id) -> numbers"""
        self.offsets: dict[int, RangeSet] = defaultdict(RangeSet)

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(each.count() for each in self.offsets.values())

    @property
    def ranges(self) -> int:
        """Return the number of ranges."""
        return sum(map(len, (*self.lanes.values(), *self.offsets.values())))

    def has_room(self, ranges: int) -> bool:
        """Return whether so many more ranges fit into a declaration."""
        return self.ranges + ranges <= RANGES_MAX

    def check(self) -> None:
        """Check that the rows can be declared together.

        Raises:
            TableError: they are too scattered.
        """
        if not self.has_room(0):
            raise TableError(f"these rows make more than {RANGES_MAX:,} ranges: remove them in parts")

    def add(self, rows: pa.Table) -> None:
        """Add rows, of which only ``PLACE`` is looked at. It blocks: a million rows take most of a second."""
        found = rows.group_by(["_edge", "_log"]).aggregate([("_seq", "list")])
        names = zip(found.column("_edge").to_pylist(), found.column("_log").to_pylist(), strict=True)
        for name, numbers in zip(names, found.column("_seq_list"), strict=True):
            _add(self.lanes[name], numbers.values.to_numpy())
        found = rows.group_by("_shard").aggregate([("_offset", "list")])
        for shard, numbers in zip(found.column("_shard").to_pylist(), found.column("_offset_list"), strict=True):
            _add(self.offsets[shard], numbers.values.to_numpy())

    def add_stored(
        self, lanes: Iterable[tuple[str, str, list[Range]]], offsets: Iterable[tuple[int, list[Range]]]
    ) -> None:
        """Add those of a declaration."""
        for edge, log_id, ranges in lanes:
            self.lanes[edge, log_id].update(RangeSet(ranges))
        for shard, found in offsets:
            self.offsets[shard].update(RangeSet(found))

    def stored(self) -> tuple[list[tuple[str, str, list[Range]]], list[tuple[int, list[Range]]]]:
        """Return lanes and offsets in the form of a declaration."""
        lanes = [(edge, log_id, list(ranges)) for (edge, log_id), ranges in sorted(self.lanes.items())]
        return lanes, [(shard, list(ranges)) for shard, ranges in sorted(self.offsets.items())]


def _add(ranges: RangeSet, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """Add numbers as runs: one at a time would take a step for each."""
    ordered = np.sort(numbers)
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 2) != 1)
    for first, end in zip(starts, [*starts[1:], len(ordered)], strict=True):
        ranges.add(int(ordered[first]), int(ordered[end - 1]) + 1)
