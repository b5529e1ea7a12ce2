"""Identity of a store: one hub cluster, with an id, a format and a first number of shards that never change, and with a
level, a list of splits and one of tenants that are set apart, which only grow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import msgspec

from weft.protocols.chunk_index import FIRST_LEVEL, LEVEL_MAX
from weft.protocols.errors import PreRelease
from weft.protocols.lane import valid_name
from weft.protocols.shard.placement import TENANT_APART_EDGE, TENANT_EDGE, ShardTree, is_shard_count
from weft.storage import hub_keys
from weft.storage.object_store import AlreadyExists, NotFound, Object, ObjectStore, PreconditionFailed

FORMAT = 1
CLUSTER_ID_BYTES = 16
NEW_SHARDS = 16
"""Number of shards of a new store unless the hub's configuration says another."""


class ClusterUnusable(RuntimeError):
    """A store that this release cannot use as requested. The message says what to do."""


class Cluster(NamedTuple):
    """The identity of a hub's store."""

    cluster_id: bytes
    shards: int
    """The number of shards at the start; splits made the others."""
    level: int = FIRST_LEVEL
    """The level up to which nodes may write (``weft hub finalize``). It only grows."""
    splits: tuple[int, ...] = ()
    """The shard that each declared split halves. It only grows, at its end. A split is in force from the SEAL record in
    the halved shard's log on: until then that shard has all of its lanes."""
    restored: int = 0
    """Moment at which the store was last restored from a backup, in nanoseconds since 1970; 0 for never. Statements of
    edges from before may have been overtaken by others that are lost."""
    apart: tuple[tuple[str, int], ...] = ()
    """Each tenant that is set apart, with the number of its first shard. It only grows, at its end."""

    @property
    def tree(self) -> ShardTree:
        """Return the shards, and where each edge belongs."""
        return _tree(self.shards, self.splits, self.apart)


class ClusterCache:
    """The cluster as a process read it last: splits make more shards while it runs."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster


@lru_cache(maxsize=64)
def _tree(shards: int, splits: tuple[int, ...], apart: tuple[tuple[str, int], ...]) -> ShardTree:
    return ShardTree(shards, splits, apart)


class _ClusterFile(msgspec.Struct, frozen=True):
    format: int
    cluster_id: str
    shards: int
    placement: str
    """Name of the rule that places edges in shards."""
    level: int
    restored: int = 0
    """Nanoseconds since 1970."""
    restored_to: int = 0
    """Moment of the backup, likewise."""
    splits: tuple[int, ...] = msgspec.field(default=())
    apart: tuple[tuple[str, int], ...] = msgspec.field(default=())
    apart_turn: tuple[int, str] = (0, "")
    """The last turn of ``take_turn``: its number, and the tenant that it was for."""


async def open_cluster(
    store: ObjectStore,
    shards: int | None,
    random_bytes: Callable[[int], bytes] = os.urandom,
    release_level: int = LEVEL_MAX,
    *,
    new_shards: int | None = None,
) -> Cluster:
    """Read the store's ``cluster.json``, or create it.

    Args:
        shards: the number of shards of a new cluster; an existing one must have the same. None accepts its number.
        release_level: the highest level that the caller's release knows.
        new_shards: the number of shards of a new cluster where ``shards`` is None; None creates none.

    Raises:
        ClusterUnusable: there is no cluster and none is to be created, it has another shard count, a later release made
            it or raised it to a level that this one does not know, a build before the first release made it, or the
            file is damaged.
        StoreError: the store did not answer.
    """
    found = await _read(store)
    new_shards = shards if shards is not None else new_shards
    if found is None and new_shards is not None:
        made = _ClusterFile(FORMAT, random_bytes(CLUSTER_ID_BYTES).hex(), new_shards, TENANT_EDGE, release_level)
        try:
            await store.create(hub_keys.CLUSTER, msgspec.json.encode(made))
            return Cluster(bytes.fromhex(made.cluster_id), new_shards, release_level)
        except AlreadyExists:
            found = await _read(store)
    if found is None:
        raise ClusterUnusable("the store holds no hub: check the store's address, or start a hub on it first")
    if shards is not None and found.shards != shards:
        raise ClusterUnusable(
            f"the store was made with {found.shards} shards, the configuration has {shards}; the number cannot "
            f"change: set shards to {found.shards}, or leave it out"
        )
    if found.level > release_level:
        raise ClusterUnusable(
            f"the store is at level {found.level}, this release knows level {release_level}: use the release that the "
            "other nodes run"
        )
    return found


async def read_cluster(store: ObjectStore) -> Cluster:
    """Return the store's cluster, of any level.

    Raises:
        ClusterUnusable: there is no cluster, or the file is damaged.
        StoreError: the store did not answer.
    """
    found = await _read(store)
    if found is None:
        raise ClusterUnusable("the store holds no hub")
    return found


async def read_level(store: ObjectStore) -> int:
    """Return the level of the store's cluster. Raises as ``read_cluster``."""
    return (await read_cluster(store)).level


async def raise_level(store: ObjectStore, level: int) -> None:
    """Raise the cluster's level; do nothing if it is reached already. The rest of the file remains unchanged.

    Raises:
        ClusterUnusable: there is no cluster, or the file is damaged.
        StoreError: the store did not answer.
    """
    while await read_level(store) < level:
        found = await store.get(hub_keys.CLUSTER)
        with contextlib.suppress(PreconditionFailed):
            await store.swap(hub_keys.CLUSTER, _with(found.data, "level", level), found.etag)


async def declare_split(store: ObjectStore, shard: int, known: Cluster) -> Cluster:
    """Declare the next split, of a shard, unless one was declared since ``known`` was read. The rest of the file
    remains unchanged.

    Returns:
        The cluster as it is now: with one more split than ``known`` if this call declared it.

    Raises:
        ClusterUnusable: there is no cluster, or the file is damaged.
        ValueError: the shard does not exist or cannot split, or there are too many.
        StoreError: the store did not answer; the split may be declared.
    """
    while True:
        found = await _get(store)
        cluster = decode(found.data)
        if cluster.splits != known.splits:
            return cluster
        declared = cluster._replace(splits=(*cluster.splits, shard))
        _ = declared.tree  # which refuses a split that cannot be
        with contextlib.suppress(PreconditionFailed):
            await store.swap(hub_keys.CLUSTER, _with(found.data, "splits", declared.splits), found.etag)
            return declared


async def take_turn(store: ObjectStore, tenant: str) -> tuple[int, str]:
    """Begin to set a tenant apart, or to take it back, and return the turn. Turns that others took before are over:
    what continues under one of them looks at ``last_turn`` before each step.

    Raises:
        ClusterUnusable: there is no cluster, or the file is damaged.
        StoreError: the store did not answer.
    """
    while True:
        found = await _get(store)
        turn = _turn(found.data)[0] + 1, tenant
        with contextlib.suppress(PreconditionFailed):
            await store.swap(hub_keys.CLUSTER, _with(found.data, "apart_turn", turn), found.etag)
            return turn


async def last_turn(store: ObjectStore) -> tuple[int, str]:
    """Return the last turn that was taken, and the tenant that it was for. Raises as ``take_turn``."""
    return _turn((await _get(store)).data)


async def declare_apart(store: ObjectStore, tenant: str, known: Cluster, turn: tuple[int, str]) -> Cluster:
    """Give a tenant a shard of its own, unless the shards changed since ``known`` was read, or ``turn`` is over. The
    rest of the file remains unchanged. The logs of all shards that it might be in must say already that they take
    nothing of it (``protocols.shard.fold``).

    Returns:
        The cluster as it is now: with the tenant if this call declared it.

    Raises:
        ClusterUnusable: there is no cluster, or the file is damaged.
        ValueError: there are too many shards.
        StoreError: the store did not answer; it may be declared.
    """
    while True:
        found = await _get(store)
        cluster = decode(found.data)
        if (cluster.splits, cluster.apart) != (known.splits, known.apart) or _turn(found.data) != turn:
            return cluster
        declared = cluster._replace(apart=(*cluster.apart, (tenant, cluster.tree.count)))
        _ = declared.tree  # which refuses one shard too many
        data = _with(_with(found.data, "apart", declared.apart), "placement", TENANT_APART_EDGE)
        with contextlib.suppress(PreconditionFailed):
            await store.swap(hub_keys.CLUSTER, data, found.etag)
            return declared


async def _get(store: ObjectStore) -> Object:
    try:
        return await store.get(hub_keys.CLUSTER)
    except NotFound:
        raise ClusterUnusable("the store holds no hub") from None


def _turn(data: bytes) -> tuple[int, str]:
    decode(data)  # which refuses what is damaged
    return msgspec.json.decode(data, type=_ClusterFile).apart_turn


def _with(data: bytes, name: str, value: object) -> bytes:
    """Return the bytes of the file with another value of one field. Fields of later releases remain."""
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    fields[name] = msgspec.Raw(msgspec.json.encode(value))
    return msgspec.json.encode(fields)


def restored(data: bytes, to: int, now: int) -> bytes:
    """Return a ``cluster.json`` that says that the store was restored; its other fields remain unchanged.

    Args:
        to: moment of the backup, in nanoseconds since 1970.
        now: likewise.
    """
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(fields | {"restored": now, "restored_to": to})


async def _read(store: ObjectStore) -> Cluster | None:
    try:
        data = (await store.get(hub_keys.CLUSTER)).data
    except NotFound:
        return None
    return decode(data)


def decode(data: bytes) -> Cluster:
    """Return the cluster of the bytes of a ``cluster.json``.

    Raises:
        ClusterUnusable: they are damaged, or written by a later release or before the first one.
    """
    try:
        # The version is decoded alone first: a later release may have changed everything else.
        fields = msgspec.json.decode(data, type=dict[str, object])
        version = fields.get("format")
        if isinstance(version, int) and version > FORMAT:
            raise ClusterUnusable(
                f"the store was written by a later release of Weft (format {version}; this one knows {FORMAT}): "
                "install that release again"
            )
        level = fields.get("level")
        # Builds before the first release had the same number, and first no rule of placement and no level.
        if version == FORMAT and ("placement" not in fields or level is None):
            raise ClusterUnusable(str(PreRelease()))
        if version == FORMAT and isinstance(level, int) and 1 <= level < FIRST_LEVEL:
            raise ClusterUnusable(str(PreRelease()))
        file = msgspec.json.decode(data, type=_ClusterFile)
        if file.placement not in {TENANT_EDGE, TENANT_APART_EDGE}:
            raise ClusterUnusable(
                f"the store was written by a later release of Weft, which places edges by {file.placement!r}; this one "
                f"knows {TENANT_EDGE!r} and {TENANT_APART_EDGE!r}: install that release again"
            )
        cluster = Cluster(
            bytes.fromhex(file.cluster_id), file.shards, file.level, file.splits, file.restored, file.apart
        )
        if (
            file.format != FORMAT
            or file.level < FIRST_LEVEL
            or not is_shard_count(file.shards)
            or len(cluster.cluster_id) != CLUSTER_ID_BYTES
        ):
            raise ValueError("a field is out of bounds")
        if not all(valid_name(tenant) for tenant, _ in file.apart):
            raise ValueError("a tenant that is set apart has no valid name")
        ShardTree(file.shards, file.splits, file.apart)
    except (ValueError, RecursionError) as error:
        raise ClusterUnusable(f"{hub_keys.CLUSTER} is damaged: {error}; restore it from a backup") from error
    return cluster
