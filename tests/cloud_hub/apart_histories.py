"""A tenant is set apart while its edges begin to send, over a store that loses, delays and misreports writes.

Nodes place edges by the list of shards as they read it last, shards split meanwhile, nodes are killed or suspended, and
the command is cancelled at any step and given again until it has an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

from tests.cloud_hub import splitting, virtual_time
from tests.cloud_hub.fabric import TRUE_START
from tests.cloud_hub.faulty_store import CALM, STORM, FaultyStore
from tests.cloud_hub.splitting import Edge, SplittingNode
from tests.cloud_hub.virtual_time import now_ns
from weft.cloud_hub.splits import Apart, CannotSetApart, Splitter
from weft.protocols.lane import Lane
from weft.storage.chunk_log import ShardLog, first_logs, load_every_shard
from weft.storage.cluster import ClusterCache, open_cluster, read_cluster
from weft.storage.object_store import ObjectStore, StoreError
from weft.storage.object_store.directory import MemoryStore

TENANT = "acme"


async def _set_apart(inner: ObjectStore, rng: random.Random) -> bool:
    """Give the command until it has an answer. Return whether the tenant is apart."""
    end = asyncio.get_running_loop().time() + 2 * splitting.STORM_S
    await asyncio.sleep(rng.uniform(0.0, splitting.STORM_S))
    store = FaultyStore(inner, rng)
    store.faults = STORM
    while True:
        command = Apart(store, wall_clock=lambda: TRUE_START + now_ns(), random_bits=rng.getrandbits)
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(rng.choice([0.2, 1.0, 60.0])):  # it is killed
                try:
                    await command.set(TENANT)
                except CannotSetApart as refused:
                    if "has records or lanes" in str(refused):
                        return False
                    await _begin_shards(inner, rng)
                else:
                    return True
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        if asyncio.get_running_loop().time() > end:
            store.faults = CALM


async def _begin_shards(inner: ObjectStore, rng: random.Random) -> None:
    """Do what the owners of new shards do: put the declared splits into force."""
    cluster = await read_cluster(inner)
    splitter = Splitter(
        lambda shard: ShardLog(inner, cluster, shard, now_ns),
        ClusterCache(cluster),
        wall_clock=lambda: TRUE_START + now_ns(),
        random_bits=rng.getrandbits,
    )
    for shard in range(cluster.tree.count):
        await splitter.begin(shard)


async def _simulate(seed: int) -> dict[str, int]:
    rng = random.Random(seed)
    inner = MemoryStore()
    cluster = await open_cluster(inner, rng.choice([1, 2, 4]), rng.randbytes)
    nodes = [SplittingNode(inner, cluster, random.Random(rng.random())) for _ in range(rng.choice([1, 2, 3]))]
    edges = [
        Edge(Lane(tenant, f"edge-{number}", number, splitting.STREAM), random.Random(rng.random()))
        for number, tenant in enumerate([splitting.TENANT, splitting.TENANT, TENANT, TENANT])
    ]

    async def send(edge: Edge) -> None:
        if edge.lane.tenant == TENANT:
            await asyncio.sleep(rng.choice([0.1, 1.0, 2.0]) * splitting.STORM_S)
        await edge.drain(nodes)

    async with asyncio.timeout(splitting.DRAIN_S), asyncio.TaskGroup() as tasks:
        for edge in edges:
            tasks.create_task(send(edge))
        storm = tasks.create_task(splitting.storm(nodes, edges, rng, rng.choice([0, 1, 3])))
        is_apart = await _set_apart(inner, rng)
        await storm
        for node in nodes:  # they read the list again some time
            await node.learn()
    await asyncio.sleep(5.0)  # late writes land
    final = await read_cluster(inner)
    await splitting.check(inner, final, nodes, edges, [], {})
    await _check_apart(inner, is_apart=is_apart)
    for node in nodes:
        await node.kill()
    return {"apart": len(final.apart), "splits": len(final.splits)}


async def _check_apart(inner: ObjectStore, *, is_apart: bool) -> None:
    final = await read_cluster(inner)
    assert [tenant for tenant, _ in final.apart] == [TENANT] * is_apart
    for log, state in await load_every_shard(first_logs(inner, final, now_ns)):
        tenants = {lane.tenant for lane in state.lanes} | {tenant for tenant, _ in state.next_offset}
        if final.tree.tenant_of(log.shard) is not None:
            assert tenants <= {TENANT}, f"shard {log.shard} is the tenant's, and has {tenants}"
        elif is_apart:
            assert TENANT not in tenants, f"shard {log.shard} has records of the tenant"
        else:
            assert not state.apart, f"shard {log.shard} does not take the tenant"


def simulate_apart(seed: int) -> dict[str, int]:
    """One history, in virtual time. Return what happened in it.

    Raises:
        AssertionError: a promise was broken; a note says for which seed.
    """
    try:
        return virtual_time.run(_simulate(seed))
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
