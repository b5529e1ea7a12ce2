"""The cluster log in a store: writers that race, die and are lied to, and objects that are damaged or gone."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cloud_hub.faulty_store import CALM, DEAD, STORM, FaultyStore
from tests.cloud_hub.virtual_time import run
from tests.storage.declaring import CLUSTER, MARA, counts, declare, declares, log_of
from weft.protocols.errors import CodecError, UnsupportedVersion
from weft.storage import cluster_log as entries
from weft.storage import cluster_log as logs
from weft.storage import cluster_log as states
from weft.storage import hub_keys
from weft.storage.cluster_log import (
    DOCUMENT_BYTES_MAX,
    INTERVAL_S,
    KINDS_MAX,
    LOOKS_PER_CHECK,
    SEVERAL,
    SKIPPED_KEPT_MAX,
    Change,
    ChangeRefused,
    ClusterLogFollower,
    ClusterState,
    Declaration,
    Fact,
    NamedFact,
)
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


# --- The fold of the cluster log as a pure machine, and the bytes of entries and snapshots


STATE_CLUSTER = bytes(range(16))
DAMAGED = None

changes = st.tuples(
    st.sampled_from(["token", "tenant", "of-a-later-release"]),
    st.sampled_from(["a", "b", "acme/telemetry"]),
    st.none() | st.binary(max_size=8),
)
histories = st.lists(changes | st.just(DAMAGED), max_size=12)


def entry_of(n: int, kind: str, name: str, document: bytes | None, previous: int = 0) -> Declaration:
    return Declaration(STATE_CLUSTER, n, previous, 0, kind, name, document, 1_000 + n, "mara@ops-1", f"reason {n}", n)


def folded(history: list[tuple[str, str, bytes | None] | None], state: ClusterState | None = None) -> ClusterState:
    state = state or ClusterState(STATE_CLUSTER)
    for change in history:
        if change is None:
            state.skip(f"entry {state.n + 1} is damaged")
        else:
            made = entry_of(state.n + 1, *change)
            data = entries.encode_entry(made)
            assert entries.decode_entry(data) == made
            state.apply(made, states.crc_of(data))
    return state


@given(histories, st.integers(0, 12))
def test_a_fold_from_a_snapshot_anywhere_is_the_fold_from_the_start(
    history: list[tuple[str, str, bytes | None] | None], cut: int
) -> None:
    whole = folded(history)
    resumed = folded(history[cut:], states.decode_snapshot(states.encode_snapshot(folded(history[:cut]))))
    assert states.encode_snapshot(resumed) == states.encode_snapshot(whole)


@given(histories)
def test_a_fact_is_what_its_last_usable_entry_says(history: list[tuple[str, str, bytes | None] | None]) -> None:
    state = folded(history)
    expected: dict[tuple[str, str], tuple[int, bytes]] = {}
    last: dict[str, int] = {}
    for n, change in enumerate(history, 1):
        if change is None:
            continue
        kind, name, document = change
        last[kind] = n
        expected.pop((kind, name), None)
        if document is not None:
            expected[kind, name] = n, document
    found = {
        (kind, name): (fact.version, fact.document)
        for kind in state.kinds()
        for name, fact in state.facts(kind).items()
    }
    assert found == expected
    assert {kind: state.last(kind) for kind in state.kinds()} == last
    assert [each.n for each in state.skipped] == [n for n, change in enumerate(history, 1) if change is None]
    assert state.n == len(history)


@given(st.binary(max_size=200))
def test_bytes_of_others_are_refused_and_nothing_worse(data: bytes) -> None:
    for decode in (entries.decode_entry, states.decode_snapshot):
        with pytest.raises(CodecError):
            decode(data)


@given(st.integers(0, 10_000), st.integers(0, 7), st.booleans())
def test_a_flipped_bit_or_a_cut_is_noticed(at: int, bit: int, is_cut: bool) -> None:
    made = bytearray(entries.encode_entry(entry_of(1, "token", "a", b"{}")))
    at %= len(made)
    if is_cut:
        del made[at:]
    else:
        made[at] ^= 1 << bit
    with pytest.raises(CodecError) as caught:
        entries.decode_entry(bytes(made))
    assert not isinstance(caught.value, UnsupportedVersion), "that would stop every reader"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "Token"),
        ("kind", ""),
        ("name", ""),
        ("name", "a\nb"),
        ("name", "x" * 201),
        ("by", "x" * 257),
        ("reason", "x" * 513),
        ("document", bytes(DOCUMENT_BYTES_MAX + 1)),
        ("n", 0),
        ("cluster_id", b"short"),
    ],
)
def test_fields_out_of_bounds_are_refused(field: str, value: object) -> None:
    made = msgspec.structs.replace(entry_of(1, "token", "a", b"{}"), **{field: value})
    with pytest.raises(CodecError):
        entries.decode_entry(entries.encode_entry(made))


def test_what_a_later_release_wrote_is_told_from_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    later = msgspec.structs.replace(entry_of(1, "token", "a", b"{}"), must_understand=SEVERAL << 1)
    with pytest.raises(UnsupportedVersion):
        entries.decode_entry(entries.encode_entry(later))
    with monkeypatch.context() as patch:
        patch.setattr(entries, "VERSION", 2)
        data = entries.encode_entry(entry_of(1, "token", "a", b"{}"))
    with pytest.raises(UnsupportedVersion, match="of version 2; this release knows version 1"):
        entries.decode_entry(data)


def test_an_entry_beyond_a_bound_changes_nothing_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "FACTS_PER_KIND_MAX", 2)
    state = folded([("token", name, b"1") for name in "abc"])
    assert set(state.facts("token")) == {"a", "b"}
    assert [each.n for each in state.skipped] == [3]
    assert state.full([NamedFact("token", "a", b"longer")]) is None, "facts that are there may change"
    folded([("token", "a", None), ("token", "c", b"1")], state)
    assert set(state.facts("token")) == {"b", "c"}
    kinds = folded([(f"kind-{i}", "a", None) for i in range(KINDS_MAX + 1)])
    assert len(kinds.kinds()) == KINDS_MAX
    assert kinds.skipped[-1].n == KINDS_MAX + 1
    monkeypatch.setattr(states, "DOCUMENTS_BYTES_MAX", 8)
    full = folded(
        [("token", "a", bytes(6)), ("token", "b", bytes(3)), ("token", "a", bytes(1)), ("token", "b", b"123")]
    )
    assert {fact.name: fact.version for fact in full.facts("token").values()} == {"a": 3, "b": 4}


def several(n: int, *facts: NamedFact, must_understand: int = SEVERAL) -> Declaration:
    first = entry_of(n, *facts[0])
    return msgspec.structs.replace(first, must_understand=must_understand, more=list(facts[1:]))


def test_facts_of_one_entry_change_at_once_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, gone = NamedFact("token", "a", b"1"), NamedFact("token", "b", b"2"), NamedFact("tenant", "x", None)
    state = folded([("tenant", "x", b"{}")])
    made = several(2, a, b, gone)
    data = entries.encode_entry(made)
    assert entries.decode_entry(data) == made
    state.apply(made, states.crc_of(data))
    assert {name: (fact.version, fact.document) for name, fact in state.facts("token").items()} == {
        "a": (2, b"1"),
        "b": (2, b"2"),
    }
    assert (state.last("token"), state.last("tenant"), dict(state.facts("tenant"))) == (2, 2, {})
    assert states.encode_snapshot(states.decode_snapshot(states.encode_snapshot(state))) == states.encode_snapshot(
        state
    )
    monkeypatch.setattr(states, "FACTS_PER_KIND_MAX", 3)
    state.apply(several(3, NamedFact("token", "c", b"3"), NamedFact("token", "d", b"4")), 0)
    assert set(state.facts("token")) == {"a", "b"}
    assert state.skipped[-1].n == 3


def test_an_entry_with_wrong_further_facts_is_refused() -> None:
    a, b = NamedFact("token", "a", b"1"), NamedFact("token", "b", b"2")
    many = [NamedFact("token", f"{i}", b"") for i in range(entries.FACTS_MAX + 1)]
    long = [NamedFact("token", f"{i:0200}", b"") for i in range(100)]
    large = [NamedFact("token", f"{i}", bytes(DOCUMENT_BYTES_MAX)) for i in range(6)]
    for made in (
        several(1, a, a),
        several(1, a, b, must_understand=0),
        several(1, a, NamedFact("To", "b", b"")),
        several(1, *many),
        several(1, *long),
        several(1, *large),
    ):
        with pytest.raises(CodecError) as caught:
            entries.decode_entry(entries.encode_entry(made))
        assert not isinstance(caught.value, UnsupportedVersion)


def test_only_the_newest_of_many_skipped_entries_are_named() -> None:
    state = folded([DAMAGED] * 100)
    assert [each.n for each in state.skipped] == list(range(101 - SKIPPED_KEPT_MAX, 101))


def test_a_snapshot_whose_facts_are_not_in_order_is_refused() -> None:
    fact = Fact("a", 5, b"1", 0, "", "")
    for kinds, n in (
        ([states.KindSnapshot("token", 4, [fact])], 9),
        ([states.KindSnapshot("token", 5, [fact])], 4),
        ([states.KindSnapshot("token", 5, [fact, fact])], 9),
        ([states.KindSnapshot("To", 5, [fact])], 9),
    ):
        body = msgspec.msgpack.encode(states.ClusterSnapshot(STATE_CLUSTER, n, 0, 0, kinds, []))
        with pytest.raises(CodecError):
            states.decode_snapshot(entries.with_header(entries.SNAPSHOT_MAGIC, body))


# --- The follower of the cluster log in virtual time: how soon it knows, and what it does when the store fails


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


# --- Writers of the cluster log as processes on one folder, killed at any moment


WRITERS, KILLS = 3, 24


def write(folder: str) -> None:
    """Declare until it is killed, and say so after each declaration."""

    async def main() -> None:
        log = log_of(open_store(folder), random.SystemRandom().getrandbits(64))
        while True:
            await log.append(counts, MARA)
            print("declared", flush=True)

    asyncio.run(main())


def started(folder: Path, output: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", f"from {__name__} import write; write({str(folder)!r})"]
    with output.open("ab") as file:
        return subprocess.Popen(command, stdout=file, cwd=Path(__file__).parents[2])


@pytest.mark.slow
@pytest.mark.processes
def test_what_killed_writers_declared_is_there_once(tmp_path: Path) -> None:
    folder, rng = tmp_path / "store", random.Random(1)
    outputs = [tmp_path / f"output-{i}" for i in range(WRITERS)]
    writers = [started(folder, output) for output in outputs]
    try:
        for kill in range(KILLS):
            time.sleep(0.2 + rng.random())
            at = kill % WRITERS
            writers[at].kill()
            writers[at].wait()
            writers[at] = started(folder, outputs[at])
    finally:
        for each in writers:
            each.kill()
            each.wait()
    sure = sum(output.read_text().count("declared") for output in outputs)

    async def found() -> tuple[int, int, list[int | None]]:
        store = open_store(str(folder))
        state = await log_of(store).load()
        assert state.skipped == (), "a writer that is killed leaves no part of an entry"
        keys = [hub_keys.number_of(item.key) for item in await store.list(hub_keys.ENTRIES)]
        return int(state.facts("count")["all"].document), state.n, keys

    count, n, keys = asyncio.run(found())
    print(f"{sure} declarations acknowledged, {count} in the log, after {KILLS + WRITERS} kills")
    assert sure <= count <= sure + KILLS + WRITERS
    assert keys == list(range(1, n + 1))
    assert count == n, "each entry was decided on the one before it"
    assert sure > WRITERS * 4
