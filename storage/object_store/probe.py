"""Probe that refuses a store which breaks its promises, before the hub relies on it.

Some S3-compatible stores ignore conditions on writes; there two hub nodes would overwrite each other's chunks.
"""

from __future__ import annotations

import contextlib
import os

from weft.storage.object_store.errors import AlreadyExists, NotFound, PreconditionFailed, StoreError, StoreUnfit
from weft.storage.object_store.protocol import ObjectStore

PREFIX = "probe"
_FIRST, _SECOND, _THIRD = b"weft probe: first", b"weft probe: second", b"weft probe: third"


async def probe(store: ObjectStore) -> None:
    """Try every promise on objects of a fresh name, and remove them.

    Raises:
        StoreUnfit: a promise is not kept; the sentence says which.
        StoreError: the store is unavailable.
    """
    base = f"{PREFIX}/{os.urandom(8).hex()}"
    key, missing = f"{base}/object", f"{base}/missing"
    try:
        await _probe_create(store, key)
        await _probe_swap(store, key, missing)
        await _probe_reads(store, base, key)
    finally:
        for name in (key, missing):
            with contextlib.suppress(StoreError):
                await store.delete(name)
    await _expect_absent(store, key)


async def _probe_create(store: ObjectStore, key: str) -> None:
    await _expect_absent(store, key)
    try:
        await store.create(key, _FIRST)
    except AlreadyExists:
        raise StoreUnfit("the store reports an object that was never created") from None
    try:
        await store.create(key, _SECOND)
    except AlreadyExists:
        pass
    else:
        raise StoreUnfit("the store let a second create of one key succeed: it ignores If-None-Match")
    await _expect_content(store, key, _FIRST, "a create that the store refused changed the object all the same")


async def _probe_swap(store: ObjectStore, key: str, missing: str) -> None:
    stale = (await store.get(key)).etag
    try:
        fresh = await store.swap(key, _SECOND, stale)
    except PreconditionFailed:
        raise StoreUnfit("the store refused a swap with the object's current etag") from None
    await _expect_content(store, key, _SECOND, "a swap that the store accepted is not there to be read")
    if (await store.get(key)).etag != fresh:
        raise StoreUnfit("the store answers a swap with another etag than a read gives")
    await _expect_refused(store, key, stale, "the store accepted a swap with a stale etag: it ignores If-Match")
    await _expect_content(store, key, _SECOND, "a swap that the store refused changed the object all the same")
    await _expect_refused(store, missing, fresh, "the store accepted a swap of an object that does not exist")
    await _expect_absent(store, missing)


async def _probe_reads(store: ObjectStore, base: str, key: str) -> None:
    if await store.get_range(key, 5, 5) != _SECOND[5:10] or await store.get_range(key, -6, 100) != _SECOND[-6:]:
        raise StoreUnfit("the store answers a ranged read with other bytes")
    if [listed.key for listed in await store.list(base)] != [key]:
        raise StoreUnfit("the store does not list an object right after it was made")


async def _expect_content(store: ObjectStore, key: str, data: bytes, otherwise: str) -> None:
    try:
        found = (await store.get(key)).data
    except NotFound:
        raise StoreUnfit("the store does not find an object right after it was made") from None
    if found != data:
        raise StoreUnfit(otherwise)


async def _expect_refused(store: ObjectStore, key: str, etag: str, otherwise: str) -> None:
    try:
        await store.swap(key, _THIRD, etag)
    except PreconditionFailed:
        return
    raise StoreUnfit(otherwise)


async def _expect_absent(store: ObjectStore, key: str) -> None:
    try:
        await store.get(key)
    except NotFound:
        return
    raise StoreUnfit(f"the store finds {key}, which should not exist")
