"""Hub processes that divide shards among themselves while they come, go, split and are drained, from one seed each.

Membership, owners, shards, splits, sequencers and an edge's way through redirects are the real ones; the store loses,
delays and misreports. A history is a storm, in which all of it happens at once and only the log counts, and then calm
changes, one by one, in which it also counts who owns a shard and how long an edge is without a hub.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter

from tests.cloud_hub import virtual_time
from tests.cloud_hub.faulty_store import CALM, DEAD, STORM
from tests.cloud_hub.member_edges import ACK_TIMEOUT_S, Edge
from tests.cloud_hub.members import BEAT_S, Member
from tests.cloud_hub.splitting import Follower, check
from tests.support.outcomes import outcome
from weft.cloud_hub.cluster import DRAIN_BEATS, KNOWN_BEATS, LEAVING, READ_INTERVAL_S, READY
from weft.storage.cluster import declare_split, open_cluster, read_cluster
from weft.storage.object_store import ObjectStore, StoreError
from weft.storage.object_store.directory import MemoryStore
from weft.storage.presence import ALONE_BEATS, MISSED_MAX

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
