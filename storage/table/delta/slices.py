"""Slices of a Parquet file: neighbouring row groups whose rows have one range of offsets.

The hub sorts the rows of a slice, so that each of its row groups has some of the offsets of all of it. A file in the
log's order has a slice for each row group.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import pyarrow.parquet as pq

OFFSET = "_offset"
ROWS_MAX = 512 << 10
"""Rows after which a slice is cut: another engine may have sorted a whole file."""
BYTES_MAX = 128 << 20
"""Bytes after which it is cut."""
_UNKNOWN = 1 << 63


class GroupSlice(NamedTuple):
    """Row groups ``[first, end)`` of a file."""

    first: int
    end: int
    rows: int
    bytes: int
    """Bytes of its columns in the file's encodings, without compression."""


def group_slices(metadata: pq.FileMetaData) -> Iterator[GroupSlice]:
    """Yield the slices of a file, in its order: up to each row group that no later row group has lower offsets than.

    Without bounds of offsets, each row group is a slice of its own.
    """
    bounds = list(_bounds(metadata))
    # The lowest offset of the row groups after each.
    after = [*accumulate((low for low, _ in reversed(bounds)), min)][::-1][1:]
    made, highest = GroupSlice(0, 0, 0, 0), -1
    for number, (_, high) in enumerate(bounds):
        group = metadata.row_group(number)
        rows, size = group.num_rows, group.total_byte_size
        if made.end > made.first and (made.rows + rows > ROWS_MAX or made.bytes + size > BYTES_MAX):
            yield made
            made = GroupSlice(number, number, 0, 0)
        made = GroupSlice(made.first, number + 1, made.rows + rows, made.bytes + size)
        highest = max(highest, high)
        if number + 1 == len(bounds) or highest < after[number]:
            yield made
            made = GroupSlice(number + 1, number + 1, 0, 0)


def parts_of(slice_: GroupSlice, metadata: pq.FileMetaData, bytes_max: int) -> Iterator[list[int]]:
    """Yield the row groups of a slice, in its order, in parts of at most ``bytes_max`` bytes, or of one row group.

    Neighbouring row groups can be read by one request.
    """
    part: list[int] = []
    size = 0
    for number in range(slice_.first, slice_.end):
        more = metadata.row_group(number).total_byte_size
        if part and size + more > bytes_max:
            yield part
            part, size = [], 0
        part.append(number)
        size += more
    if part:
        yield part


def _bounds(metadata: pq.FileMetaData) -> Iterator[tuple[int, int]]:
    """Yield the lowest and the highest offset of each row group; ever higher ones where they are unknown."""
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    at = names.index(OFFSET) if OFFSET in names else None
    for number in range(metadata.num_row_groups):
        known = metadata.row_group(number).column(at).statistics if at is not None else None
        yield (known.min, known.max) if known is not None and known.has_min_max else (_UNKNOWN + number,) * 2
