"""Payloads of log and table compared: sums of checksums, by blocks of offsets."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
from crc32c import crc32c

from weft.protocols.ranges import RangeSet

BLOCK_OFFSETS = 1024
"""Offsets whose payloads are compared by one sum of checksums."""
DIFFERENCES_LISTED_MAX = 20


class Contents:
    """Sums of the checksums of payloads, by shard and block of offsets.

    Args:
        positions: positions of the table, by shard; offsets from there on are not compared.
        skips: by shard the offsets that are not compared either.
    """

    def __init__(self, positions: Mapping[int, int], skips: Mapping[int, RangeSet]) -> None:
        self.columns: tuple[str, ...] = ()
        """Columns of the table with the payloads; none when they are not compared."""
        self._positions = positions
        self._skips = skips
        self._sums: dict[str, Counter[tuple[int, int]]] = {"log": Counter(), "table": Counter()}

    def add(self, side: str, batch: pa.RecordBatch) -> None:
        """Add the payloads of rows of ``log`` or ``table``."""
        if not self.columns:
            return
        sums, names = self._sums[side], ("_shard", "_offset", *self.columns)
        for shard, offset, *parts in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            if offset < self._positions[shard] and offset not in self._skips.get(shard, ()):
                crc = crc32c(struct.pack("<Q", offset))
                for part in parts:
                    crc = crc32c(part.encode() if isinstance(part, str) else part or b"", crc)
                sums[shard, offset // BLOCK_OFFSETS] += crc

    def problems(self) -> list[str]:
        """Return the blocks whose payloads differ, one sentence each."""
        log, table = self._sums["log"], self._sums["table"]
        differing = sorted(block for block in log.keys() | table.keys() if log[block] != table[block])
        return [
            f"shard {shard}: payloads of offsets {block * BLOCK_OFFSETS} to {(block + 1) * BLOCK_OFFSETS - 1} differ "
            "between log and table"
            for shard, block in differing[:DIFFERENCES_LISTED_MAX]
        ]
