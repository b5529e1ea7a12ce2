"""Levels of a cluster: nodes of two releases, the entries by which they know of each other, and the way forward."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from tests.cloud_hub import virtual_time
from tests.cloud_hub.live import get, running_hub
from tests.cloud_hub.tables.test_requests import AnswersNoCreate
from tests.cloud_hub.virtual_time import NS, now_ns
from tests.support.later_fold import LATER
from weft.cloud_hub import cluster
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.cluster import Membership, NotFinalized, finalize
from weft.protocols.chunk_index import FIRST_LEVEL, LEVEL_MAX
from weft.storage import hub_keys, presence
from weft.storage.chunk_log import Manifest, changed, decode, encode
from weft.storage.cluster import ClusterUnusable, open_cluster, raise_level, read_level
from weft.storage.object_store import ObjectStore, StoreError, open_store
from weft.storage.object_store.directory import MemoryStore
from weft.storage.presence import NodeEntry

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
