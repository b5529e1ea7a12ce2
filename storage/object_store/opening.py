"""Opening of a store by its URI. In it, tenants that are set apart have their objects below prefixes of their own."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from operator import attrgetter
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from weft.config.schema import ONE_SLASH
from weft.config.units import BUCKETS, WRITTEN
from weft.protocols.shard.placement import ShardTree
from weft.storage.object_store.directory import DirectoryStore, MemoryStore
from weft.storage.object_store.protocol import (
    Buffer,
    Listed,
    Listing,
    NotFound,
    Object,
    ObjectStore,
    StoreError,
    check_prefix,
)

# Store whose tenants that are set apart have their objects below prefixes of their own.
#
# Callers use the keys of ``storage.hub_keys`` for every tenant. Here they become names of objects: the shards,
# tables, deletions and erasures of a tenant that ``cluster.json`` sets apart are below ``tenants/TENANT/``,
# everything else has its key as its name. So a policy of the bucket for one prefix opens the data of one tenant, and
# no caller has to know of it.

CLUSTER = "cluster.json"
TENANTS = "tenants/"
_BEHIND_TENANTS = "tenants0"
"""First name behind those below ``tenants/``: 0 follows the slash."""
_SHARD = re.compile(r"shard-(\d{1,9})(?:/|$)")
KINDS = ("write", "read", "list", "delete")
"""Kinds of requests, as stores charge for them: PUT, GET, LIST and DELETE."""
FOLDERS = ("deletions", "erasures", "latest", "quarantine", "tables")
"""Folders with one folder for each tenant."""
_OF_TENANT = re.compile(rf"(?:{'|'.join(FOLDERS)})/([^/]+)(?:/|$)")


class _ShardsFile(msgspec.Struct, frozen=True):
    shards: int
    splits: tuple[int, ...] = ()
    apart: tuple[tuple[str, int], ...] = ()


class OwnPrefix(NamedTuple):
    """Keys that begin with one prefix, and the prefix of the objects' names instead of it. Both end in a slash."""

    key: str
    name: str


class Places:
    """Names of the objects of a store, by their keys.

    Args:
        tree: the shards; None for a store without a hub, where every key is the object's name.
    """

    def __init__(self, tree: ShardTree | None) -> None:
        self._tree = tree
        self.parts: list[OwnPrefix] = []
        """The keys whose objects have other names, by key."""
        if tree is not None:
            for tenant in tree.apart:
                home = f"{TENANTS}{tenant}"
                self.parts += [OwnPrefix(f"{each}/{tenant}/", f"{home}/{each}/") for each in FOLDERS]
            owners = ((shard, tree.tenant_of(shard)) for shard in range(tree.roots, tree.count))
            self.parts += [OwnPrefix(f"shard-{n}/", f"{TENANTS}{owner}/shard-{n}/") for n, owner in owners if owner]
        self.parts.sort()
        self._by_key = {part.key: part for part in self.parts}

    def knows(self, key: str) -> bool:
        """Return whether it is known where an object is: not that of a shard that is newer than the tree."""
        found = _SHARD.match(key)
        return self._tree is None or found is None or int(found[1]) < self._tree.count

    def part(self, key: str) -> OwnPrefix | None:
        """Return the part with a key, or with all keys below a prefix; None if their objects have other names."""
        found = _SHARD.match(key) or _OF_TENANT.match(key)
        return None if found is None else self._by_key.get(found[0] if found[0].endswith("/") else f"{found[0]}/")

    def name(self, key: str) -> str:
        """Return the name of an object."""
        part = self.part(key)
        return key if part is None else (part.name + key[len(part.key) :]).removesuffix("/")


def _decoded(data: bytes) -> Places:
    file = msgspec.json.decode(data, type=_ShardsFile)
    return Places(ShardTree(file.shards, file.splits, file.apart))


class PlacedStore:
    """An ``ObjectStore`` over another one, with the places of a hub's objects.

    It learns them from ``cluster.json`` whenever that is read or written through it, and reads it by itself before the
    first key that depends on it, and for a shard that is newer. A store that had none counts as a store without a hub.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self._places: Places | None = None
        self.requests = dict.fromkeys(KINDS, 0)
        """Number of calls of each kind. Attempts and pages are not counted one by one."""

    def learn(self, data: Buffer) -> None:
        """Take the places from the bytes of a ``cluster.json``; do nothing if they are damaged, or of a later
        release."""
        try:
            self._places = _decoded(bytes(data))
        except (ValueError, RecursionError):
            return

    async def create(self, key: str, data: Buffer) -> str:
        """Create an object that must not exist yet."""
        self.requests["write"] += 1
        etag = await self.inner.create(await self.name(key), data)
        if key == CLUSTER:
            self.learn(data)
        return etag

    async def create_from(self, key: str, parts: AsyncIterator[Buffer]) -> int:
        """Create an object from parts."""
        self.requests["write"] += 1
        return await self.inner.create_from(await self.name(key), parts)

    async def swap(self, key: str, data: Buffer, expected_etag: str) -> str:
        """Replace an object if its etag still is ``expected_etag``."""
        self.requests["write"] += 1
        etag = await self.inner.swap(await self.name(key), data, expected_etag)
        if key == CLUSTER:
            self.learn(data)
        return etag

    async def get(self, key: str) -> Object:
        """Return the whole object."""
        self.requests["read"] += 1
        found = await self.inner.get(await self.name(key))
        if key == CLUSTER:
            self.learn(found.data)
        return found

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return bytes of an object."""
        self.requests["read"] += 1
        return await self.inner.get_range(await self.name(key), start, length)

    async def delete(self, key: str) -> None:
        """Remove an object."""
        self.requests["delete"] += 1
        await self.inner.delete(await self.name(key))

    async def sync(self, key: str) -> None:
        """Make an object durable that another library wrote."""
        await self.inner.sync(await self.name(key))

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        """Return the URI and storage options of an object, as far as the places are known: read ``cluster.json``
        first."""
        return self.inner.location(key if self._places is None else self._places.name(key))

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        """Return objects below the folder ``prefix``, ascending by key.

        A folder that has objects of several tenants takes one request more for each part of a tenant that lies in the
        page.
        """
        self.requests["list"] += 1
        prefix = check_prefix(prefix)
        places = await self._known(f"{prefix}/") if prefix else await self._known("tables/")
        within = f"{prefix}/" if prefix else ""
        if (part := places.part(within)) is not None:
            return await self._listed(part, within, after, limit)
        if not places.parts:
            return await self.inner.list(prefix, after, limit)
        found = await self._shared(prefix, after, limit)
        for each in places.parts:
            if limit is not None and len(found) >= limit and each.key > found[-1].key:
                break
            if each.key.startswith(within):
                found = sorted([*found, *await self._listed(each, each.key, after, limit)], key=attrgetter("key"))
                found = found[:limit]
        return found

    async def _listed(self, part: OwnPrefix, within: str, after: str | None, limit: int | None) -> Listing:
        """Return the objects of a part whose keys begin with ``within``."""
        if after is not None and after > within and not after.startswith(part.key):
            return []
        behind = part.name + after[len(part.key) :] if after is not None and after.startswith(part.key) else None
        listed = await self.inner.list(part.name + within[len(part.key) :], behind, limit)
        return [Listed(part.key + item.key[len(part.name) :], item.size) for item in listed]

    async def _shared(self, prefix: str, after: str | None, limit: int | None) -> Listing:
        """Return the objects below a folder that have their keys as their names."""
        page = await self.inner.list(prefix, after, limit)
        found = [item for item in page if not item.key.startswith(TENANTS)]
        if limit is not None and len(page) == limit and len(found) < limit:
            behind = max(after or "", _BEHIND_TENANTS)
            found = [item for item in found if item.key < TENANTS]
            found += await self.inner.list(prefix, behind, limit - len(found))
        return found

    async def name(self, key: str) -> str:
        """Return the name of an object. Raises StoreError as ``list``."""
        if _SHARD.match(key) is None and _OF_TENANT.match(key) is None:
            return key
        return (await self._known(key)).name(key)

    async def _known(self, key: str) -> Places:
        """Return the places, which know where the object of a key is, or those below a prefix.

        Raises:
            StoreError: the store did not answer, or its ``cluster.json`` cannot be used.
        """
        if self._places is not None and self._places.knows(key):
            return self._places
        self.requests["read"] += 1
        try:
            data = (await self.inner.get(CLUSTER)).data
        except NotFound:
            self._places = Places(None) if self._places is None else self._places
            return self._places
        try:
            self._places = _decoded(data)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{CLUSTER} is damaged, or of a later release: {error}") from error
        return self._places


def requests_of(store: ObjectStore) -> dict[str, int]:
    """Return the number of calls of each kind that were made through a store; zeros if it does not count them."""
    return store.requests if isinstance(store, PlacedStore) else dict.fromkeys(KINDS, 0)


def bare(store: ObjectStore) -> ObjectStore:
    """Return the store with the objects by their names."""
    return store.inner if isinstance(store, PlacedStore) else store


def lay_out(store: ObjectStore, cluster: bytes) -> None:
    """Place the objects of a store that gets its ``cluster.json`` last, by the bytes of that file."""
    if isinstance(store, PlacedStore):
        store.learn(cluster)


# Opening of a store by its URI.

_memory_stores: dict[str, MemoryStore] = {}


def open_store(uri: str, options: dict[str, str] | None = None) -> ObjectStore:
    """Open a store, without reading or writing (``probe`` does that). Tenants that are set apart have their objects
    below prefixes of their own in it (``placed``).

    Args:
        uri: a path, ``file:///path``, ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``, or
            ``memory://name`` (one store per name and process; a new one each time without a name).
        options: for a bucket, with the names of deltalake and object_store, as docs/reference/stores.md lists them:
            ``AWS_ENDPOINT_URL``, ``GOOGLE_SERVICE_ACCOUNT``, ``AZURE_STORAGE_ACCOUNT_NAME``. What is missing comes from
            the environment and the machine's role.

    Raises:
        ValueError: no such kind of store.
        StoreUnfit: the library of this kind is not installed, or an option is not valid.
    """
    if "://" not in uri:
        if ONE_SLASH.match(uri):
            raise ValueError(f"{uri!r} is not a store: expected {WRITTEN}; or ./NAME for a folder with a colon")
        return PlacedStore(DirectoryStore(uri))
    parts = urlsplit(uri)
    if "@" in parts.netloc:
        # The URI is not in the message, because it has a password.
        raise ValueError("a store's URI has no user name or password: a key comes from the environment or options")
    if parts.query or parts.fragment:
        raise ValueError("a store's URI has no options behind `?` or `#`: they come from the environment")
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        return PlacedStore(DirectoryStore(parts.path))
    if parts.scheme == "memory":
        return PlacedStore(_memory_stores.setdefault(parts.netloc, MemoryStore()) if parts.netloc else MemoryStore())
    if parts.scheme in BUCKETS and parts.netloc:
        # The first one says what is missing where obstore is not installed.
        from weft.storage.object_store.services import SERVICES, bucket_place

        place = bucket_place(SERVICES[parts.scheme], parts.netloc, parts.path.strip("/"), options or {})
        from weft.storage.object_store.bucket import BucketStore

        return PlacedStore(BucketStore(place))
    raise ValueError(f"{uri!r} is not a store: expected a path, file:///path, {WRITTEN}, or memory://name")
