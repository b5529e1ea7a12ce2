"""Collector of a hub: deletes chunks that are in the tables and older than the retention of the settings.

Readers and writers may be paused at any moment, so deleting has two steps. First the manifest's watermark is raised: it
shows readers that chunks below it are no longer needed. The chunks are deleted only ``grace_s`` later, far longer than
a read watermark is valid. All records below a watermark are in the tables and in snapshots, so a chunk that a paused
writer makes there again was never acknowledged, and is deleted too.

The watermark stays below the newest chunk and the newest snapshots. Where a shard is idle, the collector writes those
itself, without records, so that the last records go in their time as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.clock import WRONG_NS, ClockWrong, HubClock
from weft.cloud_hub.shard.lane_ends import Ending, write_chunk
from weft.cloud_hub.shard.sequencer import thin_snapshots, write_snapshot
from weft.protocols.chunk_index import StreamKey
from weft.protocols.errors import CodecError, Corrupt
from weft.protocols.lane import DOWN_STREAM, Lane
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.shard_state import ShardState
from weft.storage import hub_keys
from weft.storage.chunk_log import SNAPSHOTS_TO_START, CollectedPast, Manifest, RegionPositions, ShardLog, changed
from weft.storage.object_store import NotFound, ObjectStore, StoreError

logger = logging.getLogger(__name__)

GRACE_S = 900.0
"""G of docs/architecture.md: time between raising the watermark and deleting."""
INTERVAL_S_MIN, INTERVAL_S_MAX = 60.0, 3600.0
"""Bounds of the interval of rounds, which is a tenth of the time that chunks are kept: each costs two listings."""
DELETES_MAX = 10_000
"""Maximum number of chunks of a shard that a round deletes."""
DELETES_AT_ONCE = 8
LISTED_MAX = 1000
_NS = 1_000_000_000

Terms = Callable[[], Mapping[StreamKey, int]]
"""Function that returns the seconds for which chunks with records of some streams are kept."""
Tabled = Callable[[int], Awaitable[int | None]]
"""Function from a shard to the number of its first chunk with records that a table lacks; None while that is not
certain."""


class Pins:
    """Positions of other regions in the logs: chunks that a region lacks are kept for some time.

    Args:
        pins_s: name of a region -> seconds for which such chunks are kept.
    """

    def __init__(self, positions: RegionPositions, pins_s: Mapping[str, float]) -> None:
        self._positions, self._pins_s = positions, pins_s

    async def of(self, shard: int) -> list[tuple[int, int]]:
        """Return, for each region, the first chunk that it lacks, and for how many nanoseconds it is kept."""
        found = []
        for name, pin_s in self._pins_s.items():
            position, _ = await self._positions.read(name, shard)
            found.append((0 if position is None else position.next, int(pin_s * _NS)))
        return found


class _Head(NamedTuple):
    """The last chunk of a log."""

    n: int
    created: int
    """Nanoseconds since 1970."""
    has_records: bool


class ShardCollector:
    """The collector of one shard. Any number may work on one shard: each waits independently.

    Args:
        retain_s: minimum age of deleted chunks, by their creation time.
        wall_clock: nanoseconds since 1970.
        boot_clock: nanoseconds on a clock that counts suspend.
        terms: minimum ages of chunks with records of some streams, where they are longer.
        pins: positions of other regions; None without any.
    """

    def __init__(
        self,
        log: ShardLog,
        tabled: Tabled,
        retain_s: float,
        *,
        clock: HubClock,
        grace_s: float = GRACE_S,
        terms: Terms = dict,
        pins: Pins | None = None,
    ) -> None:
        self._pins = pins
        self.shard = log.shard
        self.watermark = 0
        """The watermark as last read or raised."""
        self.deleted = 0
        """Number of chunks deleted since the start of this node."""
        self._log = log
        self._tabled = tabled
        self._retain = int(retain_s * _NS)
        self._clock, self._terms = clock, terms
        self._grace = int(grace_s * _NS)
        self._seen: deque[tuple[int, int]] = deque()
        """Watermarks with the boot time at which this node learned of them, ascending."""
        self._head: _Head | None = None
        """The log's last chunk, as last read."""

    async def look(self) -> bool:
        """Do one round: raise the watermark, and delete what has been below it for long enough.

        Return whether there are more chunks to delete at once.

        Raises:
            StoreError, Corrupt, NotFound, CollectedPast: the next round tries again.
        """
        self._clock.sound()
        # Asked in each round: a table that was moved away since would otherwise lose the only source from which it
        # can be made again.
        tabled = await self._tabled(self.shard)
        if tabled is None:
            return False  # nothing is deleted, even below the watermark: chunks may be needed to repair a table
        manifest, etag = await self._log.manifest()
        self._note(manifest.watermark)
        wanted = await self._wanted(manifest, tabled)
        if wanted > manifest.watermark and await self._log.swap_manifest(changed(manifest, watermark=wanted), etag):
            logger.info("shard %d: chunks below %d are in the tables, and will be deleted", self.shard, wanted)
            self._note(wanted)
        elif (head := await self._idle_head(manifest)) is not None and head.n < tabled:
            await self._continue_idle(manifest, head)
        # Only what this process has known to be passed for the whole grace. A reader believes "not there" with a
        # watermark at most a minute old, so it cannot take a deleted chunk for the end of the log.
        return await self._delete_below(min(self._ripe(), tabled))

    def _note(self, watermark: int) -> None:
        """Note a watermark of the manifest."""
        if watermark < self.watermark:
            # The store was restored to an earlier state, and the noted watermarks do not apply to it.
            self._seen.clear()
        # By this process's own clock: another node's time, or the manifest's, could be wrong by hours.
        if not self._seen or self._seen[-1][1] < watermark:
            self._seen.append((self._clock.boot(), watermark))
        self.watermark = watermark

    def _ripe(self) -> int:
        """Return the newest watermark that every reader and writer has had time to read."""
        until = self._clock.boot() - self._grace
        while len(self._seen) > 1 and self._seen[1][0] <= until:
            self._seen.popleft()
        return self._seen[0][1] if self._seen and self._seen[0][0] <= until else 0

    async def _wanted(self, manifest: Manifest, tabled: int) -> int:
        """Return the number up to which the watermark may be raised."""
        # Snapshots that the manifest does not name yet may belong to a node that lost the race, and cannot be started
        # from with certainty.
        snapshots = [n for n, _ in await self._log.snapshots() if n <= manifest.snapshot_n][-SNAPSHOTS_TO_START:]
        if not snapshots or manifest.snapshot is None:
            return 0
        # Never above a snapshot's n: a node that starts from it would treat itself as passed by the collector. Below
        # the oldest of the newest snapshots, so that any of them can be lost while the chunks after the oldest exist.
        high = min(tabled, snapshots[0])
        if high <= manifest.watermark:
            return 0
        # Without it the chunks are the only source of the state.
        state, now = await self._log.snapshot(manifest.snapshot), self._clock.sound()
        # Messages to edges that are away wait in these chunks, and are kept for them for a bounded time.
        until = min(now - self._retain, spared_from(state, now) - 1)
        end = await self._first_kept(manifest.watermark, high, now, until)
        end = await self._first_of_terms(state, manifest.watermark, end, now)
        return await self._first_pinned(manifest.watermark, end, now)

    async def _idle_head(self, manifest: Manifest) -> _Head | None:
        """Return the last chunk of a log that has none younger than the retention; None of other logs."""
        n = manifest.snapshot_n
        after = hub_keys.chunk_key(self.shard, n) if n >= 0 else None
        listed = await self._log.store.list(hub_keys.chunk_prefix(self.shard), after=after, limit=LISTED_MAX)
        if len(listed) == LISTED_MAX:
            return None  # a log that is so far ahead of its snapshots is not idle
        n = max([n, *(number for each in listed if (number := hub_keys.number_of(each.key)) is not None)])
        if n < 0:
            return None
        if self._head is None or self._head.n != n:  # a chunk never changes: one request for each head
            chunk = await self._log.index(n)
            if chunk is None:
                return None
            self._head = _Head(n, chunk.header.created, bool(chunk.footer.streams))
        return self._head if self._head.created <= self._clock.sound() - self._retain else None

    async def _continue_idle(self, manifest: Manifest, head: _Head) -> None:
        """Write a chunk without records behind an idle log, and snapshots of it, unless it ends so already."""
        known = [n for n, _ in await self._log.snapshots() if n <= manifest.snapshot_n][-SNAPSHOTS_TO_START:]
        if known and known[0] >= head.n and not head.has_records:
            return
        state = await self._log.load()
        if state.n != head.n or not state.is_whole:
            return  # an edge is back, or a later release makes the snapshots
        if head.has_records:
            created = max(self._clock.sound(), state.created)
            folded = await write_chunk(self._log, state, Ending([], []), created, secrets.randbits(64))
            if folded is None:
                return
            state.accept(folded)
        data = await asyncio.to_thread(state.freeze())
        # As many as a start relies on. The one that the manifest names is the last, so that a round that was
        # interrupted is made again.
        for _ in range(SNAPSHOTS_TO_START - 1):
            await self._log.put_snapshot(state.n, secrets.randbits(64), data)
        await write_snapshot(self._log, state.n, data, secrets.randbits(64))
        await thin_snapshots(self._log)
        logger.info("shard %d is idle: chunk %d has no records, and the chunks before it can go", self.shard, state.n)

    async def _first_pinned(self, low: int, end: int, now: int) -> int:
        """Return the first chunk from ``low`` on that is kept for another region, at most ``end``."""
        for position, pin in await self._pins.of(self.shard) if self._pins is not None else ():
            # A region that is away keeps the log for as long as its pin says, and no longer, so that it cannot fill
            # this region's store.
            if position < end:
                end = max(position, await self._first_kept(low, end, now, now - pin))
        return end

    async def _first_of_terms(self, state: ShardState, low: int, end: int, now: int) -> int:
        """Return the first chunk from ``low`` on that is kept for a stream with a term of its own, at most ``end``.

        Args:
            state: state of the shard after ``end``.
        """
        firsts: dict[int, int] = {}
        for key, term in sorted(self._terms().items(), key=lambda each: -each[1]):
            if not state.next_offset.get(key) or term * _NS <= self._retain:
                continue
            if term not in firsts:
                firsts[term] = await self._first_kept(low, end, now, now - term * _NS)
            if firsts[term] >= end:
                return end  # those of shorter terms begin later
            # The log keeps a range of chunks: from here on, it has the records of all other streams, too.
            if (await self._log.around(*key, firsts[term])).start < state.next_offset[key]:
                return firsts[term]
        return end

    async def _first_kept(self, low: int, high: int, now: int, until: int) -> int:
        """Return the first chunk from ``low`` on that is younger than ``until``, at most ``high``."""
        while low < high:
            # A search by halves reads some twenty footers of a log of a million chunks.
            middle = witness = (low + high) // 2
            created = await self._created(middle)
            if created > now + WRONG_NS:  # a wrong clock's: the first chunk after its time was lowered is not older
                witness = await self._first_sound(middle + 1, high, now)
                created = await self._created(witness) if witness < high else created
            if created <= until:  # times do not go back from chunk to chunk, but for a lowered one
                low = witness + 1
            else:
                high = middle
        return low

    async def _first_sound(self, low: int, high: int, now: int) -> int:
        """Return the first chunk from ``low`` on that is not in the future, ``high`` without one; of several such runs
        of chunks, any run's first."""
        while low < high:
            middle = (low + high) // 2
            if await self._created(middle) > now + WRONG_NS:
                low = middle + 1
            else:
                high = middle
        return low

    async def _created(self, n: int) -> int:
        chunk = await self._log.index(n)
        if chunk is None:
            raise Corrupt(f"{hub_keys.chunk_key(self.shard, n)} is missing; nothing is deleted from this shard")
        return chunk.header.created

    async def _delete_below(self, end: int) -> bool:
        """Delete chunks below ``end``, also those that a paused writer made again after they were deleted."""
        if not end:
            return False
        store, prefix, places = self._log.store, hub_keys.chunk_prefix(self.shard), asyncio.Semaphore(DELETES_AT_ONCE)

        async def delete(key: str) -> None:
            async with places:
                await _delete(store, key)

        after, last, deleted = None, hub_keys.chunk_key(self.shard, end), 0
        # A round ends, so that one shard with a long past does not keep the others waiting.
        while deleted < DELETES_MAX:
            listed = [item.key for item in await store.list(prefix, after=after, limit=LISTED_MAX)]
            # Everything listed below the watermark goes at any time. So a number that a paused writer creates again is
            # deleted too, and no acknowledgement can rest on it.
            old = [key for key in listed if key < last]
            await asyncio.gather(*map(delete, old))
            deleted += len(old)
            self.deleted += len(old)
            if len(old) < LISTED_MAX:
                break
            after = old[-1]
        if deleted:
            logger.info("shard %d: deleted %d chunks below %d", self.shard, deleted, end)
        return deleted >= DELETES_MAX


async def _delete(store: ObjectStore, key: str) -> None:
    with contextlib.suppress(NotFound):  # another node's collector was faster
        await store.delete(key)


class Collector:
    """The collectors of a hub process.

    Args:
        logs: the shards' logs; new ones may appear at the end.
        in_round: context of one round over all shards, in which ``tabled`` may use again what it has read.
    """

    def __init__(
        self,
        logs: Iterable[ShardLog],
        tabled: Tabled,
        retain_s: float,
        *,
        clock: HubClock,
        grace_s: float = GRACE_S,
        terms: Terms = dict,
        pins: Pins | None = None,
        in_round: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._in_round, self._logs = in_round, logs
        self._make = partial(
            ShardCollector, tabled=tabled, retain_s=retain_s, clock=clock, grace_s=grace_s, terms=terms, pins=pins
        )
        self.shards = [self._make(log) for log in logs]
        self._interval_s = min(max(retain_s / 10, INTERVAL_S_MIN), INTERVAL_S_MAX)
        self._task = BackgroundTask()

    def start(self) -> None:
        """Start the rounds."""
        self._task.start(self._run(), name="collector")

    async def close(self) -> None:
        """Stop. A round may stop anywhere; the next one, of any node, continues."""
        await self._task.close()

    async def _run(self) -> None:
        while True:
            more = await self.look()
            await asyncio.sleep(INTERVAL_S_MIN if more else self._interval_s)

    async def look(self) -> bool:
        """Do one round over the shards. Return whether there are more chunks to delete."""
        more = False
        self.shards += [self._make(log) for log in list(self._logs)[len(self.shards) :]]
        with self._in_round():
            for shard in self.shards:
                try:
                    more |= await shard.look()
                except (StoreError, CodecError, NotFound, CollectedPast, ClockWrong) as error:
                    logger.warning("shard %d: old chunks were not collected: %s", shard.shard, error)
        return more


# Messages to edges (``cloud_hub.down``) that wait, as a shard's state has them: their chunks are kept.

SPARED_NS_MAX = 8 * 86_400 * 10**9
"""Longest time that chunks are kept for messages that wait: a day longer than the longest expiry."""
BEFORE_NS = 10**9
"""Nanoseconds by which a chunk may be older than its messages: a lane's times only grow, so those that are accepted at
once, or by processes whose clocks differ, may be ahead of the clock."""


def waits_from(held: LaneState | None) -> tuple[int, int] | None:
    """Return time and number from which a lane has messages without an outcome; None if it has none."""
    if held is None or not held.ranges:
        return None
    mark = held.whole_mark
    time, seq = (0, 0) if mark is None else (mark.time, mark.seq)
    return (time, seq) if seq < held.ranges.end else None


def waiting_lanes(state: ShardState) -> dict[Lane, tuple[int, int]]:
    """Return the lanes with messages that wait, each as ``waits_from``."""
    found = {}
    for lane, held in state.lanes.items():
        if lane.stream == DOWN_STREAM and (since := waits_from(held)) is not None:
            found[lane] = since
    return found


def spared_from(state: ShardState, now: int) -> int:
    """Return the moment from which chunks are kept because messages in them wait: at most ``SPARED_NS_MAX`` ago, and
    ``now`` if none waits."""
    times = [time for time, _ in waiting_lanes(state).values()]
    return max(min(times) - BEFORE_NS, now - SPARED_NS_MAX) if times else now
