"""Copies that Azure answers before they have ended: its target is empty until then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from weft.storage.object_store import ObjectStore, StoreError, bucket, open_store

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


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "READ_RETRIES_MAX", 0)
    monkeypatch.setattr(bucket, "COPY_SECONDS_MAX", 0.2)
    monkeypatch.setattr(bucket, "COPY_POLL_SECONDS", 0.01)


async def test_an_object_is_made_once_the_copy_has_ended() -> None:
    """A shared access signature cannot sign a URL."""
    azure = Azure(0, 0, FULL)
    async with served(azure, AZURE_STORAGE_SAS_KEY="sv=2023-11-03&sig=c2lnbmVk") as store:
        assert await store.create_from("a", parts()) == FULL
    assert (azure.sizes, azure.deleted) == ([FULL], True)


@pytest.mark.parametrize("sizes", [(0,), (0, None)])
async def test_a_copy_that_does_not_end_or_is_cut_off_is_an_unknown_outcome(sizes: tuple[int | None, ...]) -> None:
    async with served(Azure(*sizes), AZURE_STORAGE_ACCOUNT_KEY="c2VjcmV0") as store:
        with pytest.raises(StoreError):
            await store.create_from("a", parts())
