"""The collector of a shard's old chunks, and readers that sleep while it works."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import msgspec

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import CLUSTER, TRUE_START, Edge, Route, SequencerNode, check_log
from tests.cloud_hub.virtual_time import now_ns
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.shard.collector import ShardCollector
from weft.protocols import chunk
from weft.protocols.chunk_index import Chunk, FoldRules, StreamKey
from weft.protocols.lane import Lane
from weft.protocols.shard.lane_state import lane_of
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import CollectedPast, ShardLog
from weft.storage.hub_keys import chunk_key
from weft.storage.object_store import NotFound, ObjectStore, StoreError
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.protocol import Buffer

DELETION_DELAY_S = 900.0
"""G of docs/architecture.md: between publishing the watermark and deleting."""


class Collector:
    """Raises the watermark, waits, and deletes. ``collected`` keeps what it deleted, for who checks the log."""

    def __init__(self, store: ObjectStore, delay_s: float = DELETION_DELAY_S, log: ShardLog | None = None) -> None:
        self._store = store
        self._delay_s = delay_s
        self._log = log or ShardLog(store, CLUSTER, 0, now_ns)
        self.collected: dict[int, bytes] = {}

    async def collect(self) -> int:
        """Collect everything that the newest snapshot holds; the watermark."""
        manifest, etag = await self._log.manifest()
        watermark = manifest.snapshot_n + 1
        if not await self._log.swap_manifest(msgspec.structs.replace(manifest, watermark=watermark), etag):
            return await self.collect()
        await asyncio.sleep(self._delay_s)
        for n in range(watermark):
            try:
                found = await self._store.get(chunk_key(self._log.shard, n))
            except NotFound:
                continue
            # The first time it is the chunk; later a writer that was paused has made the number again.
            self.collected.setdefault(n, found.data)
            await self._store.delete(chunk_key(self._log.shard, n))
        return watermark


class SleepingReader:
    """A reader of the log that wakes up now and then."""

    def __init__(
        self, store: ObjectStore, rng: random.Random, rules: FoldRules, only: frozenset[StreamKey] | None = None
    ) -> None:
        self._log = ShardLog(store, CLUSTER, 0, now_ns, rules=rules)
        self._rng, self._only = rng, only
        self.state: ShardState | None = None
        self.reloads = 0

    async def run(self) -> None:
        """Read on, for as long as the task lives."""
        while True:
            await self.read()
            await asyncio.sleep(self._rng.choice([0.2, 2.0, 30.0, 300.0, 2000.0]) * self._rng.random())

    async def read(self) -> ShardState:
        """Read up to the head of the log; the state there."""
        while True:
            try:
                if self.state is None:
                    self.state = await self._log.load(self._only)
                await self._log.extend(self.state)
            except CollectedPast:
                self.state, self.reloads = None, self.reloads + 1
            except StoreError:
                await asyncio.sleep(0.1)
            else:
                return self.state


# --- A shard that is collected while nodes are paused and readers sleep, from one seed each


GRACE_S = 150.0
GENERATIONS = 3


class Archive(MemoryStore):
    """A store that keeps a copy of every chunk as it was first made."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: dict[str, bytes] = {}

    async def create(self, key: str, data: Buffer) -> str:
        etag = await super().create(key, data)
        if "/chunk/" in key:
            self.chunks.setdefault(key, bytes(data))
        return etag

    def log(self) -> list[tuple[Chunk, bytes]]:
        """Every chunk of the shard's history."""
        return [(chunk.decode(data), data) for _, data in sorted(self.chunks.items())]


class Table:
    """A table in miniature: takes the records of one chunk after the other, and sleeps as long as it likes."""

    def __init__(self, store: ObjectStore, rng: random.Random) -> None:
        self.log = ShardLog(store, CLUSTER, 0, now_ns)
        self.rng = rng
        self.next_n = 0
        self.rows: Counter[tuple[Lane, int]] = Counter()

    async def run(self) -> None:
        while True:
            async for index in self.log.indexes(self.next_n):
                for update in index.footer.lanes:
                    self.rows.update(
                        (lane_of(update), seq) for first, end in update.ranges for seq in range(first, end)
                    )
                self.next_n += 1
            await asyncio.sleep(self.rng.choice([1.0, 20.0, 400.0]))

    def take(self, index: Chunk) -> None:
        for update in index.footer.lanes:
            for first, end in update.ranges:
                self.rows.update((lane_of(update), seq) for seq in range(first, end))
        self.next_n += 1

    async def tabled(self, shard: int) -> int | None:
        return self.next_n


class Sleeper:
    """A reader that follows the log, and sleeps through collections."""

    def __init__(self, store: ObjectStore, rng: random.Random) -> None:
        self.log = ShardLog(store, CLUSTER, 0, now_ns)
        self.state = ShardState(CLUSTER.cluster_id, 0)
        self.rng = rng
        self.passed = 0

    async def look(self) -> None:
        try:
            await self.log.extend(self.state)
        except CollectedPast:
            self.passed += 1
            self.state = await self.log.load()

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self.rng.choice([1.0, 30.0, 600.0]))


async def _pause(nodes: list[SequencerNode], rng: random.Random) -> None:
    while True:
        await asyncio.sleep(rng.uniform(1.0, 300.0))
        node = rng.choice(nodes)
        node.store.running.clear()
        await asyncio.sleep(rng.choice([5.0, 2 * GRACE_S]))
        node.store.running.set()


async def _collect(collectors: list[ShardCollector], rng: random.Random) -> None:
    while True:
        await asyncio.sleep(rng.uniform(5.0, 40.0))
        await rng.choice(collectors).look()


async def _simulate(seed: int) -> int:
    rng = random.Random(seed)
    store = Archive()
    nodes = [SequencerNode(store, random.Random(rng.random())) for _ in range(2)]
    for node in nodes:
        await node.start()
    table = Table(store, random.Random(rng.random()))
    sleepers = [Sleeper(store, random.Random(rng.random())) for _ in range(2)]
    collectors = [
        ShardCollector(
            ShardLog(store, CLUSTER, 0, now_ns),
            table.tabled,
            rng.choice([1.0, 60.0]),
            clock=HubClock(lambda: TRUE_START + now_ns(), now_ns),
            grace_s=GRACE_S,
        )
        for _ in range(2)
    ]
    work = [table.run(), *(sleeper.run() for sleeper in sleepers), _collect(collectors, rng), _pause(nodes, rng)]
    tasks = [asyncio.create_task(each) for each in work]
    edges: list[Edge] = []
    for generation in range(GENERATIONS):
        lanes = [Lane("default", f"edge-{generation}-{i}", i, "t") for i in range(2)]
        new = [Edge(lane, 60, random.Random(rng.random()), Route(lane, random.Random(rng.random()))) for lane in lanes]
        await asyncio.gather(*(edge.drain(nodes) for edge in new))
        edges += new
        await asyncio.sleep(rng.uniform(0.0, 4 * GRACE_S))
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, asyncio.CancelledError), outcome
    for node in nodes:
        node.store.running.set()
    await asyncio.sleep(60.0)
    await _check(store, nodes, edges, table, sleepers)
    return sum(collector.deleted for collector in collectors)


async def _check(
    store: Archive, nodes: list[SequencerNode], edges: list[Edge], table: Table, sleepers: list[Sleeper]
) -> None:
    await asyncio.sleep(300.0)
    truth = await ShardLog(store, CLUSTER, 0, now_ns).load()

    state, records = check_log(store.log())
    assert truth.encode() == state.encode(), "what is left makes the same state as the whole history"
    for edge in edges:
        held = state.lanes[edge.lane]
        assert not [r for first, end in edge.acked for r in held.ranges.missing(first, end)]
    for sleeper in sleepers:
        await sleeper.look()
        await sleeper.look()
        assert sleeper.state.encode() == state.encode(), "a reader that slept is at the head again"
    async for index in table.log.indexes(table.next_n):
        table.take(index)
    assert table.rows == Counter((lane, seq) for lane, seqs in records.items() for seq in seqs)
    for node in nodes:
        await node.kill()


def simulate_collection(seed: int) -> int:
    """One history, in virtual time. Returns the number of chunks deleted.

    Raises:
        AssertionError: a promise was broken; a note says for which seed.
    """
    try:
        return virtual_time.run(_simulate(seed))
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
