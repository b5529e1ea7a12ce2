"""Histories of a whole fabric, each from one seed, in virtual time and one thread.

Devices, edge nodes with functions and links, a network and hub nodes over one store are the real code from the first
append to the chunk, because a model would not have the mistakes; disks, sockets and the store are made up, and fail.
``FAULTS`` says how.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple
from unittest import mock

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import check_log, name_each_other, read_chunks
from tests.cloud_hub.faulty_store import CALM, DEAD, FULL, STORM
from tests.cloud_hub.virtual_time import now_ns
from tests.edge_node.derived.node import Inline
from tests.simulation.edge import DERIVED, DROPPED, KEPT, LIMIT, VirtualEdge
from tests.simulation.hub import VirtualNode
from tests.simulation.network import Network, Session
from tests.support.silence import silent_logs
from weft.cloud_hub.facts.tenants import Quotas
from weft.edge_node.links import links
from weft.protocols.chunk_index import FIRST_LEVEL, RELEASE, Chunk
from weft.protocols.lane import Lane
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.lane_state import lane_of
from weft.protocols.shard.shard_state import ShardState
from weft.replication.runner import connect, run_link
from weft.storage.object_store.directory import MemoryStore

STORM_S = 20.0
DRAIN_S = 900.0
SETTLE_S = 90.0
"""Time in which two copies of a card have met the hub, and each other there."""
OFF_S = (0.0, 0.0, -1.7e9, -3600.0, 3600.0)
"""By how much wrong clocks of edges are ahead."""
FAULTS: Mapping[str, float] = {
    "network": 6,
    "refuse": 1,
    "power": 2,
    "kill": 1,
    "disk": 1,
    "full": 1,
    "node": 2,
    "suspend": 0.5,
    "store": 1,
    "reload": 1,
    "clock": 0.5,
}
"""Fault -> its weight among the others."""


class Report(NamedTuple):
    """What a history met, for those who ask whether it was worth making."""

    faults: int
    records: int
    gaps: int
    conflicts: int


class Fabric:
    """One history.

    Args:
        clones: share of the histories in which a card is copied.
    """

    def __init__(self, seed: int, clones: float = 0.15) -> None:
        self.rng = random.Random(seed)
        self._quotas = random.Random(seed + 1_000_003)
        """Of its own, so that a seed has the faults that it had before there were quotas."""
        self.inner = MemoryStore()
        self.nodes = [VirtualNode(self.inner, self._rng()) for _ in range(self.rng.choice([1, 2, 3]))]
        level = self.rng.choice([FIRST_LEVEL, RELEASE.level])
        for node in self.nodes:
            node.level = level
        name_each_other(self.nodes, self.rng)
        self.network = Network(self._rng(), lambda connection: self.nodes[connection.node].serve(connection))
        self.are_clocks_wrong = self.rng.random() < 0.3
        self.edges = [self._edge(f"edge-{number}") for number in range(self.rng.choice([1, 1, 2]))]
        self.clones = self.rng.random() < clones
        self.faults = 0

    def _rng(self) -> random.Random:
        return random.Random(self.rng.random())

    def _edge(self, name: str) -> VirtualEdge:
        urls = tuple(f"http://hub:{number + 1}" for number in range(len(self.nodes)))
        off_s = (lambda: self.rng.choice(OFF_S)) if self.are_clocks_wrong else lambda: 0.0
        return VirtualEdge(name, self.network, urls, self._rng(), off_s)

    async def run(self) -> Report:
        for node in self.nodes:
            await node.start()
        for edge in self.edges:
            await edge.start()
        await self._storm()
        await self._heal()
        await self._drain()
        for edge in self.edges:
            assert edge.log is not None
            assert not edge.log.failed
        report = await self._check()
        for edge in self.edges:
            await edge.die(power=False)
        for node in self.nodes:
            await node.kill()
        return report

    # -- faults

    async def _storm(self) -> None:
        loop = asyncio.get_running_loop()
        end, clone_at = loop.time() + STORM_S, loop.time() + self.rng.uniform(1.0, STORM_S - 5.0)
        for node in self.nodes:
            node.store.faults = STORM
        rate_s = self.rng.choice([0.1, 0.4, 1.5])
        while loop.time() < end:
            await asyncio.sleep(self.rng.random() * 2 * rate_s)
            for _ in range(self.rng.randrange(40)):  # any await, not only those that take time
                await asyncio.sleep(0)
            if self.clones and loop.time() > clone_at:
                self.clones = False
                await self._clone()
            if self._quotas.random() < 0.03:
                node, rate = self._quotas.choice(self.nodes), self._quotas.choice([None, 500, 5_000])
                node.limit(Quotas(bytes_per_second=rate, records_per_second=self._quotas.choice([None, 20])))
            (fault,) = self.rng.choices(list(FAULTS), list(FAULTS.values()))
            self.faults += 1
            await self._fault(fault)

    async def _clone(self) -> None:
        """A copy of a card wakes up in a second machine: at once or later, and some time before it reaches a hub, so
        that either of the two may have given away more numbers, and either may be ahead in its epochs."""
        other = self.edges[0].clone()
        if self.rng.random() < 0.7:
            await asyncio.sleep(self.rng.uniform(0.0, 6.0))
        self.network.away.add(other.machine)
        back_s = self.rng.choice([0.0, self.rng.uniform(5.0, 15.0)])
        asyncio.get_running_loop().call_later(back_s, self.network.away.discard, other.machine)
        self.network.early_cuts[other.machine] = self.rng.choice([0, 0, 1, 3])
        if self.rng.random() < 0.5:
            self.network.lose(self.edges[0].machine, self.rng.uniform(0.0, 2.0), self.rng.uniform(5.0, 25.0))
        self.edges.append(other)
        await other.start()

    async def _fault(self, fault: str) -> None:
        edge, node = self.rng.choice(self.edges), self.rng.choice(self.nodes)
        match fault:
            case "network":
                self.network.blow()
            case "refuse":
                self.network.refused = self.rng.choice([0.0, 0.5, 1.0])
            case "power" | "kill":
                await self._restart(edge, power=fault == "power")
            case "disk":
                edge.fail_soon()
                await asyncio.sleep(self.rng.random())
                await self._restart(edge, power=self.rng.random() < 0.5)
            case "full":
                edge.disk.capacity = edge.disk.used_bytes() + self.rng.randrange(3000)
                await asyncio.sleep(self.rng.uniform(0.1, 3.0))
                edge.disk.capacity = None
            case "node":
                await node.kill()
                await asyncio.sleep(self.rng.random())
                await node.start()
            case "suspend":
                node.store.running.clear()
                await asyncio.sleep(self.rng.uniform(0.1, 3.0))
                node.store.running.set()
            case "store":
                node.store.faults = self.rng.choice([DEAD, FULL])
                await asyncio.sleep(self.rng.uniform(0.1, 3.0))
                node.store.faults = STORM
            case "reload":
                # A stream that no link carries is released by the functions that read it, so KEPT stays.
                edge.reload((KEPT, *self.rng.sample((DROPPED, DERIVED), self.rng.randrange(3))))
            case "clock" if self.are_clocks_wrong:
                node.off_s = self.rng.choice([0.0, 3.0, -20.0])

    async def _restart(self, edge: VirtualEdge, *, power: bool) -> None:
        capacity, edge.disk.capacity = edge.disk.capacity, None
        await edge.die(power=power)
        edge.disk.capacity = capacity
        await asyncio.sleep(self.rng.random() * 0.5)
        await edge.start()

    async def _heal(self) -> None:
        for node in self.nodes:
            node.store.faults, node.off_s = CALM, 0.0
            node.limit(Quotas())
        self.network.heal()
        for edge in self.edges:
            edge.disk.capacity = None
            if edge.log is None or edge.log.failed:
                await self._restart(edge, power=True)
            edge.reload((KEPT, DROPPED, DERIVED))

    async def _drain(self) -> None:
        """I10: when faults stop, every edge drains; of two copies of a card, one may have to stop."""
        if any(edge.is_cloned for edge in self.edges):
            await asyncio.sleep(SETTLE_S)
            return
        async with asyncio.timeout(DRAIN_S):
            while not all(edge.is_drained for edge in self.edges):
                assert not any(edge.has_conflict for edge in self.edges), "a conflict, and there is no second node"
                await asyncio.sleep(0.5)
        await asyncio.sleep(15.0)  # marks of idle lanes, and late writes

    # -- promises

    async def _check(self) -> Report:
        found: dict[tuple[Lane, int], bytes] = {}

        def is_right(lane: Lane, seq: int, payload: bytes) -> bool:
            found[lane, seq] = payload
            return True

        chunks = await read_chunks(self.inner)
        state, _ = check_log(chunks, is_right=is_right)
        for edge in self.edges:
            if edge.is_cloned:
                self._check_copy(edge, state, found)
            else:
                self._check_edge(edge, state, found)
                if not self.are_clocks_wrong:
                    check_marks(edge, chunks, found)
        gaps = sum(gap.end - gap.first for held in state.lanes.values() for gap in held.gaps)
        return Report(self.faults, len(found), gaps, sum(edge.has_conflict for edge in self.edges))

    def _check_edge(self, edge: VirtualEdge, state: ShardState, found: Mapping[tuple[Lane, int], bytes]) -> None:
        for stream in (KEPT, DROPPED, DERIVED):
            lane, held = edge.lane(stream), edge.held(stream)
            gaps = gaps_of(state, lane)
            # I8, and no false gap: only a stream that may drop records has gaps, and only of records that are gone.
            assert not gaps or stream == DROPPED, f"{lane}: a gap {gaps} in a stream that drops nothing"
            for first, end in gaps:
                assert not any(first <= seq < end for seq in held), f"{lane}: a gap, and the log holds records of it"
            for (name, seq), record in edge.truth.items():
                if name != stream or (lane, seq) not in found:
                    continue
                assert found[lane, seq] == record.payload, f"{lane}: {seq} is another record"
            lost = [
                seq for name, seq in edge.acked if name == stream and (lane, seq) not in found and seq not in gaps
            ]  # I1
            assert not lost, f"{lane}: {sorted(lost)} were acknowledged to devices"
        self._check_derived(edge, found)

    def _check_derived(self, edge: VirtualEdge, found: Mapping[tuple[Lane, int], bytes]) -> None:
        """The derived stream is what the function makes of the input, each row once and in order."""
        kept = [json.loads(found[key]) for key in sorted(key for key in found if key[0] == edge.lane(KEPT))]
        made = [json.loads(found[key]) for key in sorted(key for key in found if key[0] == edge.lane(DERIVED))]
        assert made == [row for row in kept if row["value"] >= LIMIT], f"{edge.name}: other rows than the input has"

    def _check_copy(self, edge: VirtualEdge, state: ShardState, found: Mapping[tuple[Lane, int], bytes]) -> None:
        """I9: whatever two copies of a card have said, a record is there as one of them has it, and none is lost
        unnoticed."""
        others = [each for each in self.edges if each is not edge and each.name == edge.name]
        differs = False
        for stream in (KEPT, DROPPED):
            lane, held, gaps = edge.lane(stream), edge.held(stream), edge.gaps(stream)
            gaps.update(gaps_of(state, edge.lane(stream)))
            for name, seq in edge.acked:
                if name != stream:
                    continue
                own, there = edge.truth[name, seq].payload, found.get((lane, seq))
                if there == own or seq in held or seq in gaps:
                    differs |= there not in (own, None)
                    continue
                differs = True
                theirs = [other.truth.get((name, seq)) for other in others]
                assert there in [each.payload for each in theirs if each], f"{lane}: {seq} is nobody's record"
        if differs or self._waits(edge):
            assert edge.has_conflict, f"{edge.name}: another copy has replaced its records, and it did not notice"

    @staticmethod
    def _waits(edge: VirtualEdge) -> bool:
        return bool(edge.links.waiting())


def gaps_of(state: ShardState, lane: Lane) -> RangeSet:
    known = state.lanes.get(lane)
    return RangeSet((gap.first, gap.end) for gap in known.gaps) if known is not None else RangeSet()


def check_marks(edge: VirtualEdge, chunks: list[tuple[Chunk, bytes]], found: Mapping[tuple[Lane, int], bytes]) -> None:
    """No mark claims a moment before which a device's record of a higher number came. What a power cut took before it
    was durable has never come."""
    times: dict[Lane, list[tuple[int, int]]] = {}
    for stream in (KEPT, DROPPED):
        lane = edge.lane(stream)
        times[lane] = [
            (seq, record.time)
            for (name, seq), record in edge.truth.items()
            if name == stream and ((name, seq) in edge.acked or (lane, seq) in found)
        ]
    marks = {(lane_of(update), update.mark) for chunk, _ in chunks for update in chunk.footer.lanes if update.mark}
    for lane, mark in marks:
        late = [seq for seq, time in times.get(lane, ()) if time <= mark.time and seq >= mark.seq]
        assert not late, f"{lane}: complete up to {mark}, and {late} came before"


@contextlib.contextmanager
def virtual() -> Iterator[None]:
    """Links connect over the virtual network, by its clock."""
    with (
        silent_logs(),
        mock.patch.object(connect, "_session", return_value=Session()),
        mock.patch.object(links, "run_link", partial(run_link, clock=now_ns)),
        mock.patch("weft.replication.runner.serve._CHECKS", Inline(1)),  # a thread has a time of its own
    ):
        yield


def simulate(seed: int, **options: float) -> Report:
    """One history, with options of ``Fabric``.

    Raises:
        AssertionError: a promise was broken; a note says how to see it again.
    """
    try:
        with virtual():
            return virtual_time.run(_run(seed, **options))
    except BaseException as error:
        error.add_note(f"again: python -m tests.simulation --seed {seed}")
        raise


async def _run(seed: int, **options: float) -> Report:
    return await Fabric(seed, **options).run()
