"""Hub processes that divide shards among themselves, in virtual time: the real membership, owners, shards and splits.

``tests.cloud_hub.member_histories`` makes them come, go and split.
"""

from __future__ import annotations

import asyncio
import random

from tests.cloud_hub.fabric import SETTINGS, TRUE_START, Session
from tests.cloud_hub.faulty_store import CALM, FaultyStore
from tests.cloud_hub.virtual_time import now_ns
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.cluster import Membership, Owners, Site, Work, redirect
from weft.cloud_hub.shard.sequencer import CommitPace, Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.cloud_hub.splits import ShardMaker
from weft.protocols.chunk_index import RELEASE
from weft.protocols.lane import Lane
from weft.protocols.link import Hello, RefuseCode
from weft.protocols.ranges import RangeSet
from weft.replication.runner import LinkRefused
from weft.storage.cluster import Cluster, read_cluster
from weft.storage.object_store import ObjectStore

BEAT_S = 0.5


class LaneOfLink(Session):
    """The only lane of a link. Once the link is cut, its edge hears nothing any more."""

    is_cut = False

    def _acknowledge(self, ranges: RangeSet) -> None:
        assert not self.is_cut, "a process that is dead acknowledges"
        super()._acknowledge(ranges)

    def _refuse(self, code: RefuseCode, message: str, advice: str) -> None:
        if not self.is_cut:
            super()._refuse(code, message, advice)


class Link:
    """An open link of an edge, as its process has it."""

    def __init__(self, hello: Hello, session: LaneOfLink) -> None:
        self.hello, self.session = hello, session
        self.url = ""
        """Where it was sent on to."""

    def end(self, code: RefuseCode, url: str = "") -> None:
        self.url, self.session.refusal = url, code
        self.session.news.set()


class Member:
    """A hub process, alone on its machine."""

    def __init__(self, number: int, inner: ObjectStore, rng: random.Random) -> None:
        self.number, self.url, self.rng = number, url_of(number), rng
        self.store = FaultyStore(inner, rng)
        self.is_up = self.is_drained = False
        self.is_calm = True
        self.links: dict[Link, None] = {}
        self.moves = 0
        """Number of divisions that changed something, since the start."""
        self.shards: Shards

    async def start(self) -> None:
        """Start it, whatever its store did to the last one."""
        faults, self.store.faults = self.store.faults, CALM
        self.cluster = await read_cluster(self.store)
        clock, loop = HubClock(lambda: TRUE_START + now_ns(), now_ns), asyncio.get_running_loop()
        node_id = f"{self.rng.getrandbits(64):016x}"
        self.owners = owners = Owners(
            lambda: self.cluster.tree.count,
            Site(f"host-{self.number}", 8090, advertise=(self.url,)),
            node_id,
            is_drained=lambda _host, _name: self.is_drained,
            monotonic=loop.time,
            wall_clock=clock.now,
            beat_s=BEAT_S,
        )
        self.membership = membership = Membership(
            self.store,
            node_id,
            software="weft",
            level=self.cluster.level,
            release_level=RELEASE.level,
            clock=clock,
            owners=owners,
        )
        maker = ShardMaker(
            self.store,
            lambda: self.cluster,
            SETTINGS,
            clock=clock,
            random_bits=self.rng.getrandbits,
            level=lambda: membership.writes,
            rules=RELEASE,
            moved=membership.read_soon,
            pace=CommitPace(SETTINGS),
        )
        self.shards = Shards(lambda: self.cluster.tree, owners, maker.sequencer, idle_s=20.0)
        owners.watch(self._changed)
        await membership.look()
        self._tasks = [asyncio.create_task(self.shards.start()), asyncio.create_task(self._send_on())]
        await membership.start(self.url, lambda: Work(self.shards.loaded, len(self.links)), self._grow)
        self.store.faults, self.is_up = faults, True

    async def _changed(self) -> None:
        self.moves += 1
        await self.shards.load_own()

    async def _grow(self, cluster: Cluster) -> None:
        self.cluster = cluster
        await self.owners.grow()

    async def _send_on(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            await self.send_on()

    async def send_on(self) -> None:
        for link in list(self.links):
            if (refused := self._refusal(link.hello)) is not None:
                link.end(RefuseCode.REDIRECT, refused.url)

    def _refusal(self, hello: Hello) -> LinkRefused | None:
        return redirect(hello, self.shards.place(hello), self.owners.elsewhere("hub"))

    async def open(self, hello: Hello) -> Sequencer:
        """Take a link.

        Raises:
            LinkRefused: another process has the edge's shard.
        """
        if (refused := self._refusal(hello)) is not None:
            raise refused
        return await self.shards.get(self.shards.place(hello))

    async def leave(self) -> None:
        """End it in order, as at SIGTERM."""
        await self.membership.drain(lambda: len(self.links), self.send_on)
        self.is_up = False
        await self.membership.close()
        await self._stop()

    async def kill(self) -> None:
        """End it at once: its entry stays, and its edges hear nothing."""
        self.is_up = False
        await self.membership._task.close()
        await self.membership._presence._task.close()
        for link in self.links:
            link.session.is_cut = True
        await self._stop()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.shards.close()

    # -- for checks

    @property
    def sequencers(self) -> dict[int, Sequencer]:
        return {each.log.shard: each for each in self.shards} if self.is_up else {}

    async def sequencer_of(self, lane: Lane) -> Sequencer:
        return await self.shards.get(self.shards.place(lane))

    @property
    def own(self) -> set[int]:
        return {shard for shard in range(self.shards.count) if self.owners.is_own(shard)}


def url_of(number: int) -> str:
    return f"http://host-{number}:8090"
