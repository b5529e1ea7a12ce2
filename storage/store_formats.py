"""Check of a hub's store before anything is written in it: may this release open it?"""

from __future__ import annotations

import asyncio
import contextlib

from weft.protocols import chunk
from weft.protocols.chunk_index.footer import LEVEL_MAX
from weft.protocols.errors import CodecError, UnsupportedVersion
from weft.protocols.shard import snapshot
from weft.storage import hub_keys
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import Cluster, ClusterUnusable, open_cluster
from weft.storage.cluster_log.log import ClusterLog
from weft.storage.object_store import NotFound, ObjectStore
from weft.storage.object_store.damage import naming

SHARDS_AT_ONCE = 16
_LISTED_MAX = 1000


async def check_store(store: ObjectStore, release_level: int = LEVEL_MAX) -> None:
    """Compare a store's formats with those of this release: the cluster, the cluster log, and for each shard the
    manifest, the snapshots that a start needs, and the last chunk. Writes nothing. A store without a cluster is new.

    Features that this release must not skip are always in the last chunk, since this release cannot have written a
    chunk after it. Damage is left to the start, which lets other shards continue.

    Raises:
        ClusterUnusable: another release has to open the store; the message says which.
        StoreError: the store did not answer.
    """
    try:
        await store.get(hub_keys.CLUSTER)
    except NotFound:
        await _check_new(store)
        return
    cluster = await open_cluster(store, None, release_level=release_level)
    try:
        await ClusterLog(store, cluster.cluster_id).load()
    except UnsupportedVersion as error:
        raise ClusterUnusable(str(error)) from None
    at_once = asyncio.Semaphore(SHARDS_AT_ONCE)

    async def look(shard: int) -> None:
        async with at_once:
            await _check_shard(store, cluster, shard)

    await asyncio.gather(*map(look, range(cluster.tree.count)))


async def _check_new(store: ObjectStore) -> None:
    """Check that a store without a cluster is no backup, and no half restored one: a new cluster would spoil it."""
    for key, sentence in (
        (hub_keys.BACKUP, "the place holds a backup, on which no hub runs: `weft hub restore` makes a store of it"),
        (hub_keys.RESTORING, "a backup is being restored into the store: give `weft hub restore` again, to its end"),
    ):
        with contextlib.suppress(NotFound):
            await store.get(key)
            raise ClusterUnusable(sentence)


async def _check_shard(store: ObjectStore, cluster: Cluster, shard: int) -> None:
    log = ShardLog(store, cluster, shard)
    try:
        manifest = (await log.manifest())[0]
        if manifest.watermark > 0 and manifest.snapshot is not None:
            await _check_snapshot(log, manifest.snapshot)
        await _check_chunk(log, await _last_chunk(log, max(manifest.snapshot_n, 0)))
    except UnsupportedVersion as error:
        raise ClusterUnusable(str(error)) from None
    except (CodecError, NotFound):
        return


async def _check_snapshot(log: ShardLog, key: str) -> None:
    """Check the snapshot that loading a shard needs: chunks before it are gone."""
    with naming(key):
        snapshot.check_header(await log.store.get_range(key, 0, snapshot.HEADER_BYTES))


async def _check_chunk(log: ShardLog, n: int) -> None:
    """Check both ends of a chunk. Folding reads only the footer, which a later release may have left unchanged."""
    if await log.index(n) is not None:
        key = hub_keys.chunk_key(log.shard, n)
        with naming(key):
            chunk.decode_header(await log.store.get_range(key, 0, chunk.HEADER_BYTES))


async def _last_chunk(log: ShardLog, n: int) -> int:
    """Return the number of the last chunk, which is ``n`` or later."""
    prefix = hub_keys.chunk_prefix(log.shard)
    while found := await log.store.list(prefix, after=hub_keys.chunk_key(log.shard, n), limit=_LISTED_MAX):
        numbers = [chunk.parse_file_name(item.key.removeprefix(prefix)) for item in found]
        last = max((number for number in numbers if number is not None), default=n)
        if last == n:
            break
        n = last
    return n
