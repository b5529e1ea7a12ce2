"""A hub whose store is away for a while, as an unmounted disk is, or whose place another store has taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cloud_hub.api.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.waiting import until
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.settings import HubSettings
from weft.replication.runner import LinkIdentity
from weft.storage.cluster import ClusterUnusable, open_cluster, restored
from weft.storage.object_store import StoreError, open_store
from weft.storage.object_store.directory import MemoryStore
from weft.storage.presence import running

OTHER = LinkIdentity("default", "press-2", 0xDEF, "test")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def hub(root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hub]:
    monkeypatch.setattr("weft.cloud_hub.http.process.LOOK_AGE_S", 0.0)
    async with running_hub(open_store(str(root)), table_interval_s=0.1, beat_interval_s=0.1) as hub:
        yield hub


async def test_away_it_makes_nothing_says_so_and_goes_on_by_itself(hub: Hub, root: Path) -> None:
    log, newcomer = EdgeLog(), EdgeLog()
    async with running_link(hub, log, EDGE):
        log.append(*records(0, [b"1"]))
        await log.until_released(1)
        aside = root.rename(root.with_name("aside"))
        status, text = await get(hub, "/readyz")
        assert status == 503
        assert "cluster.json is missing. Mount its disk" in text
        log.append(*records(1, [b"2"]))
        newcomer.append(*records(0, [b"1"]))
        async with running_link(hub, newcomer, OTHER) as refused:
            await until(lambda: "cluster.json is missing" in refused.last_error)
            await until(lambda: all(each.trouble is not None for each in hub.sequencers))
            # Each of the hub's tasks has come to the store by now: the tables' round and the beat, too.
            await asyncio.sleep(0.5)
            assert (await get(hub, "/readyz"))[0] == 503
            assert "missing" in str(hub.status().store)
            assert not root.exists()
            assert not log.released_ranges.covers(1, 2)
            aside.rename(root)
            await log.until_released(2)
            await newcomer.until_released(1)
        assert await get(hub, "/readyz") == (200, "ready\n")
        await until(lambda: hub._tables.rows("default", "telemetry") == 3)
        assert not any("restore" in (each.trouble or "") for each in hub.sequencers)


@pytest.mark.parametrize("what", ["another cluster", "restored"])
async def test_another_store_in_its_place_ends_it_and_gets_nothing_of_it(what: str, hub: Hub, root: Path) -> None:
    log = EdgeLog()
    async with running_link(hub, log, EDGE):
        log.append(*records(0, [b"1"]))
        await log.until_released(1)
        own = (root / "cluster.json").read_bytes()
        root.rename(root.with_name("aside"))
        other = open_store(str(root.with_name("other")))
        if what == "restored":
            await other.create("cluster.json", restored(own, 1, 2))
        else:
            await open_cluster(other, 2)
        root.with_name("other").rename(root)
        log.append(*records(1, [b"2"]))
        why = await asyncio.wait_for(hub.failed(), 60)
        assert "another store is in the place of this one" in why
        assert (await get(hub, "/readyz"))[0] == 503
        await until(lambda: all(each.trouble is not None for each in hub.sequencers))
        assert not log.released_ranges.covers(1, 2)
    await hub.close()
    assert [item.key for item in await open_store(str(root)).list("")] == ["cluster.json"]


async def test_one_that_is_started_again_begins_no_cluster_in_an_empty_place(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.cloud_hub.store.AWAY_S", 0.0)
    root.mkdir()
    with pytest.raises((ClusterUnusable, StoreError), match="holds no hub"):
        await Hub.open(HubSettings(str(root), port=0, begins=False))
    assert list(root.iterdir()) == []


async def test_nodes_of_another_cluster_get_no_shards() -> None:
    """As where a second hub was begun at the place of one that runs on."""
    store = MemoryStore()
    async with running_hub(store, beat_interval_s=0.1, advertise=("http://a:1",)) as first:
        [entry] = await running(store, first._clock.now())
        assert entry.cluster == first.cluster.cluster_id.hex()
        own = (await store.get(f"nodes/{entry.id}")).data
        foreign = own.replace(entry.id.encode(), b"other").replace(b"//a:1", b"//b:1")
        await store.create("nodes/other", foreign.replace(entry.cluster.encode(), b"0" * 32))
        await first._membership._presence.look()
        assert first._owners.others() == []
        before = foreign.replace(entry.cluster.encode(), b"").replace(b'"other"', b'"older"')
        await store.create("nodes/older", before)
        await first._membership._presence.look()
        assert [each.id for each in first._owners.others()] == ["older"], "a release before says nothing of its cluster"
