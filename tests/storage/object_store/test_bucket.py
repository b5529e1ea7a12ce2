"""A bucket whose server is busy, slow, or loses its answers: callers learn the truth."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.storage.object_store.buckets import Endpoint
from tests.storage.object_store.faulty_proxy import FaultyProxy, faulty_proxy
from weft.storage.object_store import (
    AlreadyExists,
    NotFound,
    ObjectStore,
    PreconditionFailed,
    StoreError,
    bucket,
    open_store,
    services,
)


@asynccontextmanager
async def disturbed(endpoint: Endpoint) -> AsyncIterator[tuple[ObjectStore, FaultyProxy]]:
    """A new bucket behind a proxy."""
    uri = endpoint.new_bucket()
    async with faulty_proxy(endpoint.url) as proxy:
        options = {name: value.replace(endpoint.url, proxy.url) for name, value in endpoint.options.items()}
        proxy.watched = lambda path: path.endswith("/a")
        yield open_store(f"{uri}/root", options), proxy


@pytest.mark.slow
async def test_a_lost_answer_to_a_create_is_an_unknown_outcome_and_the_object_tells(endpoint: Endpoint) -> None:
    async with disturbed(endpoint) as (store, proxy):
        proxy.lost = 1
        with pytest.raises(StoreError):
            await store.create("a", b"mine")
        assert proxy.seen == ["PUT"], "a second attempt would be refused by what the first one made"
        assert (await store.get("a")).data == b"mine"
        with pytest.raises(AlreadyExists):
            await store.create("a", b"other")


@pytest.mark.slow
async def test_a_lost_answer_to_a_swap_is_an_unknown_outcome_and_the_object_tells(endpoint: Endpoint) -> None:
    async with disturbed(endpoint) as (store, proxy):
        etag = await store.create("a", b"1")
        proxy.lost = 1
        with pytest.raises(StoreError):
            await store.swap("a", b"2", etag)
        assert proxy.seen == ["PUT", "PUT"]
        assert (await store.get("a")).data == b"2"
        with pytest.raises(PreconditionFailed):
            await store.swap("a", b"3", etag)


@pytest.mark.slow
async def test_a_busy_server_has_taken_nothing(endpoint: Endpoint) -> None:
    async with disturbed(endpoint) as (store, proxy):
        proxy.refused = 1
        with pytest.raises(StoreError, match="503"):
            await store.create("a", b"1")
        assert proxy.seen == ["PUT"]
        with pytest.raises(NotFound):
            await store.get("a")
        etag = await store.create("a", b"1")
        proxy.refused = 1
        with pytest.raises(StoreError, match="503"):
            await store.swap("a", b"2", etag)
        assert (await store.get("a"))[:2] == (b"1", etag)


@pytest.mark.slow
async def test_reads_and_deletions_are_repeated_until_the_server_answers(endpoint: Endpoint) -> None:
    async with disturbed(endpoint) as (store, proxy):
        await store.create("a", b"0123456789")
        proxy.refused = 2
        assert (await store.get("a")).data == b"0123456789"
        proxy.refused = 1
        assert await store.get_range("a", 2, 3) == b"234"
        proxy.refused, proxy.watched = 1, lambda path: True
        assert [item.key for item in await store.list("")] == ["a"]
        proxy.lost = 1
        await store.delete("a")
        assert await store.list("") == []


@pytest.mark.slow
async def test_a_slow_answer_is_an_unknown_outcome_and_the_object_tells(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "REQUEST_SECONDS_MAX", 0.5)
    async with disturbed(endpoint) as (store, proxy):
        proxy.delay_s = 2
        with pytest.raises(StoreError, match="no answer in time"):
            await store.create("a", b"mine")
        proxy.delay_s = 0
        assert (await store.get("a")).data == b"mine"


@pytest.mark.slow
async def test_a_copy_of_parts_whose_answer_is_lost_makes_no_half_object(endpoint: Endpoint) -> None:
    async with disturbed(endpoint) as (store, proxy):

        async def parts() -> AsyncIterator[bytes]:
            yield bytes(9 << 20)
            yield b"end"

        proxy.lost = 1  # the copy is the first request for the object's own name
        with pytest.raises(StoreError):
            await store.create_from("a", parts())
        with contextlib.suppress(AlreadyExists):
            await store.create_from("a", parts())
        assert (await store.get("a")).data == bytes(9 << 20) + b"end"
        assert [item.key for item in await store.list("")] == ["a"]


# --- Copies that Azure answers before they have ended: its target is empty until then


FULL = (9 << 20) + 3


class Azure:
    """A server that accepts everything, and tells of an object one size after the other; None cuts the connection."""

    def __init__(self, *sizes: int | None) -> None:
        self.sizes = [*sizes]
        self.deleted = False
        """Whether the uploaded parts are gone. Until the copy has ended, it needs them."""

        self.open: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    async def close(self) -> None:
        """Close all connections, and wait for their ends."""
        for writer in self.open.values():
            writer.close()
        await asyncio.gather(*(task for task in self.open if task is not None))

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open[asyncio.current_task()] = writer
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
                await reader.readexactly(int(fields.get("content-length", "0")))
                size: int | None = 0
                if head.startswith("head"):
                    assert not self.deleted
                    size = self.sizes.pop(0) if len(self.sizes) > 1 else self.sizes[0]
                    if size is None:
                        return
                self.deleted |= head.startswith(("delete", "post"))  # of one, or of a batch
                status = "200 OK" if head.startswith("head") else "201 Created"
                writer.write(
                    f'HTTP/1.1 {status}\r\nContent-Length: {size}\r\nETag: "1"\r\nx-ms-copy-status: pending\r\n'
                    "Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\n\r\n".encode()
                )
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def served(azure: Azure, **credential: str) -> AsyncIterator[ObjectStore]:
    server = await asyncio.start_server(azure.answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/account"
    options = {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ENDPOINT": url, **credential}
    async with server:
        try:
            yield open_store("az://container/root", options)
        finally:
            await azure.close()


async def parts() -> AsyncIterator[bytes]:
    yield bytes(9 << 20)
    yield b"end"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "READ_RETRIES_MAX", 0)
    monkeypatch.setattr(bucket, "COPY_SECONDS_MAX", 0.2)
    monkeypatch.setattr(bucket, "COPY_POLL_SECONDS", 0.01)


@pytest.mark.usefixtures("impatient")
async def test_an_object_is_made_once_the_copy_has_ended() -> None:
    """A shared access signature cannot sign a URL."""
    azure = Azure(0, 0, FULL)
    async with served(azure, AZURE_STORAGE_SAS_KEY="sv=2023-11-03&sig=c2lnbmVk") as store:
        assert await store.create_from("a", parts()) == FULL
    assert (azure.sizes, azure.deleted) == ([FULL], True)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("sizes", [(0,), (0, None)])
async def test_a_copy_that_does_not_end_or_is_cut_off_is_an_unknown_outcome(sizes: tuple[int | None, ...]) -> None:
    async with served(Azure(*sizes), AZURE_STORAGE_ACCOUNT_KEY="c2VjcmV0") as store:
        with pytest.raises(StoreError):
            await store.create_from("a", parts())
