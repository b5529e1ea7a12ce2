"""Nodes that compete for one shard over a store that loses, delays and misreports writes, from one seed each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import CLUSTER, Edge, Node, Relay, check_log, make_sequencer, read_chunks
from tests.cloud_hub.faulty_store import CALM, STORM
from weft.protocols.chunk import LaneUpdate
from weft.protocols.lane import Lane
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard_state import RELEASE, Extension, FoldRules, ShardState
from weft.storage.object_store import ObjectStore
from weft.storage.object_store.memory import MemoryStore

STORM_S = 6.0
DRAIN_S = 120.0
COUNTED = 40
"""A made-up extension of a made-up later release: records written since its level was reached."""

Storm = Callable[[list[Node], random.Random], Awaitable[None]]


def _count(lanes: Sequence[LaneUpdate]) -> bytes | None:
    records = sum(end - first for lane in lanes for first, end in lane.ranges)
    return records.to_bytes(8, "little") if records else None


def _add(kept: bytes | None, data: bytes) -> bytes:
    return (int.from_bytes(kept or b"", "little") + int.from_bytes(data, "little")).to_bytes(8, "little")


LATER = FoldRules(2, {COUNTED: Extension(2, _count, _add)})


async def _storm(nodes: list[Node], rng: random.Random) -> None:
    """Faults on every node, and now and then one is killed."""
    loop = asyncio.get_running_loop()
    end = loop.time() + STORM_S
    for node in nodes:
        node.store.faults = STORM
    while loop.time() < end:
        await asyncio.sleep(rng.uniform(0.3, 1.5))
        await _restart(rng.choice(nodes), rng)
    for node in nodes:
        node.store.faults = CALM


async def _restart(node: Node, rng: random.Random) -> None:
    await node.kill()
    await asyncio.sleep(rng.random() * 0.5)
    await node.start()


async def _upgrade(nodes: list[Node], rng: random.Random) -> None:
    """The same, and one node after the other comes back with the later release; then the level is raised. One node may
    have been paused through all of it, and writes as an earlier release does while others write the new things."""
    for node in nodes:
        node.store.faults = STORM
    late = rng.choice(nodes) if len(nodes) > 1 and rng.random() < 0.7 else None
    for node in rng.sample(nodes, len(nodes)):
        await asyncio.sleep(rng.uniform(0.3, 1.0))
        node.rules = node.rules if node is late else LATER
        await _restart(node, rng)
    for _ in range(8):
        await asyncio.sleep(rng.uniform(0.1, 0.8))
        node = rng.choice(nodes)
        node.level = 2  # read at a moment of its own
        if rng.random() < 0.5:
            await _restart(node, rng)
    if late is not None:
        late.rules = LATER
        for node in nodes:
            await _restart(node, rng)
    for node in nodes:
        node.level = 2
        node.store.faults = CALM


async def _simulate(seed: int, storm: Storm = _storm, rules: FoldRules = RELEASE) -> ShardState:
    rng = random.Random(seed)
    inner = MemoryStore()
    nodes = [Node(inner, random.Random(rng.random())) for _ in range(rng.choice([1, 2, 3]))]
    lanes = [Lane("default", f"edge-{i}", i, rng.choice(["a", "b"])) for i in range(rng.choice([1, 3]))]
    edges = [Edge(lane, 1000 if storm is _upgrade else 150, random.Random(rng.random())) for lane in lanes]
    relays = [Relay(edge, random.Random(rng.random())) for edge in edges if rng.random() < 0.5]
    for node in nodes:
        await node.start()
    async with asyncio.timeout(STORM_S + DRAIN_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(_as_task(storm(nodes, rng)))
        for edge in edges:
            tasks.create_task(edge.drain(nodes))
        for relay in relays:
            tasks.create_task(relay.fill(nodes))
    await asyncio.sleep(5.0)  # late writes land
    for edge in edges:
        await edge.send_mark(rng.choice(nodes))
    await asyncio.sleep(5.0)  # longer than marks wait for data, and than followers take to catch up
    chunks = await read_chunks(inner)
    healed = RangeSet([piece for edge in edges for piece in edge.gaps] + [p for relay in relays for p in relay.sent])
    state, records = check_log(chunks, healed, rules)
    for edge in edges:
        _check_edge(edge, state, records[edge.lane])
    for relay in relays:
        # The other hub may forget records, and never learns that of the edge's own gaps.
        held = RangeSet((seq, seq + 1) for seq in records[relay.edge.lane])
        assert not [r for first, end in relay.acked for r in held.missing(first, end)]
    await _check_nodes(nodes, state, inner, rng)
    return state


async def _as_task(work: Awaitable[None]) -> None:
    await work


def _check_edge(edge: Edge, state: ShardState, records: list[int]) -> None:
    held = state.lanes[edge.lane]
    # I1 and I8: whatever was acknowledged is a record in the log, or under a gap that the edge declared.
    assert not [r for first, end in edge.acked for r in held.ranges.missing(first, end)]
    lost = set(range(edge.records)) - set(records)
    assert lost <= {seq for gap in held.gaps for seq in range(gap.first, gap.end)}
    assert all(edge.gaps.covers(gap.first, gap.end) for gap in held.gaps)
    assert held.complete_up_to == 1000 + edge.records
    absent = any(gap.reason == GapReason.ABSENT for gap in held.gaps)
    assert (held.whole_up_to == held.complete_up_to) is not absent


async def _check_nodes(nodes: list[Node], state: ShardState, inner: ObjectStore, rng: random.Random) -> None:
    for node in nodes:
        assert node.sequencer is not None
        assert node.sequencer.state.encode() == state.encode()  # I5
        await node.kill()
    # A node that starts from a snapshot ends where the whole fold ends.
    late = make_sequencer(inner, rng, rules=state.rules)
    await late.start()
    assert late.state.encode() == state.encode()
    await late.close()
    assert ShardState.decode(state.encode(), state.rules).encode() == state.encode()
    assert state.cluster_id == CLUSTER.cluster_id


def simulate(seed: int) -> ShardState:
    """One history, in virtual time.

    Raises:
        AssertionError: a promise was broken; a note says for which seed.
    """
    return _run(seed, _storm, RELEASE)


def simulate_upgrade(seed: int) -> ShardState:
    """One history of a rolling upgrade to a made-up later release, in virtual time.

    Raises:
        AssertionError: a promise was broken; a note says for which seed.
    """
    return _run(seed, _upgrade, LATER)


def _run(seed: int, storm: Storm, rules: FoldRules) -> ShardState:
    try:
        return virtual_time.run(_simulate(seed, storm, rules))
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
