"""A process and the store with which it began: what it does when that is away, or another one is in its place."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.cloud_hub.virtual_time import run
from weft.storage.cluster import Cluster, declare_split, open_cluster, raise_level, restored
from weft.storage.fenced_store import FencedStore
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, StoreAway
from weft.storage.object_store.directory import DirectoryStore, MemoryStore

FILE = "cluster.json"


async def fenced(inner: ObjectStore, validity_s: float = 6.0) -> FencedStore:
    return FencedStore(inner, await open_cluster(inner, 2), now_ns, validity_s=validity_s)


async def replaced(store: MemoryStore, data: bytes) -> None:
    await store.delete(FILE)
    await store.create(FILE, data)


def now_ns() -> int:
    return int(asyncio.get_running_loop().time() * 1e9)


def test_without_its_identity_no_answer_counts_and_it_goes_on_when_the_store_is_back() -> None:
    async def scenario() -> None:
        inner = MemoryStore()
        store = await fenced(inner)
        await store.create("a", b"1")
        data = (await inner.get(FILE)).data
        await inner.delete(FILE)
        await asyncio.sleep(6.1)
        for call in (store.create("b", b"1"), store.get("a"), store.get("missing"), store.list(""), store.get(FILE)):
            with pytest.raises(StoreAway, match=r"cluster.json is missing. Mount its disk"):
                await call
        with pytest.raises(NotFound):
            await inner.get("b")
        assert store.trouble is not None
        assert not store.replaced.is_set()
        await inner.create(FILE, data)
        await store.create("b", b"1")
        assert store.trouble is None

    run(scenario())


def test_a_write_under_way_while_the_store_went_is_not_believed() -> None:
    """As of a process that was stopped between its look and the end of its request."""

    class Slow(MemoryStore):
        async def create(self, key: str, data: object) -> str:
            if key == "chunk":
                await asyncio.sleep(40)
                await self.delete(FILE)
            return await super().create(key, data)  # type: ignore[arg-type]

    async def scenario() -> None:
        store = await fenced(Slow())
        with pytest.raises(StoreAway):
            await store.create("chunk", b"")

    run(scenario())


@pytest.mark.parametrize("what", ["another cluster", "restored", "an older copy"])
def test_another_store_in_the_place_ends_it_for_good(what: str) -> None:
    async def scenario() -> None:
        inner, other = MemoryStore(), MemoryStore()
        await open_cluster(other, 2)
        first = await open_cluster(inner, 2)
        early = (await inner.get(FILE)).data
        await declare_split(inner, 0, first)
        store = FencedStore(inner, await open_cluster(inner, None), now_ns)
        own = (await inner.get(FILE)).data
        another = (await other.get(FILE)).data
        found = {"another cluster": another, "restored": restored(own, 1, 2), "an older copy": early}[what]
        await replaced(inner, found)
        await asyncio.sleep(6.1)
        with pytest.raises(StoreAway, match="another store is in the place of this one"):
            await store.create("a", b"1")
        assert store.replaced.is_set()
        await replaced(inner, own)
        with pytest.raises(StoreAway):
            await store.create("a", b"1")
        with pytest.raises(NotFound):
            await inner.get("a")

    run(scenario())


def test_a_cluster_that_grows_is_the_same_one() -> None:
    async def scenario() -> None:
        inner = MemoryStore()
        cluster = await open_cluster(inner, 2)
        store = FencedStore(inner, cluster, now_ns, validity_s=0.0)
        await raise_level(store, 5)
        await declare_split(inner, 0, Cluster(cluster.cluster_id, 2, 5))
        await store.create("a", b"1")
        await asyncio.sleep(60)
        await store.create("b", b"1")

    run(scenario())


class TestFolder:
    """A folder, where each call looks."""

    async def test_nothing_is_made_where_the_folder_was(self, tmp_path: Path) -> None:
        root, aside = tmp_path / "store", tmp_path / "aside"
        store = await fenced(DirectoryStore(str(root)))
        etag = await store.create("shard-0/manifest", b"1")
        root.rename(aside)
        for call in (
            store.create("shard-1/chunk/0", b"1"),
            store.swap("shard-0/manifest", b"2", etag),
            store.get("missing"),
            store.delete("shard-0/manifest"),
            store.list("shard-0"),
            store.sync("shard-0/manifest"),
        ):
            with pytest.raises(StoreAway):
                await call
        with pytest.raises(StoreAway):
            store.location("tables/default/a")
        assert not root.exists()
        root.mkdir()  # the mount point of a disk that is not mounted
        with pytest.raises(StoreAway):
            await store.create("shard-1/chunk/0", b"1")
        assert list(root.iterdir()) == []
        root.rmdir()
        shutil.copytree(aside, root, ignore=shutil.ignore_patterns(".weft"))
        assert await store.swap("shard-0/manifest", b"2", etag) != etag
        await store.create("shard-1/chunk/0", b"1")

    async def test_another_store_is_seen_before_anything_is_written_there(self, tmp_path: Path) -> None:
        root, other = tmp_path / "store", tmp_path / "other"
        store = await fenced(DirectoryStore(str(root)))
        await fenced(DirectoryStore(str(other)))
        root.rename(tmp_path / "aside")
        other.rename(root)
        before = sorted(root.rglob("*"))
        with pytest.raises(StoreAway, match="another store"):
            await store.create("shard-0/chunk/0", b"1")
        assert store.replaced.is_set()
        assert sorted(root.rglob("*")) == before

    async def test_a_create_of_what_is_there_is_refused_as_ever(self, tmp_path: Path) -> None:
        store = await fenced(DirectoryStore(str(tmp_path)))
        await store.create("a", b"1")
        with pytest.raises(AlreadyExists):
            await store.create("a", b"2")
        with pytest.raises(NotFound):
            await store.get("b")
