"""Comparison of times in log and table: sums of hashes, by blocks of offsets.

Every audit compares them, so nothing here runs per row in Python, and the blocks are so large that the sums of a
billion records are small beside the counts of its lanes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weft.proofs.audit.counts import Array, coded, unsigned
from weft.proofs.audit.scope import Scope
from weft.protocols.ranges import RangeSet

BLOCK_OFFSETS = 1 << 16
"""Number of offsets whose times are compared by one sum."""
DIFFERENCES_LISTED_MAX = 20
_WORD = (1 << 64) - 1
_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
"""Odd numbers with their bits well mixed: the golden ratio's, and two primes of xxHash."""


class TimeSum(NamedTuple):
    """Sums over the rows of a block, as 64 bits."""

    rows: int = 0
    """Sum of hashes of the offsets: equal sums mean the same rows."""
    contents: int = 0
    """Sum of hashes of offset, sequence number and time together."""

    def plus(self, other: TimeSum) -> TimeSum:
        """Return the sums over the rows of both."""
        return TimeSum(self.rows + other.rows & _WORD, self.contents + other.contents & _WORD)


TimeSums = dict[tuple[int, int], TimeSum]
"""(shard, block of offsets) -> sums. A block without a row has none."""


def add_times(sums: TimeSums, batch: pa.RecordBatch, scope: Scope) -> None:
    """Add the times of rows below the table's position that were not skipped."""
    shards, codes = coded(batch.column("_shard"))
    offsets, seqs = unsigned(batch.column("_offset")), unsigned(batch.column("_seq"))
    times = unsigned(batch.column("_time").cast(pa.int64()))
    for code, shard in enumerate(shards):
        wanted = (codes == code) & (offsets < np.uint64(scope.positions.get(shard, 0)))
        if shard in scope.unsummed and len(offsets):
            wanted &= ~_are_in(offsets, scope.unsummed[shard])
        if wanted.any():
            merge_times(sums, _summed(shard, offsets[wanted], seqs[wanted], times[wanted]))


def _are_in(offsets: Array, ranges: RangeSet) -> npt.NDArray[np.bool_]:
    """Return a mask of the offsets in a set, vectorised because a declared deletion may have a million ranges."""
    near = ranges.within(int(offsets.min()), int(offsets.max()) + 1)
    if not near:
        return np.zeros(len(offsets), np.bool_)
    starts, ends = np.array(near, np.uint64).T
    at = np.searchsorted(starts, offsets, "right").astype(np.int64) - 1
    found: npt.NDArray[np.bool_] = (at >= 0) & (offsets < ends[np.maximum(at, 0)])
    return found


def merge_times(sums: TimeSums, others: TimeSums) -> None:
    """Add other sums. The order of merges does not matter."""
    for block, each in others.items():
        sums[block] = each.plus(sums.get(block, TimeSum()))


def _summed(shard: int, offsets: Array, seqs: Array, times: Array) -> TimeSums:
    rows = _mixed(offsets, 0)
    # Each mix includes the previous one, so that two rows with swapped times do not give the same sum.
    contents = _mixed(_mixed(rows ^ seqs, 1) ^ times, 2)
    blocks, places = np.unique(offsets // np.uint64(BLOCK_OFFSETS), return_inverse=True)
    sums = np.zeros((len(blocks), 2), np.uint64)
    np.add.at(sums[:, 0], places, rows)
    np.add.at(sums[:, 1], places, contents)
    return {(shard, block): TimeSum(*pair) for block, pair in zip(blocks.tolist(), sums.tolist(), strict=True)}


def _mixed(numbers: Array, place: int) -> Array:
    """Return a hash of each number (the multiplications and shifts of splitmix64); overflow is intended."""
    mixed = (numbers + np.uint64(place + 1)) * np.uint64(_MULTIPLIERS[place])
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(_MULTIPLIERS[(place + 1) % 3])
    return mixed ^ (mixed >> np.uint64(32))


def time_problems(log: TimeSums, table: TimeSums) -> list[str]:
    """Return the blocks whose times differ, one sentence each; blocks with other rows are reported elsewhere."""
    differing = sorted(
        block
        for block in log.keys() & table.keys()
        if log[block].rows == table[block].rows and log[block].contents != table[block].contents
    )
    return [
        f"shard {shard}: _time or _seq of rows with offsets {block * BLOCK_OFFSETS} to "
        f"{(block + 1) * BLOCK_OFFSETS - 1} differ between log and table"
        for shard, block in differing[:DIFFERENCES_LISTED_MAX]
    ]
