"""One shard's log in the object store: chunks, snapshots and the manifest, read and written; and the logs of every
shard."""

from __future__ import annotations

import asyncio
import contextlib
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, NamedTuple, Protocol, cast

import msgspec
from msgspec import Meta

from weft.protocols import chunk as chunks
from weft.protocols.batch import Buffer
from weft.protocols.chunk_index import RELEASE, Chunk, FoldRules, IndexTail, StreamKey, StreamSection, check_understood
from weft.protocols.errors import CodecError, Corrupt, Truncated, UnsupportedVersion
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.shard import snapshot
from weft.protocols.shard.fold import folding
from weft.protocols.shard.lane_state import OpenGap, open_gap
from weft.protocols.shard.placement import Split, is_moving
from weft.protocols.shard.shard_state import Folded, ShardState
from weft.protocols.shard.snapshot import HEADER_BYTES, DecodedSnapshot
from weft.storage import hub_keys
from weft.storage.cluster import Cluster, ClusterUnusable, open_cluster
from weft.storage.hub_keys import table_key
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed, replace
from weft.storage.object_store.protocol import naming

# Manifest of a shard: the only object of its log that changes. JSON, swapped as a whole.
#
# Nodes of several releases swap it, so each writes unknown fields back unchanged.

UNDERSTOOD = 0
"""Bits of ``must_understand`` that this release knows: none yet."""


class Manifest(msgspec.Struct, frozen=True):
    """The shard's newest snapshot, and the bound of the collector's deletions. Change it with ``changed``."""

    snapshot_n: int = -1
    snapshot: str | None = None
    """Key of the snapshot of chunk ``snapshot_n``; None before the first."""
    watermark: int = 0
    """Number below which chunks may be gone. It only grows, and the collector raises it to ``snapshot_n``
    at most."""
    must_understand: int = 0
    """Bits of the features that a node has to know to use the manifest at all."""
    others: tuple[tuple[str, bytes], ...] = ()
    """Fields of later releases, as JSON. In the object they are beside the others."""


_KNOWN = ("snapshot_n", "snapshot", "watermark", "must_understand")


def changed(manifest: Manifest, **fields: object) -> Manifest:
    """Return the manifest with other values of some fields, and with its unknown fields."""
    return msgspec.structs.replace(manifest, **fields)


def encode(manifest: Manifest) -> bytes:
    """Return the manifest's bytes."""
    fields: dict[str, object] = {name: getattr(manifest, name) for name in _KNOWN}
    return msgspec.json.encode({**fields, **{name: msgspec.Raw(value) for name, value in manifest.others}})


def decode(data: bytes) -> Manifest:
    """Decode a manifest.

    Raises:
        UnsupportedVersion: a later release wrote something into it that this one must not skip.
        Corrupt: it does not decode.
    """
    try:
        found = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        needed = msgspec.json.decode(found.get("must_understand", msgspec.Raw(b"0")), type=int)
        check_understood(needed, UNDERSTOOD, "the manifest")
        known = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"the manifest does not decode: {error}") from error
    others = tuple((name, bytes(value)) for name, value in found.items() if name not in _KNOWN)
    return msgspec.structs.replace(known, others=others)


# The fold of a chunk on an event loop, in steps of bounded length.


async def fold_in_steps(state: ShardState, chunk: Chunk) -> Folded:
    """Return what ``fold`` returns. The loop does other work between the steps of a long one, which must not change the
    state. Raises as ``fold``."""
    steps = folding(state, chunk)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Folded", end.value)
        await asyncio.sleep(0)


async def apply_in_steps(state: ShardState, chunk: Chunk) -> None:
    """Apply chunk ``n + 1`` to the state. A refused chunk changes nothing. Raises as ``fold``."""
    state.accept(await fold_in_steps(state, chunk))


# States of lanes that left a shard's state, each an object of its own.
#
# The lanes of an edge that a split moved may have left the shards that had it before: those are looked at, too.


async def put(store: ObjectStore, shard: int, lane: Lane, n: int, data: bytes) -> None:
    """Store a lane's state at chunk n, before the lane leaves the state. Two nodes store the same bytes."""
    with contextlib.suppress(AlreadyExists):
        await store.create(hub_keys.ended_key(shard, lane, n), data)


async def newest(store: ObjectStore, shards: Sequence[int], lane: Lane, n: int) -> bytes | None:
    """Return the last state of a lane that had left at chunk n; None if it never existed.

    Args:
        shards: the shard, and those that had its edges before, the last first. A new shard continues with the numbers
            of the halved one, so ``n`` bounds the states of all.
    """
    for shard in shards:
        # Attempts that lost their chunk number left older states. The newest is right, because a lane only grows.
        listed = await store.list(hub_keys.ended_prefix(shard, lane))
        known = [item.key for item in listed if hub_keys.parse_ended_key(item.key)[1] <= n]
        if known:
            return (await store.get(known[-1])).data
    return None


async def lanes_of(store: ObjectStore, shards: Sequence[int], tenant: str, edge: str) -> set[Lane]:
    """Return the lanes of an edge with a stored state: they left, or were about to. Args as ``newest``."""
    found = set[Lane]()
    for shard in shards:
        listed = await store.list(f"{hub_keys.ended_prefix(shard)}/{tenant}/{edge}")
        found |= {hub_keys.parse_ended_key(item.key)[0] for item in listed}
    return found


# Reader of snapshot objects: of all streams, of some alone, or of their offsets.

HEAD_READ_BYTES = 256 << 10
"""First guess at the bytes of a snapshot's head, which has some 100 bytes for each stream."""


async def read_snapshot(store: ObjectStore, key: str, only: Collection[StreamKey] | None = None) -> DecodedSnapshot:
    """Read a snapshot.

    Args:
        only: read the lanes and streams of these alone, and no clocks.

    Raises:
        NotFound: there is none.
        Truncated, UnsupportedVersion, PreRelease, Corrupt: as ``snapshot.decode``.
    """
    if only is None:
        return snapshot.decode((await store.get(key)).data)
    data = await _head(store, key)
    head = snapshot.decode_head(data)
    behind, (first, end) = HEADER_BYTES + snapshot.head_bytes(data), snapshot.span(head, only)
    if behind + end <= len(data):
        return snapshot.with_lanes(head, data, behind, only)
    blocks = await store.get_range(key, behind + first, end - first)
    return snapshot.with_lanes(head, blocks, -first, only)


async def read_offsets(store: ObjectStore, key: str) -> tuple[tuple[bytes, int], dict[StreamKey, int]]:
    """Return cluster and shard of a snapshot, and the next offset of each stream with one. Raises as
    ``read_snapshot``."""
    return snapshot.decode_offsets(await _head(store, key))


async def _head(store: ObjectStore, key: str) -> Buffer:
    """Return the first bytes of a snapshot, with all of its head."""
    data: Buffer = await store.get_range(key, 0, HEAD_READ_BYTES)
    if len(data) < HEADER_BYTES:
        raise Truncated(f"snapshot header truncated: {len(data)} of {HEADER_BYTES} bytes")
    snapshot.check_header(data)
    needed = HEADER_BYTES + snapshot.head_bytes(data)
    return data if needed <= len(data) else await store.get_range(key, 0, needed)


# Reader of the indexes of a shard's chunks: of all streams, or of some alone.

TAIL_BYTES_MIN = 4 << 10
"""Fewest bytes of a chunk's end that one GET asks for."""
TAIL_BYTES_MAX = 4 << 20
"""Most bytes of a chunk's end that are asked for before the length of its index is known."""
TOGETHER_BYTES_MAX = 64 << 10
"""Length up to which the head and what lies between it and a wanted block are read by one GET instead of two."""


class IndexReader:
    """Reads indexes of one shard's chunks. It expects the index of a chunk to be about as long as that of the last one
    was: one GET then reads all of it, or the head and another one the blocks of the wanted streams."""

    def __init__(self, store: ObjectStore, cluster: Cluster, shard: int) -> None:
        self._store, self._cluster, self._shard = store, cluster, shard
        self._guesses: dict[bool, int] = {}
        """Bytes of the end that the next GET asks for, when all streams are wanted (True), or some."""

    async def read(self, n: int, only: frozenset[StreamKey] | None = None) -> Chunk | None:
        """Return header and footer of chunk n, or None when it does not exist. Raises as ``ShardLog.index``."""
        key = hub_keys.chunk_key(self._shard, n)
        with naming(key):
            try:
                return await self._read(key, n, only)
            except NotFound:
                return None

    async def _read(self, key: str, n: int, only: frozenset[StreamKey] | None) -> Chunk:
        guess = self._guesses.get(only is None, chunks.TAIL_READ_BYTES)
        data: Buffer = await self._store.get_range(key, -guess, guess)
        needed = chunks.footer_bytes(data)
        if needed > len(data):
            data = await self._store.get_range(key, -needed, needed)
        tail = chunks.decode_tail(data)
        span = tail.span(only)
        wanted = span if only is None or span <= TOGETHER_BYTES_MAX else tail.bytes
        self._guesses[only is None] = min(max(wanted + wanted // 4, TAIL_BYTES_MIN), TAIL_BYTES_MAX)
        if span <= len(data):
            footer, crc = chunks.decode_footer(data, only)
            return self.checked(n, Chunk(footer.header, footer, crc))
        return self.checked(n, await self._blocks(key, tail, only))

    async def _blocks(self, key: str, tail: IndexTail, only: frozenset[StreamKey] | None) -> Chunk:
        head = tail.head
        places = [each for each in head.blocks if only is None or (each.tenant, each.stream) in only]
        start, end = places[0].position, places[-1].position + places[-1].length
        data = await self._store.get_range(key, start, end - start)
        return Chunk(head.header, chunks.with_blocks(head, data, start, only), tail.crc)

    def checked(self, n: int, chunk: Chunk) -> Chunk:
        """Return the index, if it is of chunk n of this shard.

        Raises:
            Corrupt: it belongs elsewhere.
        """
        header = chunk.header
        if (header.cluster_id, header.shard, header.n) != (self._cluster.cluster_id, self._shard, n):
            raise Corrupt(f"it holds chunk {header.n} of shard {header.shard}, cluster {header.cluster_id.hex()}")
        return chunk


# Snapshots, and where readers have been, as an index of stream offsets: for readers that begin in the middle of a
# shard's log.

OFFSETS_MAX = 64
"""Maximum number of snapshots whose offsets are remembered."""
PLACES_MAX = 1024
"""Maximum number of streams of which the place where a reader last ended is remembered."""


class Around(NamedTuple):
    """Offsets of a stream at the two snapshots around a chunk."""

    start: int
    """The stream's next offset at the newest snapshot before the chunk; 0 without one."""
    n: int | None
    """Number of the oldest snapshot at or after the chunk; None without one."""
    end: int
    """The stream's next offset there; ``start`` without one."""


class OffsetIndex:
    """Next offsets of streams at each snapshot of a shard, and in the chunks that were read last.

    Args:
        store: the store with the snapshots.
        cluster_id: id of the cluster that made them.
        shard: number of the shard.
    """

    def __init__(self, store: ObjectStore, cluster_id: bytes, shard: int) -> None:
        self._store = store
        self._owner = cluster_id, shard
        self._offsets: OrderedDict[str, dict[StreamKey, int]] = OrderedDict()
        self._places: OrderedDict[StreamKey, tuple[int, int]] = OrderedDict()

    def ended(self, stream: StreamKey, offset: int, n: int) -> None:
        """Remember that chunk ``n`` has records of a stream below ``offset``, where a reader will continue.

        Without this each look of one who follows a stream would read all chunks since the newest snapshot again.
        """
        if offset >= self._places.get(stream, (0, 0))[0]:
            self._places[stream] = offset, n
        self._places.move_to_end(stream)
        if len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)

    async def locate(self, snapshots: list[tuple[int, str]], stream: StreamKey, offset: int) -> int:
        """Return a number n such that the chunk with ``offset`` is n or a later one.

        Args:
            snapshots: (n, key), ascending. A damaged or missing one only makes the answer coarser.
        """
        known = list(snapshots)
        low, high = 0, len(known)  # every snapshot before `low` ends at or below the offset
        while low < high:
            middle = (low + high) // 2
            found = await self._next(known[middle][1], stream)
            if found is None:
                del known[middle]
                high -= 1
            elif found <= offset:
                low = middle + 1
            else:
                high = middle
        ended, n = self._places.get(stream, (0, 0))
        return max(known[low - 1][0] + 1 if low else 0, n if ended <= offset else 0)

    async def around(self, snapshots: list[tuple[int, str]], stream: StreamKey, n: int) -> Around:
        """Return the known bounds of a stream's offset at chunk ``n``, before the chunk's own records.

        Args:
            snapshots: as of ``locate``.
        """
        known = list(snapshots)
        middle = bisect_left(known, (n, ""))
        start, end = 0, None
        for before in reversed(known[:middle]):
            found = await self._next(before[1], stream)
            if found is not None:
                start = found
                break
        for after in known[middle:]:
            end = await self._next(after[1], stream)
            if end is not None:
                return Around(start, after[0], end)
        return Around(start, None, start)

    async def _next(self, key: str, stream: StreamKey) -> int | None:
        """Return a stream's next offset at a snapshot; None if it is damaged or gone."""
        try:
            return (await self._of(key)).get(stream, 0)
        except (NotFound, CodecError):
            return None

    async def _of(self, key: str) -> dict[StreamKey, int]:
        if key not in self._offsets:
            # Without the lanes: there may be ten thousand, which are not needed here.
            owner, offsets = await read_offsets(self._store, key)
            if owner != self._owner:
                raise Corrupt(f"{key} belongs to shard {owner[1]} of cluster {owner[0].hex()}")
            self._offsets[key] = offsets
            if len(self._offsets) > OFFSETS_MAX:
                self._offsets.popitem(last=False)
        return self._offsets[key]


# One shard's log in the object store: chunks, snapshots and the manifest, read and written.
#
# Nothing here decides which writer won a position: ``create`` reports the store's answer, and the caller must read
# the chunk unless that was a clear success (docs/architecture.md, "The commit at the hub").

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
            manifest = decode(found.data)
        self._looked_at, self._seen = looked_at, manifest
        return manifest, found.etag

    async def swap_manifest(self, manifest: Manifest, expected_etag: str | None) -> bool:
        """Replace the manifest that had ``expected_etag`` (None: there was none). Return False when another node was
        first."""
        key, data = hub_keys.manifest_key(self.shard), encode(manifest)
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
        await put(self.store, self.shard, lane, n, data)

    async def ended(self, lane: Lane, n: int) -> bytes | None:
        """Return the last state of a lane that had left at chunk n; None if it never existed."""
        return await newest(self.store, self.lineage, lane, n)

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


# Open gaps in reports for people and programs.


class NamedOpenGap(msgspec.Struct, frozen=True):
    """A loss without a number, of a lane that ended without a last word."""

    edge: str
    log_id: str
    first: int
    """Sequence number from which on records may be missing."""
    since: str | None
    """RFC 3339, UTC: none of them was received before. None if unknown."""
    until: str
    """Moment of the lane's retirement."""
    why: str

    @property
    def sentence(self) -> str:
        """Return the gap as one sentence."""
        return f"{self.edge}/{self.log_id}, from {self.since or 'the beginning'} to {self.until}: {self.why}"


def named_open_gap(gap: OpenGap) -> NamedOpenGap:
    """Return an open gap for a report."""
    since = None if gap.since is None else shown_time(gap.since)
    return NamedOpenGap(gap.edge, format_log_id(gap.log_id), gap.first, since, shown_time(gap.until), gap.why)


def open_gaps_of(state: ShardState, tenant: str, stream: str) -> list[NamedOpenGap]:
    """Return the open gaps of a stream in a shard, including those of lanes that have left."""
    lanes = (lane for lane in state.retired if (lane.tenant, lane.stream) == (tenant, stream))
    there = [gap for lane in lanes if (gap := open_gap(lane, state.lanes[lane])) is not None]
    return [named_open_gap(gap) for gap in (*state.open_gaps.get((tenant, stream), ()), *there)]


def open_gap_of(state: ShardState, lane: Lane) -> NamedOpenGap | None:
    """Return the open gap of a lane, also of one that has left the state; None if it has none."""
    log_id = format_log_id(lane.log_id)
    gaps = open_gaps_of(state, lane.tenant, lane.stream)
    return next((gap for gap in gaps if (gap.edge, gap.log_id) == (lane.edge, log_id)), None)


def shown_time(time: int) -> str:
    """Return a moment, ns since 1970, in whole seconds for people."""
    try:
        return datetime.fromtimestamp(time // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # a clock outside the calendar
        return str(time)


# Every shard of a store, found in the logs themselves: the first ones, and those that their splits made.
#
# A shard is loaded before the ones that its splits made. So each lane is in one of the states at least: of one that
# moved meanwhile, the state of the new shard is the later one, and new shards have higher numbers.


def first_logs(
    store: ObjectStore, cluster: Cluster, boot_clock: Callable[[], int] = BOOT_CLOCK, *, tenant: str | None = None
) -> list[ShardLog]:
    """Return the logs of the shards that no split made. Args as of ``ShardLog``.

    Args:
        tenant: only of those that may have its edges; None for all.
    """
    firsts = cluster.tree.firsts if tenant is None else cluster.tree.firsts_of(tenant)
    return [ShardLog(store, cluster, shard, boot_clock) for shard in firsts]


async def load_every_shard(
    logs: Iterable[ShardLog], only: frozenset[StreamKey] | None = None
) -> list[tuple[ShardLog, ShardState]]:
    """Return the log and the state of every shard, by number. Raises as ``ShardLog.load``.

    Args:
        logs: of the first shards.
        only: as of ``ShardLog.load``.
    """
    found: dict[int, tuple[ShardLog, ShardState]] = {}
    unread = list(logs)
    while unread:
        states = await asyncio.gather(*(log.load(only) for log in unread))
        found |= {log.shard: (log, state) for log, state in zip(unread, states, strict=True)}
        unread = [log.new_shard(split) for log, state in zip(unread, states, strict=True) for split in state.splits]
    return [found[shard] for shard in sorted(found)]


async def log_of_edge(store: ObjectStore, cluster: Cluster, tenant: str, edge: str) -> ShardLog:
    """Return the log of the shard that has an edge by now. Raises as ``ShardLog.load``."""
    log = ShardLog(store, cluster, cluster.tree.first_of(tenant, edge))
    while True:
        state = await log.load(frozenset())
        split = next((each for each in state.splits if is_moving(tenant, edge, each.bit)), None)
        if split is None:
            return log
        log = log.new_shard(split)


class Halved(Protocol):
    """A state of a shard, or what was made of one."""

    @property
    def shard(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def splits(self) -> Sequence[Split]: ...


def missing_shards(states: Sequence[Halved]) -> list[int]:
    """Return the shards to which splits moved lanes of some states, and whose own state is not among these. Without
    them, nothing can be said of all lanes."""
    reached = {state.shard: state.n for state in states}
    return [split.shard for state in states for split in state.splits if reached.get(split.shard, -1) < split.n]


def missing_halves(states: Sequence[ShardState], shard: int) -> list[int]:
    """Return those of the missing shards to which splits moved lanes of one shard, at once or by further splits."""
    splits = {state.shard: state.splits for state in states}
    family = [shard]
    for each in family:  # which grows meanwhile; a split makes a new shard, so each comes once
        family += [split.shard for split in splits.get(each, ())]
    return [each for each in missing_shards(states) if each in family]


# The position up to which another region has a shard's log, and the last report of its link: one object for each.
#
# The process that owns the shard writes it. The collector of the log reads it, and so does every process that is
# asked about regions.

LOST_MAX = 64
"""Maximum number of runs of lost chunks that are kept; the first ones are joined."""
_Count = Annotated[int, Meta(ge=0)]


class StreamLag(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one stream of a shard that a region lacks."""

    tenant: str
    stream: str
    records: _Count
    """From the first one on that the region is not known to have."""
    bytes: int | None = None
    """Approximate bytes of these records as they are stored; None while unknown."""
    seconds: float = 0.0
    """Age of the oldest chunk with such records, at most."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a link as its process last wrote it, for people."""

    at: int
    """Time of the report, nanoseconds since 1970."""
    state: str
    error: str = ""
    """Last error, with advice; empty while none lasts."""
    error_at: int | None = None
    lag_records: int | None = None
    """Records that the region is not known to have; None while it is unknown, before the link has caught up once."""
    lag_bytes: int | None = None
    """Approximate bytes of these records as they are stored; None likewise."""
    lag_seconds: float = 0.0
    """Age of the oldest chunk with such records."""
    host: str = ""
    """Name of the process."""
    hold: str = ""
    """The reason for which no data is sent, and until when; empty while it is, or an error is there."""
    streams: tuple[StreamLag, ...] = ()
    """Those that are behind, the longest first; the first ones if there are many."""
    streams_behind: _Count = 0
    """Number of all that are behind."""


class RegionPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The position of one region in the log of one shard."""

    next: _Count
    """The region has all that the chunks below this number have to be relayed, but for ``lost``."""
    peer: str = ""
    """Cluster id of the region, 32 hexadecimal digits; empty before the first connection."""
    restored: int = 0
    """``Cluster.restored`` of the log's own store: the position means nothing in another history."""
    comparison: int = 0
    """Number of the comparison to which the position belongs (``RegionDocument.comparison``)."""
    records: int | None = None
    """Number of records below ``next`` in the streams that are relayed; None while it is unknown."""
    lost: tuple[tuple[int, int], ...] = ()
    """Chunks that were collected before the region had their records: [first, end), ascending."""
    report: Report | None = None


def with_lost(lost: tuple[tuple[int, int], ...], first: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return runs of lost chunks with a further one, which joins the last one unless it is behind it, at most
    ``LOST_MAX``."""
    if lost and lost[-1][1] >= first:
        return (*lost[:-1], (min(lost[-1][0], first), max(lost[-1][1], end)))
    more = (*lost, (first, end))
    return more if len(more) <= LOST_MAX else ((more[0][0], more[1][1]), *more[2:])


class RegionPositions:
    """The positions in one store. Every method may raise ``StoreError``."""

    def __init__(self, store: ObjectStore, cluster: Cluster) -> None:
        self.store, self._restored = store, cluster.restored

    async def read(self, name: str, shard: int) -> tuple[RegionPosition | None, str | None]:
        """Return a region's position with the object's etag. No position if there is none, or it is of a history that
        the store was restored from: the region then has what it says it holds."""
        try:
            found = await self.store.get(hub_keys.region_key(name, shard))
        except NotFound:
            return None, None
        try:
            position = msgspec.json.decode(found.data, type=RegionPosition)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None, found.etag  # it is replaced: starting at the log's beginning only costs time
        return (position if position.restored == self._restored else None), found.etag

    async def write(self, name: str, shard: int, position: RegionPosition, etag: str | None) -> str | None:
        """Store a position in place of the one with ``etag``. Return the new etag; None if another process was
        first."""
        key = hub_keys.region_key(name, shard)
        data = msgspec.json.encode(msgspec.structs.replace(position, restored=self._restored))
        return await replace(self.store, key, data, etag)
