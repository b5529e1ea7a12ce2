"""The store of a hub process: opened and checked at the start, and watched while the process runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.part import Part
from weft.cloud_hub.settings import HubSettings
from weft.config.metrics.exposition import Sample
from weft.config.units import is_bucket as is_bucket_uri
from weft.hub_api.status import DiskOfStore, StoreOfNode
from weft.storage.cluster import NEW_SHARDS, Cluster, ClusterUnusable, open_cluster, read_cluster
from weft.storage.fenced_store import FencedStore, check_store
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, StoreError, StoreUnfit, open_store
from weft.storage.object_store.directory import DirectoryStore, MemoryStore
from weft.storage.object_store.opening import PlacedStore, bare, requests_of
from weft.storage.object_store.probe import probe_in_sequence, race, raced_key

logger = logging.getLogger(__name__)

T = TypeVar("T")
HICCUP_S = 15.0
"""Time of a start for which a step is retried if a bucket does not answer."""
AWAY_S = 60.0
"""Time for which a restarted process waits for a store that is not in its place. After that, its supervisor restarts it
at growing intervals."""
RACE_AFTER_S = 20.0
"""Time after the start when a store with an earlier race is raced again: its edges have reconnected by then."""
RETRY_MIN_S, RETRY_MAX_S = 0.2, 2.0
SIGN_S = 5.0
"""Longest time for some hundred signatures: some services are asked for each."""
UNSIGNED_S = 60.0
"""Time for which a store that did not sign is not asked again."""
NOTE_S = 5.0
"""Longest time that a process takes to withdraw its note about a store that breaks its promises, before it ends."""


class StoreStart:
    """The steps of opening the store at the start of a process.

    Args:
        is_bucket: whether a step is retried that the store does not answer.
    """

    def __init__(self, *, is_bucket: bool) -> None:
        self._is_bucket = is_bucket
        self._now = asyncio.get_running_loop().time
        self._began = self._now()

    async def answered(self, step: Callable[[], Awaitable[T]]) -> T:
        """Run a step of the start. Retry it for ``HICCUP_S`` if a bucket does not answer, since a restart would take
        longer than most outages.

        Raises:
            StoreError: the store did not answer.
        """
        wait = RETRY_MIN_S
        while True:
            try:
                return await step()
            except StoreError as error:
                if not self._is_bucket or self._now() - self._began > HICCUP_S:
                    raise
                logger.warning("the start waits for the store: %s", error)
            await asyncio.sleep(wait)
            wait = min(2 * wait, RETRY_MAX_S)

    async def there(self, store: ObjectStore) -> None:
        """Wait until a store that a hub has used before is in its place."""
        wait, has_warned = RETRY_MIN_S, False
        while True:
            try:
                await read_cluster(store)
                return
            except (StoreError, ClusterUnusable) as error:
                if self._now() - self._began > AWAY_S:
                    raise
                if not has_warned:
                    logger.error("the store cannot be used at present: %s. The start waits for it", error)
                has_warned = True
            await asyncio.sleep(wait)
            wait = min(2 * wait, RETRY_MAX_S)


class HubStore(Part):
    """The checked store of one hub process. Made by ``open``.

    Args:
        start: the steps of the process's start.
        raced: the store, a second door to it and the note about an earlier race, where the race was left for later.
        process: number of the process on its machine.
    """

    def __init__(
        self,
        store: PlacedStore,
        cluster: Cluster,
        fence: FencedStore,
        start: StoreStart,
        *,
        raced: tuple[ObjectStore, ObjectStore | None, str] | None,
        process: int,
    ) -> None:
        self.store, self.cluster, self.fence, self.steps = store, cluster, fence, start
        self.disk = StoreDisk(fence.inner, time.monotonic)
        self._raced, self._process = raced, process
        self._signs_from = 0.0
        self._task = BackgroundTask()
        self._unfit: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, settings: HubSettings, given: ObjectStore | None, clock: HubClock, level: int) -> HubStore:
        """Check the store, and return it with its cluster. Create a cluster in an empty store if the settings allow it.

        Args:
            given: instead of opening ``settings.store``.
            clock: compared with the store's.
            level: the highest level that the release knows.

        Raises:
            StoreUnfit, StoreError: the store breaks its promises, or does not answer.
            ClusterUnusable: it cannot be used for this hub, or holds none.
        """
        is_bucket = given is None and is_bucket_uri(settings.store)
        start = StoreStart(is_bucket=is_bucket)
        store = given or open_store(settings.store, settings.store_options)
        second = open_store(settings.store, settings.store_options) if is_bucket else None
        if not settings.begins:
            await start.there(store)
        await start.answered(lambda: check_store(store, level))  # before the probe, which writes
        await start.answered(lambda: probe_in_sequence(store))
        note = await start.answered(lambda: raced_key(store))
        raced = None
        if note is None or not await start.answered(lambda: _is_noted(store, note)):
            await start.answered(lambda: race(store, second))
        else:
            raced = store, second, note
        cluster = await start.answered(
            lambda: open_cluster(
                store, settings.shards, release_level=level, new_shards=NEW_SHARDS if settings.begins else None
            )
        )
        fence = FencedStore(bare(store), cluster, clock.boot)
        placed = PlacedStore(fence)
        await start.answered(lambda: clock.measure(placed))
        if note is not None:
            with contextlib.suppress(StoreError, AlreadyExists):
                await placed.create(note, b"weft probe: raced")
        return cls(placed, cluster, fence, start, raced=raced, process=settings.process)

    def samples(self) -> Iterator[Sample]:
        """Yield the calls of the store by kind, and the free space of its disk."""
        for kind, count in requests_of(self.store).items():
            yield Sample("weft_hub_store_requests_total", count, (kind,))
        yield from self.disk.samples()

    def views(self) -> dict[str, object]:
        """Return the part of the status about the store."""
        return {"store": StoreOfNode(self.fence.trouble, self.disk.view())}

    def start(self) -> None:
        """Begin the checks that are deferred until the process serves edges."""
        self.disk.start()
        if self._raced is not None:
            self._task.start(self._race(*self._raced), name="store-race")

    async def close(self) -> None:
        """Stop what runs in the background."""
        await self._task.close()
        await self.disk.close()

    async def signed_urls(self, keys: Sequence[str], seconds: int) -> Sequence[str] | None:
        """Return URLs by which anyone may read objects of a bucket for some time; None where the store is none, or its
        credentials could not sign, or not in time, within the last minute."""
        inner = self.fence.inner
        if isinstance(inner, DirectoryStore | MemoryStore) or asyncio.get_running_loop().time() < self._signs_from:
            return None
        from weft.storage.object_store.bucket import BucketStore  # of an extra that a hub with a folder may lack

        if not isinstance(inner, BucketStore):
            return None
        try:
            async with asyncio.timeout(SIGN_S):
                return await inner.signed_urls([await self.store.name(key) for key in keys], seconds)
        except (StoreError, TimeoutError):
            self._signs_from = asyncio.get_running_loop().time() + UNSIGNED_S
            return None

    async def _race(self, store: ObjectStore, second: ObjectStore | None, note: str) -> None:
        """Race a store that an earlier start has raced: another server may answer at its address by now."""
        await asyncio.sleep(RACE_AFTER_S * (1 + self._process))  # those of a node one after the other
        while True:
            try:
                await race(store, second)
                return
            except StoreError as error:
                logger.info("the store is raced again later: %s", error)
            except StoreUnfit as error:
                # Before the process ends, since the next start then races before it serves anyone.
                with contextlib.suppress(StoreError, TimeoutError):
                    async with asyncio.timeout(NOTE_S):
                        await bare(store).delete(note)
                self._unfit.set_result(str(error))
                return
            await asyncio.sleep(RACE_AFTER_S)

    async def failed(self) -> str:
        """Wait until the process cannot continue with the store, and return the reason."""
        replaced = asyncio.create_task(self.fence.replaced.wait())
        try:
            ends: list[asyncio.Future[Any]] = [replaced, self._unfit]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            replaced.cancel()
        return self._unfit.result() if self._unfit.done() else self.fence.trouble or ""


async def _is_noted(store: ObjectStore, note: str) -> bool:
    try:
        await store.get(note)
    except NotFound:
        return False
    return True


# The disk of a store in a folder: its free space, and how long that lasts. A bucket has no such bound.

LOOK_S = 60.0
DAY_S = 86_400.0
GROWTH_AFTER_S = 3600.0
"""Time for which free space is observed before its rate is reported: rewriting a table takes and releases some."""


class StoreDisk:
    """Free space of a store's file system over the last day, as observed by this process since its start.

    Everything written to the file system counts, since it shortens the remaining time.

    Args:
        store: the store without its fence. Only a folder has a known free space.
        monotonic: seconds.
    """

    def __init__(self, store: ObjectStore, monotonic: Callable[[], float]) -> None:
        self._directory = store if isinstance(store, DirectoryStore) else None
        self._monotonic = monotonic
        self._seen: deque[tuple[float, int]] = deque(maxlen=int(DAY_S / LOOK_S) + 1)
        """Moments and free bytes."""
        self._answers = False
        self._task = BackgroundTask()

    def start(self) -> None:
        """Begin to read the free space, once a minute."""
        if self._directory is not None:
            self._task.start(self._run(self._directory), name="store-disk")

    async def close(self) -> None:
        """Stop."""
        await self._task.close()

    async def _run(self, directory: DirectoryStore) -> None:
        while True:
            await self.look(directory)
            await asyncio.sleep(LOOK_S)

    async def look(self, directory: DirectoryStore) -> None:
        """Record the free space, unless the store is not in its place: it would be another disk's."""
        try:
            free = await directory.free_bytes()
        except StoreError:
            self._answers = False
            return
        now = self._monotonic()
        self._seen.append((now, free))
        while self._seen[0][0] < now - DAY_S:
            self._seen.popleft()
        self._answers = True

    def view(self) -> DiskOfStore | None:
        """Return the free space and its rate; None for a store that is not a folder."""
        if self._directory is None:
            return None
        if not self._seen:
            return DiskOfStore(free_bytes=None, bytes_per_day=None, seen_seconds=0.0, seconds_left=None)
        (began, before), (at, free) = self._seen[0], self._seen[-1]
        seen, rate, left = at - began, None, None
        if seen >= GROWTH_AFTER_S:
            rate = (before - free) / seen
            left = free / rate if rate > 0 else None
        return DiskOfStore(
            free_bytes=free if self._answers else None,
            bytes_per_day=None if rate is None else rate * DAY_S,
            seen_seconds=seen,
            seconds_left=left if free else 0.0,
        )

    def samples(self) -> Iterator[Sample]:
        """Yield the free bytes for Prometheus, while they are known."""
        if self._answers:
            yield Sample("weft_hub_store_free_bytes", self._seen[-1][1])
