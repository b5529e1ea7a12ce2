"""Hub processes that divide shards among themselves, in virtual time: the real membership, owners, shards and splits.

``tests.cloud_hub.members`` makes them come, go and split.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import SETTINGS, TRUE_START, Session
from tests.cloud_hub.faulty_store import CALM, DEAD, STORM, FaultyStore
from tests.cloud_hub.splitting import STREAM, TENANT, Follower, check
from tests.cloud_hub.virtual_time import now_ns
from tests.support.outcomes import outcome
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.cluster import (
    DRAIN_BEATS,
    KNOWN_BEATS,
    LEAVING,
    READ_INTERVAL_S,
    READY,
    Membership,
    Owners,
    Site,
    Work,
    redirect,
)
from weft.cloud_hub.shard.sequencer import CommitPace, Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.cloud_hub.splits import ShardMaker
from weft.protocols.chunk_index import RELEASE, Mark
from weft.protocols.lane import Lane
from weft.protocols.link import PROTOCOL_VERSION, Hello, RefuseCode
from weft.protocols.ranges import RangeSet
from weft.replication.attempts import ConnectionEnd, Redirects, Target
from weft.replication.events import LinkState
from weft.replication.runner import LinkRefused
from weft.storage.cluster import Cluster, ClusterCache, declare_split, open_cluster, read_cluster
from weft.storage.object_store import ObjectStore, StoreError
from weft.storage.object_store.directory import MemoryStore
from weft.storage.presence import ALONE_BEATS, MISSED_MAX

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
        self.known = known = ClusterCache(await read_cluster(self.store))
        clock, loop = HubClock(lambda: TRUE_START + now_ns(), now_ns), asyncio.get_running_loop()
        node_id = f"{self.rng.getrandbits(64):016x}"
        self.owners = owners = Owners(
            known,
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
            level=known.cluster.level,
            release_level=RELEASE.level,
            clock=clock,
            owners=owners,
        )
        maker = ShardMaker(
            self.store,
            known,
            SETTINGS,
            clock=clock,
            random_bits=self.rng.getrandbits,
            level=lambda: membership.writes,
            rules=RELEASE,
            moved=membership.read_soon,
            pace=CommitPace(SETTINGS),
        )
        self.shards = Shards(known, owners, maker.sequencer, idle_s=20.0)
        owners.watch(self._changed)
        await membership.look()
        self._tasks = [asyncio.create_task(self.shards.start()), asyncio.create_task(self._send_on())]
        await membership.start(self.url, lambda: Work(self.shards.loaded, len(self.links)), self._grow)
        self.store.faults, self.is_up = faults, True

    async def _changed(self) -> None:
        self.moves += 1
        await self.shards.load_own()

    async def _grow(self, cluster: Cluster) -> None:
        self.known.cluster = cluster
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


# --- Edges whose links find a hub process as ``run_link`` does, in virtual time


ACK_TIMEOUT_S = 1.0
LOOK_S = 0.5
BROKEN = ConnectionEnd(LinkState.WAITING, "the connection was cut")
SILENT = ConnectionEnd(LinkState.WAITING, "no answer", is_silent=True)


class Edge:
    """An edge whose devices continue, and whose link finds a process as ``run_link`` does.

    Args:
        walled: numbers of processes that it cannot reach.
    """

    def __init__(self, name: str, rng: random.Random, walled: frozenset[int]) -> None:
        self.lane, self.rng, self.walled = Lane(TENANT, name, 1, STREAM), rng, walled
        self.acked, self.epoch = RangeSet(), 0
        self.made_at: list[float] = []
        self.acked_at: list[float] = []
        self.is_ending = False
        self._news = asyncio.Event()
        """Of the link that runs, or the last one."""
        self._redirects = Redirects(rng)
        self._turn = rng.randrange(100)
        """Each attempt begins with another one of the URLs, as in ``run_link``: one that is left is found in a round.
        """

    @property
    def made(self) -> int:
        return len(self.made_at)

    async def publish(self) -> None:
        """Make records until the history ends."""
        while not self.is_ending:
            self.made_at += [asyncio.get_running_loop().time()] * self.rng.randrange(1, 4)
            self._news.set()
            await asyncio.sleep(self.rng.random())

    def end(self) -> None:
        """Make no more records."""
        self.is_ending = True
        self._news.set()

    async def drain(self, members: list[Member]) -> None:
        """Run the link until everything is acknowledged after the last record."""
        loop = asyncio.get_running_loop()
        while not (self.is_ending and self.acked.covers(0, self.made)):
            urls = [member.url for member in members]
            first = self._turn % len(urls)
            self._turn += 1
            target: Target | None = Target(self._redirects.best(urls[first:] + urls[:first], loop.time()))
            while target is not None:
                outcome, taken = await self._attempt(members, target)
                target = self._redirects.after(target, outcome, taken=taken, now=loop.time())
            await asyncio.sleep(self.rng.random() * 0.2)

    async def _attempt(self, members: list[Member], target: Target) -> tuple[ConnectionEnd, bool]:
        await asyncio.sleep(self.rng.random() * 0.02)
        member = next(each for each in members if each.url == target.url)
        if not member.is_up or member.number in self.walled:
            return BROKEN, False
        hello = Hello(
            PROTOCOL_VERSION,
            TENANT,
            self.lane.edge,
            self.lane.log_id,
            1,
            now_ns(),
            "weft",
            stay=target.stay_s is not None,
        )
        try:
            async with asyncio.timeout(2 * ACK_TIMEOUT_S):
                sequencer = await member.open(hello)
        except LinkRefused as refused:
            return ConnectionEnd(LinkState.WAITING, refused.message, refused.code, refused.url), False
        except TimeoutError:
            return SILENT, False
        if target.back is not None and member.is_calm:
            assert sequencer.loaded, f"{self.lane.edge} was sent to {target.url}, which has not loaded its shard"
        if not (sequencer.loaded and sequencer.is_running and member.is_up):
            return BROKEN, False
        self.epoch += 1
        session = LaneOfLink(sequencer, self.lane, self.epoch, ["plant/{line}"])
        link = Link(hello, session)
        member.links[link] = None
        try:
            return await self._run(link, target), True
        finally:
            del member.links[link]
            self._note(session.acked)
            sequencer.leave(session.lane_session)

    async def _run(self, link: Link, target: Target) -> ConnectionEnd:
        session, loop = link.session, asyncio.get_running_loop()
        end = loop.time() + target.stay_s if target.stay_s is not None else float("inf")
        try:
            async with asyncio.timeout(2 * ACK_TIMEOUT_S):
                if not await session.open():
                    return BROKEN
            self._news = session.news
            sent, heard, known = session.acked.contiguous_end(), loop.time(), -1
            while session.refusal is None and loop.time() < end:
                if self.is_ending and session.acked.covers(0, self.made):
                    return BROKEN
                if sent < self.made:
                    first = max(0, sent - self.rng.randrange(5)) if self.rng.random() < 0.1 else sent
                    sent = min(self.made, sent + self.rng.randrange(1, 8))
                    async with asyncio.timeout(2 * ACK_TIMEOUT_S):
                        await session.send(first, sent)
                    session.sequencer.put_mark(session.lane_session, Mark(1000 + sent, sent))
                session.news.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(session.news.wait(), LOOK_S)
                acked = session.acked.contiguous_end()
                self._note(session.acked)
                if acked != known or acked >= sent:
                    heard, known = loop.time(), acked
                elif loop.time() - heard > ACK_TIMEOUT_S:
                    return SILENT
        except TimeoutError:
            return SILENT
        if link.url:
            return ConnectionEnd(LinkState.WAITING, "sent on", RefuseCode.REDIRECT, link.url)
        return BROKEN

    def _note(self, acked: RangeSet) -> None:
        """Note what a link has heard is acknowledged, and when."""
        self.acked.update(acked)
        self.acked_at += [asyncio.get_running_loop().time()] * (self.acked.contiguous_end() - len(self.acked_at))

    def acknowledged_after_s(self, since: float, until: float) -> list[float]:
        """How long the acknowledgements of the records took that were made between two moments."""
        times = zip(self.made_at, self.acked_at, strict=True)
        return [acked - made for made, acked in times if since <= made < until]

    def first_made(self, since: float) -> float:
        """When the first record after a moment was made; infinity before there is one."""
        return next((made for made in self.made_at if made > since), float("inf"))

    def is_served(self, since: float) -> bool:
        """Whether a record that was made after a moment is acknowledged."""
        first = next((at for at, made in enumerate(self.made_at) if made > since), None)
        return first is not None and self.acked.covers(first, first + 1)


# --- Hub processes that divide shards among themselves while they come, go, split and are drained, from one seed each
#
# Membership, owners, shards, splits, sequencers and an edge's way through redirects are the real ones; the store
# loses, delays and misreports. A history is a storm, in which all of it happens at once and only the log counts, and
# then calm changes, one by one, in which it also counts who owns a shard and how long an edge is without a hub.


STORM_S = 6.0
DRAIN_S = 600.0
KNOWN_S, GONE_S, ALONE_S = KNOWN_BEATS * BEAT_S, (MISSED_MAX + 2) * BEAT_S, ALONE_BEATS * BEAT_S
AGREED_S = 3 * KNOWN_S + GONE_S + 2 * ALONE_S + 2 * READ_INTERVAL_S
"""Within which processes agree about owners once nothing fails."""
TWO_OWNERS_S = 2.5 * BEAT_S
"""Longest time for which two processes take one shard for theirs while nothing fails: each looks once a beat."""
AGAIN_S = 2 * ACK_TIMEOUT_S + 1.0
"""Longest time from a record that an edge makes after its process was drained or died to its acknowledgement. An edge
misses a machine that is gone only by data on the way: ``ack_timeout``, or twice that, as docs/reference/settings.md
says. The rest is for the edge's other addresses, and for a shard that is loaded."""
SHARDS_MAX = 10
PLANNED, PLANNED_ACK_S = ("join", "leave", "drain"), 1.5
"""Changes that an operator makes, and the time that 99 of 100 acknowledgements take at most while owners change."""
CHANGES = ("join", "leave", "drain", "kill", "flap", "split")


class Watch:
    """Looks again and again who owns each shard, while nothing but one change at a time happens."""

    def __init__(self, members: list[Member]) -> None:
        self._members = members
        self._two_since: dict[int, float] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S / 2)
            self.look(asyncio.get_running_loop().time())

    def look(self, now: float) -> None:
        up = [member for member in self._members if member.is_up and member.store.running.is_set()]
        owners = Counter(shard for member in up for shard in member.own)
        know_all = len({member.shards.count for member in up}) == 1  # each reads of a split in its own time
        two = {shard for shard, count in owners.items() if count > 1 and know_all}
        self._two_since = {shard: self._two_since.get(shard, now) for shard in two}
        for shard, since in self._two_since.items():
            assert now - since <= TWO_OWNERS_S, f"shard {shard} has two owners for {now - since:.1f} s"


def agree(members: list[Member], shards: int) -> bool:
    """Whether all who run take the same processes for the owners, which run and have loaded what they own."""
    up = [member for member in members if member.is_up]
    if any(member.shards.count != shards for member in up):
        return False
    views = [[member.owners.owner(shard) for shard in range(shards)] for member in up]
    ready = {member.url for member in up if not member.is_drained} or {up[0].url}
    if any(member.owners.state != (LEAVING if member.is_drained else READY) for member in up):
        return False
    return (
        all(view == views[0] for view in views)
        and set(views[0]) == ready
        and all(member.own <= set(member.shards.loaded) for member in up)
    )


class History:
    """One history, made from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.inner = MemoryStore()
        self.members: list[Member] = []
        self.edges: list[Edge] = []
        self.counts: Counter[str] = Counter()
        self.planned: list[tuple[float, float]] = []
        """From when to when owners changed as planned."""

    async def run(self) -> Counter[str]:
        """Make it, and return what happened."""
        rng = self.rng
        self.cluster = await open_cluster(self.inner, rng.choice([4, 4, 8]), rng.randbytes)
        count = rng.choice([2, 2, 3])
        self.members = [self._member(number) for number in range(count)]
        for member in self.members:
            await member.start()
        walls = [
            frozenset({rng.randrange(count)}) if count > 2 and rng.random() < 0.3 else frozenset[int]() for _ in "ab"
        ]
        self.edges = [Edge(f"edge-{at}", random.Random(rng.random()), walled) for at, walled in enumerate(walls)]
        followers = [Follower(self.inner, self.cluster, random.Random(rng.random()))]
        async with asyncio.timeout(DRAIN_S), asyncio.TaskGroup() as group:
            beside = [group.create_task(follower.run()) for follower in followers]
            async with asyncio.TaskGroup() as links:
                for edge in self.edges:
                    links.create_task(edge.drain(self.members))
                    links.create_task(edge.publish())
                await self._storm()
                await self._until_agreed()
                beside.append(group.create_task(Watch(self.members).run()))
                for change in rng.sample(CHANGES, 2):
                    await self._change(change)
                for member in self.members:  # some edges can reach no other
                    if not member.is_up:
                        await member.start()
                for edge in self.edges:
                    edge.end()
            for task in beside:
                task.cancel()
        took = [each for edge in self.edges for part in self.planned for each in edge.acknowledged_after_s(*part)]
        self.counts["acks"], self.counts["late acks"] = len(took), sum(each >= PLANNED_ACK_S for each in took)
        await asyncio.sleep(5.0)  # late writes land
        up = [member for member in self.members if member.is_up]
        with outcome():
            self.counts["moved"] = await check(self.inner, self.cluster, up, self.edges, followers, {})
        self.counts["splits"] = len((await read_cluster(self.inner)).splits)
        for member in up:
            await member.kill()
        return self.counts

    def _member(self, number: int) -> Member:
        return Member(number, self.inner, random.Random(self.rng.random()))

    async def _storm(self) -> None:
        rng, loop = self.rng, asyncio.get_running_loop()
        end = loop.time() + STORM_S
        for member in self.members:
            member.is_calm, member.store.faults = False, STORM
        while loop.time() < end:
            await asyncio.sleep(rng.uniform(0.05, 0.8))
            await self._blow(
                rng.choice(self.members), rng.choice(["split", "kill", "leave", "drain", "suspend", "dead"])
            )
        for member in self.members:
            member.store.running.set()
            member.store.faults, member.is_drained = CALM, False
            if not member.is_up:
                await member.start()

    async def _blow(self, member: Member, kind: str) -> None:
        rng = self.rng
        self.counts[kind] += 1
        match kind:
            case "split":
                await self._declare(member.store)
            case "kill" | "leave" if member.is_up:
                await (member.kill() if kind == "kill" else member.leave())
                await asyncio.sleep(rng.random() * 3 * BEAT_S)
                await member.start()
            case "drain" if member.is_up:
                member.is_drained = not member.is_drained
                member.membership.look_now()
            case "suspend" | "dead" if member.is_up:
                member.store.running.clear() if kind == "suspend" else None
                member.store.faults = DEAD if kind == "dead" else STORM
                await asyncio.sleep(rng.uniform(0.1, 1.5 * GONE_S))
                member.store.running.set()
                member.store.faults = STORM

    async def _declare(self, store: ObjectStore) -> None:
        with contextlib.suppress(StoreError):
            known = await read_cluster(store)
            if known.tree.count < SHARDS_MAX:
                await declare_split(store, self.rng.randrange(known.tree.count), known)

    # -- changes while nothing fails

    async def _until_agreed(self) -> None:
        loop, shards = asyncio.get_running_loop(), (await read_cluster(self.inner)).tree.count
        end = loop.time() + AGREED_S
        while not agree(self.members, shards):
            assert loop.time() < end, f"no agreement: {[(each.url, each.own) for each in self.members if each.is_up]}"
            await asyncio.sleep(BEAT_S / 2)
        for member in self.members:
            member.is_calm = True

    async def _until_served(self, since: float, kind: str) -> None:
        """Wait until each edge that can reach a process has an acknowledgement of a later record."""
        loop, up = asyncio.get_running_loop(), {member.number for member in self.members if member.is_up}
        waiting = [edge for edge in self.edges if up - edge.walled]
        while waiting := [edge for edge in waiting if not edge.is_served(since)]:
            made = min(edge.first_made(since) for edge in waiting)
            assert loop.time() - made < AGAIN_S, f"after {kind}, an edge is not served for {AGAIN_S} s"
            await asyncio.sleep(0.1)

    async def _change(self, kind: str) -> None:
        self.counts[f"calm {kind}"] += 1
        loop, up = asyncio.get_running_loop(), [member for member in self.members if member.is_up]
        member, start = self.rng.choice(up), loop.time()
        began = start
        match kind:
            case "join":
                new = self._member(len(self.members))
                self.members.append(new)
                await new.start()
            case "leave" if len(up) > 1:
                await member.leave()
                assert loop.time() - began <= (DRAIN_BEATS + 1) * BEAT_S + 1.0, "it leaves late"
                await self._until_served(loop.time(), kind)
            case "drain":
                member.is_drained = True
                member.membership.look_now()
                await self._until_served(began, kind)
                await self._until_agreed()
                member.is_drained, began = False, loop.time()
                member.membership.look_now()
                await self._until_served(began, kind)
            case "kill" if len(up) > 1:
                await member.kill()
                await self._until_served(began, kind)
                if self.rng.random() < 0.5:
                    await member.start()
            case "flap" if len(up) > 1:
                await self._flap(member, [each for each in up if each is not member])
            case "split":
                await self._declare(self.inner)
            case _:
                return
        await self._until_agreed()
        if kind in PLANNED:
            self.planned.append((start, loop.time()))

    async def _flap(self, member: Member, others: list[Member]) -> None:
        before = [each.moves for each in others]
        for _ in range(3):
            member.store.running.clear()
            await asyncio.sleep(GONE_S)
            member.store.running.set()
            await asyncio.sleep(2 * BEAT_S)
        moves = [each.moves - was for each, was in zip(others, before, strict=True)]
        assert max(moves) <= 1, f"a process that comes and goes moved shards {moves} times"


def simulate_members(seed: int) -> Counter[str]:
    """One history, in virtual time. Return what happened in it.

    Raises:
        AssertionError: a promise was broken; a note says for which seed.
    """
    try:
        return virtual_time.run(History(seed).run())
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
