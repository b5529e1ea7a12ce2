"""Store that cannot be changed: for commands that only read, so that no change is without its line in the record."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NoReturn

from weft.storage.object_store.placed import PlacedStore, bare
from weft.storage.object_store.probe import PREFIX
from weft.storage.object_store.protocol import Buffer, Listing, Object, ObjectStore


class ReadOnly(RuntimeError):
    """A change of a store that was opened for reading."""


class _ReadOnlyStore:
    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    async def create(self, key: str, data: Buffer) -> str:
        if not key.startswith(f"{PREFIX}/"):  # a look at the store's clock
            _refuse(key)
        return await self._inner.create(key, data)

    async def create_from(self, key: str, parts: AsyncIterator[Buffer]) -> int:  # noqa: ARG002
        _refuse(key)

    async def swap(self, key: str, data: Buffer, expected_etag: str) -> str:  # noqa: ARG002
        _refuse(key)

    async def delete(self, key: str) -> None:
        if not key.startswith(f"{PREFIX}/"):
            _refuse(key)
        await self._inner.delete(key)

    async def sync(self, key: str) -> None:
        await self._inner.sync(key)

    async def get(self, key: str) -> Object:
        return await self._inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._inner.get_range(key, start, length)

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        return await self._inner.list(prefix, after, limit)

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        return self._inner.location(key)


def read_only(store: ObjectStore) -> ObjectStore:
    """Return the same store without a way to change it, except for objects of a look at its clock. Libraries that open
    a place by its ``location`` are not held back."""
    return PlacedStore(_ReadOnlyStore(bare(store)))


def _refuse(key: str) -> NoReturn:
    raise ReadOnly(f"{key}: the store was opened for reading; a command that changes it needs a line of its own")
