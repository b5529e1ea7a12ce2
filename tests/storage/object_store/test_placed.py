"""Places of objects: what callers see of a store whose tenants have prefixes of their own."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.storage.object_store import AlreadyExists, NotFound, StoreError
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.opening import CLUSTER, PlacedStore, bare, lay_out

FILE = msgspec.json.encode({"shards": 2, "splits": [2, 0], "apart": [["acme", 2], ["b", 5]]})
"""Shards 0, 1 and 4 of all tenants, 2 and 3 of acme, 5 of b."""
PLACES = {
    "shard-1/manifest": "shard-1/manifest",
    "shard-2/manifest": "tenants/acme/shard-2/manifest",
    "shard-3/chunk/0": "tenants/acme/shard-3/chunk/0",
    "shard-4/chunk/0": "shard-4/chunk/0",
    "shard-5/ended/b/e": "tenants/b/shard-5/ended/b/e",
    "tables/acme/s/x": "tenants/acme/tables/s/x",
    "tables/acm/s/x": "tables/acm/s/x",
    "tables/acme-2/s/x": "tables/acme-2/s/x",
    "deletions/b/s/0": "tenants/b/deletions/s/0",
    "erasures/b/s/0": "tenants/b/erasures/s/0",
    "latest/acme/s/x": "tenants/acme/latest/s/x",
    "nodes/1": "nodes/1",
}
PREFIXES = ["", "tables", "tables/acme", "tables/acme/s", "shard-2", "shard-3/chunk", "deletions", "nodes", "tenants"]
keys = st.sampled_from(
    [
        *PLACES,
        "shard-0/chunk/1",
        "shard-2/chunk/1",
        "shard-20/x",
        "shard-5/chunk/2",
        "tables/b/s/1",
        "tables/b/s/2",
        "tables/z/s/1",
        "uploads/1",
        "zzz",
    ]
)


async def placed() -> PlacedStore:
    store = PlacedStore(MemoryStore())
    await store.create(CLUSTER, FILE)
    return store


async def test_keys_of_tenants_apart_name_objects_below_their_prefixes() -> None:
    store = await placed()
    for key, name in PLACES.items():
        etag = await store.create(key, key.encode())
        assert (await bare(store).get(name)).data == key.encode()
        assert (await store.get_range(key, 0, 99)) == (await store.get(key)).data == key.encode()
        await store.swap(key, b"new", etag)
        await store.sync(key)
        with pytest.raises(AlreadyExists):
            await store.create(key, b"")
    assert [item.key for item in await store.list("")] == sorted([CLUSTER, *PLACES])
    for key in PLACES:
        await store.delete(key)
    assert await bare(store).list("") == await bare(store).list("", limit=1), "only cluster.json is left"


@given(st.sets(keys), st.sampled_from(PREFIXES), st.none() | keys, st.none() | st.integers(1, 5))
def test_a_listing_is_that_of_a_store_without_places(
    there: set[str], prefix: str, after: str | None, limit: int | None
) -> None:
    async def listed() -> None:
        store, plain = await placed(), MemoryStore()
        await plain.create(CLUSTER, FILE)
        for key in sorted(there, reverse=True):
            await store.create(key, b"12")
            await plain.create(key, b"12")
        assert await store.list(prefix, after, limit) == await plain.list(prefix, after, limit)

    asyncio.run(listed())


async def test_the_places_are_read_before_the_first_key_that_needs_them_and_for_a_newer_shard() -> None:
    inner = bare(await placed())
    other = PlacedStore(inner)
    await other.create("shard-3/manifest", b"1")
    assert (await inner.get("tenants/acme/shard-3/manifest")).data == b"1"
    found = await inner.get(CLUSTER)
    await inner.swap(CLUSTER, FILE.replace(b'["b",5]', b'["b",5],["c",6]'), found.etag)
    await other.create("shard-6/manifest", b"2")
    assert (await inner.get("tenants/c/shard-6/manifest")).data == b"2"
    assert (await other.get("shard-6/manifest")).data == b"2"


async def test_a_store_without_a_hub_has_its_keys_as_names_until_it_is_laid_out() -> None:
    store = PlacedStore(MemoryStore())
    await store.create("shard-2/manifest", b"1")
    assert (await bare(store).get("shard-2/manifest")).data == b"1"
    lay_out(store, b"no JSON")
    lay_out(store, FILE)
    with pytest.raises(NotFound):
        await store.get("shard-2/manifest")


async def test_a_damaged_file_is_an_error_of_the_store() -> None:
    store = PlacedStore(MemoryStore())
    await bare(store).create(CLUSTER, b'{"shards": 3}')
    assert (await store.get("cluster.json")).data
    with pytest.raises(StoreError, match=r"cluster\.json is damaged, or of a later release"):
        await store.get("shard-0/manifest")
