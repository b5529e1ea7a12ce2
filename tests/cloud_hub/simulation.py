"""Nodes that compete for one shard over a store that loses, delays and misreports writes, from one seed each.

Edges send through them and are sent from one to the other, where walls let each reach only some. Other hubs relay what
the edges no longer have, a collector deletes what is old, and readers sleep through all of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial

from tests.cloud_hub import virtual_time
from tests.cloud_hub.collecting import Collector, SleepingReader
from tests.cloud_hub.fabric import (
    CLUSTER,
    PATIENCE_S,
    TRUE_START,
    Askers,
    Edge,
    Forger,
    Relay,
    Route,
    SequencerNode,
    check_log,
    make_sequencer,
    name_each_other,
    read_chunks,
)
from tests.cloud_hub.faulty_store import CALM, DEAD, FULL, STORM, FaultyStore
from tests.cloud_hub.virtual_time import now_ns
from tests.support.later_fold import LATER
from tests.support.outcomes import outcome
from weft.cloud_hub.clock import PRECISION_NS, TOOK_MAX_NS, WRONG_NS
from weft.cloud_hub.shard import lane_ends
from weft.cloud_hub.shard.lane_ends import Ending, write_ending
from weft.protocols.chunk_index import FIRST_LEVEL, RELEASE, FoldRules, StreamKey
from weft.protocols.lane import Lane
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.completeness import completeness
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store import ObjectStore, StoreError
from weft.storage.object_store.directory import MemoryStore

STORM_S = 6.0
DRAIN_S = 120.0
RECORDS = 150
CLOCK_RECORDS = 75
"""Records of an edge in histories of clocks: half, since a night makes 100,000 of these histories."""
COLLECTION_DELAY_S = 150.0
"""Longer than any look at the watermark holds."""

Storm = Callable[[list[SequencerNode], random.Random], Coroutine[None, None, None]]


OFF_MAX_NS = WRONG_NS + TOOK_MAX_NS + PRECISION_NS
OFF_S = (-1.7e9, -3600.0, 90.0, 3600.0, 91 * 86_400.0, 14 * 365.25 * 86_400.0)
"""By how much wrong clocks are ahead: one without a battery begins in 1970."""
EARLIER = FoldRules(1)
"""The first release."""


async def _storm(nodes: list[SequencerNode], rng: random.Random) -> None:
    """Faults on every node, and now and then one is killed, suspended, or loses its way to the store."""
    loop = asyncio.get_running_loop()
    end = loop.time() + STORM_S
    for node in nodes:
        node.store.faults = STORM
    while loop.time() < end:
        await asyncio.sleep(rng.uniform(0.3, 1.5))
        node = rng.choice(nodes)
        if node.is_asleep:
            continue
        match rng.choice(["kill", "kill", "suspend", "dead", "full"]):
            case "kill":
                await _restart(node, rng)
            case "suspend":
                node.store.running.clear()
                await asyncio.sleep(rng.uniform(0.1, 3.0))
                node.store.running.set()
            case "dead" | "full" as trouble:
                node.store.faults = DEAD if trouble == "dead" else FULL
                await asyncio.sleep(rng.uniform(0.1, 3.0))
                node.store.faults = STORM
    for node in nodes:
        node.store.faults = CALM


async def _restart(node: SequencerNode, rng: random.Random) -> None:
    await node.kill()
    await asyncio.sleep(rng.random() * 0.5)
    await node.start()


async def _upgrade(after: FoldRules, nodes: list[SequencerNode], rng: random.Random) -> None:
    """One node after the other comes back with the later release; then the level is raised. One node may have been
    paused through all of it, and writes as an earlier release does while others write the new things."""
    for node in nodes:
        node.store.faults = STORM
    late = rng.choice(nodes) if len(nodes) > 1 and rng.random() < 0.7 else None
    for node in rng.sample(nodes, len(nodes)):
        await asyncio.sleep(rng.uniform(0.3, 1.0))
        node.rules = node.rules if node is late else after
        await _restart(node, rng)
    for _ in range(8):
        await asyncio.sleep(rng.uniform(0.1, 0.8))
        node = rng.choice(nodes)
        node.level = after.level  # read at a moment of its own
        if rng.random() < 0.5:
            await _restart(node, rng)
    if late is not None:
        late.rules = after
        for node in nodes:
            await _restart(node, rng)
    for node in nodes:
        node.level = after.level
        node.store.faults = CALM


async def _jump_clocks(nodes: list[SequencerNode], rng: random.Random) -> None:
    """Clocks are set wrong and right again, and nodes are started while theirs is wrong."""
    for node in nodes:
        node.is_synchronised = False
    for _ in range(10):
        await asyncio.sleep(rng.uniform(0.1, 0.8))
        node = rng.choice(nodes)
        node.off_s = rng.choice([0.0, 3.0, 20.0, *OFF_S])
        match rng.choice(["set", "restart", "look"]):
            case "restart":
                await _restart(node, rng)
            case "look":
                await node.clock.measure(node.store)
    for node in nodes:
        node.off_s = 0.0


async def _lower_times(nodes: list[SequencerNode], rng: random.Random) -> None:
    """Nodes that believe their clocks write of other times, and an operator lowers those of the future meanwhile."""
    for node in nodes:
        node.store.faults = STORM
        node.is_synchronised = False
    for _ in range(4):
        await asyncio.sleep(rng.uniform(0.1, 0.8))
        node = rng.choice(nodes)
        node.off_s, node.measures = rng.choice([0.0, *OFF_S]), False
        await _restart(node, rng)
        await asyncio.sleep(rng.uniform(0.1, 1.5))
        if rng.random() < 0.5:  # too early: a node with a wrong clock is still at work
            await _set_back(node.store.inner, rng)
        node.off_s, node.measures = 0.0, True
        await _restart(node, rng)
        await _set_back(node.store.inner, rng)
    for node in nodes:
        node.store.faults = CALM
    while True:  # a late write of a wrong clock may have landed behind the operator's
        await asyncio.sleep(5.0)
        if not await _set_back(nodes[0].store.inner, rng):
            return


async def _set_back(store: ObjectStore, rng: random.Random) -> bool:
    """Lower the time of the shard, if it is in the future; return whether it was."""
    unclear = replace(STORM, read=0.0)  # it loads the whole log again each time
    log = ShardLog(FaultyStore(store, random.Random(rng.random()), unclear), CLUSTER, 0, now_ns)

    def true() -> int:
        return TRUE_START + now_ns()

    async def plan(state: ShardState) -> Ending:
        return lane_ends.set_back(state, true(), "the clock was wrong")

    while True:
        try:
            did = bool((await write_ending(log, plan, wall_clock=true, random_bits=rng.getrandbits)).controls)
            check_times(await log.load())
            return did
        except StoreError:
            await asyncio.sleep(0.1)


async def _collect(nodes: list[SequencerNode], collector: Collector, rng: random.Random) -> None:
    """Collect, while one node may be suspended for all the time that others write and that takes."""
    await asyncio.sleep(rng.random())
    suspended = rng.choice(nodes) if len(nodes) > 1 and rng.random() < 0.7 else None
    if suspended is not None:
        suspended.is_asleep = True
        suspended.store.running.clear()
    await asyncio.sleep(rng.uniform(0.0, 2.0 * STORM_S))
    await collector.collect()
    if suspended is not None:
        suspended.is_asleep = False
        suspended.store.running.set()


async def _acts(
    nodes: list[SequencerNode],
    edges: list[Edge],
    collector: Collector,
    rng: random.Random,
    storm: Storm,
    *,
    forger: Forger,
) -> None:
    collections, records = (
        0 if storm not in {_storm, _jump_clocks, _lower_times} else rng.choice([0, 1, 2]),
        edges[0].records,
    )
    for act in range(collections + 1):
        # The edges' records of this act, while the collector deletes what the act before left.
        for edge in edges:
            edge.records = records * (act + 1) // (collections + 1)
        async with asyncio.timeout(STORM_S + DRAIN_S + COLLECTION_DELAY_S + PATIENCE_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(storm(nodes, rng))
            if act:
                tasks.create_task(_collect(nodes, collector, rng))
            for edge in edges:
                tasks.create_task(edge.drain(nodes))
                if edge.relay is not None:
                    tasks.create_task(edge.relay.drain(nodes, edge))
    await asyncio.sleep(5.0)  # late writes land
    for edge in edges:
        await edge.stop(rng.choice(nodes))
    await asyncio.sleep(5.0)  # longer than marks wait for data
    await forger.take_places(rng.choice(nodes))
    await asyncio.sleep(5.0)


async def _simulate(seed: int, storm: Storm, rules: FoldRules, before: FoldRules | None) -> ShardState:
    rng = random.Random(seed)
    level = rules.level if before is None else before.level
    if before is None and rng.random() < 0.5:
        level = FIRST_LEVEL  # the cluster was never finalized
    inner = MemoryStore((lambda: TRUE_START + now_ns()) if storm in {_jump_clocks, _lower_times} else None)
    nodes = [SequencerNode(inner, random.Random(rng.random())) for _ in range(rng.choice([1, 2, 3]))]
    for node in nodes:
        node.rules, node.level = before or rules, level
    lanes = [Lane("default", f"edge-{i}", i, rng.choice(["a", "b"])) for i in range(rng.choice([1, 3]))]
    records = CLOCK_RECORDS if storm in {_jump_clocks, _lower_times} else RECORDS
    relays = [Relay(lane, records, random.Random(rng.random())) if rng.random() < 0.5 else None for lane in lanes]
    # Some edges have a backlog, and some send for about as long as the storm lasts.
    steps_s = [0.03, 0.3] if before is None else [0.4]
    name_each_other(nodes, rng)
    edges = [
        Edge(lane, records, random.Random(rng.random()), _route(lane, nodes, rng), relay, step_s=rng.choice(steps_s))
        for lane, relay in zip(lanes, relays, strict=True)
    ]
    followed: list[frozenset[StreamKey] | None] = [None, frozenset([("default", rng.choice(["a", "b"]))])]
    readers = [SleepingReader(inner, random.Random(rng.random()), rules, only) for only in followed]
    collector = Collector(inner, COLLECTION_DELAY_S)
    askers = Askers(inner, nodes, random.Random(seed))
    forger = Forger(edges, random.Random(f"forger {seed}"))
    for node in nodes:
        await node.start()
    async with asyncio.TaskGroup() as group:  # what a reader raises ends the history
        reading = [group.create_task(askers.run()), *(group.create_task(reader.run()) for reader in readers)]
        reading.append(group.create_task(forger.run(nodes)))
        await _acts(nodes, edges, collector, rng, storm, forger=forger)
        for task in reading:
            task.cancel()
    await askers.check()
    chunks = await read_chunks(inner, collector.collected)
    for chunk, _ in chunks if storm is _jump_clocks else ():
        off = chunk.header.created - TRUE_START
        assert -OFF_MAX_NS <= off <= now_ns() + OFF_MAX_NS, f"chunk {chunk.header.n} is off by {off / 1e9} s"
    for chunk, _ in chunks[-1:] if storm is _lower_times else ():
        assert chunk.header.created <= TRUE_START + now_ns() + OFF_MAX_NS, "the last one is of the future"
    healed = {edge.lane: edge.relay.has for edge in edges if edge.relay is not None}
    state, held = check_log(chunks, healed, rules)
    for edge in edges:
        check_edge(edge, state, RangeSet((seq, seq + 1) for seq in held[edge.lane]))
    for node in nodes:
        assert node.sequencer is not None
        await node.sequencer.catch_up(0.0)  # as for a reader: an idle node looks rarely
        assert node.sequencer.state.encode() == state.encode()  # I5
        await node.kill()
    for reader in readers:
        check_followed(await reader.read(), state)
    # A node that starts from a snapshot ends where the whole fold ends.
    late = make_sequencer(inner, rng, rules=rules)
    await late.start()
    assert late.state.encode() == state.encode()
    await late.close()
    assert ShardState.decode(state.encode(), rules).encode() == state.encode()
    check_times(state)
    check_completeness(state, edges)
    assert state.cluster_id == CLUSTER.cluster_id
    return state


@outcome()
def check_times(state: ShardState) -> None:
    """Check that no time by the hub's clock is later than the shard's: ages count from both."""
    for lane, held in state.lanes.items():
        times = (held.last_seen, held.retired and held.retired.time, held.conflict and held.conflict.time)
        assert all(time <= state.created for time in times if time), f"{lane} was seen after {state.created}: {times}"


@outcome()
def check_completeness(state: ShardState, edges: list[Edge]) -> None:
    """Check that an edge's words change nothing in what is said of the others: each of these may be back."""
    for stream in {edge.lane.stream for edge in edges}:
        lanes = state.stream_lanes("default", stream)
        true = completeness({lane: held for lane, held in lanes.items() if lane.edge != Forger.NAME}, (), state.created)
        said = completeness(lanes, (), state.created)
        assert true.covers == sorted(edge.lane for edge in edges if edge.lane.stream == stream)
        assert [lane for lane in said.covers if lane.edge != Forger.NAME] == true.covers, f"{stream}: one is left out"
        assert said.complete_up_to is None or said.complete_up_to <= (true.complete_up_to or 0), "a false moment"


@outcome()
def check_followed(found: ShardState, state: ShardState) -> None:
    """Check what a reader knows of the streams that it follows against the state of the whole log."""
    assert (found.n, found.footer_crc, found.created) == (state.n, state.footer_crc, state.created), "it stopped short"
    if found.only is None:
        assert found.encode() == state.encode()
        return
    assert found.lanes == {lane: held for lane, held in state.lanes.items() if (lane.tenant, lane.stream) in found.only}
    for known, all_of in (
        (found.next_offset, state.next_offset),
        (found.fields, state.fields),
        (found.open_gaps, state.open_gaps),
    ):
        assert known == {key: each for key, each in all_of.items() if key in found.only}


def _route(lane: Lane, nodes: list[SequencerNode], rng: random.Random) -> Route:
    """Way of an edge that reaches one node at least."""
    reached = rng.randrange(len(nodes))
    walled = frozenset(number for number in range(len(nodes)) if number != reached and rng.random() < 0.4)
    return Route(lane, random.Random(rng.random()), walled)


@outcome()
def check_edge(edge: Edge, state: ShardState, records: RangeSet) -> None:
    """Check that acknowledgements to an edge and its relay hold, and that nothing is missing that either of them had.

    Args:
        records: numbers that the log has.
    """
    held, reported = state.lanes[edge.lane], edge.reported
    # I1 and I8: whatever was acknowledged is a record in the log, or lies under a gap that this very sender declared.
    for sender, own_gaps in ((edge, reported), (edge.relay, edge.relay.reported if edge.relay else reported)):
        for first, end in sender.acked if sender else ():
            lost = [seq for seq in range(first, end) if seq not in records and seq not in own_gaps]
            assert not lost, f"{edge.lane}: {lost} were acknowledged to a sender that did not give them up"
    had = reported.copy()
    for first, end in edge.relay.has if edge.relay else ():
        had.remove(first, end)
    assert RangeSet((gap.first, gap.end) for gap in held.gaps) == had
    for gap in held.gaps:
        # What the edge knows of its own records overrules what the relay only lacks.
        reasons = {own.reason for own in edge.gaps if own.first < gap.end and gap.first < own.end}
        assert reasons == {gap.reason}, f"{edge.lane}: {gap}, and the edge said {reasons}"
    assert held.complete_up_to == 1000 + edge.records
    absent = any(gap.reason == GapReason.ABSENT for gap in held.gaps)
    assert (held.whole_up_to == 1000 + edge.records) is not absent


def simulate(seed: int) -> ShardState:
    """One history, in virtual time.

    Raises:
        AssertionError: a promise was broken; a note says for which seed.
    """
    return _run(seed, _storm, RELEASE)


def simulate_upgrade(seed: int) -> ShardState:
    """One history of a rolling upgrade in virtual time: from the first release to this one, or to a made-up later one.

    Raises:
        AssertionError: a promise was broken; a note says for which seed.
    """
    before, after = (EARLIER, RELEASE) if seed % 2 else (RELEASE, LATER)
    return _run(seed, partial(_upgrade, after), after, before)


def simulate_clocks(seed: int) -> ShardState:
    """One history of nodes whose clocks are set now and then, over a store with a clock that is right.

    Raises:
        AssertionError: a promise was broken, or a chunk has the time of a wrong clock; a note says for which seed.
    """
    return _run(seed, _jump_clocks, RELEASE)


def simulate_set_back(seed: int) -> ShardState:
    """One history of nodes that believe wrong clocks, and of an operator who lowers what they wrote.

    Raises:
        AssertionError: a promise was broken, or a time of the future is left; a note says for which seed.
    """
    return _run(seed, _lower_times, RELEASE)


def _run(seed: int, storm: Storm, rules: FoldRules, before: FoldRules | None = None) -> ShardState:
    try:
        return virtual_time.run(_simulate(seed, storm, rules, before))
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
