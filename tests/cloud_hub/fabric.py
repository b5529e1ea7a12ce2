"""Nodes and edges of histories, as the check at their end sees them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol, cast

from tests.cloud_hub.faulty_store import FaultyStore
from tests.cloud_hub.virtual_time import NS, now_ns
from tests.support.outcomes import outcome
from weft.bounds import Refusals
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.cluster import Owners, Site
from weft.cloud_hub.links.edge_link import EdgeLink
from weft.cloud_hub.settings import SequencerSettings
from weft.cloud_hub.shard.lane_session import LaneClaim, LaneSession, SessionRefused
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.protocols import batch, chunk
from weft.protocols.batch import BatchHeader, ClockReading, ClockState
from weft.protocols.chunk_index import FIRST_LEVEL, RELEASE, Chunk, FoldRules, GapRange, LaneFlag, Mark
from weft.protocols.lane import Lane
from weft.protocols.link import PROTOCOL_VERSION, Hello, RefuseCode
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.fold import apply
from weft.protocols.shard.lane_state import LaneState, lane_of
from weft.protocols.shard.shard_state import ShardState
from weft.replication.attempts import HOPS_MAX, ConnectionEnd, Redirects, Target
from weft.replication.events import LinkState
from weft.replication.runner import LinkRefused
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import Cluster, ClusterCache
from weft.storage.hub_keys import chunk_key
from weft.storage.object_store import NotFound, ObjectStore


class ServingNode(Protocol):
    """A process whose shards are checked: ``SplittingNode``, or ``members.Member``."""

    @property
    def sequencers(self) -> Mapping[int, Sequencer]: ...
    async def sequencer_of(self, lane: Lane) -> Sequencer | None: ...


class CheckedEdge(Protocol):
    """An edge whose records are checked: ``Edge``, or that of ``member_edges``."""

    lane: Lane
    epoch: int

    @property
    def made(self) -> int: ...


# --- Hub nodes and link sessions in miniature, and what must hold of the log that they leave behind


CLUSTER = Cluster(b"0123456789abcdef", 1)
SETTINGS = SequencerSettings(
    commit_interval_s=0.1,
    mark_interval_s=2.0,
    chunk_bytes_max=2000,
    pending_bytes_max=4000,
    follow_interval_s=1.0,
    retry_min_s=0.02,
    retry_max_s=0.5,
    snapshot_chunks=7,
    snapshot_interval_s=5.0,
    unavailable_after_s=1e9,
)
CLOCK = ClockReading(1, 1, ClockState.SYNCED)
TRUE_START = 1_800_000_000 * NS
"""Time by right clocks when a history begins."""


def payload(lane: Lane, seq: int) -> bytes:
    return f"{lane.edge} {lane.log_id} {seq}".encode()


def make_batch(lane: Lane, first: int, end: int, time: int = 0, origin: int = 0) -> tuple[BatchHeader, memoryview]:
    """Records [first, end) of a lane; each payload says which record it is."""
    seqs = range(first, end)
    times = struct.pack(f"<{len(seqs)}q", *(time + seq for seq in seqs))
    columns = batch.columns_from_lists(times, [b"key"] * len(seqs), [payload(lane, seq) for seq in seqs])
    data = batch.encode(1, first, columns, CLOCK, origin=origin)
    return batch.verify(data), memoryview(data)


def machine(shards: int, *splits: int, processes: int = 1) -> Owners:
    """The first process of a machine that is alone."""
    return Owners(ClusterCache(Cluster(bytes(16), shards, splits=splits)), Site("here", 8090, 0, processes), "first")


def make_sequencer(
    store: ObjectStore,
    rng: random.Random,
    settings: SequencerSettings = SETTINGS,
    cluster: Cluster = CLUSTER,
    *,
    rules: FoldRules = RELEASE,
    level: Callable[[], int] = lambda: FIRST_LEVEL,
    clock: HubClock | None = None,
) -> Sequencer:
    return Sequencer(
        ShardLog(store, cluster, 0, now_ns, rules=rules),
        settings,
        clock=clock or HubClock(now_ns, now_ns),
        random_bits=rng.getrandbits,
        level=level,
    )


class SequencerNode:
    """A hub node that can be killed and started again."""

    def __init__(
        self, inner: ObjectStore, rng: random.Random, settings: SequencerSettings = SETTINGS, cluster: Cluster = CLUSTER
    ) -> None:
        self.store, self.cluster = FaultyStore(inner, rng), cluster
        self.rng = rng
        self.settings = settings
        self.rules = RELEASE
        self.level = FIRST_LEVEL
        """Of the cluster, as the node last read it."""
        self.sequencer: Sequencer | None = None
        self.is_asleep = False
        self.off_s = 0.0
        """By how much the node's wall clock is ahead, where the store has a clock."""
        self.is_synchronised = True
        self.measures = True
        """False for a node of a release that believes its clock."""
        self.clock = HubClock(self.wall, now_ns)
        self.names: str | None = None
        """URL of the node that this one sends edges to."""

    def wall(self) -> int:
        return TRUE_START + now_ns() + int(self.off_s * NS)

    async def start(self) -> None:
        faults, self.store.faults = self.store.faults, type(self.store.faults)()
        clock = HubClock(self.wall, now_ns, lambda: self.is_synchronised)
        if self.measures:
            await clock.measure(self.store)
        self.clock = clock
        sequencer = make_sequencer(
            self.store,
            self.rng,
            self.settings,
            self.cluster,
            rules=self.rules,
            level=lambda: min(self.level, self.rules.level),
            clock=clock,
        )
        await sequencer.start()
        self.store.faults = faults
        self.sequencer = sequencer

    async def kill(self) -> None:
        sequencer, self.sequencer = self.sequencer, None
        if sequencer is not None:
            await sequencer.close()


class Session:
    """One link session of one lane, as its edge sees it."""

    def __init__(
        self,
        sequencer: Sequencer,
        lane: Lane,
        epoch: int,
        topics: list[str] | None = None,
        *,
        payload: int = 0,
        flags: int = 0,
        offered_end: int | None = None,
    ) -> None:
        self.sequencer = sequencer
        self.acked = RangeSet()
        self.news = asyncio.Event()
        self.refusal: RefuseCode | None = None
        self.reported = ""
        """Message of the refusal."""
        self.lane_session = LaneSession(
            lane,
            LaneClaim(epoch, offered_end),
            topics or [],
            self._acknowledge,
            self._refuse,
            payload=payload,
            flags=flags,
        )

    def _acknowledge(self, ranges: RangeSet) -> None:
        self.acked.update(ranges)
        self.news.set()

    def _refuse(self, code: RefuseCode, message: str, advice: str) -> None:
        assert message
        assert advice
        self.refusal, self.reported = code, message
        self.news.set()

    async def open(self) -> bool:
        self.sequencer.open(self.lane_session)
        try:
            self.acked.update(await self.lane_session.opened)
        except SessionRefused as refusal:
            self.refusal, self.reported = refusal.code, refusal.message
            return False
        return True

    async def send(self, first: int, end: int) -> None:
        if not self.sequencer.put(self.lane_session, [make_batch(self.lane_session.lane, first, end)]):
            await self.sequencer.sessions.room(self.lane_session)

    async def until_acked(self, first: int, end: int) -> None:
        while not self.acked.covers(first, end):
            assert self.refusal is None
            self.news.clear()
            await self.news.wait()


async def read_chunks(store: ObjectStore, collected: Mapping[int, bytes] = {}) -> list[tuple[Chunk, bytes]]:
    """Every chunk of the log.

    Args:
        collected: those that the collector has deleted. What a store has under such a number came too late.
    """
    found: list[tuple[Chunk, bytes]] = []
    while True:
        n = len(found)
        try:
            data = collected[n] if n in collected else (await store.get(chunk_key(0, n))).data
        except NotFound:
            return found
        found.append((chunk.decode(data), data))


Content = Callable[[Lane, int, bytes], bool]
"""(lane, seq, payload) -> whether the record has that payload."""


def _is_own(lane: Lane, seq: int, found: bytes) -> bool:
    return found == payload(lane, seq)


def records_of(
    index: Chunk, data: bytes, offsets: dict[tuple[str, str], int], is_right: Content = _is_own
) -> Iterator[tuple[Lane, list[int]]]:
    """Yield the lane and the numbers of each entry of a chunk, whose payloads are right.

    Args:
        offsets: next offset of each stream before the chunk; after the last entry, behind it.
    """
    for section in index.footer.streams:
        assert section.base_offset == offsets[section.tenant, section.stream]  # I3
        offsets[section.tenant, section.stream] += section.count
        body = data[section.position : section.position + section.length]
        own = index.footer.lanes_of(section)
        for entry in chunk.section_entries(section, body, own):
            lane = lane_of(own[entry.lane])
            records = list(batch.records(entry.batch))[entry.skip : entry.skip + entry.take]
            wrong = [record.seq for record in records if not is_right(lane, record.seq, bytes(record.payload))]
            assert not wrong, f"{lane}: {wrong} are other records"
            yield lane, [record.seq for record in records]


@outcome()
def check_log(
    chunks: list[tuple[Chunk, bytes]],
    healed: RangeSet | Mapping[Lane, RangeSet] | None = None,
    rules: FoldRules = RELEASE,
    is_right: Content = _is_own,
    cluster: Cluster = CLUSTER,
) -> tuple[ShardState, dict[Lane, list[int]]]:
    """Fold the log and read every record of it.

    Checks that offsets are contiguous (I3), that no record is there twice (I1), that a lane's offsets follow its
    sequence numbers (I2), that each payload is the one its lane and number stand for, and that completeness was never
    claimed too early or taken back (I6).

    Args:
        healed: by lane, or of the only lane, numbers that may have come behind their gap, out of order.
    """
    state = ShardState(cluster.cluster_id, 0, rules)
    offsets: dict[tuple[str, str], int] = defaultdict(int)
    lanes: dict[Lane, list[int]] = defaultdict(list)
    for index, data in chunks:
        before = dict(state.lanes)
        apply(state, index)
        check_claims(before, state.lanes)
        updates = index.footer.lanes
        new: dict[Lane, RangeSet] = defaultdict(RangeSet)
        for lane, seqs in records_of(index, data, offsets, is_right):
            lanes[lane] += seqs
            new[lane].add(seqs[0], seqs[-1] + 1)
        for lane in {lane_of(update) for update in updates}:
            reported = RangeSet(r for update in updates if lane_of(update) == lane for r in update.ranges)
            assert reported == new[lane]
    for lane, seqs in lanes.items():
        assert len(seqs) == len(set(seqs)), f"{lane}: doubled"
        late = healed.get(lane) if isinstance(healed, Mapping) else healed
        in_order = [seq for seq in seqs if late is None or seq not in late]
        assert in_order == sorted(in_order), f"{lane}: out of order"
        held = RangeSet((seq, seq + 1) for seq in seqs)
        assert held == state.lanes[lane].records
        held.update((gap.first, gap.end) for gap in state.lanes[lane].gaps)
        assert held == state.lanes[lane].ranges
    assert dict(offsets) == state.next_offset
    return state, lanes


@outcome()
def check_claims(before: Mapping[Lane, LaneState], after: Mapping[Lane, LaneState]) -> None:
    """Check what the lanes that a chunk changed claim to be complete."""
    for lane, held in after.items():
        was = before.get(lane)
        if was is held:
            continue
        accounted = held.ranges.contiguous_end()
        absent = [gap.first for gap in held.gaps if gap.reason == GapReason.ABSENT]
        for mark, end, earlier in (
            (held.mark, accounted, was.complete_up_to if was else None),
            (held.whole_mark, min([accounted, *absent]), was.whole_up_to if was else None),
        ):
            assert mark is None or mark.seq <= end, f"{lane}: complete up to {mark}, and {end} is missing"
            assert earlier is None or (mark is not None and mark.time >= earlier), f"{lane}: a claim was taken back"


# --- Ways of edges to hub nodes that name each other: the real rules of both sides, and walls before some edges


BROKEN = ConnectionEnd(LinkState.WAITING, "cannot connect")
ANYWHERE: Any = None


def name_each_other(nodes: Sequence[SequencerNode], rng: random.Random) -> None:
    """Give nodes what they know of each other: nothing, who has the shard, or, by mistake, one another."""
    kind = rng.choice(["nothing", "owner", "owner", "circle"])
    for number, node in enumerate(nodes):
        match kind:
            case "owner" if number != 0:
                node.names = _url(0)
            case "circle" if len(nodes) > 1:
                node.names = _url((number + 1) % len(nodes))


class Route:
    """Way of one edge to a node that serves it.

    Args:
        walled: numbers of nodes that the edge cannot reach, such as those behind a firewall.
    """

    def __init__(self, lane: Lane, rng: random.Random, walled: frozenset[int] = frozenset()) -> None:
        self._lane = lane
        self._rng = rng
        self._walled = walled
        self._redirects = Redirects(rng)

    def find(self, nodes: Sequence[SequencerNode]) -> SequencerNode | None:
        """Return the node that takes the edge's link, or None when the edge has to wait and try again."""
        open_ones = [number for number in range(len(nodes)) if number not in self._walled]
        target: Target | None = Target(_url(self._rng.choice(open_ones)))
        for _ in range(2 * HOPS_MAX + 2):
            if target is None:
                return None
            number = int(target.url.rpartition(":")[2]) - 1
            outcome = self._ask(nodes[number], number, target)
            now = now_ns() / 1e9
            if outcome is None:
                self._redirects.after(target, BROKEN, taken=True, now=now)
                return nodes[number]
            target = self._redirects.after(target, outcome, taken=False, now=now)
        raise AssertionError("an edge is sent round and round")

    def _ask(self, node: SequencerNode, number: int, target: Target) -> ConnectionEnd | None:
        """Return how the attempt ends, or None when the node takes the link."""
        if node.sequencer is None or number in self._walled:
            return BROKEN
        shards: Any = SimpleNamespace(place=lambda _: 0)
        link = EdgeLink(
            shards, None, now_ns, ANYWHERE, "", refusals=Refusals(lambda: 0.0), elsewhere=lambda _: node.names
        )
        stay = target.stay_s is not None
        hello = Hello(
            PROTOCOL_VERSION, self._lane.tenant, self._lane.edge, self._lane.log_id, 1, now_ns(), "weft", stay=stay
        )
        link.connected(cast(Any, SimpleNamespace(send_frame=lambda _: None)))
        opening = link.open(hello)
        try:
            opening.send(None)
        except StopIteration:
            return None
        except LinkRefused as refusal:
            return ConnectionEnd(LinkState.WAITING, refusal.message, refusal.code, refusal.url)
        raise AssertionError("a link waits before it is taken or refused")


def _url(number: int) -> str:
    return f"http://hub:{number + 1}"


# --- Links that ask the nodes of a simulation for canaries, and what an answer has to mean


QUESTIONS = 25


class Askers:
    """Links that ask one node after the other, whatever happens to these."""

    def __init__(self, store: ObjectStore, nodes: Sequence[SequencerNode], rng: random.Random) -> None:
        self._store, self._nodes, self._rng = store, nodes, rng
        self._head = -1
        self.answers = 0
        self.wrong: list[str] = []
        """Answers for which no chunk had come since the question; an exception would end in the node's log."""

    async def _look(self) -> int:
        """Return the number of the last chunk in the store, also of one that no node knows of yet."""
        while True:
            try:
                await self._store.get(chunk_key(0, self._head + 1))
            except NotFound:
                return self._head
            self._head += 1

    async def ask(self, node: SequencerNode) -> asyncio.Event:
        """Ask a node that runs; return what its answer sets."""
        answered, head = asyncio.Event(), await self._look()
        if node.sequencer is not None:
            node.sequencer.sessions.canaries.ask(node, partial(self._take, node.sequencer, head, answered))
        return answered

    def _take(self, sequencer: Sequencer, head: int, answered: asyncio.Event, waited_s: float) -> None:
        self.answers += 1
        if sequencer.state.n <= head or waited_s < 0:
            self.wrong.append(f"asked behind chunk {head}, answered at {sequencer.state.n}")
        answered.set()

    async def run(self) -> None:
        """Ask during the storm, and some time after it."""
        for _ in range(QUESTIONS):
            await asyncio.sleep(self._rng.uniform(0.0, 1.0))
            await self.ask(self._rng.choice(self._nodes))

    async def check(self) -> None:
        """Check that each node answers when nothing fails, and that no answer was wrong."""
        events = [await self.ask(node) for node in self._nodes]
        async with asyncio.timeout(30):
            for event in events:
                await event.wait()
        await asyncio.sleep(1.0)  # a look counts to its end: another node may have written during the last commit
        assert self.wrong == []


# --- Senders of a lane that continue until everything they have is acknowledged: an edge, and another hub that relays
# it


PATIENCE_S = 200.0
"""Of some sessions: a node that is suspended for long comes back to them."""


class Edge:
    """A strict-order sender that never stops before everything is acknowledged.

    Args:
        route: how it finds a node.
        relay: another hub that has what this edge does not have any more.
        step_s: time between two batches, in the mean.
    """

    def __init__(
        self,
        lane: Lane,
        records: int,
        rng: random.Random,
        route: Route,
        relay: Relay | None = None,
        *,
        step_s: float = 0.03,
    ) -> None:
        self.lane = lane
        self.records = records
        self.rng = rng
        self.route = route
        self.relay = relay
        self.step_s = step_s
        self.acked = RangeSet()
        self.gaps: list[GapRange] = []
        """Told so far. A lane has each number once, as a record or as a gap."""
        self.epoch = 0

    @property
    def reported(self) -> RangeSet:
        """Numbers of which the edge said that it does not have them."""
        return RangeSet((gap.first, gap.end) for gap in self.gaps)

    async def drain(self, nodes: list[SequencerNode]) -> None:
        while not self.acked.covers(0, self.records):
            node = self.route.find(nodes)
            if node is None or node.sequencer is None:
                await asyncio.sleep(0.05)
                continue
            self.epoch += 1
            session = Session(node.sequencer, self.lane, self.epoch, ["plant/{line}"])
            try:
                async with asyncio.timeout(self.rng.uniform(0.2, 3.0) if self.rng.random() < 0.9 else PATIENCE_S):
                    await self._session(session)
            except TimeoutError:
                pass
            finally:
                self.acked.update(session.acked)
                session.sequencer.leave(session.lane_session)
            await asyncio.sleep(self.rng.random() * 0.2)

    async def stop(self, node: SequencerNode) -> None:
        """An idle edge says its last word: it may be back, or has another name now."""
        assert node.sequencer is not None
        self.epoch += 1
        session = Session(node.sequencer, self.lane, self.epoch, ["plant/{line}"])
        assert await session.open()
        session.lane_session.sends_last_word = True
        session.lane_session.renamed_to = self.rng.choice(["", "another"])
        node.sequencer.put_mark(session.lane_session, Mark(1000 + self.records, self.records))

    async def _session(self, session: Session) -> None:
        if not await session.open():
            return
        at = session.acked.contiguous_end()
        while at < self.records and session.refusal is None:
            # Every session cuts its batches in its own way, and now and then repeats what it sent or knows to be held.
            first = max(0, at - self.rng.randrange(8)) if self.rng.random() < 0.2 else at
            end = min(self.records, at + self.rng.randrange(1, 12))
            if self.rng.random() < 0.08:
                self._lose(at, end)
            for item in self._items(first, end):
                if isinstance(item, GapRange):
                    await session.sequencer.put_gap(session.lane_session, item)
                else:
                    await session.send(*item)
            at = end
            session.sequencer.put_mark(session.lane_session, Mark(1000 + at, at))
            if self.rng.random() < 0.3:
                await asyncio.sleep(self.rng.random() * 2 * self.step_s / 0.3)
        while session.refusal is None and not session.acked.covers(0, self.records):
            session.news.clear()
            await session.news.wait()

    def _lose(self, first: int, end: int) -> None:
        """The edge gives up numbers that it has never sent: another hub has them, or its disk was full."""
        if first < max((gap.end for gap in self.gaps), default=0) or first < self.sent:
            return
        is_elsewhere = self.rng.random() < 0.6
        self.gaps.append(GapRange(first, end, GapReason.ABSENT if is_elsewhere else GapReason.BUDGET))
        if is_elsewhere and self.relay is not None:
            self.relay.gets(first, end)

    sent = 0
    """One past the highest number that was sent."""

    def _items(self, first: int, end: int) -> list[Range | GapRange]:
        """What the edge says of [first, end): records, and the gaps that it told once and tells again."""
        has = RangeSet([(first, end)])
        for gap in self.gaps:
            has.remove(gap.first, gap.end)
        self.sent = max(self.sent, end)
        gaps = [
            GapRange(max(gap.first, first), min(gap.end, end), gap.reason)
            for gap in self.gaps
            if gap.first < end and first < gap.end
        ]
        return sorted([*has, *gaps], key=lambda item: item.first if isinstance(item, GapRange) else item[0])


class Forger:
    """An edge that opens lanes of its own name with the ids of other edges' logs, and says of them what it likes."""

    NAME = "forger"

    def __init__(self, edges: list[Edge], rng: random.Random) -> None:
        self._edges, self._rng = edges, rng
        self._early = [edge for edge in edges if rng.random() < 0.5]
        """Edges whose logs it claims while they are at work; those of the others when they have stopped."""
        self._epoch = 1 << 40

    async def run(self, nodes: list[SequencerNode]) -> None:
        """Forge until it is cancelled."""
        while self._early:
            await asyncio.sleep(self._rng.random())
            edge, node = self._rng.choice(self._early), self._rng.choice(nodes)
            if node.sequencer is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._rng.uniform(0.2, 3.0)):
                        await self._forge(edge, node, self._rng.choice(list(GapReason)), self._rng.randrange(3))

    async def take_places(self, node: SequencerNode) -> None:
        """Claim to be the new name of each edge that has stopped."""
        for edge in self._edges:
            await self._forge(edge, node, GapReason.RENAMED, 0)

    async def _forge(self, edge: Edge, node: SequencerNode, reason: GapReason, flags: int) -> None:
        self._epoch += 1
        assert node.sequencer is not None
        session = Session(node.sequencer, edge.lane._replace(edge=self.NAME), self._epoch, flags=flags)
        lane = session.lane_session
        try:
            if await session.open():
                await session.sequencer.put_gap(lane, GapRange(0, edge.records, reason))
                lane.sends_last_word = self._rng.random() < 0.5
                lane.renamed_to = self._rng.choice(["", edge.lane.edge, "another"])
                session.sequencer.put_mark(lane, Mark(self._epoch, edge.records))
        finally:
            session.sequencer.leave(lane)


class Relay:
    """Another hub that passes on what it has of a lane, in any order, and says what it lacks."""

    def __init__(self, lane: Lane, records: int, rng: random.Random) -> None:
        self.lane = lane
        self.records = records
        self.rng = rng
        self.has = RangeSet()
        self.acked = RangeSet()
        self.held = RangeSet()
        """Records that the hub had when the last session began. It may hold gaps of what came to this relay later."""
        self.reported = RangeSet()
        for _ in range(rng.randrange(4)):
            first = rng.randrange(records)
            self.gets(first, min(records, first + rng.randrange(1, 30)))

    def gets(self, first: int, end: int) -> None:
        """The other hub gets records from the edge itself."""
        self.has.add(first, end)

    async def drain(self, nodes: list[SequencerNode], edge: Edge) -> None:
        """Pass on until the edge has finished and the hub has everything."""
        while not (edge.acked.covers(0, edge.records) and not self._missing(self.held)):
            await asyncio.sleep(self.rng.random() * 0.5)
            node = self.rng.choice(nodes)
            if node.sequencer is None:
                continue
            session = Session(node.sequencer, self.lane, 0, ["plant/{line}"], flags=int(LaneFlag.RELAY))
            try:
                async with asyncio.timeout(self.rng.uniform(0.2, 3.0)):
                    await self._session(session)
            except TimeoutError:
                pass
            finally:
                self.acked.update(session.acked)
                session.sequencer.leave(session.lane_session)

    def _missing(self, acked: RangeSet) -> list[Range]:
        return [part for first, end in self.has for part in acked.missing(first, end)]

    async def _session(self, session: Session) -> None:
        if not await session.open():
            return
        self.held = session.acked.copy()
        if self.rng.random() < 0.5:
            await self._tell_a_gap(session)
        pieces = self._missing(session.acked)
        self.rng.shuffle(pieces)
        for first, end in pieces:
            if self.rng.random() < 0.2:
                await self._tell_a_gap(session)
            cut = self.rng.randrange(first, end)
            for one, to in ((cut, end), (first, cut)):
                if one < to and session.refusal is None:
                    await session.send(one, to)
        while session.refusal is None and self._missing(session.acked):
            session.news.clear()
            await session.news.wait()

    async def _tell_a_gap(self, session: Session) -> None:
        first = self.rng.randrange(self.records)
        lacks = self.has.missing(first, min(self.records, first + self.rng.randrange(1, 20)))
        for one, end in lacks:
            self.reported.add(one, end)
            await session.sequencer.put_gap(session.lane_session, GapRange(one, end, GapReason.ABSENT))
