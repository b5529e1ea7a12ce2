"""States of lanes that left a shard's state, each an object of its own.

The lanes of an edge that a split moved may have left the shards that had it before: those are looked at, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from weft.protocols.lane import Lane
from weft.storage import hub_keys
from weft.storage.object_store import AlreadyExists, ObjectStore


async def put(store: ObjectStore, shard: int, lane: Lane, n: int, data: bytes) -> None:
    """Store a lane's state at chunk n, before the lane leaves the state. Two nodes store the same bytes."""
    with contextlib.suppress(AlreadyExists):
        await store.create(hub_keys.ended_key(shard, lane, n), data)


async def newest(store: ObjectStore, shards: Sequence[int], lane: Lane, n: int) -> bytes | None:
    """Return the last state of a lane that had left at chunk n; None if it never existed.

    Args:
        shards: the shard, and those that had its edges before, the last first. A new shard goes on with the numbers of
            the halved one, so ``n`` bounds the states of all.
    """
    for shard in shards:
        # Attempts that lost their chunk number left older states. The newest is right, because a lane only grows.
        listed = await store.list(hub_keys.ended_prefix(shard, lane))
        known = [item.key for item in listed if hub_keys.parse_ended_key(item.key)[1] <= n]
        if known:
            return (await store.get(known[-1])).data
    return None


async def lanes_of(store: ObjectStore, shards: Sequence[int], tenant: str, edge: str) -> set[Lane]:
    """Return the lanes of an edge with a stored state: they left, or were about to. Args as ``newest``."""
    found = set[Lane]()
    for shard in shards:
        listed = await store.list(f"{hub_keys.ended_prefix(shard)}/{tenant}/{edge}")
        found |= {hub_keys.parse_ended_key(item.key)[0] for item in listed}
    return found
