"""Rows without those that were erased: the log has them until the collector deletes its chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from weft.protocols.ranges import RangeSet

Erased = Mapping[int, RangeSet]
"""Shard -> offsets of erased rows."""
ERASED_PROPERTY: Final = "weft.erased"
"""Property of a table that was made after an erasure: the log may have records that are no rows of it."""
Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


def without(rows: Rows, shard: int, erased: Erased | None) -> Rows:
    """Return the rows of a shard that were not erased."""
    offsets = (erased or {}).get(shard)
    if offsets is None or not rows.num_rows:
        return rows
    column: Any = rows.column("_offset")
    mine = column.to_numpy()
    # Of the whole set, which may have a million ranges, only those of these rows are looked at.
    bounds = np.array(offsets.within(int(mine.min()), int(mine.max()) + 1), np.int64).reshape(-1, 2)
    # Of an offset within a range, the range's first one is at or before it, and its end is not.
    is_kept = np.searchsorted(bounds[:, 0], mine, "right") == np.searchsorted(bounds[:, 1], mine, "right")
    return rows.filter(pa.array(is_kept))


def of_shards(erased: Erased | None, spans: Mapping[int, tuple[int, int]]) -> Erased:
    """Return the part of the offsets within one span of each shard."""
    erased = erased or {}
    return {shard: RangeSet(erased[shard].within(*span)) for shard, span in spans.items() if shard in erased}
