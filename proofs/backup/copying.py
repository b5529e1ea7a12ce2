"""Copies of objects from one store to another, in bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256

from weft.storage.object_store import AlreadyExists, ObjectStore
from weft.storage.object_store.protocol import Buffer

AT_ONCE = 8
WHOLE_BYTES_MAX = 4 << 20
"""Size up to which an object is copied in one piece; of larger ones ``PIECE_BYTES`` are in memory."""
PIECE_BYTES = 4 << 20
CONTENTS = "contents"


@dataclass
class Copied:
    """Counts of one run."""

    objects: int = 0
    bytes: int = 0
    there: int = 0
    """Objects that an earlier run had copied."""


def content_key(data: bytes) -> str:
    """Return the key of an object that is kept by its content."""
    return f"{CONTENTS}/{sha256(data).hexdigest()}"


class Copier:
    """Copies objects of one store into another, and counts them."""

    def __init__(self, source: ObjectStore, target: ObjectStore) -> None:
        self.source, self.target = source, target
        self.counts = Copied()

    async def copy(self, key: str, size: int, to: str) -> None:
        """Copy an object that never changes. One that is there already is the same: names of objects are given once.

        Args:
            to: its key in the target.

        Raises:
            NotFound: the object is gone.
        """
        if size <= WHOLE_BYTES_MAX:
            await self.put(to, (await self.source.get(key)).data)
            return
        try:
            await self.target.create_from(to, self._pieces(key, size))
        except AlreadyExists:
            self.counts.there += 1
        else:
            self._count(size)

    async def keep(self, key: str, size: int) -> str:
        """Copy an object that may change, under a key of its content, which is returned.

        Raises:
            NotFound: the object is gone.
        """
        if size <= WHOLE_BYTES_MAX:
            data = (await self.source.get(key)).data
            await self.put(to := content_key(data), data)
            return to
        # Read twice: what is as long as this changes no more.
        digest = sha256()
        async for piece in self._pieces(key, size):
            digest.update(piece)
        await self.copy(key, size, to := f"{CONTENTS}/{digest.hexdigest()}")
        return to

    async def put(self, key: str, data: Buffer) -> bool:
        """Create an object. Return False if there is one."""
        try:
            await self.target.create(key, data)
        except AlreadyExists:
            self.counts.there += 1
            return False
        self._count(len(data))
        return True

    def _count(self, size: int) -> None:
        self.counts.objects += 1
        self.counts.bytes += size

    async def _pieces(self, key: str, size: int) -> AsyncIterator[bytes]:
        for at in range(0, size, PIECE_BYTES):
            yield await self.source.get_range(key, at, PIECE_BYTES)


class CopyTurns:
    """Runs calls, at most ``AT_ONCE`` at a time. The first error ends them all."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: BaseException | None = None

    async def add(self, call: Callable[[], Awaitable[None]]) -> None:
        """Start a call once there is a place. Raise the error of an earlier one."""
        await self._places.acquire()
        if self._failed is not None:
            self._places.release()
            await self.join()
        task = asyncio.create_task(self._run(call))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def _run(self, call: Callable[[], Awaitable[None]]) -> None:
        await call()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._places.release()
        if not task.cancelled() and (error := task.exception()) is not None and self._failed is None:
            self._failed = error

    async def join(self) -> None:
        """Wait for all calls. Raise the first error."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        if self._failed is not None:
            raise self._failed


async def missing(
    source: AsyncIterator[tuple[str, int]], there: AsyncIterator[tuple[str, int]]
) -> AsyncIterator[tuple[str, int]]:
    """Yield the (name, size) of a listing that another one lacks. Both ascend by name."""
    other: tuple[str, int] | None = ("", 0)
    async for item in source:
        while other is not None and other[0] < item[0]:
            other = await anext(there, None)
        if other is None or other[0] != item[0]:
            yield item
