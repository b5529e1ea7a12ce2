from __future__ import annotations

import asyncio

import pytest

from tests.cloud_hub.tables.logs import LANE, OTHER, LogWriter, Run, contents, expected
from weft.storage.chunk_log import Manifest, ShardLog
from weft.storage.hub_keys import chunk_key, table_key
from weft.storage.object_store import ObjectStore, StoreError, open_store
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.settings import TableSettings
from weft.storage.table_writer.tiering import Tierer


@pytest.fixture
async def log(directory: ObjectStore) -> LogWriter:
    return await LogWriter.open(directory)


async def test_a_round_keeps_up_every_stream(directory: ObjectStore, log: LogWriter) -> None:
    alarms = Run(LANE._replace(stream="alarms"), 0, 2)
    await log.append(0, Run(LANE, 0, 3), alarms)
    await log.append(1, Run(OTHER, 0, 4))
    service = TableService(directory, log.cluster, clock=lambda: 99)
    assert await service.run_once() == 9
    assert contents(directory) == expected({0: [Run(LANE, 0, 3)], 1: [Run(OTHER, 0, 4)]})
    assert contents(directory, "alarms") == expected({0: [alarms]})
    first, second = service.status()
    assert (first.stream, first.lag_records, first.rows_moved, first.committed_at) == ("alarms", 0, 2, 99)
    assert [(item.shard, item.table, item.log) for item in second.shards] == [(0, 3, 3), (1, 4, 4)]
    files = [item for item in await directory.list(table_key("default", "telemetry")) if item.key.endswith(".parquet")]
    assert (second.files, second.bytes) == (len(files), sum(item.size for item in files))


def watched_service(
    store: ObjectStore, log: LogWriter, patch: pytest.MonkeyPatch
) -> tuple[TableService, asyncio.Event]:
    """A service with hardly a pause between rounds, and an event for its first rows."""
    moved, step = asyncio.Event(), Tierer.step

    async def watched(self: Tierer) -> int:
        rows = await step(self)
        if rows:
            moved.set()
        return rows

    patch.setattr(Tierer, "step", watched)
    return TableService(store, log.cluster, settings=TableSettings(interval_s=0.001)), moved


async def test_it_runs_by_itself_until_it_is_closed(
    directory: ObjectStore, log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, moved = watched_service(directory, log, monkeypatch)
    service.start()
    await log.append(0, Run(LANE, 0, 3))
    await moved.wait()
    await service.close()
    await service.close()
    assert contents(directory) == expected({0: [Run(LANE, 0, 3)]})


async def test_one_broken_table_does_not_hold_up_the_others(
    directory: ObjectStore, log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append(0, Run(LANE._replace(stream="broken"), 0, 2), Run(LANE, 0, 3))
    step = Tierer.step

    async def failing(self: Tierer) -> int:
        if self.key.endswith("broken"):
            raise StoreError("the bucket is gone")
        return await step(self)

    monkeypatch.setattr(Tierer, "step", failing)
    service = TableService(directory, log.cluster)
    assert await service.run_once() == 3
    broken, telemetry = service.status()
    assert (broken.error, broken.lag_records) == ("the bucket is gone", 2)
    assert (telemetry.error, telemetry.lag_records) == (None, 0)
    monkeypatch.undo()
    assert await service.run_once() == 2
    assert service.status()[0].error is None


async def test_a_mistake_of_ours_does_not_end_it(
    directory: ObjectStore, log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append(0, Run(LANE, 0, 3))
    rounds = []
    run_once = TableService.run_once

    async def failing(self: TableService) -> int:
        rounds.append(1)
        if len(rounds) == 1:
            raise RuntimeError("a bug")
        return await run_once(self)

    monkeypatch.setattr(TableService, "run_once", failing)
    service, moved = watched_service(directory, log, monkeypatch)
    service.start()
    await moved.wait()
    await service.close()


async def test_a_store_that_cannot_hold_tables_says_so(log: LogWriter) -> None:
    memory = open_store("memory://")
    log = await LogWriter.open(memory)
    await log.append(0, Run(LANE, 0, 3))
    service = TableService(memory, log.cluster)
    assert await service.run_once() == 0
    assert "give the hub a directory or a bucket" in str(service.status()[0].error)


async def test_a_damaged_shard_keeps_nothing_of_the_others_from_the_table(
    directory: ObjectStore, log: LogWriter
) -> None:
    await log.append(0, Run(LANE, 0, 3))
    await log.append(1, Run(OTHER, 0, 4))
    key = f"shard-1/chunk/{0:020d}"
    whole = (await directory.get(key)).data
    service = TableService(directory, log.cluster)
    for damaged_at, where in ((-20, "error"), (100, "status")):  # its index; then a section only
        damaged = bytearray(whole)
        damaged[damaged_at] ^= 1
        await directory.delete(key)
        await directory.create(key, bytes(damaged))
        await service.run_once()
        assert contents(directory) == expected({0: [Run(LANE, 0, 3)]})
        reported = service.error if where == "error" else service.status()[0].error
        assert f"{key} is damaged" in str(reported)
        assert "restore this object" in str(reported)
    await directory.delete(key)
    await directory.create(key, whole)
    assert await service.run_once() == 4
    assert contents(directory) == expected({0: [Run(LANE, 0, 3)], 1: [Run(OTHER, 0, 4)]})
    assert (service.error, service.status()[0].error) == (None, None)


async def test_a_damaged_log_is_reported_and_its_tables_stay(directory: ObjectStore, log: LogWriter) -> None:
    await log.append(0, Run(LANE, 0, 3))
    service = TableService(directory, log.cluster)
    await service.run_once()
    await directory.create(f"shard-0/chunk/{1:020d}", b"not a chunk" * 10)
    assert await service.run_once() == 0
    assert "chunk" in str(service.error)


async def test_a_service_that_slept_while_chunks_were_collected_goes_on_where_another_node_left_off(
    directory: ObjectStore, log: LogWriter
) -> None:
    await log.append(0, Run(LANE, 0, 3))
    asleep, other = (TableService(directory, log.cluster) for _ in range(2))
    await asleep.run_once()
    for first in range(3, 13):
        await log.append(0, Run(LANE, first, 1))
    await other.run_once()
    await log.snapshot(0)
    shard = ShardLog(directory, log.cluster, 0)
    manifest, etag = await shard.manifest()
    assert await shard.swap_manifest(Manifest(manifest.snapshot_n, manifest.snapshot, 8), etag)
    for n in range(8):
        await directory.delete(chunk_key(0, n))
    await log.append(0, Run(LANE, 13, 2))
    for view in asleep._views:
        view.log._looked_at = None  # it slept longer than any look holds
    assert await asleep.run_once() == 2
    assert asleep.error is None
    assert [payload for *_, payload in contents(directory)] == [Run(LANE, 0, 15).payload(seq) for seq in range(15)]
