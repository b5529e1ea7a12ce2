"""A bucket whose server is busy, slow, or loses its answers: callers learn the truth."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.storage.object_store.emulators import Endpoint
from tests.storage.object_store.faulty_proxy import FaultyProxy, faulty_proxy
from weft.storage.object_store import (
    AlreadyExists,
    NotFound,
    ObjectStore,
    PreconditionFailed,
    StoreError,
    open_store,
    services,
)

pytestmark = pytest.mark.slow


@asynccontextmanager
async def disturbed(endpoint: Endpoint) -> AsyncIterator[tuple[ObjectStore, FaultyProxy]]:
    """A new bucket behind a proxy."""
    uri = endpoint.new_bucket()
    async with faulty_proxy(endpoint.url) as proxy:
        options = {name: value.replace(endpoint.url, proxy.url) for name, value in endpoint.options.items()}
        proxy.watched = lambda path: path.endswith("/a")
        yield open_store(f"{uri}/root", options), proxy


async def test_a_lost_answer_to_a_create_is_an_unknown_outcome_and_the_object_tells(endpoint: Endpoint) -> None:
    async with disturbed(endpoint) as (store, proxy):
        proxy.lost = 1
        with pytest.raises(StoreError):
            await store.create("a", b"mine")
        assert proxy.seen == ["PUT"], "a second attempt would be refused by what the first one made"
        assert (await store.get("a")).data == b"mine"
        with pytest.raises(AlreadyExists):
            await store.create("a", b"other")


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
