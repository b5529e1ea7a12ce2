"""Placement: the shard of a store for an edge's lanes. The rule is persisted: it must never change.

All lanes of an edge are in one shard, so a failing shard affects only its own edges, and a hub process needs few shards
to serve a link. The number of shards is a power of two: shard i of N can split into i and i + N of 2N, and no edge of
another shard moves. The rule is in docs/reference/formats/shard-state.md.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

TENANT_EDGE = "tenant-edge"
"""Name of the rule in ``cluster.json``."""
SHARDS_MAX = 1024
DIGEST_BYTES = 8


def shard_of(tenant: str, edge: str, shards: int) -> int:
    """Return the shard of all lanes of an edge: the low bits of a digest of its name.

    Args:
        shards: a power of two.
    """
    assert is_shard_count(shards), shards
    name = b"".join(struct.pack("<I", len(part)) + part for part in (tenant.encode(), edge.encode()))
    return int.from_bytes(blake2b(name, digest_size=DIGEST_BYTES).digest(), "little") & (shards - 1)


def is_shard_count(number: int) -> bool:
    """Return whether a store may have this many shards: a power of two up to ``SHARDS_MAX``."""
    return 0 < number <= SHARDS_MAX and number & (number - 1) == 0


def nearest_shard_counts(number: int) -> list[int]:
    """Return the valid shard counts next to an invalid number: the one below and the one above, if they exist."""
    below = 1 << (max(1, min(number, SHARDS_MAX)).bit_length() - 1)
    return [count for count in (below, 2 * below) if is_shard_count(count)]
