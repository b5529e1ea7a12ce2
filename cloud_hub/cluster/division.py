"""Division of a store's shards among hub processes: one function of who is there, so that all who see the same agree.

It is not persisted: who owns a shard is a hint, and the log decides who writes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from hashlib import blake2b


def divide(shards: int, weights: Mapping[str, float]) -> list[str]:
    """Return the owner of each shard: rendezvous hashing with weights and bounded loads.

    Few shards fall unevenly by hashing alone, so each gets its share, rounded up or down. One that joins or leaves
    moves its own shards and few others. It takes some 0.3 s for 1,024 shards and 256 names.

    Args:
        weights: name -> positive weight, at least one.
    """
    room = _shares(shards, weights)
    draws = {name: [draw / weight for draw in _draws(name, shards)] for name, weight in weights.items()}
    owners = []
    for shard in range(shards):
        owner = min((name for name in weights if room[name]), key=lambda name: (draws[name][shard], name))
        room[owner] -= 1
        owners.append(owner)
    return owners


def _shares(shards: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Return the number of shards for each: its share rounded down, and one more for the largest remainders."""
    total = math.fsum(weights.values())
    exact = {name: shards * weight / total for name, weight in weights.items()}
    shares = {name: math.floor(share + 1e-9) for name, share in exact.items()}
    by_remainder = sorted(weights, key=lambda name: (shares[name] - exact[name], name))
    for name in by_remainder[: shards - sum(shares.values())]:
        shares[name] += 1
    return shares


@functools.lru_cache(maxsize=512)
def _draws(name: str, shards: int) -> list[float]:
    """Return draws from an exponential distribution: the smallest of several, divided by weights, is each with a chance
    like its weight."""
    digests = (blake2b(name.encode(), digest_size=8, key=b"%d" % shard).digest() for shard in range(shards))
    return [-math.log((int.from_bytes(digest, "little") + 1) / (1 << 64)) for digest in digests]
