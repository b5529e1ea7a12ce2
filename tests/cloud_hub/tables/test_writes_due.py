"""Quiet streams wait for more records, as their operator wants; nothing waits longer, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

from tests.cloud_hub.tables.logs import LANE, LogWriter, Run, contents, expected, table
from weft.storage.object_store import open_store
from weft.storage.table_writer.service import FlushPolicy, TableService
from weft.storage.table_writer.settings import TableSettings

BUSY = LANE._replace(stream="busy")


async def test_a_quiet_stream_is_written_at_the_moment_and_a_busy_one_by_its_bytes(tmp_path: Path) -> None:
    now = 600.0
    store = open_store(str(tmp_path))
    log = await LogWriter.open(store, 1)
    settings = TableSettings(write_bytes=100_000, write_after_s=600.0)
    service = TableService(store, log.cluster, settings=settings, monotonic=lambda: now)
    quiet, busy = [], []
    rounds = []
    for number in range(12):
        now += 60
        quiet.append(Run(LANE, 3 * number, 3))
        busy.append(Run(BUSY, 3 * number, 3, payload_bytes=20_000))
        await log.append(0, quiet[-1], busy[-1])
        rounds.append(await service.run_once())
    # The first round writes what came before, the moment is at 1,200 s, and two chunks are 100 kB.
    assert rounds == [6, 0, 6, 0, 6, 0, 6, 0, 6, 30, 0, 6]
    assert contents(store, "telemetry") == expected({0: quiet[:10]})
    assert contents(store, "busy") == expected({0: busy})
    assert len(table(store, "telemetry").file_uris()) == 2


async def test_without_a_time_to_wait_each_round_writes_what_is_there(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    log = await LogWriter.open(store, 1)
    service = TableService(store, log.cluster, settings=TableSettings(write_bytes=100_000))
    for number in range(3):
        await log.append(0, Run(LANE, 3 * number, 3))
        assert await service.run_once() == 3


async def test_a_changed_time_of_vacuum_reaches_tables_that_are_there(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    log = await LogWriter.open(store, 1)
    for number, hours in enumerate((168, 48, 48)):
        await log.append(0, Run(LANE, number, 1))
        await TableService(store, log.cluster, settings=TableSettings(retention_hours=hours)).run_once()
        names = ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration")
        reported = table(store).metadata().configuration
        assert {reported[name] for name in names} == {f"interval {hours} hours"}
    table(store).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 30 days"})
    await log.append(0, Run(LANE, 3, 1))
    await TableService(store, log.cluster, settings=TableSettings(retention_hours=24)).run_once()
    reported = table(store).metadata().configuration
    assert reported["delta.deletedFileRetentionDuration"] == "interval 30 days", "its owner's word"


def test_many_quiet_streams_wait_unasked_and_make_no_other_tenant_wait() -> None:
    now = 1000.0
    due = FlushPolicy(1 << 20, None, 10.0, lambda: now)
    many = [("crowded", f"s{number}") for number in range(1000)]
    few = [("small", f"s{number}") for number in range(10)]
    rounds = []
    for _ in range(17):  # 1,000 streams in 16 shards are eight times the files of a round
        now += 10
        due.begin([*many, *few], 16)
        assert all(map(due.is_due, few))
        written = [key for key in many if due.is_due(key)]
        rounds.append(len(written))
        for key in [*written, *few]:
            due.written(key)
    assert sorted(set(rounds)) == [0, 1000]
    assert rounds.count(1000) == 3, "the first round, and one of eight"
