"""What every store promises (storage/object_store/protocol.py)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Sequence

import pytest

from tests.storage.object_store.conftest import BUCKETS
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed, probe
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.opening import bare
from weft.storage.object_store.protocol import Listed


async def outcome(call: Awaitable[object]) -> object:
    """What a call answered: its value, or the class of its answer."""
    try:
        return await call
    except (AlreadyExists, PreconditionFailed) as answer:
        return type(answer)


class TestCreate:
    async def test_it_reads_back_whole_with_the_etag_it_returned(self, store: ObjectStore) -> None:
        etag = await store.create("a/b/c", b"hello")
        assert (await store.get("a/b/c"))[:2] == (b"hello", etag)

    async def test_it_says_when_it_was_written_if_the_store_records_that(self, store: ObjectStore) -> None:
        await store.create("a", b"hello")
        written = (await store.get("a")).written
        assert (written is None) == isinstance(bare(store), MemoryStore)
        assert written is None or abs(written.time - time.time_ns()) < 60 * 10**9
        assert written is None or not written.by_store, "all that this test has are on this machine"

    async def test_a_second_create_fails_and_changes_nothing(self, store: ObjectStore) -> None:
        await store.create("a", b"first")
        with pytest.raises(AlreadyExists):
            await store.create("a", b"second")
        assert (await store.get("a")).data == b"first"

    async def test_an_empty_object(self, store: ObjectStore) -> None:
        await store.create("empty", b"")
        assert (await store.get("empty")).data == b""
        assert await store.get_range("empty", 0, 10) == b""
        assert await store.get_range("empty", -10, 10) == b""

    async def test_views_and_bytearrays(self, store: ObjectStore) -> None:
        await store.create("view", memoryview(b"0123456789")[2:5])
        await store.create("array", bytearray(b"abc"))
        assert (await store.get("view")).data == b"234"
        assert (await store.get("array")).data == b"abc"

    async def test_five_megabytes(self, store: ObjectStore) -> None:
        data = os.urandom(5 << 20)
        await store.create("large", data)
        assert (await store.get("large")).data == data
        assert await store.get_range("large", (4 << 20) + 1, 1000) == data[(4 << 20) + 1 :][:1000]

    async def test_of_concurrent_creates_exactly_one_wins(self, store: ObjectStore) -> None:
        for key in ("race/0", "race/1", "race/2"):
            answers = await asyncio.gather(*(outcome(store.create(key, b"%d" % n)) for n in range(8)))
            winners = [n for n, answer in enumerate(answers) if answer is not AlreadyExists]
            assert len(winners) == 1
            assert (await store.get(key))[:2] == (b"%d" % winners[0], answers[winners[0]])

    async def test_it_may_be_made_again_after_deletion(self, store: ObjectStore) -> None:
        await store.create("a", b"1")
        await store.delete("a")
        await store.create("a", b"2")
        assert (await store.get("a")).data == b"2"


class TestCreateFrom:
    @pytest.mark.parametrize("sizes", [[], [0], [3, 0, 5], [1 << 20] * 19, [20 << 20, 1]])
    async def test_parts_of_any_size_read_back_as_one(self, store: ObjectStore, sizes: list[int]) -> None:
        parts = [os.urandom(size) for size in sizes]
        assert await store.create_from("a/long", each(parts)) == sum(sizes)
        assert (await store.get("a/long")).data == b"".join(parts)
        assert await store.list("") == [Listed("a/long", sum(sizes))]

    async def test_it_replaces_nothing(self, store: ObjectStore) -> None:
        await store.create("a", b"first")
        with pytest.raises(AlreadyExists):
            await store.create_from("a", each([bytes(9 << 20), b"second"]))
        assert (await store.get("a")).data == b"first"
        assert await store.list("") == [Listed("a", 5)]

    @pytest.mark.parametrize("size", [0, 9 << 20])
    async def test_of_concurrent_ones_exactly_one_wins(self, store: ObjectStore, size: int) -> None:
        answers = await asyncio.gather(
            *(outcome(store.create_from("race", each([bytes(size), b"%d" % n]))) for n in range(4))
        )
        [winner] = [number for number, answer in enumerate(answers) if answer is not AlreadyExists]
        assert answers[winner] == size + 1
        assert (await store.get("race")).data == bytes(size) + b"%d" % winner
        assert await store.list("") == [Listed("race", size + 1)]

    @pytest.mark.parametrize("error", [OSError("the source failed"), ValueError("the source failed")])
    async def test_an_error_of_the_source_leaves_nothing(self, store: ObjectStore, error: Exception) -> None:
        with pytest.raises(type(error), match="the source failed"):
            await store.create_from("a", each([bytes(9 << 20), error, b"rest"]))
        assert await store.list("") == []


async def each(parts: Sequence[bytes | Exception]) -> AsyncIterator[bytes]:
    for part in parts:
        if isinstance(part, Exception):
            raise part
        yield part


class TestSwap:
    async def test_it_replaces_and_gives_the_new_etag(self, store: ObjectStore) -> None:
        first = await store.create("a", b"1")
        second = await store.swap("a", b"2", first)
        assert (await store.get("a"))[:2] == (b"2", second)
        assert second != first

    async def test_a_stale_etag_changes_nothing(self, store: ObjectStore) -> None:
        first = await store.create("a", b"1")
        await store.swap("a", b"2", first)
        with pytest.raises(PreconditionFailed):
            await store.swap("a", b"3", first)
        assert (await store.get("a")).data == b"2"

    async def test_a_missing_object_stays_missing(self, store: ObjectStore) -> None:
        etag = await store.create("a", b"1")
        with pytest.raises(PreconditionFailed):
            await store.swap("b", b"2", etag)
        with pytest.raises(NotFound):
            await store.get("b")

    async def test_concurrent_swaps_are_linear(self, store: ObjectStore) -> None:
        """Four tasks count to forty together: a lost update would leave the counter short."""
        await store.create("counter", b"0")

        async def count() -> None:
            done = 0
            while done < 10:
                data, etag, _ = await store.get("counter")
                done += await outcome(store.swap("counter", b"%d" % (int(data) + 1), etag)) is not PreconditionFailed

        await asyncio.gather(*(count() for _ in range(4)))
        assert (await store.get("counter")).data == b"40"


class TestRead:
    async def test_a_missing_object_is_not_found(self, store: ObjectStore) -> None:
        await store.create("a/b", b"1")
        for key in ("nothing", "a", "a/b/c"):
            with pytest.raises(NotFound):
                await store.get(key)
            with pytest.raises(NotFound):
                await store.get_range(key, 0, 1)
            with pytest.raises(NotFound):
                await store.get_range(key, 0, 0)
            with pytest.raises(NotFound):
                await store.sync(key)

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [
            (0, 10, b"0123456789"),
            (3, 4, b"3456"),
            (8, 10, b"89"),
            (10, 5, b""),
            (99, 5, b""),
            (-3, 3, b"789"),
            (-3, 2, b"78"),
            (-3, 99, b"789"),
            (-99, 99, b"0123456789"),
            (-99, 4, b"0123"),
            (4, 0, b""),
            (-4, 0, b""),
        ],
    )
    async def test_ranges(self, store: ObjectStore, start: int, length: int, expected: bytes) -> None:
        await store.create("digits", b"0123456789")
        assert await store.get_range("digits", start, length) == expected

    async def test_a_negative_length_is_the_callers_mistake(self, store: ObjectStore) -> None:
        await store.create("digits", b"0123456789")
        with pytest.raises(ValueError, match="range of -1 bytes"):
            await store.get_range("digits", 0, -1)


KEYS = sorted(["a", "a-b/c", "a/b", "a/b-c", "a/b/c", "a/b/d", "a/b0", "b/0", "b/1", "bc/0", "c"])


class TestList:
    @pytest.fixture
    async def full(self, store: ObjectStore) -> ObjectStore:
        # A directory cannot hold a file and a folder of one name; no caller needs a store to.
        for key in KEYS:
            if not any(other.startswith(f"{key}/") for other in KEYS):
                await store.create(key, key.encode())
        return store

    async def test_it_is_ascending_by_key_with_sizes(self, full: ObjectStore) -> None:
        expected = [(key, len(key)) for key in KEYS if not any(other.startswith(f"{key}/") for other in KEYS)]
        assert await full.list("") == expected

    async def test_a_prefix_is_a_folder(self, full: ObjectStore) -> None:
        assert [key for key, _ in await full.list("b")] == ["b/0", "b/1"]
        assert [key for key, _ in await full.list("b/")] == ["b/0", "b/1"]
        assert await full.list("a/b/c") == []
        assert await full.list("nothing/here") == []

    async def test_after_is_exclusive_and_need_not_exist(self, full: ObjectStore) -> None:
        every = [key for key, _ in await full.list("")]
        for after in [*every, "a", "a/b/c5", "a/b/", "zz"]:
            if not after.endswith("/"):
                assert [key for key, _ in await full.list("", after=after)] == [key for key in every if key > after]
        assert [key for key, _ in await full.list("a", after="a/b/c")] == ["a/b/d", "a/b0"]
        assert await full.list("a", after="b/0") == []
        assert [key for key, _ in await full.list("b", after="a/b")] == ["b/0", "b/1"]

    async def test_a_limit_cuts_and_after_continues(self, full: ObjectStore) -> None:
        every = await full.list("")
        pages: list[Listed] = []
        while page := await full.list("", after=pages[-1].key if pages else None, limit=2):
            assert len(page) <= 2
            pages += page
        assert pages == every
        assert await full.list("", limit=0) == []


class TestDelete:
    async def test_it_is_gone(self, store: ObjectStore) -> None:
        await store.create("a/b", b"1")
        await store.delete("a/b")
        with pytest.raises(NotFound):
            await store.get("a/b")
        assert await store.list("") == []

    async def test_an_absent_object_is_fine(self, store: ObjectStore) -> None:
        await store.delete("nothing/here")


BAD_KEYS = [
    "",
    "/a",
    "a/",
    "a//b",
    "..",
    "a/../b",
    "a/./b",
    ".hidden",
    "a b",
    "a\\b",
    "a\0b",
    "é",
    "-a",
    "x" * 201,
    "a/" * 300 + "a",
]


@pytest.mark.parametrize("key", BAD_KEYS)
async def test_keys_that_could_leave_the_store_are_refused(store: ObjectStore, key: str) -> None:
    calls = [
        store.create(key, b""),
        store.swap(key, b"", ""),
        store.get(key),
        store.get_range(key, 0, 1),
        store.delete(key),
        store.sync(key),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="not an object key"):
            await call


async def test_sync_of_an_object_that_is_there(store: ObjectStore) -> None:
    await store.create("a/b", b"1")
    await store.sync("a/b")


@pytest.mark.parametrize(
    "store",
    ["memory", "directory", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.slow]), BUCKETS["gs"], BUCKETS["az"]],
    indirect=True,
)
async def test_the_probe_finds_it_fit_and_leaves_nothing_behind(store: ObjectStore) -> None:
    await probe(store)
    await probe(store)
    assert await store.list("") == []
