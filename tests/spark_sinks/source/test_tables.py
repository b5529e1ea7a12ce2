"""A driver's view of a table, followed for many versions: the same as a new reading of all of it, at the price of what
came since.
"""

from __future__ import annotations

import asyncio
import json
import random
import urllib.request
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from spark_sinks.source import tables
from spark_sinks.source.tables import FileIndex, FollowedTable, StreamTable, TableSnapshot
from tests.cloud_hub.tables.logs import LANE, OTHER, TOPICS, LogWriter, Run, table
from tests.cloud_hub.tables.test_tiering import drain, new_tierer
from tests.spark_sinks.conftest import SHARDS, STREAM, Hub
from tests.spark_sinks.source.test_hub import Serving, read, source
from weft.cloud_hub.tables.erasure import Author, Choice, Eraser
from weft.storage.cluster import open_cluster
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table.actions import app_id
from weft.storage.table.deletions import LOOK_INTERVAL_S, FollowedErasures
from weft.storage.table.files import TableFile
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.settings import TableSettings


@pytest.fixture
def directory(tmp_path: Any) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


def same(followed: TableSnapshot | None, listed: TableSnapshot | None) -> bool:
    assert followed is not None
    assert listed is not None
    assert sorted(followed.files) == sorted(listed.files)
    return followed[:4] == listed[:4] and followed[5:] == listed[5:]


async def test_it_is_the_same_after_appends_joins_checkpoints_and_other_engines(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await LogWriter.open(directory)
    followed = StreamTable(directory, log.cluster, "default", "telemetry")
    assert await followed.open() is None
    bounds = TableSettings(compact_files_min=3, checkpoint_versions=4)
    uri, options = directory.location(table_key("default", "telemetry"))
    apps = {shard: app_id(log.cluster.cluster_id, "telemetry", shard) for shard in range(log.cluster.shards)}
    for n in range(12):
        for shard, lane in ((0, LANE), (1, OTHER)):
            await log.append(shard, Run(lane, 3 * n, 3, topics=TOPICS if n < 6 else ["plant/{line}/{machine}/{kind}"]))
        tierer = await new_tierer(directory, log)
        await drain(tierer)
        if n % 3 == 2:
            await Maintenance(directory, tierer, settings=bounds).maintain()
        if n == 7:
            table(directory).optimize.compact()
        found = await followed.open()
        assert same(found, await asyncio.to_thread(tables._listed, uri, options, apps, "telemetry", None))
        assert await followed.open() is found
    fresh = await StreamTable(directory, log.cluster, "default", "telemetry").open()
    assert same(fresh, await asyncio.to_thread(tables._listed, uri, options, apps, "telemetry", None))
    assert fresh is not None
    assert fresh.received(1, 35) is not None
    assert fresh.received(1, 36) is None
    older = await followed.open(3)
    assert older is not None
    assert older.version == 3

    def no_list(*_: Any) -> None:
        raise AssertionError("the files were listed")

    monkeypatch.setattr(tables, "_listed", no_list)
    monkeypatch.setattr(FollowedTable, "read_checkpoint", no_list)
    await log.append(0, Run(LANE, 36, 3))
    await drain(await new_tierer(directory, log))
    later = await followed.open()
    assert later is not None
    assert later.ends[0] == 39


async def test_another_table_in_its_place_is_read_anew(directory: ObjectStore, tmp_path: Any) -> None:
    log = await LogWriter.open(directory)
    followed = StreamTable(directory, log.cluster, "default", "telemetry")
    for n in range(3):
        await log.append(0, Run(LANE, 3 * n, 3, topics=TOPICS))
        await drain(await new_tierer(directory, log))
        assert await followed.open() is not None
    (tmp_path / "store/tables/default/telemetry").rename(tmp_path / "moved away")
    assert await followed.open() is None
    await drain(await new_tierer(directory, log))
    found = await followed.open()
    assert found is not None
    assert (found.ends[0], len(found.files)) == (9, 1)


@pytest.mark.parametrize("seed", range(4))
def test_the_index_finds_the_files_that_a_walk_finds(seed: int) -> None:
    chance, names = random.Random(seed), count()
    index, files = FileIndex(), list[TableFile]()

    def new() -> TableFile:
        low = chance.randrange(1000)
        high = low + chance.choice([0, 5, 50, 900])
        shards = chance.choice([(0, 0), (1, 1), (1, 1), (0, 2), (None, None)])
        bounds = chance.choice([(low, high), (low, high), (low, high), (None, None)])
        return TableFile(str(next(names)), 1, *shards, *bounds, None, None)

    for _ in range(60):
        gone = chance.sample(files, min(len(files), chance.randrange(4)))
        came = [new() for _ in range(chance.randrange(6))]
        index = index.changed(gone, came)
        files = [file for file in files if file not in gone] + came
        assert sorted(map(str, index)) == sorted(map(str, files))
        assert len(index) == len(files)
        shard, first = chance.randrange(3), chance.randrange(1500)
        end = first + chance.choice([1, 100])
        wanted = [file for file in files if file.may_hold(shard, first, end)]
        assert sorted(index.overlapping(shard, first, end)) == sorted(wanted)
        lows = [file.offset_min or 0 for file in files if file.may_hold(shard, 0, 2000)]
        assert index.lowest(shard, 2000) == min(lows, default=2000)


def test_a_micro_batch_looks_at_few_files_of_a_million(monkeypatch: pytest.MonkeyPatch) -> None:
    index = FileIndex(TableFile(str(n), 1, n % 4, n % 4, n, n + 40, None, None) for n in range(100_000))
    looked = 0
    may_hold = TableFile.may_hold

    def counted(self: TableFile, shard: int, first: int, end: int) -> bool:
        nonlocal looked
        looked += 1
        return may_hold(self, shard, first, end)

    monkeypatch.setattr(TableFile, "may_hold", counted)
    assert [file.offset_min for file in index.overlapping(2, 50_000, 50_001)] == [*range(49_962, 50_001, 4)]
    assert looked < 30


# --- Erased rows are gone from every reader as soon as they are gone from the table, while the log still has them


Record = tuple[str, int]
"""Edge and number."""


async def erase(root: str, machine: str) -> int:
    store = open_store(root)
    cluster = await open_cluster(store, SHARDS)
    nonce = iter(f"{n:016x}" for n in range(1 << 60, (1 << 60) + 1000)).__next__
    eraser = Eraser(store, cluster, ("default", STREAM), clock=lambda: 0, monotonic=lambda: 0.0, nonce=nonce)
    return (await eraser.erase(Choice([("machine", machine)]), Author("anna", "case 12", 0))).rows


def kept(hub: Hub) -> list[Record]:
    """The records of the machine that is not erased: one of two, in turn."""
    return [(edge, seq) for edge, seq, _ in hub.expected() if seq % 2 == 0]


@pytest.fixture
def emptied(hub: Hub) -> Iterator[Serving]:
    """A hub whose log has each record, and from whose tables a machine's rows were erased."""
    hub.write(3)
    hub.tier()
    hub.write(2)  # behind the table
    with Serving(hub.root) as serving:
        assert asyncio.run(erase(hub.root, "m1")) == 100
        yield serving


def ask(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


@pytest.mark.parametrize("way", ["store", "hub"])
def test_spark_does_not_read_erased_rows(way: str, hub: Hub, emptied: Serving) -> None:
    found = read(source(store=hub.root) if way == "store" else source(hub=emptied.url))
    assert sorted(zip(found["_edge"].to_pylist(), found["_seq"].to_pylist(), strict=True)) == kept(hub)


@pytest.mark.parametrize("limit", [1000, 7])
def test_the_api_s_records_are_without_erased_ones(limit: int, hub: Hub, emptied: Serving) -> None:
    found, offsets = list[Record](), hub.heads()
    for shard, end in offsets.items():
        at = 0
        while at < end:
            answer = ask(f"{emptied.url}/v1/streams/{STREAM}/records?shard={shard}&offset={at}&limit={limit}")
            found += [(each["edge"], each["seq"]) for each in answer["records"]]
            assert answer["next_offset"][shard] > at
            at = answer["next_offset"][shard]
    assert sorted(found) == kept(hub)


def test_a_tail_and_a_trace_are_without_erased_records(hub: Hub, emptied: Serving) -> None:
    stream = f"{emptied.url}/v1/streams/{STREAM}"
    (shard, *_) = [shard for shard, end in hub.heads().items() if end]
    position = ",".join(f"{each}:0" for each in hub.heads())
    seen = list[Record]()
    with urllib.request.urlopen(f"{stream}/tail?position={position}") as events:
        while len(seen) < len(kept(hub)):
            line = events.readline()
            if line.startswith(b"data:"):
                seen += [(each["edge"], each["seq"]) for each in json.loads(line[5:])["records"]]
    assert sorted(seen) == kept(hub)
    standing = [ask(f"{stream}/trace?shard={shard}&offset={offset}")["standing"] for offset in (0, 1)]
    assert sorted(standing) == ["gone", "here"]


def test_a_reader_learns_of_an_erasure_within_seconds(hub: Hub) -> None:
    hub.write(2)
    hub.tier()
    now = 100.0

    async def followed() -> None:
        nonlocal now
        erasures = FollowedErasures(open_store(hub.root), lambda: now)
        assert await erasures.of("default", STREAM) == {}
        assert await erase(hub.root, "m1") == 40
        now += LOOK_INTERVAL_S / 2
        assert await erasures.of("default", STREAM) == {}, "the store is not asked at each read"
        now += LOOK_INTERVAL_S
        found = await erasures.of("default", STREAM)
        assert sum(each.count() for each in found.values()) == 40
        assert await erasures.of("default", "other") == {}

    asyncio.run(followed())
