"""Owners of shards over several hosts: processes that join, stop, pause, leave, and pose as others."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping

import msgspec
import pytest

from tests.cloud_hub import virtual_time
from tests.cloud_hub.virtual_time import now_ns
from tests.support.waiting import PATIENCE_S, until
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.cluster import (
    ANNOUNCE_INTERVAL_S,
    DRAIN_BEATS,
    KNOWN_BEATS,
    LEAVING,
    READY,
    START_BEATS,
    Membership,
    Owners,
    Site,
    Work,
    divide,
)
from weft.config.schema import ADVERTISED_BYTES_MAX, UNITS
from weft.protocols.chunk_index import FIRST_LEVEL
from weft.protocols.shard.placement import SHARDS_MAX
from weft.storage import hub_keys
from weft.storage.object_store import StoreError
from weft.storage.object_store.directory import MemoryStore
from weft.storage.presence import (
    ALONE_BEATS,
    BEAT_S,
    ENTRY_BYTES_MAX,
    FORGET_S,
    MISSED_MAX,
    NodeEntry,
    Seen,
    decode_entry,
)

SHARDS = 16
ANSWER_S = 0.05
"""Time that the store takes for a listing: meanwhile another process may start."""
KNOWN_S, START_S, ALONE_S = KNOWN_BEATS * BEAT_S, START_BEATS * BEAT_S, ALONE_BEATS * BEAT_S
GONE_S = (MISSED_MAX + 2) * BEAT_S


class Broken(MemoryStore):
    """A store that one node cannot reach at times."""

    def __init__(self, shared: MemoryStore) -> None:
        super().__init__()
        self.__dict__.update(shared.__dict__)
        self.is_cut = False

    async def list(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        await asyncio.sleep(ANSWER_S)
        if self.is_cut:
            raise StoreError("the network is cut")
        return await super().list(*args, **kwargs)


class Process:
    """A hub process as others see it."""

    def __init__(
        self, store: MemoryStore, host: str, process: int = 0, processes: int = 1, weight: float = 1.0
    ) -> None:
        urls = tuple(f"http://{host}:{8090 + number}" for number in range(processes))
        self.store = Broken(store)
        self.site = Site(host, 8090 + process, process, processes, urls, weight)
        self.moves = 0
        self.is_drained = False
        self.links: set[int] = set()
        """Shards of the edges that are linked."""

    async def send_on(self) -> None:
        self.links = {shard for shard in self.links if self.owners.elsewhere("any")(shard) is None}

    async def drain(self) -> float:
        """Leave, and return the seconds that it took."""
        began = now_ns()
        await self.membership.drain(lambda: len(self.links), self.send_on)
        return (now_ns() - began) / 1e9

    async def start(self, node_id: str = "") -> Process:
        node_id = node_id or f"{self.site.host}-{self.site.process}-{now_ns()}"
        loop = asyncio.get_running_loop()
        self.owners = Owners(
            lambda: SHARDS,
            self.site,
            node_id,
            monotonic=loop.time,
            wall_clock=now_ns,
            is_drained=lambda host, name: self.is_drained,
        )
        self.membership = Membership(
            self.store,
            node_id,
            software="weft",
            level=FIRST_LEVEL,
            release_level=FIRST_LEVEL,
            clock=HubClock(now_ns, now_ns),
            owners=self.owners,
        )
        self.owners.watch(self._changed)
        await self.membership.look()
        await self.membership.start(self.site.advertise[self.site.process], self._work)
        return self

    def _work(self) -> Work:
        return Work(tuple(shard for shard in range(SHARDS) if self.owners.is_own(shard)))

    async def _changed(self) -> None:
        self.moves += 1

    def kill(self) -> None:
        self.store.is_cut = True

    @property
    def own(self) -> set[int]:
        return {shard for shard in range(SHARDS) if self.owners.is_own(shard)}


def agreed(*processes: Process) -> list[str]:
    """The owners of all shards, as every process sees them."""
    seen = {tuple(process.owners.owner(shard) for shard in range(SHARDS)) for process in processes}
    assert len(seen) == 1, seen
    assert set.union(*(process.own for process in processes)) == set(range(SHARDS))
    return list(seen.pop())


def test_hosts_share_the_shards_and_take_over_from_one_that_is_gone() -> None:
    async def main() -> None:
        store = MemoryStore()
        first = await Process(store, "a").start()
        assert len(first.own) == SHARDS, "alone it owns all at once"
        second = await Process(store, "b").start()
        assert not second.own, "nothing moves before all know of it"
        await asyncio.sleep(KNOWN_S + 3 * BEAT_S)
        third = await Process(store, "c", weight=2.0).start()
        await asyncio.sleep(KNOWN_S + 3 * BEAT_S)
        assert Counter(agreed(first, second, third)) == {"http://a:8090": 4, "http://b:8090": 4, "http://c:8090": 8}
        assert first.owners.elsewhere("any")(min(third.own)) == "http://c:8090"
        third.kill()
        await asyncio.sleep(GONE_S)
        assert set(agreed(first, second)) == {"http://a:8090", "http://b:8090"}
        second.links = set(second.own)
        assert await second.drain() <= BEAT_S + 1, "the other looks once a beat"
        assert second.owners.state == LEAVING
        assert len(first.own) == SHARDS
        assert not second.own
        assert not second.links, "its edges are sent on when the other has their shards"
        await second.membership.close()
        first.links = set(first.own)
        assert await first.drain() <= ANSWER_S, "no other is there to take them"
        await first.membership.close()

    virtual_time.run(main())


def test_a_host_that_is_back_gets_its_shards_within_one_look_of_the_others() -> None:
    """They took its first entry that owns shards for one from before its pause, and two served its shards."""

    async def main() -> None:
        store = MemoryStore()
        hosts = [await Process(store, name).start() for name in "abc"]
        await asyncio.sleep(KNOWN_S + 3 * BEAT_S)
        before, back = agreed(*hosts), hosts[2]
        back.store.is_cut = True
        await asyncio.sleep(GONE_S)
        back.store.is_cut = False
        assert set(agreed(*hosts[:2])) == {"http://a:8090", "http://b:8090"}
        await asyncio.sleep(3 * BEAT_S)
        assert not back.own
        while not back.own:  # noqa: ASYNC110
            await asyncio.sleep(ANSWER_S)
        await asyncio.sleep(BEAT_S + 3 * ANSWER_S)
        assert agreed(*hosts) == before

    virtual_time.run(main())


def test_a_host_whose_shards_nobody_loads_leaves_in_the_end() -> None:
    async def main() -> None:
        store = MemoryStore()
        first, second = await Process(store, "a").start(), await Process(store, "b").start()
        await asyncio.sleep(KNOWN_S + 3 * BEAT_S)
        first.kill()
        second.links = set(second.own)
        assert await second.drain() <= (DRAIN_BEATS + 1) * BEAT_S
        assert second.links

    virtual_time.run(main())


def test_a_drained_host_takes_links_again_when_no_other_is_left_that_owns_shards() -> None:
    async def main() -> None:
        store = MemoryStore()
        first, second = await Process(store, "a").start(), await Process(store, "b").start()
        await asyncio.sleep(KNOWN_S + 3 * BEAT_S)
        first.is_drained = True
        await asyncio.sleep(3 * BEAT_S)
        assert (first.own, first.membership.is_leaving) == (set(), True)
        second.kill()
        await asyncio.sleep(GONE_S)
        assert (len(first.own), first.owners.state, first.membership.is_leaving) == (SHARDS, LEAVING, False)
        await first.membership.close()

    virtual_time.run(main())


def test_hosts_that_leave_together_do_not_wait_for_each_other() -> None:
    async def main() -> None:
        store = MemoryStore()
        hosts = [await Process(store, name).start() for name in "abc"]
        await asyncio.sleep(KNOWN_S + 3 * BEAT_S)
        for host in hosts:
            host.links = set(host.own)
        assert max(await asyncio.gather(*(host.drain() for host in hosts))) <= 1.0

    virtual_time.run(main())


def test_processes_of_one_host_divide_before_they_see_each_other() -> None:
    async def main() -> None:
        store = MemoryStore()
        first, second = await Process(store, "a", 0, 2).start(), await Process(store, "a", 1, 2).start()
        assert Counter(agreed(first, second)) == {"http://a:8090": 8, "http://a:8091": 8}
        await asyncio.sleep(START_S + KNOWN_S + GONE_S)
        assert first.moves == second.moves == 0
        second.kill()
        await asyncio.sleep(MISSED_MAX * ANNOUNCE_INTERVAL_S + ALONE_S)
        assert len(first.own) == SHARDS
        restarted = await Process(store, "a", 1, 2).start()
        await asyncio.sleep(2 * ALONE_S)
        assert Counter(agreed(first, restarted)) == {"http://a:8090": 8, "http://a:8091": 8}

    virtual_time.run(main())


@pytest.mark.parametrize("names", ["ab", "abc"])
@pytest.mark.parametrize("apart_s", [0.0, 0.01, 14.0, 21.0])
def test_hosts_that_start_one_after_the_other_agree_for_good(apart_s: float, names: str) -> None:
    """Two that started at once took turns: each found the other gone, and looked seldom just when that one looked."""

    async def later(store: MemoryStore, host: str, seconds: float) -> Process:
        await asyncio.sleep(seconds)
        return await Process(store, host).start()

    async def main() -> None:
        store = MemoryStore()
        hosts = await asyncio.gather(*(later(store, host, at * apart_s) for at, host in enumerate(names)))
        await asyncio.sleep(2 * KNOWN_S + GONE_S)
        owners, moves = agreed(*hosts), [host.moves for host in hosts]
        assert max(Counter(owners).values()) - min(Counter(owners).values()) <= 1
        assert len(Counter(owners)) == len(names)
        await asyncio.sleep(600)
        assert [host.moves for host in hosts] == moves

    virtual_time.run(main())


@pytest.mark.parametrize("cut_s", [10.0, 20.0, 60.0])
def test_hosts_agree_again_after_the_store_was_away(cut_s: float) -> None:
    async def main() -> None:
        store = MemoryStore()
        hosts = [await Process(store, host).start() for host in "ab"]
        await asyncio.sleep(2 * KNOWN_S + GONE_S)
        before = agreed(*hosts)
        for at, host in enumerate(hosts):
            host.store.is_cut = True
            await asyncio.sleep(at)
        await asyncio.sleep(cut_s)
        for host in hosts:
            host.store.is_cut = False
            await asyncio.sleep(1.3)
        await asyncio.sleep(2 * KNOWN_S + 2 * ALONE_S)
        moves = [host.moves for host in hosts]
        assert agreed(*hosts) == before
        await asyncio.sleep(600)
        assert [host.moves for host in hosts] == moves

    virtual_time.run(main())


def test_a_host_that_comes_and_goes_moves_nothing_until_it_stays() -> None:
    async def main() -> None:
        store = MemoryStore()
        first, second = await Process(store, "a").start(), await Process(store, "b").start()
        await asyncio.sleep(KNOWN_S + 3 * BEAT_S)
        assert len(first.own) == len(second.own) == 8
        for _ in range(5):
            second.store.is_cut = True
            await asyncio.sleep(GONE_S)
            second.store.is_cut = False
            await asyncio.sleep(2 * BEAT_S)
            assert len(first.own) == SHARDS
        assert first.moves == 2, "it took over once"
        await asyncio.sleep(KNOWN_S + 3 * BEAT_S)
        assert len(first.own) == len(second.own) == 8
        agreed(first, second)

    virtual_time.run(main())


def test_entries_that_are_old_forged_or_damaged_harm_nobody() -> None:
    async def main() -> None:
        store = MemoryStore()
        long_ago = NodeEntry("z", "", "weft", 1, 0, name="http://z:1", host="z", shards=(1, 2), weight=1.0)
        await asyncio.sleep(7 * 86_400)
        forged = [
            msgspec.json.encode(long_ago),
            msgspec.json.encode({"id": 7}),
            b"\xff" * 100,
            b'{"id":"w","url":"","software":"","level":1,"seen":%d,"name":"w","weight":1e300}' % now_ns(),
            b'{"id":"v","url":"","software":"","level":1,"seen":%d,"name":"v","weight":-1}' % now_ns(),
            b'{"id":"u","url":"","software":"","level":1,"seen":%d,"name":"u","advertise":"%s"}'
            % (now_ns(), b"u" * 9999),
            b'{"x":' + b"[" * 10_000,
            b"{" * (1 << 20),
        ]
        for number, data in enumerate(forged):
            await store.create(hub_keys.node_key(f"forged-{number}"), data)
        first = await Process(store, "a").start()
        assert len(first.own) == SHARDS, "an entry of last week is that of one which is gone"
        assert first.owners.state == READY
        await asyncio.sleep(FORGET_S + 2 * ALONE_S)
        left = [item.key for item in await store.list(hub_keys.NODES)]
        assert len(left) == 2, "those that nobody writes leave; one is too large to be read"

    virtual_time.run(main())


async def test_while_many_shards_are_divided_edges_stay_and_the_newest_division_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More of them than a step may take are divided in threads, and two calls may end in another order."""
    gates, begun = [threading.Event() for _ in range(3)], list[int]()

    def divide_late(shards: int, weights: Mapping[str, float]) -> list[str]:
        gate = gates[len(begun)]
        begun.append(shards)
        assert gate.wait(PATIENCE_S)
        return divide(shards, weights)

    def seen(names: str) -> dict[str, Seen]:
        entries = (NodeEntry(name, "", "weft", 1, 0, name=f"http://{name}:1", host=name) for name in names)
        return {entry.id: Seen(msgspec.json.encode(entry), 0.0) for entry in entries}

    owners = Owners(lambda: SHARDS_MAX, Site("a", 8090), "a", monotonic=lambda: 0.0, wall_clock=lambda: 0)
    monkeypatch.setattr("weft.cloud_hub.cluster.divide", divide_late)
    gates[0].set()
    await owners.look(seen("bcdefgh"))
    try:
        first = asyncio.create_task(owners.look(seen("cdefgh")))
        await until(lambda: len(begun) == 2)
        assert any(owners.owner(shard) == "http://b:1" for shard in range(SHARDS_MAX))
        assert {owners.elsewhere("any")(shard) for shard in range(SHARDS_MAX)} == {None}, "b is gone"
        second = asyncio.create_task(owners.look(seen("defgh")))
        await until(lambda: len(begun) == 3)
        gates[2].set()
        await second
    finally:
        for gate in gates:
            gate.set()
        await first
    assert {owners.owner(shard) for shard in range(SHARDS_MAX)} == {f"http://{name}:1" for name in "defgh"}


def test_two_machines_with_one_name_are_told_apart_and_someone_owns_every_shard() -> None:
    async def main() -> None:
        store = MemoryStore()
        first = await Process(store, "a").start("1")
        await asyncio.sleep(1)
        namesake, other = await Process(store, "a").start("2"), await Process(store, "b").start("3")
        await asyncio.sleep(2 * KNOWN_S)
        owned = first.own | namesake.own | other.own
        assert owned == set(range(SHARDS))
        assert len(other.own) == 8

    virtual_time.run(main())


@pytest.mark.parametrize("letter", ["a", "\u00fc", "\u65b0"])
def test_the_entry_of_a_process_with_the_longest_names_and_all_shards_counts(letter: str) -> None:
    """Others would take it for gone, and its shards with it."""
    bare = f"https://{letter * 250}"
    url = bare.encode()[:ADVERTISED_BYTES_MAX].decode(errors="ignore")
    longest = str(UNITS["advertised_urls"].parse(url, ""))
    with pytest.raises(ValueError, match="at most 256 bytes"):
        UNITS["advertised_urls"].parse(longest + "x" * (1 + ADVERTISED_BYTES_MAX - len(longest.encode())), "")

    async def main() -> bytes:
        site = Site("h" * 64, 8090, advertise=(longest,))
        owners = Owners(lambda: SHARDS_MAX, site, "0" * 16)
        work = Work(tuple(range(SHARDS_MAX)), 1 << 40, 1 << 40)
        store = MemoryStore()
        clock = HubClock(lambda: 1_800_000_000_000_000_000, lambda: 0)
        membership = Membership(
            store, "0" * 16, software="weft 1", level=FIRST_LEVEL, release_level=FIRST_LEVEL, clock=clock, owners=owners
        )
        await membership.look()
        await membership.start("", lambda: work)
        found = (await store.get(hub_keys.node_key("0" * 16))).data
        await membership.close()
        return found

    data = asyncio.run(main())
    assert len(data) <= ENTRY_BYTES_MAX
    entry = decode_entry(data)
    assert entry is not None
    assert (entry.name, entry.advertise, len(entry.shards)) == (longest, longest, SHARDS_MAX)
