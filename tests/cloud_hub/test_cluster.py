"""Levels of a cluster: nodes of two releases, the entries by which they know of each other, and the way forward."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cloud_hub import virtual_time
from tests.cloud_hub.http.test_application import records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.cloud_hub.tables.test_service import AnswersNoCreate
from tests.cloud_hub.virtual_time import NS, now_ns
from tests.support.later_fold import LATER
from tests.support.waiting import PATIENCE_S, until
from weft.cloud_hub import administration, cluster
from weft.cloud_hub.clock import LOOKS, HubClock
from weft.cloud_hub.cluster import (
    ANNOUNCE_INTERVAL_S,
    DRAIN_BEATS,
    KNOWN_BEATS,
    LEAVING,
    READY,
    START_BEATS,
    Membership,
    NotFinalized,
    Owners,
    Site,
    Work,
    divide,
    finalize,
)
from weft.cloud_hub.facts.hub import drain, undo_drain
from weft.cloud_hub.hub import Hub
from weft.config.schema import ADVERTISED_BYTES_MAX, UNITS
from weft.protocols.chunk_index import FIRST_LEVEL, LEVEL_MAX
from weft.protocols.shard.placement import SHARDS_MAX, shard_of
from weft.replication.runner import LinkIdentity
from weft.storage import hub_keys, presence
from weft.storage.chunk_log import Manifest, changed, decode, encode
from weft.storage.cluster import Cluster, ClusterCache, ClusterUnusable, open_cluster, raise_level, read_level
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.object_store import ObjectStore, StoreError, open_store
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.protocol import Written
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

NEXT = FIRST_LEVEL + 1
"""Level of a made-up later release."""


def member(store: ObjectStore, name: str, level: int, release_level: int) -> Membership:
    return Membership(
        store,
        name,
        software=f"weft 0.{release_level}",
        level=level,
        release_level=release_level,
        clock=HubClock(now_ns, now_ns),
    )


def test_the_level_rises_when_the_last_node_of_the_earlier_release_is_gone() -> None:
    async def main() -> None:
        store = MemoryStore()
        assert (await open_cluster(store, 4, release_level=FIRST_LEVEL)).level == FIRST_LEVEL
        old, new = member(store, "old", FIRST_LEVEL, FIRST_LEVEL), member(store, "new", FIRST_LEVEL, NEXT)
        await old.start("http://a:1")
        await new.start("http://b:1")
        with pytest.raises(NotFinalized, match=r"level 5 is unknown to node old at http://a:1, weft 0\.4"):
            await finalize(store, NEXT, now_ns())
        assert (new.writes, old.writes) == (FIRST_LEVEL, FIRST_LEVEL)
        await old.close()
        assert await finalize(store, NEXT, now_ns()) == (FIRST_LEVEL, NEXT)
        assert new.writes == FIRST_LEVEL, "until it reads it"
        await virtual_sleep(cluster.READ_INTERVAL_S + 1)
        assert new.writes == NEXT
        assert await finalize(store, NEXT, now_ns()) == (NEXT, NEXT)
        with pytest.raises(NotFinalized, match="use the release"):
            await finalize(store, FIRST_LEVEL, now_ns())
        with pytest.raises(ClusterUnusable, match="the store is at level 5, this release knows level 4"):
            await open_cluster(store, 4, release_level=FIRST_LEVEL)
        await new.close()
        assert await presence.running(store, now_ns()) == []

    virtual_time.run(main())


async def virtual_sleep(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


def test_a_killed_node_counts_as_gone_after_five_minutes_and_a_running_one_never() -> None:
    async def main() -> None:
        store = MemoryStore()
        await open_cluster(store, 4, release_level=FIRST_LEVEL)
        killed = NodeEntry("killed", "", "weft", FIRST_LEVEL, now_ns())
        await store.create(hub_keys.node_key("killed"), msgspec.json.encode(killed))
        alive = member(store, "alive", FIRST_LEVEL, NEXT)
        await alive.start("")
        await virtual_sleep(299)
        assert [node.id for node in await presence.running(store, now_ns())] == ["alive", "killed"]
        await virtual_sleep(2)
        assert [node.id for node in await presence.running(store, now_ns())] == ["alive"]
        await virtual_sleep(1000)
        assert [node.id for node in await presence.running(store, now_ns())] == ["alive"]
        await alive.close()

    virtual_time.run(main())


def test_a_node_whose_start_failed_leaves_no_entry() -> None:
    async def main() -> None:
        store = MemoryStore()
        await open_cluster(store, 4, release_level=1)
        node = member(AnswersNoCreate(store), "n", 1, 1)  # type: ignore[arg-type]
        with pytest.raises(StoreError):
            await node.start("http://a:1")
        assert [each.id for each in await presence.running(store, now_ns())] == ["n"]
        await node.close()
        assert await presence.running(store, now_ns()) == []

    virtual_time.run(main())


def test_a_node_that_slept_through_an_upgrade_takes_no_more_links() -> None:
    async def main() -> None:
        store = MemoryStore()
        await open_cluster(store, 4, release_level=FIRST_LEVEL)
        node = member(store, "n", FIRST_LEVEL, FIRST_LEVEL)
        await node.start("")
        await raise_level(store, NEXT)
        await virtual_sleep(cluster.READ_INTERVAL_S + 1)
        assert (node.is_outdated, node.writes) == (True, FIRST_LEVEL)
        await node.close()

    virtual_time.run(main())


async def test_an_entry_that_does_not_decode_may_be_any_release(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    await open_cluster(store, 4, release_level=FIRST_LEVEL)
    await store.create(hub_keys.node_key("x"), b"?")
    with pytest.raises(NotFinalized, match="an entry that does not decode"):
        await finalize(store, NEXT, NS)


async def test_what_a_later_release_put_into_the_cluster_file_stays() -> None:
    store = MemoryStore()
    await open_cluster(store, 4, release_level=FIRST_LEVEL)
    found = await store.get(hub_keys.CLUSTER)
    later = {**msgspec.json.decode(found.data), "regions": [{"name": "eu"}]}
    await store.swap(hub_keys.CLUSTER, msgspec.json.encode(later), found.etag)
    await raise_level(store, NEXT + 1)
    await raise_level(store, NEXT)
    assert msgspec.json.decode((await store.get(hub_keys.CLUSTER)).data) == {**later, "level": NEXT + 1}
    assert await read_level(store) == NEXT + 1


def test_what_a_later_release_put_into_the_manifest_stays() -> None:
    written = b'{"snapshot_n":4,"pinned":[{"by":"spark"}],"snapshot":"key","watermark":2,"more":{"a":null}}'
    found = changed(decode(written), snapshot_n=9, snapshot="newer")
    assert msgspec.json.decode(encode(found)) == {
        "snapshot_n": 9,
        "snapshot": "newer",
        "watermark": 2,
        "must_understand": 0,
        "pinned": [{"by": "spark"}],
        "more": {"a": None},
    }
    assert decode(encode(Manifest(7, "key", 3))) == Manifest(7, "key", 3)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"must_understand":8,"watermark":"moved"}', "0x8 of a later release"),
        (b"[]", "does not decode"),
        (b'{"watermark":"x"}', "does not decode"),
    ],
)
def test_a_manifest_that_cannot_be_used_says_why(data: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        decode(data)


async def test_a_node_shows_its_level_and_announces_itself_while_it_runs(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    async with running_hub(store) as hub:
        _, status = await get(hub, "/v1/status")
        assert (status["level"], status["release_level"]) == (LEVEL_MAX, LEVEL_MAX)
        (entry,) = await presence.running(store, time.time_ns())
        assert (entry.url, entry.level) == (hub.url, LEVEL_MAX)
    assert await presence.running(store, entry.seen) == []
    await raise_level(store, LATER.level)
    with pytest.raises(ClusterUnusable, match="use the release that the other nodes run"):
        async with running_hub(store):
            pass


# --- Division of shards among processes: everyone has a share, and few shards move


NAMES = st.dictionaries(st.text("abcdef", min_size=1, max_size=6), st.floats(0.25, 64), min_size=1, max_size=12)


@given(st.sampled_from([1, 2, 16, 64]), NAMES)
def test_every_shard_has_an_owner_and_nobody_more_than_a_share(shards: int, weights: dict[str, float]) -> None:
    owners = divide(shards, weights)
    assert len(owners) == shards
    total = sum(weights.values())
    for name, count in Counter(owners).items():
        assert count < shards * weights[name] / total + 1 + 1e-9
    assert divide(shards, dict(reversed(weights.items()))) == owners, "whoever sees the same divides alike"


def test_a_process_that_joins_or_leaves_moves_its_shards_and_few_others() -> None:
    moved = []
    for hosts in range(1, 9):
        before = divide(64, {f"host-{host}": 1.0 for host in range(hosts)})
        after = divide(64, {f"host-{host}": 1.0 for host in range(hosts + 1)})
        assert set(Counter(after).values()) <= {64 // (hosts + 1), 64 // (hosts + 1) + 1}
        moved.append(sum(old != new for old, new in zip(before, after, strict=True)) / (64 / (hosts + 1)))
    assert sum(moved) / len(moved) < 1.6, moved


def test_more_cores_get_more_shards() -> None:
    counts = Counter(divide(64, {"small": 1.0, "large": 3.0}))
    assert counts == {"small": 16, "large": 48}


# --- Owners of shards over several hosts: processes that join, stop, pause, leave, and pose as others


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
            ClusterCache(Cluster(bytes(16), SHARDS)),
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
        assert first.own == set()
        assert re.fullmatch(
            r"(\S+) is drained\. `weft hub drain CONFIG \1 --undo` ends it", first.membership.why_leaving or ""
        )
        second.kill()
        await asyncio.sleep(GONE_S)
        assert (len(first.own), first.owners.state, first.membership.why_leaving) == (SHARDS, LEAVING, None)
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

    owners = Owners(
        ClusterCache(Cluster(bytes(16), SHARDS_MAX)), Site("a", 8090), "a", monotonic=lambda: 0.0, wall_clock=lambda: 0
    )
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
        owners = Owners(ClusterCache(Cluster(bytes(16), SHARDS_MAX)), site, "0" * 16)
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


# --- Hub nodes on one store, with real links: edges move to who joins, and away from who leaves


HOSTS_BEAT_S = 0.2
AHEAD_S = 40
SLOWLY_S = 30.0
"""Time for an entry to be believed, edges to be looked at, and shards to be loaded."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no host count as gone that a busy machine keeps from writing for three short beats: all of them leave in
    order here."""
    monkeypatch.setattr(cluster, "MISSED_MAX", int(SLOWLY_S / HOSTS_BEAT_S))


def own(hub: Hub) -> set[int]:
    return {view.shard for view in hub.status().shards if view.own}


def linked(hub: Hub) -> list[str]:
    return [view.edge for view in hub.status().links if view.edge]


@pytest.mark.usefixtures("patient")
async def test_any_process_tells_load_and_clock_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "READ_AGE_S", 0.0)
    store = MemoryStore()
    async with running_hub(store) as hub, running_hub(store) as other:
        for _ in range(LOOKS):  # the store's server says that the clock is ahead
            boot = other._clock.boot()
            other._clock.wrote(boot, boot, Written(time.time_ns() - AHEAD_S * 10**9, by_store=True))
        other._membership.look_now()

        async def reported() -> dict[str, float | None]:
            nodes = (await get(hub, "/v1/nodes"))[1]["nodes"]
            assert all(node["load"] > 0 for node in nodes), nodes
            return {node["name"]: node["clock_off_seconds"] for node in nodes}

        wanted = {hub.status().name: 0, other.status().name: pytest.approx(AHEAD_S, abs=1.5)}

        async def is_reported() -> bool:
            return await reported() == wanted

        await until(is_reported)


@pytest.mark.usefixtures("patient")
@pytest.mark.slow
async def test_an_edge_goes_to_a_host_that_joins_and_back_when_it_leaves(tmp_path: Path) -> None:
    store, log = open_store(str(tmp_path)), EdgeLog()
    log.append(*records(0, [b"1"]))
    async with (
        running_hub(store, shards=4, beat_interval_s=HOSTS_BEAT_S) as first,
        contextlib.AsyncExitStack() as later,
    ):
        assert own(first) == {0, 1, 2, 3}
        edge = next(f"press-{n}" for n in range(999) if shard_of("default", f"press-{n}", 4) == 0)
        async with running_link(first, log, LinkIdentity("default", edge, 0xABC, "weft 0.1.0")) as status:
            await until(lambda: status.records_acked == 1)
            second = await later.enter_async_context(running_hub(store, shards=4, beat_interval_s=HOSTS_BEAT_S))
            third = await later.enter_async_context(running_hub(store, shards=4, beat_interval_s=HOSTS_BEAT_S))
            hubs = [first, second, third]

            def are_divided() -> bool:
                shares = list(map(own, hubs))
                return sorted(map(len, shares)) == [1, 1, 2] and set.union(*shares) == {0, 1, 2, 3}

            await until(are_divided, SLOWLY_S)
            (owner,) = [hub for hub in hubs if 0 in own(hub)]
            await until(lambda: [hub for hub in hubs if linked(hub)] == [owner], SLOWLY_S)
            log.append(*records(1, [b"2"]))
            await until(lambda: status.records_acked == 2)
            await later.aclose()
            await until(lambda: own(first) == {0, 1, 2, 3} and linked(first) == [edge], SLOWLY_S)
            log.append(*records(2, [b"3"]))
            await until(lambda: status.records_acked == 3)
            (read,) = (await get(first, "/v1/streams"))[1]["streams"]
            assert read["records"] == 3


@pytest.mark.usefixtures("patient")
async def test_every_process_tells_how_busy_each_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.cloud_hub.administration.READ_AGE_S", 0.0)
    store, log = MemoryStore(), EdgeLog()
    log.append(*records(0, [b"1"] * 100))
    async with (
        running_hub(store, beat_interval_s=HOSTS_BEAT_S) as busy,
        running_hub(store, beat_interval_s=HOSTS_BEAT_S) as idle,
        running_link(busy, log, LinkIdentity("default", "press-1", 0xABC, "weft 0.1.0")),
    ):
        seen: dict[str, dict[str, float]] = {}

        async def is_reported() -> bool:
            nodes = (await get(idle, "/v1/nodes"))[1]["nodes"]
            seen.update({each["name"]: each["intake"] for each in nodes if each["intake"] is not None})
            return len(seen) == 2 and any(each["records_per_second"] for each in seen.values())

        await until(is_reported, SLOWLY_S)
        of_the_busy, of_the_idle = (seen[each.status().name] for each in (busy, idle))
    assert of_the_busy["bytes_per_second"] > of_the_busy["records_per_second"] > 0
    assert of_the_idle["records_per_second"] == of_the_idle["bytes_per_second"] == 0


@pytest.mark.usefixtures("patient")
@pytest.mark.slow
async def test_a_drained_host_gives_its_edges_away_and_takes_some_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store, log = open_store(str(tmp_path)), EdgeLog()
    log.append(*records(0, [b"1"]))
    soon = {"shards": 2, "beat_interval_s": HOSTS_BEAT_S, "cluster_log_interval_s": HOSTS_BEAT_S}
    async with running_hub(store, **soon) as first, running_hub(store, **soon) as second:
        await until(lambda: len(own(first)) == len(own(second)) == 1, SLOWLY_S)
        edge = next(f"press-{n}" for n in range(99) if shard_of("default", f"press-{n}", 2) in own(second))
        async with running_link(first, log, LinkIdentity("default", edge, 0xABC, "weft 0.1.0")) as status:
            await until(lambda: linked(second) == [edge] and status.records_acked == 1, SLOWLY_S)
            cluster_log = ClusterLog(store, first.cluster.cluster_id)
            name = second.status().name
            await cluster_log.append(drain(name, [("another", "another")]), Author(time.time_ns(), "mara", ""))
            await until(lambda: linked(first) == [edge] and own(first) == {0, 1}, SLOWLY_S)
            assert second.status().state == "leaving"
            log.append(*records(1, [b"2"]))
            await until(lambda: status.records_acked == 2)
            await cluster_log.append(undo_drain(name), Author(time.time_ns(), "mara", ""))
            await until(lambda: linked(second) == [edge], SLOWLY_S)
            ended = [each for each in caplog.records if f"edge default/{edge} at" in each.getMessage()]
            moves = [each.levelname for each in ended if "disconnected after" in each.getMessage()]
            assert len(moves) >= 2
            assert set(moves) == {"INFO"}, "an operator asked for it"
