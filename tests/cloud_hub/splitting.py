"""Nodes that split shards over a store that loses, delays and misreports writes, from one seed each.

Every node places edges by the list of splits as it read it last, which may be an old one. Splits are declared while
edges send, nodes are killed at any step of putting them into force, chunks are collected, and readers follow.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from tests.cloud_hub import virtual_time
from tests.cloud_hub.collecting import Collector
from tests.cloud_hub.fabric import SETTINGS, TRUE_START, CheckedEdge, ServingNode, Session, check_claims, records_of
from tests.cloud_hub.faulty_store import CALM, DEAD, STORM, FaultyStore
from tests.cloud_hub.virtual_time import now_ns
from tests.support.outcomes import outcome
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.splits import Splitter
from weft.protocols import chunk
from weft.protocols.chunk_index import Mark
from weft.protocols.lane import Lane
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.fold import apply
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import CollectedPast, ShardLog, first_logs, load_every_shard, missing_shards
from weft.storage.cluster import Cluster, ClusterCache, declare_split, open_cluster, read_cluster
from weft.storage.hub_keys import chunk_key
from weft.storage.object_store import NotFound, ObjectStore, StoreError
from weft.storage.object_store.directory import MemoryStore

RECORDS = 80
STORM_S = 5.0
DRAIN_S = 400.0
COLLECTION_DELAY_S = 150.0
TENANT, STREAM = "default", "s"
ONLY = frozenset({(TENANT, STREAM)})
EXPECTED_ERRORS = (StoreError, CollectedPast)


class SplittingNode:
    """A hub process that serves any shard, and places edges by the cluster as it read it last."""

    def __init__(self, inner: ObjectStore, cluster: Cluster, rng: random.Random) -> None:
        self.store = FaultyStore(inner, rng)
        self.known = ClusterCache(cluster)
        self.rng = rng
        self.sequencers: dict[int, Sequencer] = {}
        self.is_up = True
        self.learns = True
        """Whether the node reads the list of splits again by itself; otherwise it learns only from the logs."""

    def log_of(self, shard: int) -> ShardLog:
        return ShardLog(self.store, self.known.cluster, shard, now_ns)

    async def sequencer_of(self, lane: Lane) -> Sequencer | None:
        """The started sequencer of the shard where the node believes the edge to be; None while it is not loaded."""
        shard = self.known.cluster.tree.shard_of(lane.tenant, lane.edge)
        if shard not in self.sequencers:
            clock = HubClock(lambda: TRUE_START + now_ns(), now_ns)
            splitter = Splitter(self.log_of, self.known, wall_clock=clock.sound, random_bits=self.rng.getrandbits)
            self.sequencers[shard] = made = Sequencer(
                self.log_of(shard),
                SETTINGS,
                clock=clock,
                random_bits=self.rng.getrandbits,
                level=lambda: self.known.cluster.level,
                load=partial(self._load, splitter, shard),
                moved=partial(self._learn_soon, shard),
            )
            await made.start()
        found = self.sequencers.get(shard)
        return found if found is not None and found.loaded and found.is_running else None

    async def _load(self, splitter: Splitter, shard: int) -> ShardState:
        await splitter.begin(shard)
        return await self.log_of(shard).load()

    def _learn_soon(self, shard: int) -> None:
        self.learned_of = shard
        self.soon = asyncio.ensure_future(self.learn())

    async def learn(self) -> None:
        """Read the list of splits."""
        try:
            self.known.cluster = await read_cluster(self.store)
        except StoreError:
            pass

    async def kill(self) -> None:
        self.is_up = False
        sequencers, self.sequencers = self.sequencers, {}
        for sequencer in sequencers.values():
            await sequencer.close()


class Edge:
    """A strict-order sender that never stops before everything is acknowledged."""

    def __init__(self, lane: Lane, rng: random.Random) -> None:
        self.lane, self.rng = lane, rng
        self.acked = RangeSet()
        self.made = RECORDS
        self.epoch = 0

    async def drain(self, nodes: list[SplittingNode]) -> None:
        while not self.acked.covers(0, RECORDS):
            await self._try(self.rng.choice(nodes))
            await asyncio.sleep(self.rng.random() * 0.2)

    async def _try(self, node: SplittingNode) -> None:
        if not node.is_up:
            return
        try:
            async with asyncio.timeout(self.rng.uniform(0.3, 4.0) if self.rng.random() < 0.9 else 60.0):
                sequencer = await node.sequencer_of(self.lane)
                if sequencer is None:
                    return
                self.epoch += 1
                session = Session(sequencer, self.lane, self.epoch, ["plant/{line}"])
                try:
                    await self._session(session)
                finally:
                    self.acked.update(session.acked)
                    sequencer.leave(session.lane_session)
        except TimeoutError:
            pass

    async def _session(self, session: Session) -> None:
        if not await session.open():
            return
        at = session.acked.contiguous_end()
        while at < RECORDS and session.refusal is None:
            first = max(0, at - self.rng.randrange(5)) if self.rng.random() < 0.2 else at
            at = min(RECORDS, at + self.rng.randrange(1, 8))
            await session.send(first, at)
            session.sequencer.put_mark(session.lane_session, Mark(1000 + at, at))
            if self.rng.random() < 0.7:
                await asyncio.sleep(self.rng.random() * 0.8)
        while session.refusal is None and not session.acked.covers(0, RECORDS):
            session.news.clear()
            await session.news.wait()


class Follower:
    """A reader of one stream in all shards, which finds new shards in the logs, as a Spark query does.

    Checks at each look that no lane vanishes, and that what is claimed of it is never taken back.
    """

    def __init__(self, inner: ObjectStore, cluster: Cluster, rng: random.Random) -> None:
        self._rng, self._cluster = rng, cluster
        self._logs = {log.shard: log for log in first_logs(inner, cluster, now_ns)}
        self._states: dict[int, ShardState] = {}
        self._seen: dict[Lane, LaneState] = {}

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._rng.choice([0.1, 0.5, 5.0, 300.0]) * self._rng.random())

    async def look(self) -> dict[Lane, LaneState]:
        await self._read()
        states = [self._states[shard] for shard in sorted(self._states)]
        assert not missing_shards(states)
        lanes = {lane: held for state in states for lane, held in state.lanes.items()}
        assert lanes.keys() >= self._seen.keys(), f"{self._seen.keys() - lanes.keys()} vanished"
        check_claims(self._seen, lanes)
        self._seen = dict(lanes)
        return lanes

    async def _read(self) -> None:
        waiting = sorted(self._logs)
        while waiting:
            shard = waiting.pop(0)
            log = self._logs[shard]
            try:
                if shard not in self._states:
                    self._states[shard] = await log.load(ONLY)
                await log.extend(self._states[shard])
            except CollectedPast:
                self._states[shard] = await log.load(ONLY)
            for split in self._states[shard].splits:
                if split.shard not in self._logs:
                    self._logs[split.shard] = log.new_shard(split)
                    waiting.append(split.shard)


async def storm(nodes: list[SplittingNode], edges: list[Edge], rng: random.Random, splits: int) -> None:
    """Kill and suspend nodes, break their stores, and declare splits, for a while."""
    loop = asyncio.get_running_loop()
    end = loop.time() + STORM_S
    for node in nodes:
        node.store.faults = STORM
        node.learns = rng.random() < 0.6
    declared = 0
    while loop.time() < end or declared < splits:
        await asyncio.sleep(rng.uniform(0.05, 0.8))
        node = rng.choice(nodes)
        match rng.choice(["split", "split", "kill", "learn", "suspend", "dead"]):
            case "split" if declared < splits:
                declared += await _declare(node, edges, rng)
            case "kill" if node.is_up:
                await node.kill()
                await asyncio.sleep(rng.random() * 0.5)
                await _start(node)
            case "learn" if node.learns:
                await node.learn()
            case "suspend":
                node.store.running.clear()
                await asyncio.sleep(rng.uniform(0.1, 3.0))
                node.store.running.set()
            case "dead":
                node.store.faults = DEAD
                await asyncio.sleep(rng.uniform(0.1, 2.0))
                node.store.faults = STORM
            case _:
                pass
    for node in nodes:
        node.store.faults = CALM
        await node.learn()


async def _start(node: SplittingNode) -> None:
    faults, node.store.faults = node.store.faults, CALM
    if node.learns:
        await node.learn()
    node.store.faults, node.is_up = faults, True


async def _declare(node: SplittingNode, edges: list[Edge], rng: random.Random) -> int:
    """Declare a split, mostly of a shard with edges; other nodes may not know of it for long."""
    try:
        known = await read_cluster(node.store)
        of_edge = known.tree.shard_of(TENANT, rng.choice(edges).lane.edge)
        shard = of_edge if rng.random() < 0.8 else rng.randrange(known.tree.count)
        return int((await declare_split(node.store, shard, known)).splits != known.splits)
    except StoreError:
        return 0


async def _collect(inner: ObjectStore, cluster: Cluster, found: dict[int, Collector], rng: random.Random) -> None:
    """Collect old chunks of the shards that are there."""
    await asyncio.sleep(rng.uniform(0.0, 2 * STORM_S))
    logs = [log for log, _ in await load_every_shard(first_logs(inner, cluster, now_ns))]
    collectors = [found.setdefault(log.shard, Collector(inner, COLLECTION_DELAY_S, log)) for log in logs]
    await asyncio.gather(*(collector.collect() for collector in collectors))


async def _simulate(seed: int) -> dict[str, int]:
    rng = random.Random(seed)
    inner = MemoryStore()
    cluster = await open_cluster(inner, rng.choice([1, 2]), rng.randbytes)
    nodes = [SplittingNode(inner, cluster, random.Random(rng.random())) for _ in range(rng.choice([1, 2, 3]))]
    edges = [Edge(Lane(TENANT, f"edge-{i}", i, STREAM), random.Random(rng.random())) for i in range(rng.choice([2, 4]))]
    followers = [Follower(inner, cluster, random.Random(rng.random())) for _ in range(2)]
    collected: dict[int, Collector] = {}
    async with asyncio.timeout(DRAIN_S), asyncio.TaskGroup() as group:
        reading = [group.create_task(follower.run()) for follower in followers]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(storm(nodes, edges, rng, rng.choice([1, 2, 3, 5])))
            for _ in range(rng.choice([0, 1])):
                tasks.create_task(_collect(inner, cluster, collected, rng))
            for edge in edges:
                tasks.create_task(edge.drain(nodes))
        for task in reading:
            task.cancel()
    await asyncio.sleep(5.0)  # late writes land
    with outcome():
        crossed = await check(inner, cluster, nodes, edges, followers, collected)
    final = await read_cluster(inner)
    for node in nodes:
        await node.kill()
    return {"splits": len(final.splits), "moved": crossed}


async def check(  # noqa: PLR0917
    inner: ObjectStore,
    cluster: Cluster,
    nodes: Sequence[ServingNode],
    edges: Sequence[CheckedEdge],
    followers: list[Follower],
    collected: dict[int, Collector],
) -> int:
    """Check what the logs have. Return the number of lanes with records in more than one shard."""
    final = await read_cluster(inner)
    for edge in edges:  # everything is sent, and each shard that has an edge can be written to
        node = nodes[0]
        sequencer = await node.sequencer_of(edge.lane)
        assert sequencer is not None
        edge.epoch += 1
        session = Session(sequencer, edge.lane, edge.epoch, [])
        assert await session.open(), session.refusal
        assert session.acked.covers(0, edge.made)
        sequencer.put_mark(
            session.lane_session, Mark(1000 + edge.made, edge.made)
        )  # an idle edge says it once a minute
    await asyncio.sleep(5.0)  # longer than marks wait for data
    shards = await load_every_shard(first_logs(inner, cluster, now_ns))
    firsts = {split.shard: split.n for _, state in shards for split in state.splits}
    lanes: dict[Lane, list[int]] = defaultdict(list)
    crossed = 0
    for log, state in sorted(shards, key=lambda item: len(final.tree.lineage(item[0].shard))):
        assert not missing_shards([state for _, state in shards])
        kept = collected[log.shard].collected if log.shard in collected else {}
        for lane, seqs in (await _read_log(inner, firsts.get(log.shard, -1), kept, state, final)).items():
            crossed += lane in lanes
            lanes[lane] += seqs
        for lane in state.lanes:
            assert final.tree.shard_of(lane.tenant, lane.edge) == log.shard or not _is_in_force(shards, lane, final)
    for edge in edges:
        seqs = lanes[edge.lane]
        assert seqs == list(range(edge.made)), f"{edge.lane}: lost, doubled or out of order"  # I1, I2
        owners = [state for _, state in shards if edge.lane in state.lanes]
        assert len(owners) == 1, f"{edge.lane} is in shards {[state.shard for state in owners]}"
        held = owners[0].lanes[edge.lane]
        assert list(held.records) == [(0, edge.made)]
        assert held.complete_up_to == 1000 + edge.made
    whole = {lane: held for _, state in shards for lane, held in state.lanes.items()}
    for follower in followers:
        assert await follower.look() == whole
    for log, state in shards:
        for node in nodes:
            known = node.sequencers.get(log.shard)
            if known is not None and known.loaded:
                await known.catch_up(0.0)
                assert known.state.encode() == state.encode(), f"shard {log.shard}: two states"  # I5
    return crossed


def _is_in_force(shards: list[tuple[ShardLog, ShardState]], lane: Lane, final: Cluster) -> bool:
    return final.tree.shard_of(lane.tenant, lane.edge) in {log.shard for log, _ in shards}


async def _read_log(
    inner: ObjectStore, first: int, kept: dict[int, bytes], state: ShardState, final: Cluster
) -> dict[Lane, list[int]]:
    """Read the log of a shard behind chunk ``first``, and return the numbers of its records by lane, in order."""
    shard = state.shard
    lanes: dict[Lane, list[int]] = defaultdict(list)
    offsets: dict[tuple[str, str], int] = defaultdict(int)
    folded: ShardState | None = None
    if final.tree.is_first(shard):
        folded = ShardState(final.cluster_id, shard)
    n = first
    while True:
        n += 1
        try:
            data = kept[n] if n in kept else (await inner.get(chunk_key(shard, n))).data
        except NotFound:
            break
        index = chunk.decode(data)
        if folded is not None:
            apply(folded, index)
        for lane, seqs in records_of(index, data, offsets):
            lanes[lane] += seqs
    assert n - 1 == state.n, f"shard {shard}: the log ends at {n - 1}, and its state is of {state.n}"
    if folded is not None:
        assert folded.encode() == state.encode()
    assert dict(offsets) == state.next_offset
    for lane, seqs in lanes.items():
        assert seqs == sorted(seqs), f"{lane}: out of order in shard {shard}"  # I2
        assert final.tree.shard_of(lane.tenant, lane.edge) in {shard, *_below(final, shard)}
    return lanes


def _below(cluster: Cluster, shard: int) -> set[int]:
    return {other for other in range(cluster.tree.count) if shard in cluster.tree.lineage(other)}


def simulate_splits(seed: int) -> dict[str, int]:
    """One history, in virtual time. Return what happened in it.

    Raises:
        AssertionError: a promise was broken; a note says for which seed.
    """
    try:
        return virtual_time.run(_simulate(seed))
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
