"""Every shard of a store, found in the logs themselves: the first ones, and those that their splits made.

A shard is loaded before the ones that its splits made. So each lane is in one of the states at least: of one that moved
meanwhile, the state of the new shard is the later one, and new shards have higher numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from weft.protocols.shard.shard_state import ShardState, StreamKey
from weft.protocols.shard.splits import Split, is_moving
from weft.storage.chunk_log import BOOT_CLOCK, ShardLog
from weft.storage.cluster import Cluster
from weft.storage.object_store import ObjectStore


def first_logs(
    store: ObjectStore, cluster: Cluster, boot_clock: Callable[[], int] = BOOT_CLOCK, *, tenant: str | None = None
) -> list[ShardLog]:
    """Return the logs of the shards that no split made. Args as of ``ShardLog``.

    Args:
        tenant: only of those that may have its edges; None for all.
    """
    firsts = cluster.tree.firsts if tenant is None else cluster.tree.firsts_of(tenant)
    return [ShardLog(store, cluster, shard, boot_clock) for shard in firsts]


async def load_every_shard(
    logs: Iterable[ShardLog], only: frozenset[StreamKey] | None = None
) -> list[tuple[ShardLog, ShardState]]:
    """Return the log and the state of every shard, by number. Raises as ``ShardLog.load``.

    Args:
        logs: of the first shards.
        only: as of ``ShardLog.load``.
    """
    found: dict[int, tuple[ShardLog, ShardState]] = {}

    async def load(log: ShardLog) -> None:
        state = await log.load(only)
        found[log.shard] = log, state
        await asyncio.gather(*(load(log.new_shard(split)) for split in state.splits))

    await asyncio.gather(*map(load, logs))
    return [found[shard] for shard in sorted(found)]


async def log_of_edge(store: ObjectStore, cluster: Cluster, tenant: str, edge: str) -> ShardLog:
    """Return the log of the shard that has an edge by now. Raises as ``ShardLog.load``."""
    log = ShardLog(store, cluster, cluster.tree.first_of(tenant, edge))
    while True:
        state = await log.load(frozenset())
        split = next((each for each in state.splits if is_moving(tenant, edge, each.bit)), None)
        if split is None:
            return log
        log = log.new_shard(split)


class Halved(Protocol):
    """A state of a shard, or what was made of one."""

    @property
    def shard(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def splits(self) -> Sequence[Split]: ...


def missing_shards(states: Sequence[Halved]) -> list[int]:
    """Return the shards to which splits moved lanes of some states, and whose own state is not among these. Without
    them, nothing can be said of all lanes."""
    reached = {state.shard: state.n for state in states}
    return [split.shard for state in states for split in state.splits if reached.get(split.shard, -1) < split.n]


def missing_halves(states: Sequence[ShardState], shard: int) -> list[int]:
    """Return those of the missing shards to which splits moved lanes of one shard, at once or by further splits."""
    splits = {state.shard: state.splits for state in states}
    family = [shard]
    for each in family:  # which grows meanwhile; a split makes a new shard, so each comes once
        family += [split.shard for split in splits.get(each, ())]
    return [each for each in missing_shards(states) if each in family]
