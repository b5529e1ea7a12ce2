"""The store of a hub process: opened and tried at the start, and held on to while the process runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from weft.bounds.background import BackgroundTask
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.disk import StoreDisk
from weft.cloud_hub.settings import HubSettings
from weft.config.units import is_bucket
from weft.storage.cluster import NEW_SHARDS, Cluster, ClusterUnusable, open_cluster, read_cluster
from weft.storage.fenced_store import FencedStore
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, StoreError, StoreUnfit, open_store
from weft.storage.object_store.placed import PlacedStore, bare
from weft.storage.object_store.probe import probe_in_sequence, race, raced_key
from weft.storage.store_formats import check_store

_logger = logging.getLogger(__name__)

T = TypeVar("T")
HICCUP_S = 15.0
"""Time of a start for which a step is tried again when a bucket does not answer it."""
AWAY_S = 60.0
"""Time for which a process that is started again waits for a store that is not in its place. Its supervisor starts it
again after that, at growing intervals."""
RACE_AFTER_S = 20.0
"""Time after the start when a store that was raced before is raced again: its edges have come back by then."""
RETRY_MIN_S, RETRY_MAX_S = 0.2, 2.0
NOTE_S = 5.0
"""Longest time that a process takes to withdraw its note about a store that breaks its promises, before it ends."""


class HubStore:
    """The store of one hub process.

    Args:
        given: instead of opening ``settings.store``.
        level: the highest level that the release knows.
    """

    def __init__(self, settings: HubSettings, given: ObjectStore | None, clock: HubClock, level: int) -> None:
        self._settings, self._given, self._clock, self._level = settings, given, clock, level
        self._is_bucket = given is None and is_bucket(settings.store)
        self._now = asyncio.get_running_loop().time
        self._began = self._now()
        self._races_later: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._task = BackgroundTask()
        self._unfit: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.fence: FencedStore
        """The store of the cluster, once it is open."""
        self.disk: StoreDisk
        """Its disk, once it is open."""

    async def open(self) -> tuple[ObjectStore, Cluster]:
        """Try the store, and return it, with the cluster in it; make one in an empty store, if the settings allow it.

        Raises:
            StoreUnfit, StoreError: the store breaks its promises, or does not answer.
            ClusterUnusable: it cannot be used for this hub, or holds none.
        """
        settings = self._settings
        store = self._given or open_store(settings.store, settings.store_options)
        second = open_store(settings.store, settings.store_options) if self._is_bucket else None
        if not settings.begins:
            await self._there(store)
        await self.answered(lambda: check_store(store, self._level))  # before the probe, which writes
        await self.answered(lambda: probe_in_sequence(store))
        note = await self.answered(lambda: raced_key(store))
        if note is None or not await self.answered(lambda: self._is_noted(store, note)):
            await self.answered(lambda: race(store, second))
        else:
            self._races_later = partial(self._race, store, second, note)
        cluster = await self.answered(
            lambda: open_cluster(
                store, settings.shards, release_level=self._level, new_shards=NEW_SHARDS if settings.begins else None
            )
        )
        self.fence = FencedStore(bare(store), cluster, self._clock.boot)
        self.disk = StoreDisk(self.fence.inner, time.monotonic)
        store = PlacedStore(self.fence)
        await self.answered(lambda: self._clock.measure(store))
        if note is not None:
            with contextlib.suppress(StoreError, AlreadyExists):
                await store.create(note, b"weft probe: raced")
        return store, cluster

    def listens(self) -> None:
        """Begin what the start has left for the time when the process serves edges."""
        self.disk.start()
        if self._races_later is not None:
            self._task.start(self._races_later(), name="store-race")

    async def close(self) -> None:
        """Stop what runs in the background."""
        await self._task.close()

    async def _race(self, store: ObjectStore, second: ObjectStore | None, note: str) -> None:
        """Race a store that an earlier start has raced: another server may answer at its address by now."""
        await asyncio.sleep(RACE_AFTER_S * (1 + self._settings.process))  # those of a node one after the other
        while True:
            try:
                await race(store, second)
                return
            except StoreError as error:
                _logger.info("the store is raced again later: %s", error)
            except StoreUnfit as error:
                # Before the process ends, since the next start then races before it serves anyone.
                with contextlib.suppress(StoreError, TimeoutError):
                    async with asyncio.timeout(NOTE_S):
                        await bare(store).delete(note)
                self._unfit.set_result(str(error))
                return
            await asyncio.sleep(RACE_AFTER_S)

    async def _is_noted(self, store: ObjectStore, note: str) -> bool:
        try:
            await store.get(note)
        except NotFound:
            return False
        return True

    async def answered(self, step: Callable[[], Awaitable[T]]) -> T:
        """Make a step of the start. A bucket that does not answer is asked again for some seconds, as a start from the
        beginning would take longer than most such troubles.

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
                _logger.warning("the start waits for the store: %s", error)
            await asyncio.sleep(wait)
            wait = min(2 * wait, RETRY_MAX_S)

    async def _there(self, store: ObjectStore) -> None:
        """Wait until the store is in its place, which held a hub before."""
        wait, is_told = RETRY_MIN_S, False
        while True:
            try:
                await read_cluster(store)
                return
            except (StoreError, ClusterUnusable) as error:
                if self._now() - self._began > AWAY_S:
                    raise
                if not is_told:
                    _logger.error("the store cannot be used at present: %s. The start waits for it", error)
                is_told = True
            await asyncio.sleep(wait)
            wait = min(2 * wait, RETRY_MAX_S)

    async def failed(self) -> str:
        """Wait until the process cannot go on with the store, and return the reason."""
        replaced = asyncio.create_task(self.fence.replaced.wait())
        try:
            ends: list[asyncio.Future[Any]] = [replaced, self._unfit]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            replaced.cancel()
        return self._unfit.result() if self._unfit.done() else self.fence.trouble or ""
