"""Copies of objects from one store to another, in bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256

from weft.proofs.backup.record import BackupUnusable
from weft.storage.object_store import AlreadyExists, ObjectStore
from weft.storage.object_store.protocol import Buffer

AT_ONCE = 8
WHOLE_BYTES_MAX = 4 << 20
"""Size up to which an object is copied in one piece; of larger ones ``PIECE_BYTES`` are in memory."""
PIECE_BYTES = 4 << 20
CONTENTS = "contents"


class Unlike(BackupUnusable):
    """An object that is not the one that was to be copied."""


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
            Unlike: it has another length.
        """
        await self._copy(size, to, self._pieces(key, size))

    async def copy_kept(self, key: str, size: int, content: str) -> None:
        """Copy an object out of a backup, whose content has to be that of its key there.

        Raises:
            NotFound: the object is gone.
            Unlike: it has another length or content.
        """
        await self._copy(size, key, checked(key, content, self._pieces(key, size)))

    async def _copy(self, size: int, to: str, pieces: AsyncIterator[bytes]) -> None:
        if size <= WHOLE_BYTES_MAX:
            await self.put(to, b"".join([piece async for piece in pieces]))
            return
        try:
            await self.target.create_from(to, pieces)
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

    def _pieces(self, key: str, size: int) -> AsyncIterator[bytes]:
        return pieces(self.source, key, size)


async def pieces(source: ObjectStore, key: str, size: int) -> AsyncIterator[bytes]:
    """Yield an object in pieces.

    Raises:
        NotFound: the object is gone.
        Unlike: it has another length.
    """
    for at in range(0, size, PIECE_BYTES):
        length = min(PIECE_BYTES, size - at)
        is_last = at + length == size
        # One byte more than there should be: what is longer is not read on.
        piece = await source.get_range(key, at, length + is_last)
        if len(piece) != length:
            raise Unlike(f"{key} has another length than the {size} bytes that it is said to have")
        yield piece


async def checked(key: str, content: str, found: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces of an object of a backup.

    Raises:
        Unlike: with the last piece: they are not the content that the key ``content`` in the backup names.
    """
    digest = sha256()
    async for piece in found:
        digest.update(piece)
        yield piece
    if f"{CONTENTS}/{digest.hexdigest()}" != content:
        raise Unlike(f"{key} is not what {content} was when the backup was made")


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
