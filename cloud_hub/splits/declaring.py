"""Split of a shard on a person's request: declared, and put into force by the same call."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from weft.cloud_hub.splits.splitting import Splitter, has_begun
from weft.protocols.shard.placement import BITS_MAX, SHARDS_MAX
from weft.protocols.shard.shard_state import ShardState
from weft.protocols.shard.splits import SPLIT_LEVEL, moving
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import Cluster, declare_split
from weft.storage.object_store import ObjectStore


class CannotSplit(Exception):
    """The shard cannot be split. The message has the reason and advice."""


class Parts(NamedTuple):
    """Edges of a shard by what a split does with them."""

    moving: list[tuple[str, str]]
    """(tenant, edge) of those that go to the new shard."""
    staying: list[tuple[str, str]]


def parts_of(state: ShardState, bit: int) -> Parts:
    """Return which edges with lanes a split of a shard by a bit would move."""
    edges = [edge for edge in state.edge_names() if state.lane_count(*edge)]
    moved = set(moving(edges, bit))
    return Parts(sorted(moved), sorted(edge for edge in edges if edge not in moved))


async def look(store: ObjectStore, cluster: Cluster, shard: int, *, force: bool = False) -> Parts:
    """Return which edges a split of a shard would move. Nothing is written.

    Args:
        force: also if one of the parts has no edge.

    Raises:
        CannotSplit: the cluster's level is too low, there is no such shard or one that has not begun, or a split would
            part no load.
        StoreError: the store did not answer.
        Corrupt: the shard is damaged.
    """
    if cluster.level < SPLIT_LEVEL:
        raise CannotSplit(
            f"the cluster is at level {cluster.level}, and splits need level {SPLIT_LEVEL}: run `weft hub finalize` "
            "after all nodes run this release"
        )
    tree = cluster.tree
    if not 0 <= shard < tree.count:
        raise CannotSplit(f"the hub has no shard {shard}: its shards are 0 to {tree.count - 1}")
    if tree.count >= SHARDS_MAX or tree.next_bit(shard) >= BITS_MAX:
        raise CannotSplit(f"shard {shard} cannot be split further: the hub has {tree.count} shards")
    for new in range(cluster.shards, tree.count):
        if not tree.is_first(new) and not await has_begun(ShardLog(store, cluster, new)):
            raise CannotSplit(
                f"the split of shard {tree.parent(new)} is declared and not done yet: start a hub node, which does it, "
                "then repeat the command"
            )
    state = await ShardLog(store, cluster, shard).load()
    parts = parts_of(state, tree.next_bit(shard))
    if not force and not (parts.moving and parts.staying):
        (tenant, edge), *others = [*parts.moving, *parts.staying] or [("", "")]
        told = "it has no edge" if not edge else f"it has only edge {tenant}/{edge}, which is in one shard as a whole"
        told = f"all its {len(others) + 1} edges would be in one of the two shards" if others else told
        raise CannotSplit(f"a split of shard {shard} parts no load: {told}. Use --force to split it nevertheless")
    return parts


async def split(
    store: ObjectStore,
    cluster: Cluster,
    shard: int,
    *,
    wall_clock: Callable[[], int],
    random_bits: Callable[[int], int],
) -> int:
    """Split a shard, and return the number of the new one. A call that ended half way leaves a declared split, which
    the hub's nodes put into force.

    Args:
        cluster: as ``look`` saw it.
        wall_clock: nanoseconds since 1970. It raises what makes the call end before anything is written.
        random_bits: for nonces.

    Raises:
        CannotSplit: another split was declared meanwhile.
        ClusterUnusable: the store's level does not allow splits.
        StoreError: the store did not answer.
        Corrupt: the shard is damaged.
    """
    declared = await declare_split(store, shard, cluster)
    if declared.splits != (*cluster.splits, shard):
        raise CannotSplit("another split was declared meanwhile: look at the shards, and repeat the command if needed")
    splitter = Splitter(
        lambda number: ShardLog(store, declared, number), lambda: declared.tree, wall_clock=wall_clock,
        random_bits=random_bits,
    )  # fmt: skip
    new = declared.tree.count - 1
    await splitter.begin(new)
    return new
