"""One shard's log in the object store: chunks, snapshots and the manifest, read and written.

Nothing here decides which writer won a position: ``create`` reports the store's answer, and the caller must read the
chunk unless that was a clear success (docs/architecture.md, "The commit at the hub").
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial

from weft.protocols import chunk as chunks
from weft.protocols.batch import Buffer
from weft.protocols.chunk import Chunk, StreamSection
from weft.protocols.errors import CodecError, Corrupt, UnsupportedVersion
from weft.protocols.lane import Lane
from weft.protocols.shard.shard_state import RELEASE, FoldRules, ShardState, StreamKey
from weft.protocols.shard.splits import Split
from weft.storage import hub_keys
from weft.storage import manifest as manifests
from weft.storage.chunks import ended_states
from weft.storage.chunks.in_steps import apply_in_steps
from weft.storage.chunks.index_reader import IndexReader
from weft.storage.chunks.offset_index import Around, OffsetIndex
from weft.storage.chunks.snapshot_reader import read_snapshot
from weft.storage.cluster import Cluster, ClusterUnusable, open_cluster
from weft.storage.hub_keys import table_key
from weft.storage.manifest import Manifest
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed
from weft.storage.object_store.damage import naming

__all__ = ["Cluster", "ClusterUnusable", "CollectedPast", "Manifest", "ShardLog", "open_cluster", "table_key"]

READ_AHEAD_MAX = 16
"""Maximum number of chunk indexes requested at once: overlaps a store's round trips."""
SNAPSHOTS_TO_START = 4
"""Number of newest snapshots that are never deleted: a node that has just read the manifest finds its snapshot."""
LOOK_VALIDITY_NS = 60_000_000_000
"""Time for which a reader may use a read watermark, far below the time that the collector waits between raising the
watermark and deleting. So a reader that keeps up reads the manifest once a minute, and a reader that was suspended
reads it before it relies on any chunk."""
BOOT_CLOCK = partial(time.clock_gettime_ns, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Nanoseconds since the machine started, including suspend if the system counts it."""


class CollectedPast(Exception):
    """The error of a reader that fell behind the watermark: chunks that it needs may be gone, and objects with their
    numbers may be from a paused writer. Load the state again; the records of collected chunks are in the tables."""


class NotBegun(Corrupt):
    """The error of a shard whose split is declared, and not in force yet: the halved shard has all lanes."""


class ShardLog:
    """A shard's objects. Every method may raise ``StoreError`` (the store did not answer) besides its own errors.

    Serves any number of tasks of one event loop.

    Args:
        boot_clock: nanoseconds on a clock that counts suspend. With a clock that stops while the machine sleeps, an old
            watermark would count as fresh.
        split: the split that made the shard, from the state of the halved one; None if it is not known.
        halved: the log of the halved shard, with ``split``.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster: Cluster,
        shard: int,
        boot_clock: Callable[[], int] = BOOT_CLOCK,
        *,
        rules: FoldRules = RELEASE,
        split: Split | None = None,
        halved: ShardLog | None = None,
    ) -> None:
        self.store = store
        self.cluster = cluster
        self.shard = shard
        self.rules = rules
        self.split, self.halved = split, halved
        self.is_first = cluster.tree.is_first(shard)
        """True if no split made the shard."""
        self._boot_clock = boot_clock
        self._looked_at: int | None = None
        """Boot time just before the manifest was last requested."""
        self._seen = Manifest()
        """The manifest as last read."""
        self.offsets = OffsetIndex(store, cluster.cluster_id, shard)
        self._indexes = IndexReader(store, cluster, shard)

    def new_shard(self, split: Split) -> ShardLog:
        """Return the log of the shard that a split of this one made."""
        return ShardLog(
            self.store, self.cluster, split.shard, self._boot_clock, rules=self.rules, split=split, halved=self
        )

    @property
    def lineage(self) -> tuple[int, ...]:
        """Return the shard, and those that had an edge of it before, the last first."""
        return self.shard, *(self.cluster.tree.lineage(self.shard) if self.halved is None else self.halved.lineage)

    @property
    def watermark(self) -> int:
        """Return the watermark as last read: no reader needs chunks below it."""
        return self._seen.watermark

    async def create(self, n: int, data: Buffer) -> None:
        """Create chunk n; durable when this returns.

        Raises:
            AlreadyExists: position n is taken, perhaps by an earlier attempt of this node: read it.
        """
        await self.store.create(hub_keys.chunk_key(self.shard, n), data)

    async def index(self, n: int, only: frozenset[StreamKey] | None = None) -> Chunk | None:
        """Return header and footer of chunk n, or None when it does not exist.

        One GET of the tail, and another when the index is longer than expected, or when of a long one only some blocks
        are wanted.

        Args:
            only: streams of which alone the index is needed; at level 1 it has all of them.

        Raises:
            Corrupt: the object is damaged or belongs elsewhere.
        """
        return await self._indexes.read(n, only)

    async def whole(self, n: int) -> tuple[Chunk, memoryview] | None:
        """Return the index of chunk n and all its bytes, or None when it does not exist. One GET.

        Sections are not checked: ``protocols.chunk.check_section`` does that.

        Raises:
            Corrupt: as ``index``.
        """
        key = hub_keys.chunk_key(self.shard, n)
        try:
            data = memoryview((await self.store.get(key)).data)
        except NotFound:
            return None
        with naming(key):
            footer, crc = chunks.decode_footer(data)
            return self._indexes.checked(n, Chunk(footer.header, footer, crc)), data

    async def section(self, n: int, section: StreamSection) -> bytes:
        """Return the bytes of one stream in chunk n, checked against the footer.

        Raises:
            Corrupt: they do not match the footer.
            NotFound: the chunk was deleted.
        """
        key = hub_keys.chunk_key(self.shard, n)
        data = await self.store.get_range(key, section.position, section.length)
        with naming(key):
            chunks.check_section(data, section)
        return data

    async def indexes(
        self,
        first_n: int,
        read: Callable[[int], Awaitable[Chunk | None]] | None = None,
        ahead_max: int = READ_AHEAD_MAX,
        only: frozenset[StreamKey] | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the indexes of chunks ``first_n``, ``first_n + 1``, ... up to the head of the log at that moment.

        Args:
            read: instead of ``index``.
            ahead_max: maximum number of chunks requested at once.
            only: as of ``index``.

        Raises:
            Corrupt: one of them is damaged or missing.
            CollectedPast: the collector has passed the next one.
        """
        read = read or partial(self.index, only=only)
        n, ahead = first_n, 1
        while True:
            for found in await asyncio.gather(*(read(n + i) for i in range(ahead))):
                await self._check_not_passed(n)
                chunk = found
                if chunk is None:
                    if self._seen.snapshot_n < n:
                        return
                    # A snapshot holds chunk n: it was made after the answer above, or it is lost.
                    chunk = await read(n)
                    await self._check_not_passed(n)
                    if chunk is None:
                        raise self._missing(n, self._seen.snapshot or "a snapshot")
                yield chunk
                n += 1
                await asyncio.sleep(0)  # the caller's work on a chunk is a step of its own
            ahead = min(2 * ahead, ahead_max)

    async def _check_not_passed(self, n: int) -> None:
        """Check that an earlier answer about chunk n was about the log's own chunk of that number.

        "Not there" means the head of the log only if the chunk was not deleted; and a writer that was paused may have
        made a deleted number again. Both can happen only some time after the watermark was raised above n, so reading
        the watermark within that time is enough to exclude them.
        """
        while self._looked_at is None or self._boot_clock() - self._looked_at > LOOK_VALIDITY_NS:
            await self.manifest()
        if self._seen.watermark > n:
            raise CollectedPast(
                f"shard {self.shard}: chunk {n} is below the watermark {self._seen.watermark}; its records are in the "
                "tables"
            )

    def _missing(self, n: int, later: str) -> Corrupt:
        key = hub_keys.chunk_key(self.shard, n)
        return Corrupt(f"{key} is missing, though {later} was made after it; restore it from a backup of the store")

    async def extend(self, state: ShardState) -> list[Chunk]:
        """Apply every chunk after ``state.n`` and return them in order.

        Raises:
            Corrupt: a chunk is damaged, missing, or does not continue the state's history.
            CollectedPast: the collector has passed the state, which can no longer be used: load it again.
        """
        applied = []
        async for chunk in self.indexes(state.n + 1, only=state.only):
            await apply_in_steps(state, chunk)
            applied.append(chunk)
        return applied

    async def load(self, only: frozenset[StreamKey] | None = None) -> ShardState:
        """Return the state at the head: the newest snapshot and the chunks after it.

        Args:
            only: the streams that the state follows; None for all.

        Raises:
            UnsupportedVersion: a later release wrote a necessary object.
            Corrupt: a chunk is damaged or missing, or no readable snapshot reaches up to the watermark.
        """
        while True:
            state = await self.load_snapshot(only)
            with contextlib.suppress(CollectedPast):
                while True:
                    await self.extend(state)
                    if await self._is_head(state.n + 1):
                        return state

    async def _is_head(self, n: int) -> bool:
        """Return whether the log ends before chunk n, which was not there a moment ago.

        A number that is missing in the middle looks like the head to a reader that asks for one number after the other,
        and a writer would put a new chunk there. So a starting node looks past it once.

        Raises:
            Corrupt: chunk n is missing, but later ones exist.
        """
        key = hub_keys.chunk_key(self.shard, n)
        later = await self.store.list(hub_keys.chunk_prefix(self.shard), after=key, limit=1)
        if later and await self.index(n) is None:
            await self._check_not_passed(n)
            raise self._missing(n, later[0].key)
        return not later

    async def load_snapshot(self, only: frozenset[StreamKey] | None = None) -> ShardState:
        """Return the newest readable snapshot's state; an empty one before the first. Raises as ``load``."""
        manifest, tried = (await self.manifest())[0], None
        later: list[UnsupportedVersion] = []
        while manifest.snapshot is not None and manifest.snapshot != tried:
            if state := await self._readable(manifest.snapshot, manifest.snapshot_n, later, only):
                return state
            # The snapshot is gone, because newer ones replaced it since the manifest was read, or damaged.
            tried, manifest = manifest.snapshot, (await self.manifest())[0]
        if manifest.snapshot is not None:
            # Of a shard that a split made, the first one may be of an attempt at the SEAL that the log did not take.
            first = manifest.watermark - self.is_first
            for n, key in reversed(await self.snapshots()):
                # An older snapshot only costs a longer fold, as long as its chunks exist.
                is_of_use = key != tried and first <= n <= manifest.snapshot_n
                if is_of_use and (state := await self._readable(key, n, later, only)):
                    return state
        if manifest.watermark > 0:
            missing = Corrupt(f"shard {self.shard}: no readable snapshot reaches chunk {manifest.watermark - 1}")
            raise later[0] if later else missing
        if not self.is_first:
            return await self._begin(only)
        return ShardState(self.cluster.cluster_id, self.shard, self.rules, only)

    async def _begin(self, only: frozenset[StreamKey] | None) -> ShardState:
        """Return the state with which a new shard of a split begins, which has no manifest yet."""
        if self.split is None:
            raise NotBegun(f"shard {self.shard} has not begun: the log that it is split from has no SEAL record for it")
        key = hub_keys.snapshot_key(self.shard, self.split.n, self.split.nonce)
        try:
            return await self.snapshot(key, only)
        except NotFound:
            if (await self.manifest())[0].snapshot is not None:
                return await self.load_snapshot(only)  # of a manifest that came meanwhile, and of later snapshots
        raise Corrupt(f"{key}, with which shard {self.shard} begins, is missing; restore it from a backup of the store")

    async def _readable(
        self, key: str, n: int, later: list[UnsupportedVersion], only: frozenset[StreamKey] | None
    ) -> ShardState | None:
        """Return the state after chunk n from a snapshot, or None; add errors about a later release to ``later``."""
        try:
            state = await self.snapshot(key, only)
        except UnsupportedVersion as error:
            later.append(error)
            return None
        except (NotFound, CodecError):
            return None
        return state if state.n == n else None

    async def manifest(self) -> tuple[Manifest, str | None]:
        """Return the manifest and its etag; (an empty one, None) when there is none yet.

        Raises:
            Corrupt: it does not decode.
        """
        key = hub_keys.manifest_key(self.shard)
        # The age of a watermark counts from before the request: the node may be paused while the answer is in flight.
        looked_at = self._boot_clock()
        try:
            found = await self.store.get(key)
        except NotFound:
            self._looked_at = looked_at
            return Manifest(), None
        with naming(key):
            manifest = manifests.decode(found.data)
        self._looked_at, self._seen = looked_at, manifest
        return manifest, found.etag

    async def swap_manifest(self, manifest: Manifest, expected_etag: str | None) -> bool:
        """Replace the manifest that had ``expected_etag`` (None: there was none). Return False when another node was
        first."""
        key, data = hub_keys.manifest_key(self.shard), manifests.encode(manifest)
        try:
            if expected_etag is None:
                await self.store.create(key, data)
            else:
                await self.store.swap(key, data, expected_etag)
        except (AlreadyExists, PreconditionFailed):
            return False
        return True

    async def put_ended(self, lane: Lane, n: int, data: bytes) -> None:
        """Store a lane's state at chunk n, before the lane leaves the state. Two nodes store the same bytes."""
        await ended_states.put(self.store, self.shard, lane, n, data)

    async def ended(self, lane: Lane, n: int) -> bytes | None:
        """Return the last state of a lane that had left at chunk n; None if it never existed."""
        return await ended_states.newest(self.store, self.lineage, lane, n)

    async def put_snapshot(self, n: int, nonce: int, data: bytes) -> str:
        """Store an encoded state and return its key. Readers find it by the manifest or a listing."""
        key = hub_keys.snapshot_key(self.shard, n, nonce)
        await self.store.create(key, data)
        return key

    async def snapshots(self) -> list[tuple[int, str]]:
        """Return (n, key) of every snapshot, ascending."""
        listed = await self.store.list(hub_keys.snapshot_prefix(self.shard))
        numbers = ((hub_keys.parse_snapshot_key(item.key), item.key) for item in listed)
        return [(n, key) for n, key in numbers if n is not None]

    async def snapshot(self, key: str, only: frozenset[StreamKey] | None = None) -> ShardState:
        """Read a snapshot, of some streams alone with two GETs of what they need.

        Raises:
            NotFound, Truncated, Corrupt: it is gone, damaged, of another shard, or without this release's features.
        """
        with naming(key):
            state = ShardState.of(await read_snapshot(self.store, key, only), self.rules, only)
            if (state.cluster_id, state.shard) != (self.cluster.cluster_id, self.shard):
                raise Corrupt(f"it belongs to shard {state.shard} of cluster {state.cluster_id.hex()}")
        return state

    async def locate(self, tenant: str, stream: str, offset: int) -> int:
        """Return a number n such that the chunk with ``offset`` is n or a later one.

        Snapshots serve as an index; a damaged or missing one only makes it coarser.

        Raises:
            Corrupt: the manifest is damaged.
        """
        return await self.offsets.locate(await self._index_snapshots(), (tenant, stream), offset)

    async def around(self, tenant: str, stream: str, n: int) -> Around:
        """Return the bounds that snapshots give for a stream's offset at chunk ``n``, before the chunk's own records.

        Raises:
            Corrupt: the manifest is damaged.
        """
        return await self.offsets.around(await self._index_snapshots(), (tenant, stream), n)

    async def _index_snapshots(self) -> list[tuple[int, str]]:
        manifest, _ = await self.manifest()
        return [(n, key) for n, key in await self.snapshots() if n <= manifest.snapshot_n]
