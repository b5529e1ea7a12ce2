"""The keys of a table's last rows, read from the table: a process that begins knows what further rows repeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.table.delta.versions import open_table
from weft.storage.table.errors import TableError
from weft.storage.table.quality.keys import key_hashes
from weft.storage.table.quality.repeats import KeyRun, empty

BATCH_ROWS = 16 << 10
Place = tuple[str, dict[str, str]]
"""URI of a table, and options of its store."""


def last_keys(
    place: Place, version: int, ends: Sequence[tuple[int, int]], columns: Sequence[str], within: int
) -> dict[int, KeyRun]:
    """Return the keys of the last rows of shards. It blocks; the files of other rows are not read.

    Args:
        ends: (shard, offset after its last row).

    Raises:
        TableError: the version is no longer there, or has other rows.
    """
    wanted = {shard: (max(0, end - within), end) for shard, end in ends}
    tails = {shard: empty(shard, end) for shard, end in ends}
    if not wanted:
        return tails
    found = [(batch.column("_shard").to_numpy(), batch.column("_offset").to_numpy(), key_hashes(batch, columns))
             for batch in _batches(place, version, wanted, columns)]  # fmt: skip
    if not found:
        return tails
    shards, offsets, keys = (np.concatenate(parts) for parts in zip(*found, strict=True))
    for shard, (first, end) in wanted.items():
        mine = np.flatnonzero(shards == shard)
        mine = mine[np.argsort(offsets[mine])]
        if not len(mine):
            continue
        # Rows that were removed, or whose records were skipped, leave holes: what is there is taken as it lies.
        run = np.zeros(int(offsets[mine][-1]) + 1 - first, np.uint64)
        run[offsets[mine] - first] = keys[mine]
        tails[shard] = KeyRun(shard, first, end, run)
    return tails


def _batches(
    place: Place, version: int, wanted: dict[int, tuple[int, int]], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    uri, options = place
    table = open_table(uri, options, version)
    if table is None:
        raise TableError(f"{uri}: the table is no longer there")
    dataset: Any = table.to_pyarrow_dataset()
    if missing := [name for name in columns if name not in dataset.schema.names]:
        raise TableError(f"{uri}: version {version} has no column {missing[0]}")
    parts = [
        (pc.field("_shard") == shard) & (pc.field("_offset") >= first) & (pc.field("_offset") < end)
        for shard, (first, end) in wanted.items()
    ]
    scanner = dataset.scanner(
        columns=["_shard", "_offset", *columns], filter=reduce(or_, parts), batch_size=BATCH_ROWS, batch_readahead=1,
        fragment_readahead=1, use_threads=False,
    )  # fmt: skip
    yield from scanner.to_batches()
