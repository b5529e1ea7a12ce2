"""The store of a running process: the one with which it began, and no other one that comes to stand in its place.

A disk may be unmounted, a folder moved away, a backup restored in its place, or another hub begun there. Who continues
then would make folders where a disk belongs, take an empty place for a log without records, or put chunks of one
history into another. So a process holds on to the identity in ``cluster.json``: the cluster's id, the moment of the
last restore, and level and splits, which only grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

from weft.config.units import approximate_duration
from weft.protocols import chunk
from weft.protocols.chunk_index import LEVEL_MAX
from weft.protocols.errors import CodecError, UnsupportedVersion
from weft.protocols.shard import snapshot
from weft.storage import hub_keys
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import Cluster, ClusterUnusable, decode, open_cluster
from weft.storage.cluster_log import ClusterLog
from weft.storage.object_store import NotFound, Object, ObjectStore, StoreAway, StoreError
from weft.storage.object_store.directory import DirectoryStore
from weft.storage.object_store.protocol import Buffer, Listing, naming

_logger = logging.getLogger(__name__)

T = TypeVar("T")
_NS = 1_000_000_000
VALIDITY_S = 6.0
"""Time for which an answer about the identity is believed where each look is a request: somewhat longer than the
interval at which hub processes read ``cluster.json`` anyway. A folder looks before and after each call."""
GONE = (
    "the store is not in its place: its cluster.json is missing. Mount its disk, or move it back: the hub then "
    "continues by itself, and makes nothing in that place until then"
)


class FencedStore:
    """An ``ObjectStore`` over another one, for one cluster. While ``cluster.json`` is missing there, or is that of
    another one, every call raises ``StoreAway``, and no answer counts.

    Args:
        cluster: the identity with which the process began.
        boot_clock: nanoseconds on a clock that counts suspend, so that an answer from before a pause is old.
        validity_s: time for which an answer is believed.
    """

    def __init__(
        self, inner: ObjectStore, cluster: Cluster, boot_clock: Callable[[], int], *, validity_s: float = VALIDITY_S
    ) -> None:
        self.inner = inner
        self.trouble: str | None = None
        """Reason why the store cannot be used at present; None while it can, as far as is known."""
        self.replaced = asyncio.Event()
        """Event: another store is in the place. The process has to end: what it knows is of the former one."""
        self._cluster, self._boot, self._validity_s = cluster, boot_clock, validity_s
        self._confirmed_at = boot_clock()
        self._away_since: int | None = None
        self._lost_at = 0
        """Boot time before the last look that did not find it."""
        self._asked_at: int | None = None
        """Boot time since which the store owes an answer about its identity; None while it owes none."""
        self._turn = asyncio.Lock()
        self._is_held = isinstance(inner, DirectoryStore)
        if isinstance(inner, DirectoryStore):
            inner.hold(hub_keys.CLUSTER, self._judge)

    # -- the identity

    @property
    def silent_s(self) -> float:
        """Return the seconds for which the store has owed an answer about its identity; 0 while it owes none."""
        return 0.0 if self._asked_at is None else (self._boot() - self._asked_at) / _NS

    async def look(self, age_s: float, within_s: float) -> None:
        """Bring ``trouble`` and ``silent_s`` up to date.

        Args:
            age_s: age of an answer that is still good enough, where each look is a request.
            within_s: longest time to wait for one.
        """
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(within_s):
                await self._confirm(0.0 if self._is_held else age_s)

    async def _confirm(self, age_s: float) -> None:
        asked = self._boot()
        since = asked - int(age_s * _NS)
        if self._is_confirmed(since):
            return
        async with self._turn:  # those who wait here share the answer
            # The answer came while this call waited. Asking once more would only repeat it for each of a thousand
            # callers.
            if self.trouble is not None and self._lost_at > asked:
                raise StoreAway(self.trouble, replaced=self.replaced.is_set())
            if not self._is_confirmed(since):
                await self._read()

    def _is_confirmed(self, since: int) -> bool:
        return self.trouble is None and self._confirmed_at >= since

    async def _read(self) -> Object:
        known, asked = self._cluster, self._boot()
        self._asked_at = asked if self._asked_at is None else self._asked_at
        found: Object | None = None
        with contextlib.suppress(NotFound):
            found = await self.inner.get(hub_keys.CLUSTER)
        self._asked_at = None
        error = self._judge(None if found is None else found.data)
        if found is not None and error is None:
            now = decode(found.data)
            # The same cluster at an earlier state: a copy of the disk was put in its place. Writing into it would
            # continue a log whose later chunks this process has seen.
            if not _extends(now, known):
                error = _another("an older copy of it, at a lower level or with fewer shards")
            elif _extends(now, self._cluster):
                self._cluster = now
        if error is not None or found is None:
            self._lost_at = asked
            raise self._lost(error or StoreAway(GONE))
        self._found(asked)
        return found

    def _judge(self, data: bytes | None) -> StoreAway | None:
        """Return why a ``cluster.json`` is not that of this store; None if it is. Called in threads as well."""
        if data is None:
            return StoreAway(GONE)
        try:
            found = decode(data)
        except ClusterUnusable as error:
            return StoreAway(str(error))
        own = self._cluster
        if found.cluster_id != own.cluster_id:
            return _another(f"cluster {found.cluster_id.hex()}, while this process began with {own.cluster_id.hex()}")
        # A restore begins another history under the same id. What this process remembers of chunk numbers is of the
        # former one.
        if found.restored != own.restored:
            return _another(f"restored from a backup at {_moment(found.restored)}, after this process began")
        return None

    def _lost(self, error: StoreAway) -> StoreAway:
        # One line for each trouble, not for each call.
        if self.trouble != str(error) and not self.replaced.is_set():
            _logger.error("%s", error)
            self.trouble = str(error)
        self._away_since = self._boot() if self._away_since is None else self._away_since
        if error.replaced:
            self.replaced.set()
        return error

    def _found(self, asked: int) -> None:
        """Note that the store was in its place at a boot time or later."""
        self._confirmed_at = max(self._confirmed_at, asked)
        if self.trouble is not None and not self.replaced.is_set():
            away = approximate_duration((self._boot() - (self._away_since or asked)) / _NS)
            _logger.warning("the store is back in its place, after %s", away)
            self.trouble = self._away_since = None

    async def _do(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call while the store is in its place. The answer counts if it was there afterwards as well."""
        if self.replaced.is_set():
            raise StoreAway(self.trouble or GONE, replaced=True)
        asked = self._boot()
        if not self._is_held:
            await self._confirm(self._validity_s)
        try:
            result = await call()
        except StoreAway as error:
            raise self._lost(error) from None
        except NotFound:
            if not self._is_held:
                # "Not found" means something only if the store is in its place. Otherwise a reader would take an
                # unmounted disk for the end of the log.
                await self._confirm(self._validity_s)
            raise
        if self._is_held:
            self._found(asked)
        else:
            await self._confirm(self._validity_s)
        return result

    # -- the store

    async def create(self, key: str, data: Buffer) -> str:
        """Create an object that must not exist yet."""
        return await self._do(lambda: self.inner.create(key, data))

    async def create_from(self, key: str, parts: AsyncIterator[Buffer]) -> int:
        """Create an object from parts."""
        return await self._do(lambda: self.inner.create_from(key, parts))

    async def swap(self, key: str, data: Buffer, expected_etag: str) -> str:
        """Replace an object if its etag still is ``expected_etag``."""
        return await self._do(lambda: self.inner.swap(key, data, expected_etag))

    async def get(self, key: str) -> Object:
        """Return the whole object."""
        return await (self._read() if key == hub_keys.CLUSTER else self._do(lambda: self.inner.get(key)))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return bytes of an object."""
        return await self._do(lambda: self.inner.get_range(key, start, length))

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        """Return objects below the folder ``prefix``, ascending by key."""
        return await self._do(lambda: self.inner.list(prefix, after, limit))

    async def delete(self, key: str) -> None:
        """Remove an object."""
        await self._do(lambda: self.inner.delete(key))

    async def sync(self, key: str) -> None:
        """Make an object durable that another library wrote."""
        await self._do(lambda: self.inner.sync(key))

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        """Return the URI and storage options of an object. Libraries that open it are not held back, but for the state
        at the moment of the call.

        Raises:
            StoreAway: the store is not in its place, as far as is known.
        """
        if self.trouble is not None:
            raise StoreAway(self.trouble, replaced=self.replaced.is_set())
        try:
            return self.inner.location(key)
        except StoreAway as error:
            raise self._lost(error) from None


def _another(what: str) -> StoreAway:
    return StoreAway(
        f"another store is in the place of this one: {what}. The process ends, and begins with that store when it is "
        "started again",
        replaced=True,
    )


def _extends(now: Cluster, before: Cluster) -> bool:
    """Return whether a cluster may be what another one has become."""
    return (
        now.level >= before.level
        and now.splits[: len(before.splits)] == before.splits
        and now.apart[: len(before.apart)] == before.apart
    )


def _moment(time: int) -> str:
    return f"{datetime.fromtimestamp(time / _NS, UTC):%Y-%m-%dT%H:%M:%SZ}" if time else "no moment"


# Check of a hub's store before anything is written in it: may this release open it?

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
