"""Identity of a store: one hub cluster, with an id, a format, a shard count and a placement that never change."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from weft.protocols.placement import TENANT_EDGE, is_shard_count
from weft.storage import hub_keys
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore

FORMAT = 1
CLUSTER_ID_BYTES = 16


class ClusterUnusable(RuntimeError):
    """A store that is not a cluster which this release may use as asked. The sentence says what to do."""


class Cluster(NamedTuple):
    """The identity of a hub's store."""

    cluster_id: bytes
    shards: int


class _ClusterFile(msgspec.Struct, frozen=True):
    format: int
    cluster_id: str
    shards: int
    placement: str
    """Name of the rule by which an edge belongs to a shard."""


async def open_cluster(
    store: ObjectStore, shards: int | None, random_bytes: Callable[[int], bytes] = os.urandom
) -> Cluster:
    """Read the store's ``cluster.json``, or create it.

    Args:
        shards: the number of shards of a new cluster; an existing one must have as many. None takes its number.

    Raises:
        ClusterUnusable: there is none and ``shards`` is None, it has another shard count, it was made by a later
            release, or the file is damaged.
        StoreError: the store did not answer.
    """
    found = await _read(store)
    if found is None and shards is not None:
        made = _ClusterFile(FORMAT, random_bytes(CLUSTER_ID_BYTES).hex(), shards, TENANT_EDGE)
        try:
            await store.create(hub_keys.CLUSTER, msgspec.json.encode(made))
            return Cluster(bytes.fromhex(made.cluster_id), shards)
        except AlreadyExists:
            found = await _read(store)
    if found is None:
        raise ClusterUnusable("the store holds no hub: check the store's address, or start a hub on it first")
    if shards is not None and found.shards != shards:
        raise ClusterUnusable(
            f"the store was made with {found.shards} shards, the configuration says {shards}; the number cannot "
            f"change: set shards to {found.shards}"
        )
    return found


async def _read(store: ObjectStore) -> Cluster | None:
    try:
        data = (await store.get(hub_keys.CLUSTER)).data
    except NotFound:
        return None
    try:
        # The version is looked at by itself: a later release may have changed everything else.
        version = msgspec.json.decode(data, type=dict[str, object]).get("format")
        if isinstance(version, int) and version > FORMAT:
            raise ClusterUnusable(f"the store has format {version}, this release knows {FORMAT}: use a newer release")
        file = msgspec.json.decode(data, type=_ClusterFile)
        if file.placement != TENANT_EDGE:
            raise ClusterUnusable(
                f"the store places edges by {file.placement!r}, this release knows {TENANT_EDGE!r}: use a newer release"
            )
        cluster = Cluster(bytes.fromhex(file.cluster_id), file.shards)
        if file.format != FORMAT or not is_shard_count(file.shards) or len(cluster.cluster_id) != CLUSTER_ID_BYTES:
            raise ValueError("a field is out of bounds")
    except ValueError as error:
        raise ClusterUnusable(f"{hub_keys.CLUSTER} is damaged: {error}; restore it from a backup") from error
    return cluster
