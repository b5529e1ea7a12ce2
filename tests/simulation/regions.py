"""Histories of two and three hub clusters that relay to each other, each from one seed, in virtual time and one thread.

Edges, their logs, every hub node and the links between the regions are the real code. An edge reaches now this region
and now that one, and deletes what either has acknowledged. ``FAULTS`` says what fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple
from unittest import mock

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import check_log, read_chunks, records_of
from tests.cloud_hub.faulty_store import STORM
from tests.cloud_hub.virtual_time import now_ns
from tests.edge_node.derived.node import Inline
from tests.simulation.edge import DERIVED, DROPPED, KEPT, VirtualEdge
from tests.simulation.fabric import DRAIN_S, Fabric, check_marks, gaps_of, virtual
from tests.simulation.hub import VirtualNode
from tests.simulation.network import MACHINE, Network
from tests.support.outcomes import outcome
from weft.cloud_hub.facts.hub import DeclaredRegions, RegionDocument
from weft.cloud_hub.regions import regions as region_link
from weft.cloud_hub.regions import source as region_source
from weft.cloud_hub.regions.regions import RegionLink
from weft.cloud_hub.settings import RegionSettings
from weft.cloud_hub.shard.lane_session import LaneSession
from weft.protocols.batch import decode_header
from weft.protocols.chunk import section_entries
from weft.protocols.chunk_index import Chunk, LaneFlag
from weft.protocols.lane import Lane
from weft.protocols.link import RefuseCode
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.lane_state import lane_of
from weft.protocols.shard.shard_state import ShardState
from weft.replication.flow_control import SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.runner import LinkSettings, run_link
from weft.storage.chunk_log import RegionPositions
from weft.storage.cluster import Cluster
from weft.storage.object_store.directory import MemoryStore

STORM_S = 15.0
RECORDS = 60
"""Records of an edge's devices."""
SETTLE_S = 8.0
"""``RegionSettings.settle_s``, which is longer than marks wait for data at these hubs."""
WINDOW = 4
"""Chunks of a link's window, so that a backlog has several."""
FAULTS: Mapping[str, float] = {
    "partition": 3,
    "fail_over": 4,
    "network": 4,
    "refuse": 1,
    "power": 1,
    "kill": 1,
    "full": 1,
    "node": 3,
    "owner": 1,
    "suspend": 0.5,
    "store": 1,
    "pause": 0.5,
    "lane": 1,
}
"""Fault -> its weight among the others."""
STREAMS = KEPT, DROPPED, DERIVED


class Report(NamedTuple):
    """What a history met, for those who ask whether it was worth making."""

    faults: int
    records: int
    healed: int
    """Records that some region got behind a gap of reason ``absent``."""
    failed_over: int
    """Lanes whose edge brought records to more than one region."""
    gaps: int


class RegionNode(VirtualNode):
    """A hub node, with its region's links to others while it owns the shard."""

    def __init__(self, inner: MemoryStore, rng: random.Random, cluster: Cluster) -> None:
        super().__init__(inner, rng, cluster, peers=True)
        self.machine = rng.getrandbits(32)
        self.owns = False
        self.refuses: set[Lane] = set()
        """Lanes that no region may relay to this node."""
        self.declared = DeclaredRegions()
        self.network: Network
        self.to: Mapping[str, RegionSettings] = {}
        self._relays: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await super().start()
        assert self.sequencer is not None
        self.sequencer.open = partial(self._open, self.sequencer.open)  # type: ignore[method-assign]
        if self.owns:
            self.relay()

    def _open(self, opens: Callable[[LaneSession], None], session: LaneSession) -> None:
        opens(session)
        if session.is_relay and session.lane in self.refuses and not session.closed:
            self._refuse(session)

    def refuse(self, lane: Lane) -> None:
        """Let no region relay a lane, those that do included."""
        self.refuses.add(lane)
        for session in list(self.sequencer.sessions) if self.sequencer is not None else ():
            if session.is_relay and session.lane == lane and not session.closed:
                self._refuse(session)

    def _refuse(self, session: LaneSession) -> None:
        assert self.sequencer is not None
        why = "it is not for this region", "ask its operator"
        self.sequencer.sessions.refuse(session, RefuseCode.UNAUTHORISED, *why)

    def relay(self) -> None:
        """Begin the links to other regions."""
        self.owns = True
        if self.sequencer is None or self._relays:
            return
        for name in self.to:
            self._relays.append(asyncio.create_task(self._relay(name)))

    async def _relay(self, name: str) -> None:
        MACHINE.set((self.network, self.machine))
        assert self.sequencer is not None
        link = RegionLink(
            name,
            self.to[name],
            self.sequencer,
            RegionPositions(self.store, self.cluster),
            clock=self.clock,
            host="hub",
            declared=self.declared,
        )
        await link.run()

    async def end_relay(self) -> None:
        """End the links: another node owns the shard."""
        self.owns = False
        await self._end()

    async def _end(self) -> None:
        relays, self._relays = self._relays, []
        for relay in relays:
            relay.cancel()
        for result in await asyncio.gather(*relays, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def kill(self) -> None:
        for connection in self.network.of(self.machine):
            connection.lose_edge(self.rng)
        await self._end()
        await super().kill()


class Region:
    """A cluster with a store of its own."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.name = f"region-{number}"
        self.cluster = Cluster(bytes([number]) * 16, 1)
        self.inner = MemoryStore()
        self.nodes = [
            RegionNode(self.inner, random.Random(rng.random()), self.cluster) for _ in range(rng.choice([1, 1, 2]))
        ]
        self.first = 0
        """Number of its first node among those of all regions."""
        self.peers: list[Region] = []
        """Those to which it sends."""

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(f"http://hub:{self.first + at + 1}" for at in range(len(self.nodes)))

    @property
    def numbers(self) -> range:
        """Numbers of its nodes among those of all regions."""
        return range(self.first, self.first + len(self.nodes))

    def state(self) -> ShardState | None:
        """The state of a node that runs."""
        return next((node.sequencer.state for node in self.nodes if node.sequencer is not None), None)

    def own(self, rng: random.Random) -> None:
        """Have one node run the links."""
        rng.choice(self.nodes).relay()


class Regions(Fabric):
    """One history."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.regions = [Region(number, self._rng()) for number in range(1, 1 + self.rng.choice([2, 2, 3]))]
        forwards = self._lay_out()
        self.nodes: list[RegionNode] = []  # type: ignore[assignment]
        level = self.rng.choice([1, 2])
        for region in self.regions:
            region.first = len(self.nodes)
            self.nodes += region.nodes
        for region in self.regions:
            to = {peer.name: self._settings(peer, forwards) for peer in region.peers}
            declared = DeclaredRegions()
            for node in region.nodes:
                node.level, node.to, node.declared = level, to, declared
        self.network = Network(self._rng(), lambda connection: self.nodes[connection.node].serve(connection))
        for node in self.nodes:
            node.network = self.network
        self.are_clocks_wrong = False
        self.edges = [self._edge(f"edge-{number}") for number in range(self.rng.choice([1, 1, 2]))]
        for edge in self.edges:
            edge.records, edge.step_s = RECORDS, STORM_S / RECORDS
            edge.padding_bytes = self.rng.choice([100, 200])
        self.faults = 0

    def _lay_out(self) -> bool:
        """Choose who sends to whom. Return whether regions send on what others relayed to them."""
        shape = self.rng.choice(["mesh", "mesh", "ring"])
        for at, region in enumerate(self.regions):
            ring = [self.regions[(at + 1) % len(self.regions)]]
            region.peers = ring if shape == "ring" else [each for each in self.regions if each is not region]
        return (shape == "ring" and len(self.regions) > 2) or self.rng.random() < 0.3

    def _settings(self, peer: Region, forwards: bool) -> RegionSettings:
        sender = SenderSettings(
            mark_interval=5 * SECOND,
            ping_interval=5 * SECOND,
            silence=15 * SECOND,
            ack_timeout=10 * SECOND,
            window_bytes=2000,
        )
        link = LinkSettings(peer.urls, retry_min_s=0.05, retry_max_s=2.0, sender=sender)
        return RegionSettings(link, forwards=forwards, write_s=0.5, settle_s=SETTLE_S)

    def _edge(self, name: str) -> VirtualEdge:
        regions = self.rng.sample(self.regions, len(self.regions))
        urls = tuple(url for region in regions for url in region.urls)
        return VirtualEdge(name, self.network, urls, self._rng(), lambda: 0.0)

    async def run(self) -> Report:  # type: ignore[override]
        asyncio.get_running_loop().set_default_executor(Inline(1))  # a thread has a time of its own
        for region in self.regions:
            for node in region.nodes:
                await node.start()
            region.own(self.rng)
        for edge in self.edges:
            await edge.start()
        await self._storm()
        await self._heal()
        await self._drain()
        report = await self._check()
        for edge in self.edges:
            await edge.die(power=False)
        for node in self.nodes:
            await node.kill()
        return report

    # -- faults

    async def _storm(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + STORM_S
        for node in self.nodes:
            node.store.faults = STORM
        rate_s = self.rng.choice([0.1, 0.4, 1.5])
        while loop.time() < end:
            await asyncio.sleep(self.rng.random() * 2 * rate_s)
            (fault,) = self.rng.choices(list(FAULTS), list(FAULTS.values()))
            self.faults += 1
            await self._fault(fault)

    async def _fault(self, fault: str) -> None:
        region = self.rng.choice(self.regions)
        match fault:
            case "partition":
                for one, other in self._some_partition(region):
                    ways = {(node.machine, number) for node in one.nodes for number in other.numbers}
                    self.network.wall_off(ways, self.rng.uniform(1.0, 15.0))
            case "fail_over":
                edge = self.rng.choice(self.edges)
                ways = {(edge.machine, number) for number in region.numbers}
                self.network.wall_off(ways, self.rng.uniform(1.0, 10.0))
            case "owner":
                await self._move_links(region)
            case "lane":
                lane = self.rng.choice(self._lanes())
                for node in region.nodes:
                    if lane in node.refuses:
                        node.refuses.remove(lane)
                    else:
                        node.refuse(lane)
            case "pause":
                paused = {peer.name: RegionDocument(paused=self.rng.random() < 0.5) for peer in region.peers}
                region.nodes[0].declared._regions = paused
            case _:
                await super()._fault(fault)

    def _some_partition(self, region: Region) -> Iterator[tuple[Region, Region]]:
        """Yield ways from region to region: those from and to one of them, or some of these."""
        for other in self.regions:
            if other is not region:
                yield from self.rng.choice([[(region, other)], [(other, region)], [(region, other), (other, region)]])

    async def _move_links(self, region: Region) -> None:
        """Another node owns the shard. The one before may not know it for a time, and both send."""
        former = [node for node in region.nodes if node.owns]
        if self.rng.random() < 0.5:
            for node in former:
                await node.end_relay()
            region.own(self.rng)
            return
        region.own(self.rng)
        await asyncio.sleep(self.rng.uniform(0.0, 3.0))
        for node in former:
            if sum(each.owns for each in region.nodes) > 1:
                await node.end_relay()

    async def _heal(self) -> None:
        for region in self.regions:
            region.nodes[0].declared._regions = {}
            for node in region.nodes:
                node.refuses.clear()
        await super()._heal()

    async def _drain(self) -> None:
        """I10: when faults stop, every edge drains, and every region claims all that edges said."""
        await super()._drain()
        said = max(edge.wall() for edge in self.edges)
        async with asyncio.timeout(DRAIN_S):
            while waits := self._waits_for(said):
                self.waits = waits
                await asyncio.sleep(1.0)

    waits: str = ""
    """What the history waited for last."""

    def _waits_for(self, said: int) -> str:
        """Say what keeps a region from claiming that all streams are complete up to a moment; nothing if none does."""
        records: dict[Lane, RangeSet] = {}
        for region in self.regions:
            state = region.state()
            for lane in self._lanes():
                held = None if state is None else state.lanes.get(lane)
                if held is None:
                    return f"{region.name} does not know {lane}"
                if held.whole_up_to is None or held.whole_up_to < said:
                    return f"{region.name} claims {lane} up to {held.whole_mark}, gaps {list(held.gaps)}"
                if held.records != records.setdefault(lane, held.records):
                    return f"{region.name} has other records of {lane} than {records[lane]}: {held.records}"
        return ""

    def _lanes(self) -> list[Lane]:
        return [edge.lane(stream) for edge in self.edges for stream in STREAMS]

    # -- promises

    async def _check(self) -> Report:  # type: ignore[override]
        found: dict[tuple[Lane, int], bytes] = {}

        def is_right(lane: Lane, seq: int, payload: bytes) -> bool:
            return found.setdefault((lane, seq), payload) == payload

        logs = [await read_chunks(region.inner) for region in self.regions]
        ways = [_Ways(log) for log in logs]
        states: list[ShardState] = []
        for region, log, way in zip(self.regions, logs, ways, strict=True):
            state, _ = check_log(log, way.late(), is_right=is_right, cluster=region.cluster)
            states.append(state)
        self._check_alike(states)
        _check_order(ways)
        for state, log in zip(states, logs, strict=True):
            for edge in self.edges:
                with outcome():
                    self._check_edge(edge, state, found)
                    check_marks(edge, log, found)
        failed_over = sum(sum(lane in way.own for way in ways) > 1 for lane in self._lanes())
        healed = sum(numbers.count() for way in ways for numbers in way.healed.values())
        gaps = sum(gap.end - gap.first for held in states[0].lanes.values() for gap in held.gaps)
        return Report(self.faults, len(found), healed, failed_over, gaps)

    @outcome()
    def _check_alike(self, states: Sequence[ShardState]) -> None:
        """Every region has the same records of every lane, and the same gaps, none of them for another to fill."""
        for lane in self._lanes():
            each = [state.lanes[lane] for state in states]
            records = [held.records for held in each]
            assert all(one == records[0] for one in records), f"{lane}: regions have {records}"
            gaps = [gaps_of(state, lane) for state in states]
            assert all(one == gaps[0] for one in gaps), f"{lane}: regions have gaps {gaps}"
            absent = [gap for held in each for gap in held.gaps if gap.reason == GapReason.ABSENT]
            assert not absent, f"{lane}: {absent} are in no region"


class _Ways:
    """By lane, how the numbers of a log came."""

    def __init__(self, log: Sequence[tuple[Chunk, bytes]]) -> None:
        self.own: dict[Lane, list[int]] = defaultdict(list)
        """From the lane's edge, in the order of the log."""
        self.relayed: dict[Lane, list[int]] = defaultdict(list)
        """From other regions, likewise."""
        self.brought: dict[Lane, RangeSet] = defaultdict(RangeSet)
        """Numbers in batches from the lane's edge, also those that the region had from others by then: it sends on the
        batches whole."""
        self.healed: dict[Lane, RangeSet] = defaultdict(RangeSet)
        """Behind a gap of reason ``absent``. An edge may bring these, too: a power cut takes back a deletion."""
        absent: dict[Lane, RangeSet] = defaultdict(RangeSet)
        offsets: dict[tuple[str, str], int] = defaultdict(int)
        for index, data in log:
            relayed: dict[Lane, RangeSet] = defaultdict(RangeSet)
            for update in index.footer.lanes:
                lane = lane_of(update)
                for first, end in update.ranges:
                    self.healed[lane].update(RangeSet(absent[lane].within(first, end)))
                    if update.flags & LaneFlag.RELAY:
                        relayed[lane].add(first, end)
                absent[lane].update((gap.first, gap.end) for gap in update.gaps if gap.reason == GapReason.ABSENT)
            for section in index.footer.streams:
                updates = index.footer.lanes_of(section)
                for entry in section_entries(
                    section, data[section.position : section.position + section.length], updates
                ):
                    if not updates[entry.lane].flags & LaneFlag.RELAY:
                        header = decode_header(entry.batch)
                        self.brought[lane_of(updates[entry.lane])].add(header.base_seq, header.end_seq)
            for lane, seqs in records_of(index, data, offsets, lambda *_: True):
                for seq in seqs:
                    (self.relayed if seq in relayed[lane] else self.own)[lane].append(seq)

    def late(self) -> dict[Lane, RangeSet]:
        """Return the numbers that may be out of their lane's order."""
        late = {lane: _ranges(seqs) for lane, seqs in self.relayed.items()}
        for lane, numbers in self.healed.items():
            late.setdefault(lane, RangeSet()).update(numbers)
        return late


def _ranges(seqs: Sequence[int]) -> RangeSet:
    return RangeSet((seq, seq + 1) for seq in sorted(seqs))


@outcome()
def _check_order(ways: Sequence[_Ways]) -> None:
    """What an edge brought to one region alone, and in order, is in its order everywhere (I2)."""
    for mine in ways:
        for lane, seqs in mine.own.items():
            elsewhere = [way.brought[lane] for way in ways if way is not mine and lane in way.brought]
            alone = {seq for seq in seqs if not any(seq in other for other in (*elsewhere, mine.healed[lane]))}
            for way in ways:
                order = [seq for seq in (*way.own.get(lane, ()), *way.relayed.get(lane, ())) if seq in alone]
                assert order == sorted(order), f"{lane}: {sorted(alone)} are in a log as {order}"


@contextlib.contextmanager
def _virtual(seed: int) -> Iterator[None]:
    run = partial(run_link, clock=now_ns, rng=random.Random(seed))
    with (
        virtual(),
        mock.patch.object(region_link, "run_link", run),
        mock.patch.object(region_source, "CHUNKS_MAX", WINDOW),
    ):
        yield


def simulate_regions(seed: int) -> Report:
    """One history.

    Raises:
        AssertionError: a promise was broken; a note says how to see it again.
    """
    history = None

    async def run() -> Report:
        nonlocal history
        history = Regions(seed)
        return await history.run()

    try:
        with _virtual(seed):
            return virtual_time.run(run())
    except BaseException as error:
        error.add_note(f"again: python -m tests.simulation --regions --seed {seed}")
        if history is not None and history.waits:
            error.add_note(f"it waited: {history.waits}")
        raise
