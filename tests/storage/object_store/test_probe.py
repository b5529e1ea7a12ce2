"""A store that lies is refused, with a sentence that says how it lies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.storage.object_store.buckets import GoogleEndpoint
from tests.storage.object_store.racy_server import racy_server
from tests.support.s3_servers import MINIO, VERSITYGW, Kind, S3Server, installed
from tests.support.speed import Stopwatch
from weft.storage.object_store import (
    AlreadyExists,
    NotFound,
    PreconditionFailed,
    StoreError,
    StoreUnfit,
    open_store,
    probe,
)
from weft.storage.object_store.directory import MemoryStore
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


class FoldersFirst(MemoryStore):
    """A container of Azure with a hierarchical namespace, and a directory bucket of S3."""

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        found = sorted(await super().list(prefix), key=lambda item: item.key.replace("/", " "))
        return [item for item in found if item.key > (after or "")][:limit]


class ListsFromTheStart(MemoryStore):
    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        return await super().list(prefix, None if limit else after, limit)


class NoLongSuffix(MemoryStore):
    """gofakes3: 416 to a suffix range that is longer than the object."""

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        if -start > len((await self.get(key)).data):
            raise StoreError("416 Requested Range Not Satisfiable")
        return await super().get_range(key, start, length)


class ChecksThenCreates(MemoryStore):
    """What several S3-compatible servers do: right for requests one after the other, wrong for two at once."""

    async def create(self, key: str, data: Buffer) -> str:
        if key in self._objects:
            raise AlreadyExists(key)
        await asyncio.sleep(0)
        await self.delete(key)
        return await super().create(key, data)


class ChecksThenSwaps(MemoryStore):
    async def swap(self, key: str, data: Buffer, expected_etag: str) -> str:
        if key not in self._objects or self._objects[key].etag != expected_etag:
            raise PreconditionFailed(key)
        await asyncio.sleep(0)
        return self._put(key, data)


class ReportsTheLoser(MemoryStore):
    """One success is reported, and another writer's bytes stay."""

    async def create(self, key: str, data: Buffer) -> str:
        try:
            return await super().create(key, data)
        except AlreadyExists:
            if "race" in key:
                self._put(key, data)
            raise


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
        (FoldersFirst, "in the order of their names"),
        (ListsFromTheStart, "from a name on"),
        (NoLongSuffix, "suffix range that is longer"),
        (ChecksThenCreates, "concurrent creates of one key succeed"),
        (ChecksThenSwaps, "concurrent swaps of one etag succeed"),
        (ReportsTheLoser, "another's bytes are read"),
    ],
)
async def test_a_liar_is_refused(liar: type[MemoryStore], sentence: str) -> None:
    with pytest.raises(StoreUnfit, match=sentence):
        await probe(liar())


async def test_a_store_that_keeps_its_promises_is_taken_and_left_empty(tmp_path: Path) -> None:
    store, second = open_store(str(tmp_path)), open_store(str(tmp_path))
    stopwatch = Stopwatch()
    await probe(store, second)
    assert stopwatch.seconds() < 30  # a third of a second on a machine with nothing else to do
    assert await store.list("") == []


class AnswersLate(MemoryStore):
    """A slow server: an overlapping write without an answer in time is written a moment later."""

    async def overlap(self, key: str, bodies: Sequence[bytes], expected_etag: str | None) -> Sequence[bool] | None:
        self._late = key, bodies[0]
        return None

    async def name(self) -> str:
        return "slow"

    async def create(self, key: str, data: Buffer) -> str:
        late, self._late = self._late, None
        if late is not None:
            await super().create(*late)
        return await super().create(key, data)

    _late: tuple[str, bytes] | None = None


async def test_a_slow_server_is_no_liar_when_it_writes_what_it_did_not_answer() -> None:
    store = AnswersLate()
    await probe(store)
    assert await store.list("") == []


async def test_a_server_that_checks_before_the_body_has_come_is_refused_with_its_name_and_what_to_use() -> None:
    async with racy_server(checks_late=True) as (uri, options):
        await probe(open_store(uri, options), open_store(uri, options))
    async with racy_server(checks_late=False) as (uri, options):
        with pytest.raises(StoreUnfit, match=r"RacyStore/1\.0 \(s3://bucket at 127\.0\.0\.1.*If-None-Match.*versitygw"):
            await probe(open_store(uri, options), open_store(uri, options))


@pytest.mark.s3
@pytest.mark.parametrize("kind", [VERSITYGW, pytest.param(MINIO, marks=pytest.mark.slow)], ids=lambda kind: kind.name)
async def test_a_real_server_is_taken(tmp_path: Path, kind: Kind) -> None:
    if (binary := installed(kind)) is None:
        pytest.skip(f"{kind.name} is not installed; the slow tests build versitygw, and ./run nightly both")
    with S3Server(kind, binary, tmp_path / "server") as server:
        stores = [open_store(f"{server.uri}/root", server.options()) for _ in range(2)]
        await probe(*stores)
        assert await stores[0].list("") == []


@pytest.mark.slow
async def test_an_emulator_without_the_api_that_holds_conditions_is_not_taken(gs: GoogleEndpoint) -> None:
    """fake-gcs-server alone, which the other tests reach through a translator."""
    options = gs.options | {"GOOGLE_BASE_URL": gs.server}
    options["GOOGLE_SERVICE_ACCOUNT_KEY"] = options["GOOGLE_SERVICE_ACCOUNT_KEY"].replace(gs.url, gs.server)
    with pytest.raises(StoreError, match="400 Bad Request"):
        await probe(open_store(f"{gs.new_bucket()}/root", options))
