"""Nodes that keep the tables of one store divide them: no file is made twice, and a killed one is replaced (q7)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from examples.demo.fabric import free_port
from tests.cloud_hub.live import get, running_hub
from tests.cloud_hub.tables.logs import LANE, TOPICS, LogWriter, Run, contents, table
from tests.cloud_hub.tables.test_service import AnswersNoCreate, CountingStore
from tests.support.processes import weft
from tests.support.waiting import until
from weft.cloud_hub.hub import Hub
from weft.protocols.chunk_index import StreamKey
from weft.storage import hub_keys
from weft.storage.object_store import StoreError, open_store
from weft.storage.object_store.directory import MemoryStore
from weft.storage.presence import ENTRIES_MAX, ENTRY_BYTES_MAX, TableOwners
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.settings import TableSettings

STREAMS = [f"stream-{number}" for number in range(6)]
MANY = [f"stream-{number}" for number in range(20)]
"""So many that two keepers of any names have some each."""
SETTINGS = TableSettings(interval_s=0.5)


class Fleet:
    """A log that grows by ten records of each stream, and nodes that keep its tables."""

    def __init__(self, root: Path, log: LogWriter, streams: Sequence[str] = STREAMS) -> None:
        self.root, self.log, self.streams = root, log, streams
        self.services: list[TableService] = []
        self.records = 0

    async def join(self) -> TableService:
        name = f"hub-{len(self.services)}"  # any random ones may leave a node without a stream
        service = TableService(open_store(str(self.root)), self.log.cluster, settings=SETTINGS, name=name)
        self.services.append(service)
        service.start()
        await until(lambda: all(each.owners.alive == len(self.services) for each in self.services))
        await until(lambda: self.kept(service) > 0)
        return service

    def kept(self, service: TableService) -> int:
        return sum(service.owners.keeps(("default", stream)) for stream in self.streams)

    async def write(self) -> None:
        first, self.records = self.records, self.records + 10
        runs = [
            Run(LANE._replace(stream=stream), first, 10, topics=TOPICS if first == 0 else None)
            for stream in self.streams
        ]
        await self.log.append(0, *runs)

    async def tabled(self) -> None:
        """Return once all records are rows."""
        # Each node knows how far the others' tables are.
        known = [(service, stream) for service in self.services for stream in self.streams]
        await until(lambda: all(service.rows("default", stream) == self.records for service, stream in known))
        counts = {table(open_store(str(self.root)), s).to_pyarrow_dataset().count_rows() for s in self.streams}
        assert counts == {self.records}

    def files(self) -> tuple[int, int]:
        """The number of Parquet files there are, and of those in a table."""
        named = sum(len(table(open_store(str(self.root)), stream).file_uris()) for stream in self.streams)
        return len(list(self.root.glob("tables/*/*/*.parquet"))), named


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
async def test_no_file_is_made_twice_and_a_killed_keeper_is_replaced(tmp_path: Path, count: int) -> None:
    fleet = Fleet(tmp_path, await LogWriter.open(open_store(str(tmp_path)), 1))
    for _ in range(count):
        await fleet.join()
    await until(lambda: sum(map(fleet.kept, fleet.services)) == len(STREAMS))
    for _ in range(3):
        await fleet.write()
        await fleet.tabled()
    there, named = fleet.files()
    assert there == named == 3 * len(STREAMS)
    await until(lambda: sum(each._rows_moved() for each in fleet.services) == fleet.records * len(STREAMS))
    assert min(service._rows_moved() for service in fleet.services) > 0
    killed = fleet.services.pop(0)
    for task in (killed._task, killed.owners._presence._task):
        await task.close()
    await fleet.write()
    await fleet.tabled()
    await until(lambda: sum(map(fleet.kept, fleet.services)) == len(STREAMS))
    for service in fleet.services:
        await service.close()


async def test_the_processes_of_a_host_share_its_tables_and_each_says_which_it_makes(tmp_path: Path) -> None:
    store, port = open_store(str(tmp_path)), free_port()
    fleet = Fleet(tmp_path, await LogWriter.open(store, 1), MANY)
    await fleet.write()
    of_node = {"shards": 1, "processes": 2, "table_interval_s": 0.2}

    async def tables(hub: Hub) -> dict[str, Any]:
        found = (await get(hub, "/v1/status"))[1]
        return {each["stream"]: each for each in found["tables"]}

    async def are_shared() -> bool:
        of_first, of_second = [await tables(each) for each in (first, second)]
        makers = {each["process"] for each in of_first.values()}
        mine = {stream for stream, each in of_first.items() if each["process"] == names[1]}
        return makers == {*names} and of_second.keys() == mine

    async def are_rows() -> bool:
        rows = [each["shards"][0]["table"] for each in (await tables(first)).values()]
        return rows == [fleet.records] * len(MANY)

    async with (
        running_hub(store, port=port, process=0, **of_node) as first,
        running_hub(store, port=port + 1, process=1, **of_node) as second,
    ):
        names = [(await get(hub, "/v1/status"))[1]["name"] for hub in (first, second)]
        await until(are_shared)
        await until(are_rows)
        moved = {stream: each["rows_moved"] for stream, each in (await tables(second)).items()}
        await fleet.write()
        await until(are_rows)
        now = {stream: each["rows_moved"] - moved[stream] for stream, each in (await tables(second)).items()}
        assert set(now.values()) == {10}, "it has made the new rows of its tables"
        assert first.health.unhealthy() == second.health.unhealthy() == []
        assert first._tables.maker is not None
        config = tmp_path / "hub.yaml"
        config.write_text(f"listen: 127.0.0.1:{port}\nstore: {tmp_path}\n")
        shown = json.loads((await asyncio.to_thread(weft, "hub", "status", config, "--json")).stdout)
        reported = {each["stream"]: each for each in shown["tables"]}
        made = await tables(second)
        assert {stream: reported[stream]["committed_at"] for stream in made} == {
            stream: each["committed_at"] for stream, each in made.items()
        }, "as the maker says"
        assert {each["process"] for each in reported.values()} == {*names}
        assert (first._work().tables or 0) + (second._work().tables or 0) == len(MANY)
        there, named = fleet.files()
        assert there == named == 2 * len(MANY)

        drained = await asyncio.to_thread(weft, "hub", "drain", config, names[1], "--wait", "60s")
        assert "is drained and has no links and no tables" in drained.output

        async def are_moved() -> bool:
            return {each["process"] for each in (await tables(first)).values()} == {names[0]}

        await until(are_moved)
    for stream in MANY:
        assert len(contents(store, stream)) == len(set(contents(store, stream))) == fleet.records


async def test_who_joins_waits_until_the_others_know() -> None:
    now = 100.0
    store = MemoryStore()
    stream = ("default", "telemetry")

    def keeper(name: str) -> TableOwners:
        return TableOwners(store, name, 120.0, lambda: now)

    first, second = keeper("a"), keeper("b")
    await first.start()
    assert first.keeps(stream)
    await second.start()
    assert (second.alive, second.keeps(stream), first.keeps(stream)) == (2, False, True)
    await first.look()
    now += 30
    for _ in range(2):
        await first.look()
        await second.look()
    assert now < 135
    now += 9
    await first.look()
    await second.look()
    assert first.keeps(stream) is not second.keeps(stream)
    await second.close()
    await first.look()
    assert (first.alive, first.keeps(stream)) == (1, True)
    await first.close()
    assert await store.list(hub_keys.KEEPERS) == []


async def test_while_processes_join_each_table_has_a_maker_but_for_a_beat() -> None:
    now, store = 100.0, MemoryStore()
    keepers: list[TableOwners] = []
    without = dict.fromkeys(STREAMS, 0)

    def makers(stream: str) -> list[TableOwners]:
        return [each for each in keepers if each.keeps(("default", stream))]

    for number in range(3):
        keepers.append(TableOwners(store, f"hub-{number}", 120.0, lambda: now, node=f"host:{number}"))
        await keepers[-1].start()
        await keepers[-1]._presence._task.close()
        for _ in range(12):
            now += 5
            for each in keepers:
                await each.look()
                found = {stream: makers(stream) for stream in STREAMS}
                assert max(map(len, found.values())) <= 1, "no file is made twice"
            for stream, by in found.items():
                without[stream] = 0 if by else without[stream] + 1
                assert without[stream] <= 1
    assert all(each.keeps(("default", stream)) for stream in STREAMS for each in makers(stream))
    assert {len([each for stream in STREAMS for each in makers(stream)])} == {len(STREAMS)}
    assert len({makers(stream)[0]._own for stream in STREAMS}) == 3
    for stream in STREAMS:
        key = "default", stream
        assert {each.process_of(key) for each in keepers} == {makers(stream)[0]._node}


async def test_what_stands_beside_tables_falls_to_those_who_follow_all_of_them() -> None:
    """A host's first process answers for it, so it must have what is said of quality rules and latest tables."""
    now, store = 100.0, MemoryStore()
    keepers: dict[str, TableOwners] = {}

    async def joins(name: str, *, follows: bool) -> None:
        keepers[name] = TableOwners(store, name, 120.0, lambda: now, follows=follows)
        await keepers[name].start()
        await keepers[name]._presence._task.close()

    async def beats(count: int) -> None:
        nonlocal now
        for _ in range(count):
            now += 5
            for each in keepers.values():
                await each.look()

    def beside() -> set[str]:
        found = [
            (name, key) for name, each in keepers.items() for key in STREAMS if each.keeps_beside(("default", key))
        ]
        assert sorted(key for _, key in found) == STREAMS, "each falls to one"
        return {name for name, _ in found}

    for host in "ab":
        for process in range(3):
            await joins(f"{host}{process}", follows=process == 0)
    await beats(12)
    assert {name for name, each in keepers.items() if any(each.keeps(("default", key)) for key in STREAMS)} - {
        "a0",
        "b0",
    }
    assert beside() == {"a0", "b0"}
    for killed in ("a0", "b0"):
        del keepers[killed]
    await beats(5)
    assert beside() <= {"a1", "a2", "b1", "b2"}, "none is there that follows all tables"
    await joins("a0-again", follows=True)
    await beats(1)
    assert "a0-again" not in beside(), "another one does it while this one joins"
    await beats(12)
    assert beside() == {"a0-again"}


async def test_who_is_drained_leaves_its_tables_to_the_others_as_long_as_there_are_some() -> None:
    now, store = 100.0, MemoryStore()
    keepers = [TableOwners(store, name, 120.0, lambda: now, follows=name == "a") for name in "abc"]

    async def beats(count: int) -> None:
        nonlocal now
        for _ in range(count):
            now += 5
            for each in keepers:
                await each.look()

    def makers(keeps: Callable[[TableOwners, StreamKey], bool]) -> set[str]:
        found = [(each._own, key) for each in keepers for key in STREAMS if keeps(each, ("default", key))]
        assert sorted(key for _, key in found) == STREAMS, "each has one maker"
        return {name for name, _ in found}

    for each in keepers:
        await each.start()
        await each._presence._task.close()
    await beats(12)
    assert makers(TableOwners.keeps) == {"a", "b", "c"}
    keepers[0].leave(True)
    await beats(2)
    assert (makers(TableOwners.keeps), makers(TableOwners.keeps_beside)) == ({"b", "c"}, {"b", "c"})
    for each in keepers[1:]:
        each.leave(True)
    await beats(2)
    assert makers(TableOwners.keeps) == {"a", "b", "c"}, "all are drained: tables have a maker nevertheless"
    keepers[1].leave(False)
    await beats(2)
    assert makers(TableOwners.keeps) == {"b"}
    keepers[2] = Earlier(store, "d", 120.0, lambda: now)
    await keepers[2].start()
    await keepers[2]._presence._task.close()
    await beats(12)
    assert makers(TableOwners.keeps) == {"a", "b", "d"}, "one of an earlier release takes no tables of a drained one"


class Earlier(TableOwners):
    """A keeper of a release that knows of no drained ones."""

    def content(self, beat: int) -> bytes:
        said = json.loads(super().content(beat))
        del said["leaves"]
        return json.dumps(said).encode()

    def _hubs(self) -> dict[str, Any]:
        return {name: msgspec.structs.replace(each, leaves=None) for name, each in super()._hubs().items()}


async def test_who_ends_in_its_first_look_leaves_no_object() -> None:
    store = MemoryStore()
    keeper = TableOwners(AnswersNoCreate(store), "a", 120.0, lambda: 100.0)  # type: ignore[arg-type]
    with pytest.raises(StoreError):
        await keeper.look()
    assert [item.key for item in await store.list(hub_keys.KEEPERS)] == [hub_keys.keeper_key("a")]
    await keeper.close()
    assert await store.list(hub_keys.KEEPERS) == []


async def test_who_joins_none_that_lives_makes_all_tables_once_those_are_gone() -> None:
    now, store = 100.0, MemoryStore()
    await store.create(hub_keys.keeper_key("killed"), b"7")  # by a release that writes a number
    started = [TableOwners(store, name, 120.0, lambda: now) for name in "ab"]
    for each in started:
        await each.start()
        await each._presence._task.close()
    assert not any(each.keeps(("default", stream)) for each in started for stream in STREAMS)
    for _ in range(4):
        now += 5
        for each in started:
            await each.look()
    kept = [(each, stream) for each in started for stream in STREAMS if each.keeps(("default", stream))]
    assert sorted(stream for _, stream in kept) == STREAMS
    assert {each for each, _ in kept} == {*started}


async def test_an_entry_that_is_nested_without_end_claims_nothing_and_stops_no_look() -> None:
    store = MemoryStore()
    first, second = (TableOwners(store, name, 120.0, lambda: 100.0) for name in "ab")
    await store.create(hub_keys.keeper_key("forged"), b'{"x":' + b"[" * 10_000)
    await store.create(hub_keys.keeper_key("long"), bytes(ENTRY_BYTES_MAX + 1))
    await first.look()
    await second.look()
    await first.look()
    stream = ("default", "telemetry")
    assert (first.alive, first.claimed_by(stream)) == (3, None), "one is too long to be read"


async def test_thousands_of_forged_entries_hide_none_and_bound_a_look() -> None:
    now, store = 100.0, MemoryStore()
    first, second = (TableOwners(store, name, 120.0, lambda: now) for name in ("x", "y"))
    for number in range(1500):  # all of them before the real ones, by name
        await store.create(hub_keys.keeper_key(f"forged-{number:04d}"), b"1")
    counted = CountingStore(store)
    watching = TableOwners(counted, "z", 120.0, lambda: now)
    for _ in range(16):
        now += 5
        await first._presence._beat()
        await second._presence._beat()
        before = sum(counted.calls.values())
        await watching.look()
        assert sum(counted.calls.values()) - before <= 2 * ENTRIES_MAX
    assert {"x", "y"} <= set(watching._alive)
    assert watching.alive == 3, "what is not written again counts no more"


async def test_one_that_is_gone_is_forgotten_and_one_that_was_paused_comes_back() -> None:
    now = 100.0
    store = MemoryStore()
    first, second = (TableOwners(store, name, 120.0, lambda: now) for name in "ab")
    await first.start()
    await second.start()
    await first.look()
    now += 16
    await first.look()
    assert first.alive == 1, "three beats are missing"
    now += 120
    await first.look()
    assert [item.key for item in await store.list(hub_keys.KEEPERS)] == [hub_keys.keeper_key("a")]
    for _ in range(2):  # it finds that its object is gone, and makes another one
        await second.look()
    await first.look()
    assert first.alive == 2
    await first.close()
    await second.close()
