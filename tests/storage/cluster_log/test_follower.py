"""The follower of the cluster log in virtual time: how soon it knows, and what it does when the store fails."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.cloud_hub.faulty_store import CALM, DEAD, FaultyStore
from tests.cloud_hub.virtual_time import run
from tests.storage.cluster_log.declaring import MARA, declare, declares, log_of
from weft.protocols.errors import UnsupportedVersion
from weft.storage import cluster_log as entries
from weft.storage import hub_keys
from weft.storage.cluster_log import INTERVAL_S, LOOKS_PER_CHECK, ClusterLogFollower
from weft.storage.object_store import ObjectStore, StoreError
from weft.storage.object_store.directory import MemoryStore


@contextlib.asynccontextmanager
async def following(store: ObjectStore) -> AsyncIterator[tuple[ClusterLogFollower, list[set[str]]]]:
    reports: list[set[str]] = []
    follower = ClusterLogFollower(log_of(store), lambda: reports.append(set(follower.state.facts("token"))))
    await follower.start()
    try:
        yield follower, reports
    finally:
        await follower.close()


def test_a_fact_is_known_two_seconds_after_it_was_declared() -> None:
    async def main() -> None:
        store = MemoryStore()
        await declare(store, "a")
        async with following(store) as (follower, reported):
            assert set(follower.state.facts("token")) == {"a"}
            for name in "bcd":
                await asyncio.sleep(random.Random(name).random() * 10)
                await declare(store, name)
                await asyncio.sleep(INTERVAL_S)
                assert name in follower.state.facts("token")
                assert follower.age_s <= INTERVAL_S
            assert reported == [set("ab"), set("abc"), set("abcd")], "told once for each"

    run(main())


def test_a_look_costs_one_request() -> None:
    async def main() -> None:
        requests: list[str] = []

        class Counted(MemoryStore):
            async def get_range(self, key: str, start: int, length: int) -> bytes:
                requests.append(key)
                return await super().get_range(key, start, length)

        async with following(Counted()) as (follower, _):
            requests.clear()
            await asyncio.sleep(10 * INTERVAL_S + 1)
            assert requests == [hub_keys.entry_key(1)] * 10
            assert follower.trouble is None

    run(main())


def test_many_entries_are_read_at_once_and_a_failed_call_is_made_again() -> None:
    async def main() -> None:
        store, reported = MemoryStore(), list[int]()

        def changed() -> None:
            reported.append(follower.state.n)
            if len(reported) == 3:
                raise ValueError("a fault of the one who is told")

        follower = ClusterLogFollower(log_of(store), changed)
        await follower.start()
        try:
            log, state = log_of(store), None
            for n in range(600):
                state = await log.append(declares(str(n)), MARA, state)
            await asyncio.sleep(INTERVAL_S + 1)
            assert reported == [256, 512, 600]
            await asyncio.sleep(3 * INTERVAL_S)
            assert reported == [256, 512, 600, 600]
            assert follower.trouble is None
        finally:
            await follower.close()

    run(main())


def test_a_silent_store_leaves_the_last_word_in_force_and_it_goes_on_afterwards() -> None:
    async def main() -> None:
        shared = MemoryStore()
        await declare(shared, "a")
        store = FaultyStore(shared, random.Random(1), CALM)
        async with following(store) as (follower, reported):
            store.faults = DEAD
            await declare(shared, "b")
            await asyncio.sleep(3600)
            assert set(follower.state.facts("token")) == {"a"}
            assert follower.trouble == "no answer"
            assert follower.age_s > 3590
            store.faults = CALM
            await asyncio.sleep(5 * INTERVAL_S)
            assert reported == [{"a", "b"}]
            assert follower.trouble is None
            assert follower.age_s <= INTERVAL_S + 1

    run(main())


def test_a_start_needs_an_answer_of_the_store() -> None:
    async def main() -> None:
        with pytest.raises(StoreError):
            await ClusterLogFollower(log_of(FaultyStore(MemoryStore(), random.Random(1), DEAD)), lambda: None).start()

    run(main())


def test_an_entry_of_a_later_release_stops_it_and_harms_nothing_before(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store = MemoryStore()
        await declare(store, "a")
        async with following(store) as (follower, reported):
            first = entries.decode_entry((await store.get(hub_keys.entry_key(1))).data)
            later = msgspec.structs.replace(first, n=2, must_understand=4)
            await store.create(hub_keys.entry_key(2), entries.encode_entry(later))
            await asyncio.sleep(600)
            assert set(follower.state.facts("token")) == {"a"}
            assert follower.trouble is not None
            assert "install that release" in follower.trouble
            assert reported == []
        with pytest.raises(UnsupportedVersion):
            await ClusterLogFollower(log_of(store), lambda: None).start()

    run(main())
    assert 1 <= caplog.text.count("its last known facts stay in force") < 100


def test_a_store_that_was_restored_to_an_earlier_state_is_read_again() -> None:
    async def main() -> None:
        store = MemoryStore()
        await declare(store, "a", "b", "c")
        async with following(store) as (follower, _):
            await store.delete(hub_keys.entry_key(3))
            await store.delete(hub_keys.entry_key(2))
            await asyncio.sleep(LOOKS_PER_CHECK * INTERVAL_S + 1)
            assert set(follower.state.facts("token")) == {"a"}
            await declare(store, "d")
            await asyncio.sleep(INTERVAL_S)
            assert set(follower.state.facts("token")) == {"a", "d"}

    run(main())


def test_a_hole_in_the_log_does_not_hide_what_is_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store = MemoryStore()
        await declare(store, "a")
        async with following(store) as (follower, _):
            await declare(store, "b", "c")
            await store.delete(hub_keys.entry_key(2))
            await asyncio.sleep(LOOKS_PER_CHECK * INTERVAL_S + 1)
            assert set(follower.state.facts("token")) == {"a", "c"}
            assert [each.n for each in follower.state.skipped] == [2]

    run(main())
    assert "entry 2 of the cluster log is passed over" in caplog.text
