"""A driver's view of a table, followed for many versions: the same as a new reading of all of it, at the price of what
came since."""

from __future__ import annotations

import asyncio
import random
from itertools import count
from typing import Any

import pytest

from spark_sinks.source import tables
from spark_sinks.source.tables import FileIndex, FollowedTable, StreamTable, TableSnapshot
from tests.cloud_hub.tables.logs import LANE, OTHER, TOPICS, LogWriter, Run, table
from tests.cloud_hub.tables.test_tierer import drain, new_tierer
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table.actions import app_id
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
