"""One node's view of a shared store, with everything that stores are known to do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypeVar

from weft.storage.object_store import AlreadyExists, Object, ObjectStore, StoreError
from weft.storage.object_store.protocol import Buffer, Listing

T = TypeVar("T")


@dataclass(frozen=True)
class Faults:
    """Probabilities, and seconds."""

    lost: float = 0.0
    """A write fails and did not happen."""
    unreported: float = 0.0
    """A write happens and is reported as failed."""
    misreported: float = 0.0
    """A write happens and is reported as AlreadyExists, as a client's own retry makes it."""
    late: float = 0.0
    """A write is reported as failed and happens up to ``late_s`` later, or finds the key taken then."""
    late_s: float = 3.0
    read: float = 0.0
    """A read fails."""
    latency_s: float = 0.02


CALM = Faults()
DEAD = Faults(lost=1.0, read=1.0)
"""Nothing works for this node, as when its credentials have expired."""
FULL = Faults(lost=1.0)
"""Nothing can be written, as when a bucket's quota is used up."""
STORM = Faults(lost=0.08, unreported=0.1, misreported=0.08, late=0.12, read=0.06)


class FaultyStore:
    """``ObjectStore`` over a shared one. ``running`` is cleared while the node is paused."""

    def __init__(self, inner: ObjectStore, rng: random.Random, faults: Faults = CALM) -> None:
        self.inner = inner
        self.faults = faults
        self.running = asyncio.Event()
        self.running.set()
        self.late: set[asyncio.Task[None]] = set()
        self._rng = rng

    async def _step(self) -> None:
        await asyncio.sleep(self._rng.random() * self.faults.latency_s)
        await self.running.wait()

    async def create(self, key: str, data: Buffer) -> str:
        await self._step()
        faults, drawn = self.faults, self._rng.random()
        if drawn < faults.lost:
            raise StoreError("lost")
        drawn -= faults.lost
        if drawn < faults.late:
            task = asyncio.create_task(self._create_late(key, bytes(data)))
            self.late.add(task)
            task.add_done_callback(self.late.discard)
            raise StoreError("timed out")
        drawn -= faults.late
        etag = await self.inner.create(key, data)
        await self._step()
        if drawn < faults.unreported:
            raise StoreError("the answer was lost")
        if drawn < faults.unreported + faults.misreported:
            raise AlreadyExists(key)
        return etag

    async def create_from(self, key: str, parts: AsyncIterator[Buffer]) -> int:
        data = b"".join([bytes(part) async for part in parts])
        await self.create(key, data)
        return len(data)

    async def _create_late(self, key: str, data: bytes) -> None:
        await asyncio.sleep(self._rng.random() * self.faults.late_s)
        try:
            await self.inner.create(key, data)
        except AlreadyExists:
            pass

    async def swap(self, key: str, data: Buffer, expected_etag: str) -> str:
        await self._step()
        if self._rng.random() < self.faults.lost:
            raise StoreError("lost")
        etag = await self.inner.swap(key, data, expected_etag)
        if self._rng.random() < self.faults.unreported:
            raise StoreError("the answer was lost")
        return etag

    async def _read(self) -> None:
        await self._step()
        if self._rng.random() < self.faults.read:
            raise StoreError("no answer")

    async def get(self, key: str) -> Object:
        await self._read()
        found = await self.inner.get(key)
        await self._step()
        return found

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await self._read()
        found = await self.inner.get_range(key, start, length)
        await self._step()
        return found

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        await self._read()
        return await self.inner.list(prefix, after, limit)

    async def delete(self, key: str) -> None:
        await self._read()
        await self.inner.delete(key)

    async def sync(self, key: str) -> None:
        await self.inner.sync(key)

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        return self.inner.location(key)
