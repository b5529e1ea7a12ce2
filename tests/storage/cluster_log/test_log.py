"""The cluster log in a store: writers that race, die and are lied to, and objects that are damaged or gone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from tests.cloud_hub.faulty_store import STORM, FaultyStore
from tests.cloud_hub.virtual_time import run
from tests.storage.cluster_log.declaring import CLUSTER, MARA, counts, declare, declares, log_of
from weft.protocols.errors import UnsupportedVersion
from weft.storage import cluster_log as entries
from weft.storage import cluster_log as logs
from weft.storage import cluster_log as states
from weft.storage import hub_keys
from weft.storage.cluster_log import Change, ChangeRefused, ClusterState
from weft.storage.object_store import ObjectStore, StoreError, open_store
from weft.storage.object_store.directory import MemoryStore


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return MemoryStore() if request.param == "memory" else open_store(str(tmp_path))


async def read_all(store: ObjectStore) -> list[entries.Declaration]:
    keys = [item.key for item in await store.list(hub_keys.ENTRIES)]
    return [entries.decode_entry((await store.get(key)).data) for key in keys]


async def test_writers_that_race_lose_no_change_and_none_counts_twice(store: ObjectStore) -> None:
    writers, times = 4, 6

    async def writer(seed: int) -> None:
        log = log_of(store, seed)
        for _ in range(times):
            await log.append(counts, MARA)

    await asyncio.gather(*map(writer, range(writers)))
    state = await log_of(store).load()
    assert state.facts("count")["all"].document == str(writers * times).encode()
    assert [each.n for each in await read_all(store)] == list(range(1, writers * times + 1))


@pytest.mark.parametrize("seed", range(6))
def test_a_store_that_lies_about_writes_makes_none_count_twice(seed: int) -> None:
    """Lost, late, unreported and misreported writes, and reads that fail; some writers are killed in the midst."""

    async def main() -> None:
        shared, sure, unsure = MemoryStore(), 0, 0

        async def writer(number: int) -> None:
            nonlocal sure, unsure
            rng = random.Random(100 * seed + number)
            store = FaultyStore(shared, rng, STORM)
            for turn in range(8):
                log = log_of(store, rng.getrandbits(32))
                work = asyncio.ensure_future(log.append(counts, MARA))
                done, _ = await asyncio.wait([work], timeout=rng.choice([0.1, 1.0, 60.0]) if turn % 2 else None)
                if not done:
                    work.cancel()
                    await asyncio.wait([work])
                if work.cancelled() or work.exception() is not None:
                    assert work.cancelled() or isinstance(work.exception(), StoreError)
                    unsure += 1
                else:
                    sure += 1

        await asyncio.gather(*map(writer, range(3)))
        await asyncio.sleep(10)  # late writes
        state = await log_of(shared).load()
        total = int(state.facts("count")["all"].document)
        assert sure <= total <= sure + unsure
        assert total == state.n == len(await read_all(shared)), "each entry was decided on the one before it"
        assert sure > 8

    run(main())


async def test_a_start_reads_a_snapshot_and_what_follows_it(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "SNAPSHOT_ENTRIES", 4)
    await declare(store, *map(str, range(18)))
    numbers = [hub_keys.number_of(item.key) for item in await store.list(hub_keys.CLUSTER_SNAPSHOTS)]
    assert numbers == [8, 12, 16]
    read: list[int] = []
    log = log_of(store)
    original = log._read

    async def counted(n: int) -> bytes | None:
        read.append(n)
        return await original(n)

    monkeypatch.setattr(log, "_read", counted)
    state = await log.load()
    assert read == [16, 17, 18, 19], "the last of the snapshot is compared"
    assert set(state.facts("token")) == set(map(str, range(18)))
    assert (await store.get(hub_keys.entry_key(1))).data, "entries stay"
    whole = ClusterState(CLUSTER)
    while await log_of(store).extend(whole):
        pass
    assert states.encode_snapshot(whole) == states.encode_snapshot(state)


async def test_many_changes_are_few_entries_and_each_sees_those_before_it(store: ObjectStore) -> None:
    await declare(store, "0")
    log = log_of(store)

    def decides(number: int) -> Callable[[ClusterState], Change | None]:
        def decide(state: ClusterState) -> Change | None:
            assert str(number - 1) in state.facts("token")
            return None if str(number) in state.facts("token") else Change("token", str(number), b"{}")

        return decide

    state = await log.append_all([*map(decides, range(1, 1001)), decides(5)], MARA)
    first, second = await read_all(store)
    assert (first.more, len(second.facts)) == ([], 1000), "one write of the store"
    assert set(state.facts("token")) == set(map(str, range(1001)))
    assert states.encode_snapshot(await log_of(store).load()) == states.encode_snapshot(state)
    await log.append_all([counts, counts, *map(decides, range(1001, 1001 + entries.FACTS_MAX))], MARA)
    assert [len(each.facts) for each in (await read_all(store))[2:]] == [1, 1024, 1], "no fact twice in one entry"
    assert (await log.load()).facts("count")["all"].document == b"2"

    def refuses(state: ClusterState) -> Change:
        raise ChangeRefused("no")

    before = len(await read_all(store))
    with pytest.raises(ChangeRefused):
        await log.append_all([declares("x"), declares("y"), refuses], MARA)
    assert len(await read_all(store)) == before, "all or nothing"


async def test_changes_of_one_entry_are_decided_again_when_another_writer_was_quicker(store: ObjectStore) -> None:
    log, other = log_of(store), log_of(store, 1)
    seen: list[int] = []

    def slow(state: ClusterState) -> Change:
        seen.append(state.n)
        return counts(state)

    stale = await log.load()
    await other.append(counts, MARA)
    state = await log.append_all([slow, declares("a"), declares("b")], MARA, stale)
    assert (seen, state.facts("count")["all"].document) == ([0, 1], b"2")
    assert [len(each.facts) for each in await read_all(store)] == [1, 3]


class Counting(MemoryStore):
    """A store that counts the snapshots written to it."""

    snapshots = 0

    async def create(self, key: str, data: bytes | bytearray | memoryview) -> str:
        self.snapshots += key.startswith(hub_keys.CLUSTER_SNAPSHOTS)
        return await super().create(key, data)


async def test_a_writer_of_many_entries_writes_few_snapshots_and_keeps_the_newest() -> None:
    store = Counting()
    log, state = log_of(store), ClusterState(CLUSTER)
    for n in range(300):
        state = await log.append(declares(str(n)), MARA, state)
    assert store.snapshots == 300 // logs.SNAPSHOT_ENTRIES
    numbers = [hub_keys.number_of(item.key) for item in await store.list(hub_keys.CLUSTER_SNAPSHOTS)]
    assert numbers == [128, 192, 256]


async def test_the_newest_of_many_snapshots_is_found_and_the_others_go(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    for name, value in (("SNAPSHOT_ENTRIES", 1), ("SNAPSHOTS_KEPT", 100), ("LISTED_MAX", 7)):
        monkeypatch.setattr(logs, name, value)
    await declare(store, *map(str, range(40)))
    monkeypatch.setattr(logs, "SNAPSHOTS_KEPT", 3)

    async def numbers() -> list[int | None]:
        return [hub_keys.number_of(item.key) for item in await store.list(hub_keys.CLUSTER_SNAPSHOTS)]

    assert await numbers() == [*range(1, 41)]
    read: list[int] = []
    log = log_of(store)
    original = log._read

    async def counted(n: int) -> bytes | None:
        read.append(n)
        return await original(n)

    monkeypatch.setattr(log, "_read", counted)
    state = await log.load()
    assert read == [40, 41]
    await log.append(declares("a"), MARA, state)
    assert await numbers() == [*range(1 + logs.SNAPSHOTS_DELETED_MAX, 42)], "a step is bounded"
    for _ in range(3):
        await log.append(declares("a"), MARA, state)
    assert await numbers() == [42, 43, 44]


async def test_a_writer_depends_on_what_it_read(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await declare(store, "a")
    seen: list[int] = []

    def decide(state: ClusterState) -> Change | None:
        seen.append(state.version("token", "a"))
        if state.version("token", "a") != 1:
            raise ChangeRefused("it has changed")
        return Change("token", "a", b"mine")

    log, create = log_of(store), store.create

    async def another_first(key: str, data: bytes) -> str:
        monkeypatch.undo()
        await log_of(store, 1).append(declares("a", b"other"), MARA)
        return await create(key, data)

    monkeypatch.setattr(store, "create", another_first)
    with pytest.raises(ChangeRefused, match="it has changed"):
        await log.append(decide, MARA)
    assert seen == [1, 2]
    assert (await log_of(store).load()).facts("token")["a"].document == b"other"
    assert (await log.append(lambda _: None, MARA)).n == 2, "nothing to change, nothing written"


async def damaged(store: ObjectStore, n: int) -> None:
    data = bytearray((await store.get(hub_keys.entry_key(n))).data)
    data[-1] ^= 1
    await replaced(store, n, bytes(data))


async def replaced(store: ObjectStore, n: int, data: bytes) -> None:
    await store.delete(hub_keys.entry_key(n))
    await store.create(hub_keys.entry_key(n), data)


async def gone(store: ObjectStore, n: int) -> None:
    await store.delete(hub_keys.entry_key(n))


async def too_long(store: ObjectStore, n: int) -> None:
    await replaced(store, n, bytes(entries.ENTRY_BYTES_MAX + 5))


async def of_another_cluster(store: ObjectStore, n: int) -> None:
    made = entries.decode_entry((await store.get(hub_keys.entry_key(n))).data)
    await replaced(store, n, entries.encode_entry(msgspec.structs.replace(made, cluster_id=bytes(16))))


@pytest.mark.parametrize("harm", [damaged, gone, too_long, of_another_cluster])
async def test_an_entry_that_is_not_usable_is_named_and_those_behind_it_count(
    store: ObjectStore, harm: Callable[[ObjectStore, int], Awaitable[None]]
) -> None:
    log = log_of(store)
    for name, document in (("leaked", b"1"), ("a", b"1"), ("leaked", None), ("b", b"1")):
        await log.append(declares(name, document), MARA)
    await harm(store, 2)
    state = await log_of(store).load()
    assert set(state.facts("token")) == {"b"}, "what was withdrawn later stays withdrawn"
    (skipped,) = state.skipped
    assert skipped.n == 2
    assert hub_keys.entry_key(2) in skipped.why
    assert "from a backup of the store" in skipped.why
    after = await log.append(declares("c"), MARA)
    assert after.n == 5, "operators can continue"
    assert set((await log_of(store).load()).facts("token")) == {"b", "c"}


async def test_a_restored_entry_counts_again_since_no_snapshot_passed_over_it(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "SNAPSHOT_ENTRIES", 3)
    await declare(store, "a", "b")
    before = (await store.get(hub_keys.entry_key(2))).data
    await damaged(store, 2)
    await declare(store, "c", "d", "e")
    assert await store.list(hub_keys.CLUSTER_SNAPSHOTS) == []
    await replaced(store, 2, before)
    assert set((await log_of(store).load()).facts("token")) == set("abcde")
    await damaged(store, 2)
    monkeypatch.setattr(logs, "SNAPSHOT_ANYWAY_ENTRIES", 6)
    await declare(store, "f")
    assert [hub_keys.number_of(item.key) for item in await store.list(hub_keys.CLUSTER_SNAPSHOTS)] == [6]


async def test_a_damaged_snapshot_costs_only_reads(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SNAPSHOT_ENTRIES", 4)
    await declare(store, *map(str, range(9)))
    for n in (4, 8):
        await store.delete(hub_keys.cluster_snapshot_key(n))
        await store.create(hub_keys.cluster_snapshot_key(n), b"WFA\x01 not a snapshot")
    assert len((await log_of(store).load()).facts("token")) == 9


async def test_nothing_is_written_behind_an_entry_of_a_later_release(store: ObjectStore) -> None:
    await declare(store, "a")
    first = entries.decode_entry((await store.get(hub_keys.entry_key(1))).data)
    later = msgspec.structs.replace(first, n=2, must_understand=2)
    await store.create(hub_keys.entry_key(2), entries.encode_entry(later))
    with pytest.raises(UnsupportedVersion, match=r"entry/0+2 was written by a later release.*install that release"):
        await log_of(store).append(declares("b"), MARA)
    assert len(await store.list(hub_keys.ENTRIES)) == 2


async def test_a_log_that_was_rolled_back_and_written_again_is_read_as_it_is(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "SNAPSHOT_ENTRIES", 4)
    await declare(store, *"abcdef")
    old = await log_of(store).load()
    for n in (3, 4, 5, 6):
        await store.delete(hub_keys.entry_key(n))
    await declare(store, *"uvwxy")
    with pytest.raises(logs.Rewritten):
        await log_of(store).extend(old)
    assert set((await log_of(store).load()).facts("token")) == set("abuvwxy")


async def test_what_has_no_room_is_refused_before_it_is_written(store: ObjectStore) -> None:
    log = log_of(store)
    for change, message in (
        (Change("token", "", b""), "1 to 200 printable characters"),
        (Change("Token", "a", b""), "is not a kind of facts"),
        (Change("token", "a", bytes(entries.DOCUMENT_BYTES_MAX + 1)), "the limit is 65536"),
    ):
        with pytest.raises(ChangeRefused, match=message):
            await log.append(declares(change.name, change.document, change.kind), MARA)
    with pytest.raises(ChangeRefused, match="the reason has 513 characters"):
        await log.append(declares("a"), MARA._replace(reason="x" * 513))
    assert await store.list("") == []
