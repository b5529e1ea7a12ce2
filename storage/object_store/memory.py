"""The store in memory: for tests, demonstrations and simulation. Durable only as long as the process."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import AsyncIterator, Callable
from hashlib import blake2b

from weft.storage.object_store.errors import AlreadyExists, NotFound, PreconditionFailed, StoreUnfit
from weft.storage.object_store.protocol import (
    Buffer,
    Listed,
    Listing,
    Object,
    Written,
    check_key,
    check_prefix,
    clamp_range,
)


def content_etag(data: Buffer) -> str:
    """Return an etag that depends only on the bytes, like S3's, so that code which relies on more fails here too."""
    return blake2b(data, digest_size=16).hexdigest()


class MemoryStore:
    """An ``ObjectStore`` in a dict. No method waits, so every call is atomic within an event loop.

    Args:
        clock: nanoseconds since 1970 by the store's clock; without it, objects do not record when they were written.
    """

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock
        self._objects: dict[str, Object] = {}
        self._keys: list[str] = []

    async def create(self, key: str, data: Buffer) -> str:
        """Make an object that must not exist yet."""
        if check_key(key) in self._objects:
            raise AlreadyExists(key)
        insort(self._keys, key)
        return self._put(key, data)

    async def create_from(self, key: str, parts: AsyncIterator[Buffer]) -> int:
        """Make an object that must not exist yet, from its parts."""
        data = b"".join([bytes(part) async for part in parts])
        await self.create(key, data)
        return len(data)

    async def swap(self, key: str, data: Buffer, expected_etag: str) -> str:
        """Replace an object if its etag still is ``expected_etag``."""
        found = self._objects.get(check_key(key))
        if found is None or found.etag != expected_etag:
            raise PreconditionFailed(f"{key}: {'missing' if found is None else 'changed'}")
        return self._put(key, data)

    async def get(self, key: str) -> Object:
        """Return the whole object."""
        found = self._objects.get(check_key(key))
        if found is None:
            raise NotFound(key)
        return found

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of an object."""
        data = (await self.get(key)).data
        first, end = clamp_range(len(data), start, length)
        return data[first:end]

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        """Return objects below a folder, ascending."""
        prefix = check_prefix(prefix)
        start = f"{prefix}/" if prefix else ""
        found: Listing = []
        for key in self._keys[bisect_right(self._keys, max(start, after or "")) :]:
            if not key.startswith(start) or (limit is not None and len(found) >= limit):
                break
            found.append(Listed(key, len(self._objects[key].data)))
        return found

    async def delete(self, key: str) -> None:
        """Remove an object."""
        if self._objects.pop(check_key(key), None) is not None:
            self._keys.remove(key)

    async def sync(self, key: str) -> None:
        """Do nothing: there is nothing to make durable."""
        await self.get(key)

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        """Refuse: other libraries cannot see this process's memory."""
        raise StoreUnfit(f"{key}: a store in memory cannot hold tables; give the hub a directory or a bucket")

    def _put(self, key: str, data: Buffer) -> str:
        written = Written(self._clock(), by_store=True) if self._clock is not None else None
        self._objects[key] = Object(bytes(data), content_etag(data), written)
        return self._objects[key].etag
