"""Nodes that compete for one shard over a store that loses, delays and misreports writes, from one seed each."""

from __future__ import annotations

import asyncio
import random

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import CLUSTER, Edge, Node, check_log, make_sequencer, read_chunks
from tests.cloud_hub.faulty_store import CALM, STORM
from weft.protocols.lane import Lane
from weft.protocols.shard_state import ShardState
from weft.storage.object_store.memory import MemoryStore

STORM_S = 6.0
DRAIN_S = 120.0


async def _storm(nodes: list[Node], rng: random.Random) -> None:
    """Faults on every node, and now and then one is killed."""
    loop = asyncio.get_running_loop()
    end = loop.time() + STORM_S
    for node in nodes:
        node.store.faults = STORM
    while loop.time() < end:
        await asyncio.sleep(rng.uniform(0.3, 1.5))
        node = rng.choice(nodes)
        await node.kill()
        await asyncio.sleep(rng.random() * 0.5)
        await node.start()
    for node in nodes:
        node.store.faults = CALM


async def _simulate(seed: int) -> None:
    rng = random.Random(seed)
    inner = MemoryStore()
    nodes = [Node(inner, random.Random(rng.random())) for _ in range(rng.choice([1, 2, 3]))]
    lanes = [Lane("default", f"edge-{i}", i, rng.choice(["a", "b"])) for i in range(rng.choice([1, 3]))]
    edges = [Edge(lane, 150, random.Random(rng.random())) for lane in lanes]
    for node in nodes:
        await node.start()
    async with asyncio.timeout(STORM_S + DRAIN_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(_storm(nodes, rng))
        for edge in edges:
            tasks.create_task(edge.drain(nodes))
    await asyncio.sleep(5.0)  # late writes land
    for edge in edges:
        await edge.send_mark(rng.choice(nodes))
    await asyncio.sleep(5.0)  # longer than marks wait for data, and than followers take to catch up
    chunks = await read_chunks(inner)
    state, records = check_log(chunks)
    for edge in edges:
        held = state.lanes[edge.lane]
        # I1 and I8: whatever was acknowledged is a record in the log, or under a gap that the edge declared.
        assert not [r for first, end in edge.acked for r in held.ranges.missing(first, end)]
        lost = set(range(edge.records)) - set(records[edge.lane])
        assert lost <= {seq for gap in held.gaps for seq in range(gap.first, gap.end)}
        assert all(edge.gaps.covers(gap.first, gap.end) for gap in held.gaps)
        assert held.complete_up_to == 1000 + edge.records
    for node in nodes:
        assert node.sequencer is not None
        assert node.sequencer.state.encode() == state.encode()  # I5
        await node.kill()
    # A node that starts from a snapshot ends where the whole fold ends.
    late = make_sequencer(inner, rng)
    await late.start()
    assert late.state.encode() == state.encode()
    await late.close()
    assert ShardState.decode(state.encode()).encode() == state.encode()
    assert state.cluster_id == CLUSTER.cluster_id


def simulate(seed: int) -> None:
    """One history, in virtual time.

    Raises:
        AssertionError: a promise was broken; a note says for which seed.
    """
    try:
        virtual_time.run(_simulate(seed))
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
