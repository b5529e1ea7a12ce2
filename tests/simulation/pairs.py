"""Histories of a pair and its hub, each from one seed, in virtual time and one thread.

Two nodes with the real logs, links and pairs, on disks that forget, are killed, cut off from each other and from the
hub, and one of them loses its disk for good, at any moment. What the other one and the hub have then is all there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, cast
from unittest import mock

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import TRUE_START, check_log, read_chunks
from tests.cloud_hub.faulty_store import CALM, STORM
from tests.cloud_hub.virtual_time import now_ns
from tests.edge_node.derived.node import Inline
from tests.simulation.edge import Known, copy_of
from tests.simulation.fabric import gaps_of, virtual
from tests.simulation.hub import VirtualNode
from tests.simulation.network import MACHINE, Connection, Network
from tests.storage.fakes import FakeFileSystem, eio
from tests.support.outcomes import outcome
from weft.config.links import Link as LinkConfig
from weft.config.links import Pair
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.edge_node.links.links import Links
from weft.edge_node.pair import copies, part, take_over
from weft.edge_node.pair.copies import CopyLink
from weft.edge_node.pair.part import PairPart
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.chunk_index import Chunk
from weft.protocols.lane import Lane
from weft.protocols.link import PAIR
from weft.protocols.shard.lane_state import lane_of
from weft.protocols.shard.shard_state import ShardState
from weft.replication.flow_control import ReceiverSettings
from weft.replication.liveness import SECOND
from weft.replication.receiver import Receiver
from weft.replication.runner import Beats, LinkSession, run_link
from weft.storage.object_store.directory import MemoryStore
from weft.storage.segment_log import LogError, LogFull, LogSettings, SegmentLog

STREAMS = "telemetry", "events"
SETTINGS = LogSettings(segment_bytes=4096, budget_bytes=16 * 4096, tail_bytes=2048, pending_bytes_max=1 << 16)
RECEIVING = ReceiverSettings(
    window_bytes=20_000,
    batch_bytes_max=20_000,
    ping_interval=8 * SECOND,
    silence=20 * SECOND,
    ack_interval=0,
    features=(PAIR,),
)
PEERS_PORT = 101
"""Port of the first node's ``pair.listen``; the hub's is 1."""
STORM_S = 12.0
DRAIN_S = 900.0
RECORDS, STEP_S, COMMIT_S = 80, 0.15, 0.06
PADDING_BYTES, COPY_BYTES = 200, 10 * 4096
"""So that a copy has several segments: what is let go leaves the disk with a whole one."""
ALONE_AFTER_S = 1.0
DISKS_MAX = 2
"""Disks that one node may lose: its peer keeps three copies."""
FAULTS: Mapping[str, float] = {
    "network": 5,
    "apart": 2,
    "away": 2,
    "refuse": 1,
    "power": 3,
    "kill": 2,
    "disk": 1,
    "lose": 1,
    "order": 1,
    "node": 1,
}
"""Fault -> its weight among the others."""


class Report(NamedTuple):
    """What a history met, for those who ask whether it was worth making."""

    faults: int
    records: int
    disks: int
    brought: int
    """Records of lost disks that are at the hub."""
    alone: int
    """Acknowledgements with one disk."""


class _Copies(SegmentLog):
    """Logs of copies without threads."""

    @classmethod
    def open(cls, directory: str, settings: LogSettings, **how: Any) -> SegmentLog:
        return SegmentLog.open(directory, settings, start_writer=False, **how)


class PairedNode:
    """One node, which may die at any moment, and its devices.

    Args:
        number: 0 or 1.
        pair: settings of the pair.
    """

    def __init__(self, number: int, network: Network, pair: Pair, rng: random.Random) -> None:
        self.name, self.rng, self.pair_settings = "ab"[number], rng, pair
        self.machine = rng.getrandbits(32)
        self.disk = FakeFileSystem()
        self.truth: dict[tuple[Lane, int], Known] = {}
        """Record, as the log gave the number last. A number that a power cut took is given again."""
        self.acked: set[tuple[Lane, int]] = set()
        """Records whose devices got an acknowledgement."""
        self.alone: set[tuple[Lane, int]] = set()
        """Of these, those with one disk, by what the node's own disk says; with ``acks: own`` all."""
        self.lost: list[int] = []
        """Ids of the logs whose disks are gone."""
        self.log: SegmentLog | None = None
        self.links: Links
        self.pair: PairPart
        self._network = network
        self._tasks: list[asyncio.Task[None]] = []
        self._served: dict[asyncio.Task[None], Connection] = {}
        self._beats = Beats()
        self._number = 0

    def wall(self) -> int:
        return TRUE_START + now_ns()

    # -- life

    async def start(self) -> bool:
        """Start the node as ``node.py`` does; False if its disk fails meanwhile."""
        MACHINE.set((self._network, self.machine))
        asyncio.get_running_loop().set_default_executor(Inline(1))
        boot, begun = self.rng.getrandbits(63), now_ns()
        posted: list[Callable[[], None]] = []
        config = self._config()
        try:
            log = SegmentLog.open(
                "/node/log",
                SETTINGS,
                filesystem=self.disk,
                wall_clock=self.wall,
                clock_reading=lambda: ClockReading(boot, now_ns() - begun, ClockState.SYNCED),
                random_bits=self.rng.getrandbits,
                post=posted.append,
                start_writer=False,
            )
            for stream in STREAMS:
                log.stream(stream)
            self.links = Links(config, log, wall_clock=self.wall, filesystem=self.disk, rng=self.rng)
            with mock.patch.object(part, "disk_of", return_value=self.disk):
                self.pair = PairPart(
                    config, self.pair_settings, self.links, software="weft", answered=lambda: None, post=posted.append
                )
        except (LogError, OSError):
            self.disk.drop_locks()
            return False
        self.log = log
        self.pair._opening = asyncio.create_task(self.pair.copies.start())
        self._tasks = [asyncio.create_task(self._commit(log, posted))]
        self.links.start()
        self.pair.connect()
        self._tasks.append(asyncio.create_task(self._live(log)))
        return True

    async def _live(self, log: SegmentLog) -> None:
        await self.links.until_compared()
        self.pair.start()
        while self._number < RECORDS:
            await asyncio.sleep(self.rng.random() * STEP_S)
            with contextlib.suppress(LogFull, LogError):
                self._publish(log)

    def _publish(self, log: SegmentLog) -> None:
        stream, now = self.rng.choice(STREAMS), self.wall()
        made = [b"%d %s" % (self._number + at, self.rng.randbytes(PADDING_BYTES)) for at in range(2)]
        first = log.append(log.stream(stream), now, [b"k"] * len(made), made)
        names = [(self.lane(log, stream), first + at) for at in range(len(made))]
        self._number += len(made)
        for name, payload in zip(names, made, strict=True):
            assert name not in self.acked, f"{self.name}: {name} is acknowledged, and given to another record"
            self.truth[name] = Known(payload, now)

        def acknowledge(error: BaseException | None) -> None:
            if error is None and self.log is log:
                self.acked.update(names)
                times = self.pair._times
                if times is None or times.since is not None:
                    self.alone.update(names)

        log.on_durable(self.pair.second_disk.after(acknowledge) if self.pair.is_awaited else acknowledge)

    async def _commit(self, log: SegmentLog, posted: list[Callable[[], None]]) -> None:
        """The writers' threads: commits now and then, and their news; and what the node looks at once a second."""
        while True:
            await asyncio.sleep(self.rng.random() * 2 * COMMIT_S)
            logs = [log, *(copy.log for copy in self.pair.copies.open.values())]
            with contextlib.suppress(LogError, OSError):
                each = self.rng.choice(logs)
                each.committer.run_once()
                if self.rng.random() < 0.02:
                    each.committer.housekeep()
            waiting, posted[:] = list(posted), []
            for deliver in waiting:
                deliver()
            if not log.failed:
                self.links.look()

    def serve(self, connection: Connection) -> None:
        """Take a connection of the peer.

        Raises:
            OSError: the node does not run.
        """
        if self.log is None:
            raise ConnectionRefusedError("nothing listens")
        task = asyncio.create_task(self._serve(connection))
        self._served[task] = connection
        task.add_done_callback(self._served.pop)

    async def _serve(self, connection: Connection) -> None:
        receiver = Receiver(RECEIVING, f"disk of {self.name}", "weft", self.wall, now_ns(), in_turns=True)
        socket = cast(Any, connection.server)
        try:
            await LinkSession(socket, CopyLink(self.pair.copies), receiver, RECEIVING, now_ns, beats=self._beats).run()
        finally:
            await socket.close()

    async def die(self, *, power: bool) -> None:
        """End at once. With ``power``, of what was not synced only a random part stays."""
        if self.log is None:
            return
        for connection in self._network.of(self.machine):
            connection.lose_edge(self.rng)
        served = dict(self._served)
        for connection in served.values():
            connection.cut(reported=(self.rng.random() < 0.7, True))
        # The dying tasks would still write: they get a disk that no later start reads.
        old, self.log = self.disk, None
        self.disk = old.power_cut(self.rng) if power else copy_of(old)
        old.fail = lambda call, path: eio()
        pair, links = self.pair, self.links
        running = [pair._task, pair._looking, pair._opening, pair.second_disk._writing, links._keeper]
        tasks = [*self._tasks, *links._tasks.values(), *links._ended, *served, *filter(None, running)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await pair._take_overs.close()
        await pair.second_disk.close()
        self._tasks.clear()

    async def burn(self) -> None:
        """Lose the disk; the next start has a new one."""
        if self.log is not None:
            self.lost.append(self.log.log_id)
        await self.die(power=True)
        self.disk = FakeFileSystem()

    def fail_soon(self) -> None:
        """Have every call of the disk fail from one of the next on, as when it is pulled out."""
        left = self.rng.randrange(60)

        def fail(call: str, path: str) -> OSError | None:
            nonlocal left
            left -= 1
            return eio() if left < 0 else None

        self.disk.fail = fail

    def _config(self) -> EdgeConfig:
        streams = {name: Stream(from_=(f"{name}/+",)) for name in STREAMS}
        link = LinkConfig(
            to=("http://hub:1",),
            streams=STREAMS,
            retry_min_s=0.05,
            retry_max_s=2.0,
            ping_interval_s=5.0,
            silence_s=15.0,
            ack_timeout_s=10.0,
            mark_interval_s=2.0,
            hold_at_start_s=2.0,
        )
        return EdgeConfig(
            node=self.name, data_dir="/node", streams=streams, links={"hub": link}, pair=self.pair_settings
        )

    # -- what it knows

    def lane(self, log: SegmentLog, stream: str) -> Lane:
        return Lane("default", self.name, log.log_id, stream)

    @property
    def is_drained(self) -> bool:
        log = self.log
        if log is None or log.failed or self._number < RECORDS or log.pending_bytes or self.links.waiting():
            return False
        second = self.pair.second_disk
        is_level = not second.waiting and not second.is_alone
        return is_level and not any(copy.waiting() for copy in self.pair.copies.open.values())


class Site:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.inner = MemoryStore()
        self.hub = VirtualNode(self.inner, self._rng())
        self.network = Network(self._rng(), self._serve)
        mode = self.rng.choice(["refuse", "refuse", "acknowledge", "acknowledge", "own"])
        after = self.rng.choice([None, 3.0])
        self.nodes = [
            PairedNode(
                number,
                self.network,
                Pair(
                    peer=(f"http://peer:{PEERS_PORT + 1 - number}",),
                    acks="own" if mode == "own" else "both",
                    alone="refuse" if mode == "refuse" else "acknowledge",
                    alone_after_s=ALONE_AFTER_S,
                    take_over_after_s=after,
                    budget_bytes=COPY_BYTES,
                ),
                self._rng(),
            )
            for number in range(2)
        ]
        self.victim = self.rng.choice(self.nodes)
        """The node that loses disks: if both do, what no hub has is lost."""
        self.faults = 0

    def _rng(self) -> random.Random:
        return random.Random(self.rng.random())

    def _serve(self, connection: Connection) -> None:
        if connection.node < PEERS_PORT - 1:
            self.hub.serve(connection)
        else:
            self.nodes[connection.node + 1 - PEERS_PORT].serve(connection)

    async def run(self) -> Report:
        await self.hub.start()
        for node in self.nodes:
            await node.start()
        await self._storm()
        await self._drain()
        report = await self._check()
        for node in self.nodes:
            await node.die(power=False)
        await self.hub.kill()
        return report

    # -- faults

    async def _storm(self) -> None:
        loop = asyncio.get_running_loop()
        end, rate_s = loop.time() + STORM_S, self.rng.choice([0.1, 0.4, 1.5])
        self.hub.store.faults = self.rng.choice([CALM, CALM, STORM])
        while loop.time() < end:
            await asyncio.sleep(self.rng.random() * 2 * rate_s)
            for _ in range(self.rng.randrange(40)):  # any await, not only those that take time
                await asyncio.sleep(0)
            (fault,) = self.rng.choices(list(FAULTS), list(FAULTS.values()))
            self.faults += 1
            await self._fault(fault, self.rng.choice(self.nodes))
            self._check_copies()

    async def _fault(self, fault: str, node: PairedNode) -> None:
        long_s = self.rng.choice([0.5, 3.0, 8.0])
        match fault:
            case "network":
                self.network.blow()
            case "apart":
                ways = [(each.machine, PEERS_PORT - 1 + number) for each in self.nodes for number in range(2)]
                self.network.wall_off(self.rng.choice([ways, ways[:2], ways[2:]]), long_s)
            case "away":
                of = self.rng.choice([[node], self.nodes])
                self.network.wall_off([(each.machine, 0) for each in of], long_s)
            case "refuse":
                self.network.refused = self.rng.choice([0.0, 0.5, 1.0])
            case "power" | "kill":
                both = self.rng.random() < 0.2
                await self._restart(*(self.nodes if both else [node]), power=fault == "power")
            case "disk":
                node.fail_soon()
                await asyncio.sleep(self.rng.random())
                await self._restart(node, power=self.rng.random() < 0.5)
            case "lose" if len(self.victim.lost) < DISKS_MAX:
                (survivor,) = (each for each in self.nodes if each is not self.victim)
                is_power_cut = self.rng.random() < 0.5
                await self.victim.burn()
                if is_power_cut:
                    await survivor.die(power=True)
                    await survivor.start()
                await asyncio.sleep(self.rng.random() * long_s)
                await self.victim.start()
            case "order":
                await self._order(node)
            case "node":
                await self.hub.kill()
                await asyncio.sleep(self.rng.random())
                await self.hub.start()

    async def _order(self, node: PairedNode) -> None:
        """Order a take-over of a node that is there, or gone for good: of one that is away it brings numbers which that
        one may find at the hub before it has compared its log."""
        if node.log is not None:
            away = [copy for copy in node.pair.copies.open.values() if copy.session is None]
            if all(copy.log.log_id in self.victim.lost or not copy.waiting() for copy in away):
                await node.pair.take_over()

    async def _restart(self, *nodes: PairedNode, power: bool) -> None:
        for node in nodes:
            await node.die(power=power)
        await asyncio.sleep(self.rng.random() * self.rng.choice([0.5, 5.0]))
        for node in nodes:
            await node.start()

    async def _drain(self) -> None:
        """When faults stop, what was acknowledged comes to the hub, and both nodes have two disks again."""
        self.hub.store.faults = CALM
        self.network.heal()
        for node in self.nodes:
            if node.log is None or node.log.failed or any(c.log.failed for c in node.pair.copies.open.values()):
                await self._restart(node, power=True)
        async with asyncio.timeout(DRAIN_S):
            while not all(node.is_drained for node in self.nodes):
                for node in self.nodes:
                    assert not (why := node.links.conflicts.reasons), f"{node.name}: a conflict, and no other: {why}"
                await asyncio.sleep(5.0)
                for node in self.nodes:
                    await self._order(node)
        await asyncio.sleep(10.0)  # marks of idle lanes, and late writes

    # -- promises

    @outcome()
    def _check_copies(self) -> None:
        """A copy that says that it is complete has all that the node took in until then."""
        for node, other in zip(self.nodes, reversed(self.nodes), strict=True):
            if node.log is None:
                continue
            for copy in node.pair.copies.open.values():
                if (until := copy.complete_to()) is None:
                    continue
                for lane, seq in other.acked:
                    if lane.log_id == copy.log.log_id and other.truth[lane, seq].time <= until:
                        assert seq < copy.end_of(lane.stream), f"{lane}: the copy lacks {seq}, and counts it"

    @outcome()
    async def _check(self) -> Report:
        found: dict[tuple[Lane, int], bytes] = {}

        def is_right(lane: Lane, seq: int, payload: bytes) -> bool:
            found[lane, seq] = payload
            return True

        chunks = await read_chunks(self.inner)
        state, _ = check_log(chunks, is_right=is_right)
        for node in self.nodes:
            self._check_node(node, state, found)
            check_marks(node, chunks, found)
        lost = {log_id for node in self.nodes for log_id in node.lost}
        brought = sum(lane.log_id in lost for lane, _ in found)
        alone = sum(len(node.alone) for node in self.nodes)
        return Report(self.faults, len(found), len(lost), brought, alone)

    @staticmethod
    def _check_node(node: PairedNode, state: ShardState, found: Mapping[tuple[Lane, int], bytes]) -> None:
        for lane, seq in sorted(node.acked):
            if (lane, seq) in found:
                assert found[lane, seq] == node.truth[lane, seq].payload, f"{lane}: {seq} is another record"
                continue
            is_excused = lane.log_id in node.lost and (lane, seq) in node.alone
            assert is_excused, f"{lane}: {seq} was acknowledged to a device, and is gone"
        for lane in {lane for lane, _ in node.truth}:
            assert not gaps_of(state, lane), f"{lane}: a gap in a stream that drops nothing"


def check_marks(node: PairedNode, chunks: list[tuple[Chunk, bytes]], found: Mapping[tuple[Lane, int], bytes]) -> None:
    """No mark claims a moment before which a device's record of a higher number came, of disks that are gone too."""
    times: dict[Lane, list[tuple[int, int]]] = {}
    for (lane, seq), record in node.truth.items():
        if (lane, seq) in node.acked or (lane, seq) in found:
            times.setdefault(lane, []).append((seq, record.time))
    marks = {(lane_of(update), update.mark) for chunk, _ in chunks for update in chunk.footer.lanes if update.mark}
    for lane, mark in marks:
        late = [seq for seq, time in times.get(lane, ()) if time <= mark.time and seq >= mark.seq]
        assert not late, f"{lane}: complete up to {mark}, and {late} came before"


@contextlib.contextmanager
def virtual_pairs(seed: int) -> Iterator[None]:
    """As ``virtual``, for what belongs to pairs. Their links try again at moments of one seed."""
    reading = ClockReading(1, 1, ClockState.SYNCED)
    run = partial(run_link, clock=now_ns, rng=random.Random(seed))
    with (
        virtual(),
        mock.patch.object(part, "run_link", run),
        mock.patch.object(take_over, "run_link", run),
        mock.patch.object(copies, "SegmentLog", _Copies),
        mock.patch.object(copies, "clock_reader", return_value=lambda: reading),
    ):
        yield


def simulate_pairs(seed: int) -> Report:
    """One history.

    Raises:
        AssertionError: a promise was broken; a note says how to see it again.
    """
    try:
        with virtual_pairs(seed):
            return virtual_time.run(_run(seed))
    except BaseException as error:
        error.add_note(f"again: python -m tests.simulation --pairs --seed {seed}")
        raise


async def _run(seed: int) -> Report:
    return await Site(seed).run()
