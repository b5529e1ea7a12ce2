"""The disk of a store in a folder: its free space, and how long that lasts. A bucket has no such bound."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypedDict

from weft.bounds.background import BackgroundTask
from weft.config.metrics.exposition import Sample
from weft.storage.object_store import ObjectStore, StoreError
from weft.storage.object_store.directory import DirectoryStore

LOOK_S = 60.0
DAY_S = 86_400.0
GROWTH_AFTER_S = 3600.0
"""Time over which free space is seen before its fall is a rate: a table that is written again takes and gives some."""


class DiskView(TypedDict):
    """Facts about the disk."""

    free_bytes: int | None
    """Bytes that the hub's user may still write; None if the file system does not answer."""
    bytes_per_day: float | None
    """Bytes by which these fall in a day, by the time below; negative: they rise. None until an hour was seen."""
    seen_seconds: float
    """Time over which the process has seen them, at most a day."""
    seconds_left: float | None
    """Time until nothing is free at this rate; None if the rate is unknown, or nothing falls."""


class StoreDisk:
    """Free space of a store's file system over the last day, as this process has seen it since its start.

    Whatever else is written to the file system counts, as it shortens the time too.

    Args:
        store: without its fence. Of one that is no folder nothing is known.
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
        """Begin to look, once a minute."""
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
        """Note the free space. While the store is not in its place, that of another disk does not count."""
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

    def view(self) -> DiskView | None:
        """Return what is known; None for a store that is no folder."""
        if self._directory is None:
            return None
        if not self._seen:
            return DiskView(free_bytes=None, bytes_per_day=None, seen_seconds=0.0, seconds_left=None)
        (began, before), (at, free) = self._seen[0], self._seen[-1]
        seen, rate, left = at - began, None, None
        if seen >= GROWTH_AFTER_S:
            rate = (before - free) / seen
            left = free / rate if rate > 0 else None
        return DiskView(
            free_bytes=free if self._answers else None, bytes_per_day=None if rate is None else rate * DAY_S,
            seen_seconds=seen, seconds_left=left if free else 0.0,
        )  # fmt: skip

    def samples(self) -> Iterator[Sample]:
        """Yield the free bytes for Prometheus, while they are known."""
        if self._answers:
            yield Sample("weft_hub_store_free_bytes", self._seen[-1][1])
