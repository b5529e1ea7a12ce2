"""A store that lies is refused, with a sentence that says how it lies."""

from __future__ import annotations

import pytest

from weft.storage.object_store import AlreadyExists, NotFound, PreconditionFailed, StoreUnfit, probe
from weft.storage.object_store.memory import MemoryStore
from weft.storage.object_store.protocol import Buffer, Listing


class OverwritingCreate(MemoryStore):
    """Garage: no conditional PUT."""

    async def create(self, key: str, data: Buffer) -> str:
        await self.delete(key)
        return await super().create(key, data)


class CreateThatRefusesAndOverwrites(MemoryStore):
    async def create(self, key: str, data: Buffer) -> str:
        try:
            return await super().create(key, data)
        except AlreadyExists:
            self._put(key, data)
            raise


class SwapIgnoresEtag(MemoryStore):
    """An early MinIO: a stale If-Match was accepted."""

    async def swap(self, key: str, data: Buffer, expected_etag: str) -> str:
        try:
            return await super().swap(key, data, (await self.get(key)).etag)
        except NotFound:
            raise PreconditionFailed(key) from None


class SwapMakesMissing(MemoryStore):
    async def swap(self, key: str, data: Buffer, expected_etag: str) -> str:
        try:
            return await super().swap(key, data, expected_etag)
        except PreconditionFailed:
            if await self.list(key) or key in self._objects:
                raise
            return await self.create(key, data)


class SwapThatIsLost(MemoryStore):
    async def swap(self, key: str, data: Buffer, expected_etag: str) -> str:
        await super().swap(key, data, expected_etag)
        return '"2"'

    def _put(self, key: str, data: Buffer) -> str:
        return self._objects[key].etag if key in self._objects else super()._put(key, data)


class RangesFromTheStart(MemoryStore):
    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await super().get_range(key, max(start, 0), length)


class StaleListing(MemoryStore):
    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        return []


@pytest.mark.parametrize(
    ("liar", "sentence"),
    [
        (OverwritingCreate, "second create of one key succeed"),
        (CreateThatRefusesAndOverwrites, "a create that the store refused changed the object"),
        (SwapIgnoresEtag, "swap with a stale etag"),
        (SwapMakesMissing, "swap of an object that does not exist"),
        (SwapThatIsLost, "a swap that the store accepted is not there"),
        (RangesFromTheStart, "ranged read"),
        (StaleListing, "does not list an object"),
    ],
)
async def test_a_liar_is_refused(liar: type[MemoryStore], sentence: str) -> None:
    with pytest.raises(StoreUnfit, match=sentence):
        await probe(liar())
