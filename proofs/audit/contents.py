"""Comparison of payloads in log and table: sums of checksums, by blocks of offsets."""

from __future__ import annotations

import struct
from collections import Counter

import pyarrow as pa
from crc32c import crc32c

from weft.proofs.audit.scope import Scope

BLOCK_OFFSETS = 1024
"""Number of offsets whose payloads are compared by one sum of checksums."""
DIFFERENCES_LISTED_MAX = 20

Sums = Counter[tuple[int, int]]
"""(shard, block of offsets) -> sum of the checksums of its payloads."""


def add_payloads(sums: Sums, batch: pa.RecordBatch, scope: Scope) -> None:
    """Add the payloads of rows below the table's position that were not skipped; nothing if payloads are not
    compared."""
    if not scope.payload_columns:
        return
    names = ("_shard", "_offset", "_seq", *scope.payload_columns)
    for shard, offset, seq, *parts in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
        if offset < scope.positions.get(shard, 0) and offset not in scope.unsummed.get(shard, ()):
            # The checksum includes the number: if two rows of a lane had swapped payloads, the sum of payloads alone
            # would agree.
            crc = crc32c(struct.pack("<Qq", offset, seq))
            for part in parts:
                crc = crc32c(part.encode() if isinstance(part, str) else part or b"", crc)
            sums[shard, offset // BLOCK_OFFSETS] += crc


def payload_problems(log: Sums, table: Sums) -> list[str]:
    """Return the blocks whose payloads differ, one sentence each."""
    differing = sorted(block for block in log.keys() | table.keys() if log[block] != table[block])
    return [
        f"shard {shard}: payloads of offsets {block * BLOCK_OFFSETS} to {(block + 1) * BLOCK_OFFSETS - 1} differ "
        "between log and table"
        for shard, block in differing[:DIFFERENCES_LISTED_MAX]
    ]
