"""Iceberg's readers find the rows of Delta's versions, whatever changed the table, over the same files."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.cloud_hub.tables.latest_tables import drain_latest, new_latest
from tests.cloud_hub.tables.logs import LANE, OTHER, SECOND, START, TOPICS, LogWriter, Run, rows, table
from tests.cloud_hub.tables.test_crashes import Boundaries, Crash, WatchedStore
from tests.cloud_hub.tables.test_erasure import PERSON, erased
from tests.cloud_hub.tables.test_retention import HOUR, retention
from tests.cloud_hub.tables.test_tiering import drain, new_tierer
from tests.storage.object_store.buckets import Endpoint
from tests.support.outcomes import outcome
from tests.support.third_party import DUCKDB_ICEBERG
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.facts.streams import DeclaredTables, TableDocument
from weft.cloud_hub.reads.summaries import StreamCompleteness
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.tables.erasure import erasures
from weft.cloud_hub.tables.service import IcebergWork
from weft.config.load import parse_schema
from weft.proofs.backup.view import is_of_table
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.completeness import Completeness
from weft.storage.hub_keys import latest_key, table_key
from weft.storage.object_store import ObjectStore, StoreError, open_store
from weft.storage.table import iceberg, manifests
from weft.storage.table.actions import TableConflict, TableError, app_ids
from weft.storage.table.schemas import StreamSchema
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.settings import TableSettings
from weft.storage.table_writer.shards import ShardView, load_shards
from weft.storage.table_writer.tiering import Tierer

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install weft-fabric[iceberg]")

from pyiceberg.table import StaticTable

from weft.cloud_hub.tables import iceberg as writer
from weft.cloud_hub.tables.iceberg import Claim, IcebergTable

TABLE, LATEST = table_key("default", "telemetry"), latest_key("default", "telemetry")
DAY = 86_400.0
SCHEMA = "t float, n int, text string, day date, at timestamp, list array<float>"


def of(store: Any, log: LogWriter, **options: Any) -> IcebergTable:
    """As a process that has just started has it."""
    defaults: dict[str, Any] = {"keep_s": DAY, "clock": lambda: START + HOUR}
    return IcebergTable(store, TABLE, app_ids(log.cluster.cluster_id, "telemetry"), **defaults | options)


async def grow(store: ObjectStore, log: LogWriter, first: int, *, key: bytes = b"plant/a/m1/telemetry") -> None:
    """A file of each shard."""
    await log.append(0, Run(LANE, first, 4, topics=TOPICS, key=key))
    await log.append(1, Run(OTHER, first, 3))
    await drain(await new_tierer(store, log))


async def join(store: ObjectStore, log: LogWriter, **options: Any) -> None:
    """Join all files of each shard."""
    tierer = await new_tierer(store, log)
    await tierer.open()
    settings = TableSettings(**{"compact_files_min": 2, "checkpoint_versions": 1000} | options)
    await Maintenance(store, tierer, settings=settings, chance=lambda: 0.0).maintain()


async def opened(store: ObjectStore, key: str = TABLE) -> StaticTable:
    found = await iceberg.current(store, key)
    assert found is not None
    uri = iceberg.table_uri(store, iceberg.metadata_key(key, found.number))
    return StaticTable.from_metadata(uri, store.location(key)[1])


def in_order(found: pa.Table) -> list[dict[str, Any]]:
    return [
        {
            name: dict(value) if name in ("_headers", "_misfit") and value is not None else value
            for name, value in row.items()
        }
        for row in found.sort_by([("_shard", "ascending"), ("_offset", "ascending")]).to_pylist()
    ]


async def check(store: ObjectStore, since: int = 0, key: str = TABLE) -> list[str]:
    """Compare every snapshot that names a version of Delta, from one on, and return the operations of all."""
    found = await opened(store, key)
    newest = DeltaTable(store.location(key)[0], storage_options=store.location(key)[1])
    with outcome():
        assert in_order(found.scan().to_arrow()) == in_order(newest.to_pyarrow_table()), "the newest rows"
    operations = []
    for snapshot in found.snapshots():
        assert snapshot.summary is not None
        operations.append(snapshot.summary.operation.value)
        version = snapshot.summary.additional_properties.get(iceberg.VERSION_PROPERTY)
        if version is not None and int(version) >= since:
            older = DeltaTable(newest.table_uri, int(version), storage_options=store.location(TABLE)[1])
            with outcome():
                rows_then = in_order(found.scan(snapshot_id=snapshot.snapshot_id).to_arrow())
                assert rows_then == in_order(older.to_pyarrow_table()), f"the rows of version {version}"
    return operations


async def test_appends_joins_and_new_columns_are_the_rows_of_delta(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    table_of = of(directory, log)
    assert await table_of.write() == -1, "no table yet"
    await grow(directory, log, 0)
    await grow(directory, log, 10)
    assert await table_of.write() == 2
    assert await check(directory) == ["append"], "two versions, one snapshot"
    await grow(directory, log, 20)
    typed = StreamSchema(3, parse_schema(SCHEMA))
    values: list[dict[str, Any]] = [
        {"t": 1.5, "n": 7, "text": "é" * 70, "day": "2026-11-01", "at": "2026-11-01T12:00:00.123456Z"},
        {"t": -0.0, "list": [1.5, None]},
        {"n": "no number"},
    ]
    payloads = [json.dumps(value).encode() for value in values]
    await log.append(0, Run(LANE, 30, 3, payloads=payloads, kind=int(PayloadKind.JSON)))
    views = await load_shards(directory, log.cluster)
    await drain(Tierer(directory, log.cluster, "default", "telemetry", views, schema=lambda: typed))
    await table_of.write()
    assert await check(directory) == ["append"] * 2
    await join(directory, log)
    await of(directory, log).write()
    assert await check(directory) == ["append", "append", "replace"]
    assert rows(directory, columns=["_shard", "_offset", "list"])["list"].null_count < rows(directory).num_rows
    found = await opened(directory)
    summary = found.current_snapshot().summary
    assert json.loads(summary["weft.positions"]) == {"0": 15, "1": 9}
    assert (summary["added-records"], summary["deleted-records"], summary["total-records"]) == ("24", "24", "24")
    assert len(found.schemas()) == 2
    for text in ("_offset >= 8", "_edge = 'press-2'", "n = 7", f"text = '{'é' * 70}'", "day = '2026-11-01'", "t > 1.0"):
        expected = {"_offset >= 8": 8, "_edge = 'press-2'": 9}.get(text, 1)
        assert found.scan(row_filter=text).to_arrow().num_rows == expected, text
    at = "at >= '2026-11-01T12:00:00.123456+00:00' and at < '2026-11-01T12:00:00.123457+00:00'"
    assert found.scan(row_filter=at).to_arrow().num_rows == 1


async def test_every_snapshot_of_a_run_is_a_version_of_both_tables(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    apps = app_ids(log.cluster.cluster_id, "telemetry")

    schemas = [StreamSchema(n, parse_schema(text)) for n, text in ((3, SCHEMA), (4, f"{SCHEMA}, later string"))]

    async def typed(first: int, schema: StreamSchema) -> None:
        payloads = [json.dumps({"n": n, "list": [1.5, None], "later": "é"}).encode() for n in range(3)]
        await log.append(0, Run(LANE, first, 3, payloads=payloads, kind=int(PayloadKind.JSON)))
        views = await load_shards(directory, log.cluster)
        await drain(Tierer(directory, log.cluster, "default", "telemetry", views, schema=lambda: schema))

    steps = ["grow", "person", "join", "typed", "grow", "erase", "grow", "retain", "later", "join", "later", "join"]

    def opened_again() -> list[IcebergTable]:
        return [IcebergTable(directory, key, apps, keep_s=DAY, clock=lambda: log.created) for key in (TABLE, LATEST)]

    tables = opened_again()
    for n, step in enumerate(steps):
        log.created = START + n * HOUR
        match step:
            case "grow" | "person":
                await grow(directory, log, 10 * n, key=PERSON if step == "person" else b"plant/a/m1/telemetry")
            case "typed" | "later":
                await typed(10 * n, schemas[step == "later"])
            case "join":
                await join(directory, log, compact_files_max=2)
            case "erase":
                await erased(directory, log, _key=PERSON.decode())
            case "retain":
                await retention(directory, log, START + n * HOUR).look(TableDocument(retain_s=2 * 3600))
        await drain_latest(await new_latest(directory, log))
        if n % 3 == 2:  # as after a restart
            tables = opened_again()
        if n % 4:  # some windows have several steps
            for each in tables:
                await each.write()
    assert set(await check(directory)) == {"append", "replace", "delete", "overwrite"}
    assert set(await check(directory, key=LATEST)) == {"append", "overwrite"}


async def test_a_join_of_files_that_no_snapshot_had_is_an_append_of_its_rows(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    table_of = of(directory, log)
    for first in (0, 10):
        await grow(directory, log, first)
    await join(directory, log)
    await table_of.write()
    assert await check(directory) == ["append"]
    for first in (20, 30):
        await grow(directory, log, first)
    await join(directory, log, compact_files_max=2)
    await table_of.write()
    assert await check(directory) == ["append", "append", "replace"], "rows first, then the join with older files"


async def test_retention_and_erasure_are_deletes_and_leave_no_values_of_the_rows(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    for n in range(4):
        log.created = START + n * HOUR
        await grow(directory, log, 10 * n, key=PERSON if n % 2 else b"plant/a/m1/telemetry")
    now = START + 4 * HOUR
    table_of = of(directory, log, clock=lambda: now)
    await table_of.write()
    await retention(directory, log, START + 3 * HOUR + SECOND).look(TableDocument(retain_s=2 * 3600))
    await table_of.write()
    await erased(directory, log, _key=PERSON.decode())
    await table_of.write()
    assert await check(directory) == ["append", "delete", "delete"]
    assert b"mara" in await everything(directory), "older snapshots have what they had"
    now += int(DAY * SECOND)
    assert await table_of.write() == table(directory).version(), "also without a new version"
    assert [await table_of.sweep(), await table_of.sweep() > 0] == [0, True]
    assert await check(directory) == ["delete"]
    assert b"mara" not in await everything(directory), "no bound of a row that is gone"


async def test_a_snapshot_lives_from_its_successor_on_however_quiet_the_stream_was(directory: ObjectStore) -> None:
    log, now = await LogWriter.open(directory), START
    table_of = of(directory, log, clock=lambda: now)
    await grow(directory, log, 0)
    await table_of.write()
    now += int(2 * DAY * SECOND)
    await table_of.write()
    await grow(directory, log, 10)
    await table_of.write()
    now += int(DAY * SECOND) - SECOND
    await table_of.write()
    assert await check(directory) == ["append", "append"], "a reader of the first one has its time"
    now += SECOND
    await table_of.write()
    assert await check(directory) == ["append"]


async def counts(store: ObjectStore) -> list[tuple[str, int]]:
    """Operation and number of rows of every snapshot, those on the way to a version too."""
    found = await opened(store)
    return [
        (each.summary.operation.value, found.scan(snapshot_id=each.snapshot_id).to_arrow().num_rows)
        for each in found.snapshots()
    ]


@pytest.mark.parametrize("begin", ["log", "checkpoint", "old snapshot"])
async def test_no_snapshot_names_files_that_came_and_went_before_it(directory: ObjectStore, begin: str) -> None:
    log, now = await LogWriter.open(directory), START
    table_of = of(directory, log, clock=lambda: now)
    if begin == "old snapshot":
        await grow(directory, log, 100)
        await table_of.write()
    for n in range(4):
        log.created = START + n * HOUR
        await grow(directory, log, 10 * n, key=PERSON if n % 2 else b"plant/a/m1/telemetry")
    if begin == "checkpoint":
        table(directory).create_checkpoint()
    await erased(directory, log, _key=PERSON.decode())
    await retention(directory, log, START + 2 * HOUR + SECOND).look(TableDocument(retain_s=3600))
    await grow(directory, log, 40)
    await join(directory, log)
    table(directory).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    now += int(DAY * SECOND)
    await table_of.write()
    operation = "overwrite" if begin == "old snapshot" else "append"
    assert await counts(directory) == [(operation, rows(directory).num_rows)]
    await check(directory, table(directory).version())


async def test_rows_that_came_and_were_erased_between_two_snapshots_are_in_neither(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    table_of = of(directory, log)
    await grow(directory, log, 0)
    await table_of.write()
    await grow(directory, log, 10, key=PERSON)
    await grow(directory, log, 20)
    await join(directory, log, compact_files_max=2)
    await erased(directory, log, _key=PERSON.decode())
    await table_of.write()
    assert b"mara" not in await everything(directory)
    assert await counts(directory) == [("append", 7), ("overwrite", 17)]
    await check(directory, table(directory).version())


async def test_a_restored_version_doubles_no_rows_on_the_way(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    table_of = of(directory, log)
    await grow(directory, log, 0)
    await grow(directory, log, 10)
    await table_of.write()
    version = table(directory).version()
    table(directory).delete("_shard = 0")
    table(directory).restore(version)
    await grow(directory, log, 20)
    await table_of.write()
    assert await counts(directory) == [("append", 14), ("append", 21)]
    await check(directory)


async def everything(store: ObjectStore) -> bytes:
    """All bytes of the metadata that a reader can come to, the last two versions of it apart."""
    items = await store.list(iceberg.metadata_folder(TABLE))
    return b"".join([(await store.get(item.key)).data for item in items])


async def test_a_vacuum_leaves_the_metadata_and_the_files_of_the_newest_snapshot(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    for first in (0, 10, 20):
        await grow(directory, log, first)
    table_of = of(directory, log)
    await table_of.write()
    await join(directory, log)
    await table_of.write()
    newest = table(directory)
    removed = newest.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert len(removed) == 6
    found = await opened(directory)
    assert in_order(found.scan().to_arrow()) == in_order(table(directory).to_pyarrow_table())


@pytest.mark.parametrize("lost", ["entries", "table", "place", "manifest"])
async def test_what_no_longer_leads_to_the_table_is_made_again(directory: ObjectStore, lost: str) -> None:
    log = await LogWriter.open(directory)
    table_of = of(directory, log)
    await grow(directory, log, 0)
    await table_of.write()
    folder = Path(directory.location(TABLE)[0])
    await grow(directory, log, 10)
    await join(directory, log)
    if lost == "entries":
        table(directory).create_checkpoint()
        for entry in (folder / "_delta_log").glob("0000*.json"):
            if int(entry.stem) < table(directory).version():
                entry.unlink()
    elif lost == "table":
        for item in [*folder.glob("*.parquet"), *(folder / "_delta_log").iterdir()]:
            item.unlink()
        await drain(await new_tierer(directory, log))
    elif lost == "place":
        moved = folder.parents[2].with_name("elsewhere")
        folder.parents[2].rename(moved)
        directory = open_store(str(moved))
        log = await LogWriter.open(directory)
        for shard in (0, 1):
            await log.follow(shard)
        table_of = of(directory, log)
    else:
        known = table_of._known
        assert known is not None
        table_of._known = known._replace(manifests=())
    await grow(directory, log, 40)
    await table_of.write()
    operations = await check(directory, table(directory).version())
    assert operations[-1] == {"entries": "overwrite", "manifest": "overwrite"}.get(lost, "append")


async def test_completeness_is_said_once_the_rows_are_there(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    table_of = of(directory, log)
    await grow(directory, log, 0)
    await table_of.write(Claim("2026-11-01T00:00:00+00:00", {0: 8, 1: 3}))
    found = (await opened(directory)).current_snapshot().summary
    assert iceberg.COMPLETE_PROPERTY not in found.additional_properties, "records of shard 0 are in the log alone"
    await grow(directory, log, 10)
    await table_of.write(Claim("2026-11-02T00:00:00+00:00", {0: 12, 1: 6}))
    assert (await opened(directory)).current_snapshot().summary["weft.complete-until"] == "2026-11-01T00:00:00+00:00"
    await grow(directory, log, 20)
    await of(directory, log).write()
    assert (await opened(directory)).current_snapshot().summary["weft.complete-until"] == "2026-11-01T00:00:00+00:00"
    idle = of(directory, log)
    await idle.write(Claim("2026-11-03T00:00:00+00:00", {0: 12, 1: 9}))
    found = await opened(directory)
    assert found.properties["weft.complete-until"] == "2026-11-03T00:00:00+00:00", "also while no row comes"
    assert len(found.snapshots()) == 3


async def work_of(
    store: ObjectStore, log: LogWriter, monotonic: Any = time.monotonic, **settings: Any
) -> tuple[IcebergWork, list[ShardView]]:
    """The work of a process that makes the table of telemetry alone, and what it has read of the log."""
    views = await load_shards(store, log.cluster)
    tables: Any = SimpleNamespace(
        states=[view.state for view in views],
        tierer=lambda key: SimpleNamespace(version=0) if key[1] == "telemetry" else None,
        keeps_beside=lambda _: True,
    )
    declared: Any = SimpleNamespace(expected_edges={}, tables=DeclaredTables())
    options = HubSettings(store="", iceberg=True, iceberg_interval_s=60.0, **settings)
    clock = HubClock(time.time_ns, time.monotonic_ns)
    return IcebergWork(store, log.cluster, tables, declared, clock, settings=options, monotonic=monotonic), views


async def test_a_moment_by_a_chunk_that_comes_while_it_is_computed_waits_for_the_chunks_rows(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await LogWriter.open(directory)
    await grow(directory, log, 0)
    work, views = await work_of(directory, log)

    async def moment_of(_: Any, states: Any, *key: str) -> Completeness:
        await log.append(0, Run(LANE, 10, 4))
        for view in views:
            await view.log.extend(view.state)
        assert [state.next_offset[key] for state in states] == [8, 3]
        return Completeness(5_000_000_000, [], [], 0)

    monkeypatch.setattr(StreamCompleteness, "of", moment_of)
    await work.look()
    assert iceberg.COMPLETE_PROPERTY not in (await opened(directory)).properties, "its rows are in the log alone"


async def test_many_manifests_are_joined_and_a_snapshot_reads_none_of_the_others(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SMALL_MAX", 3)
    monkeypatch.setattr(writer, "MANIFEST_FILES", 5)
    log = await LogWriter.open(directory)
    boundaries = Boundaries()
    table_of = of(WatchedStore(directory, boundaries), log)
    calls = []
    for first in range(0, 100, 10):
        await grow(directory, log, first)
        boundaries.calls.clear()
        await table_of.write()
        calls.append(len(boundaries.calls))
    assert await check(directory)
    found = await opened(directory)
    assert len(found.current_snapshot().manifests(found.io)) <= 4 + 3
    assert calls[-1] <= max(calls[1:4]) + 12, "it does not grow with the table"


async def test_requests_are_those_that_the_page_counts(directory: ObjectStore) -> None:
    log, boundaries = await LogWriter.open(directory), Boundaries()
    table_of = of(WatchedStore(directory, boundaries), log)

    async def requests(claim: Claim | None = None) -> tuple[int, int]:
        """Writes and reads."""
        boundaries.calls.clear()
        await table_of.write(claim)
        writes = [name for name in boundaries.calls if name in ("create", "swap")]
        return len(writes), len(boundaries.calls) - len(writes)

    await grow(directory, log, 0)
    await requests()
    await grow(directory, log, 10)
    assert await requests() == (4, 6)
    assert await requests() == (0, 3)
    assert await requests(Claim("2026-11-01T00:00:00+00:00", {})) == (2, 4)


@pytest.mark.parametrize("has_paths", [True, False])
async def test_after_a_start_manifests_are_read_that_name_the_files_or_do_not_say_which(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch, has_paths: bool
) -> None:
    if not has_paths:  # as an earlier release wrote them
        monkeypatch.setattr(manifests, "PATHS", "other.key")
    log = await LogWriter.open(directory)
    for n in range(4):
        log.created = START + n * HOUR
        await grow(directory, log, 10 * n)
        await of(directory, log).write()
    table_of, steps, numbers = of(directory, log), list[str](), []
    note_calls(monkeypatch, "read", steps)
    for n in (2, 3):
        await retention(directory, log, START + n * HOUR + SECOND).look(TableDocument(retain_s=3600))
        steps.clear()
        await table_of.write()
        numbers.append(len(steps))
    assert numbers == [2 if has_paths else 4, 1], "two are changed first, then one"
    assert await check(directory, table(directory).version())


def note_calls(monkeypatch: pytest.MonkeyPatch, name: str, steps: list[str]) -> None:
    call = getattr(manifests, name)

    def noted(*options: Any) -> Any:
        steps.append(name)
        return call(*options)

    monkeypatch.setattr(manifests, name, noted)


async def test_manifests_of_a_checkpoint_are_in_memory_one_at_a_time(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MANIFEST_FILES", 2)
    log = await LogWriter.open(directory)
    for first in (0, 10, 20):
        await grow(directory, log, first)
    table(directory).create_checkpoint()
    boundaries = Boundaries()
    note_calls(monkeypatch, "write", boundaries.calls)
    await of(WatchedStore(directory, boundaries), log).write()
    steps = [name for name in boundaries.calls if name in ("write", "create")]
    assert steps[:6] == ["write", "create"] * 3
    assert await check(directory) == ["append"]


async def test_a_window_without_files_moves_the_positions(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await grow(directory, log, 0)
    await of(directory, log).write()
    folder = Path(directory.location(TABLE)[0]) / "_delta_log"
    for shard, end in ((0, 20), (1, 30)):
        version = table(directory).version() + 1
        moved = {"txn": {"appId": f"{app_ids(log.cluster.cluster_id, 'telemetry')}{shard}", "version": end}}
        (folder / f"{version:020d}.json").write_text(json.dumps(moved))
        assert await of(directory, log).write() == version
    assert json.loads((await opened(directory)).properties["weft.positions"]) == {"0": 20, "1": 30}


@pytest.mark.parametrize("damage", ["entry", "list"])
async def test_damaged_metadata_lets_old_snapshots_go(directory: ObjectStore, damage: str) -> None:
    log, now = await LogWriter.open(directory), START
    for first in (0, 10):
        await grow(directory, log, first)
        await of(directory, log, clock=lambda: now).write()
    found = await iceberg.current(directory, TABLE)
    assert found is not None
    folder = Path(directory.location(iceberg.metadata_folder(TABLE))[0])
    if damage == "entry":
        path = folder / f"v{found.number}.metadata.json"
        path.write_text(path.read_text().replace(iceberg.ENTRY_PROPERTY, "something-else"))
    else:
        newest = found.metadata().snapshots[-1]
        (folder / newest.manifest_list.rpartition("/")[2]).write_bytes(b"Obj\x01")
    await grow(directory, log, 20)
    now += int(DAY * SECOND)
    with pytest.raises(KeyError if damage == "entry" else TableError):
        await of(directory, log, clock=lambda: now).write()
    assert len((await opened(directory)).snapshots()) == 1


async def test_a_writer_that_was_frozen_makes_nothing_more(directory: ObjectStore) -> None:
    log, now = await LogWriter.open(directory), 0.0
    await grow(directory, log, 0)
    boundaries = Boundaries()
    table_of = of(
        WatchedStore(directory, boundaries), log, monotonic=lambda: now + DAY * ("create" in boundaries.calls)
    )
    with pytest.raises(TableConflict, match="a sweep may have taken"):
        await table_of.write()
    assert boundaries.calls.count("create") == 1, "the manifest during which it was frozen"


async def test_a_writer_that_fails_drops_old_snapshots_and_sweeps(directory: ObjectStore) -> None:
    log, now = await LogWriter.open(directory), START
    table_of = of(directory, log, clock=lambda: now)
    for first in (0, 10):
        await grow(directory, log, first)
        await table_of.write()
    folder = Path(directory.location(TABLE)[0]) / "_delta_log"
    actions = [json.loads(line) for line in (folder / f"{0:020d}.json").read_text().splitlines()]
    (metadata,) = [each for each in actions if "metaData" in each]
    metadata["metaData"]["configuration"]["delta.columnMapping.mode"] = "name"
    (folder / f"{table(directory).version() + 1:020d}.json").write_text(json.dumps(metadata))
    with pytest.raises(TableError, match="columnMapping"):
        await table_of.write()
    assert await counts(directory) == [("append", 7), ("append", 14)]
    now += int(DAY * SECOND)
    with pytest.raises(TableError, match="columnMapping"):
        await table_of.write()
    assert await counts(directory) == [("append", 14)]


async def test_a_sweep_comes_after_a_write_that_failed_and_its_time_is_from_its_end(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, now, sweeps = await LogWriter.open(directory), 1000.0, list[float]()

    async def write(*_: Any) -> int:
        nonlocal now
        now += 0 if sweeps else 30 * 3600
        raise TableError("it cannot be expressed")

    async def sweep(_: Any) -> int:
        sweeps.append(now)
        if len(sweeps) > 1:
            raise StoreError("a second error, which comes after the first")
        return 0

    monkeypatch.setattr(IcebergTable, "write", write)
    monkeypatch.setattr(IcebergTable, "sweep", sweep)
    await log.append(0, Run(LANE, 0, 4))
    work, _ = await work_of(directory, log, monotonic=lambda: now)
    for _ in range(3):
        await work.look()
        now += 61
    assert sweeps == [1000 + 30 * 3600], "the next one is a quarter of the snapshots' time later"
    now += 84 * 3600
    await work.look()
    assert (len(sweeps), [each.error for each in work.status()]) == (2, ["it cannot be expressed"])


async def test_of_two_writers_one_is_told_to_decide_again(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await grow(directory, log, 0)
    first, second = of(directory, log), of(directory, log)
    await first.write()
    await second.write()
    await grow(directory, log, 10)
    await first.write()
    with pytest.raises(TableConflict):
        await second.write()
    await second.write()
    assert await check(directory) == ["append", "append"]


async def test_what_iceberg_cannot_express_is_refused_with_its_name(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await grow(directory, log, 0)
    entry = Path(directory.location(TABLE)[0]) / "_delta_log" / f"{1:020d}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        line.get("add", {})["deletionVector"] = {"storageType": "u"}
    entry.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(TableError, match="deletion vector"):
        await of(directory, log).write()


DUCKDB = """
import json, sys
from pathlib import Path
import duckdb, duckdb_extension_avro, duckdb_extension_iceberg
database = duckdb.connect(config={"extension_directory": sys.argv[2], "autoinstall_known_extensions": False})
for module in (duckdb_extension_avro, duckdb_extension_iceberg):
    (library,) = Path(module.__file__).parent.rglob("*.duckdb_extension")
    database.execute(f"LOAD '{library}'")
database.execute("SET TimeZone = 'UTC'")
found = database.sql(f"SELECT * FROM iceberg_scan('{sys.argv[1]}') ORDER BY _shard, _offset").fetchall()
print(json.dumps([list(map(str, row)) for row in found]))
"""


@pytest.mark.slow
async def test_duckdb_reads_it_by_its_folder(directory: ObjectStore, tmp_path: Path) -> None:
    try:
        libraries = str(DUCKDB_ICEBERG.obtain())
    except LookupError as error:
        pytest.skip(str(error))
    log = await LogWriter.open(directory)
    for first in (0, 10, 20):
        await grow(directory, log, first)
        await of(directory, log).write()
    await join(directory, log)
    await of(directory, log).write()
    uri = iceberg.table_uri(directory, f"{TABLE}/{iceberg.FOLDER}")
    done = subprocess.run(
        [sys.executable, "-c", DUCKDB, uri, tmp_path / "extensions"],
        env=os.environ | {"PYTHONPATH": libraries},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    names = [field.name for field in table(directory).schema().fields]
    wanted = [(row["_offset"], row["_shard"], row["_edge"], row["_seq"]) for row in rows(directory).to_pylist()]
    places = [names.index(name) for name in ("_offset", "_shard", "_edge", "_seq")]
    assert [tuple(row[at] for at in places) for row in json.loads(done.stdout)] == [
        tuple(map(str, row)) for row in wanted
    ]


@pytest.mark.slow
@pytest.mark.parametrize("window", ["first", "grown"])
async def test_dying_at_any_step_leaves_the_old_or_the_new_snapshot(tmp_path: Path, window: str) -> None:
    place, prepared = tmp_path / "store", tmp_path / "prepared"
    made = await LogWriter.open(open_store(str(place)))
    await grow(made.store, made, 0)
    if window == "grown":
        await grow(made.store, made, 10, key=PERSON)
        await of(made.store, made).write()
        await erased(made.store, made, _key=PERSON.decode())
        await grow(made.store, made, 20)
        await join(made.store, made, compact_files_max=2)
    place.rename(prepared)

    async def die(fatal: int | None) -> list[str]:
        shutil.rmtree(place, ignore_errors=True)
        log = await LogWriter.of_copy(prepared, place)  # in the same place, which the metadata names
        boundaries = Boundaries(fatal)
        store = WatchedStore(log.store, boundaries) if fatal is not None else Watched(log.store, boundaries)
        try:
            await of(store, log).write()
            assert fatal is None
        except Crash:
            assert fatal is not None
            await Watched(log.store, boundaries).look()
        last = of(log.store, log)
        await last.write()
        await last.sweep()
        await last.sweep()
        await check(log.store)
        return boundaries.calls

    calls = await die(None)
    assert calls.count("create") == (4 if window == "first" else 9)
    # To die after a change is to die before the next one, and reading changes nothing.
    for fatal, name in enumerate(calls):
        if name in ("create", "swap"):
            await die(fatal)


class Watched(WatchedStore):
    """A store that readers read at each of the writer's calls: one that begins then, and one that began before."""

    begun: StaticTable | None = None

    def __getattr__(self, name: str) -> Any:
        call = super().__getattr__(name)
        if name not in ("create", "swap", "delete"):
            return call

        async def watched(*arguments: Any, **named: Any) -> Any:
            try:
                return await call(*arguments, **named)
            finally:
                await self.look()

        return watched

    async def look(self) -> None:
        if self.begun is not None:
            self.read(self.begun)
        if (hinted := await iceberg.current(self._store, TABLE)) is not None:
            uri = iceberg.table_uri(self._store, iceberg.metadata_key(TABLE, hinted.number))
            self.begun = StaticTable.from_metadata(uri, self._store.location(TABLE)[1])
            self.read(self.begun)

    def read(self, found: StaticTable) -> None:
        older = DeltaTable(table(self._store).table_uri, int(found.properties[iceberg.VERSION_PROPERTY]))
        with outcome():
            assert in_order(found.scan().to_arrow()) == in_order(older.to_pyarrow_table()), "old or new, and whole"


async def test_an_erasure_is_not_over_while_a_snapshot_has_the_rows(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    now = START
    table_of = of(directory, log, clock=lambda: now)
    await grow(directory, log, 0, key=PERSON)
    await table_of.write()
    await erased(directory, log, _key=PERSON.decode())

    async def waits() -> bool:
        (state,) = await erasures(directory, ("default", "telemetry"))
        found = [each for each in state.waits if "has snapshots from before it" in each]
        assert all("If Iceberg is off, delete the folder" in each for each in found)
        return bool(found)

    assert await waits()
    await table_of.write()
    assert await waits(), "the snapshot before is still there"
    now += int(DAY * SECOND)
    await table_of.write()
    assert len((await opened(directory)).snapshots()) == 1
    for _ in range(2):
        assert await waits(), "its manifest is still there"
        assert b"mara" in await everything(directory)
        await table_of.sweep()
    assert not await waits()
    assert b"mara" not in await everything(directory)


class Dying:
    """A store whose process dies before it makes an object with an ending."""

    def __init__(self, store: ObjectStore, ending: str) -> None:
        self._store, self._ending = store, ending

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create(self, key: str, data: bytes) -> str:
        if key.endswith(self._ending):
            raise Crash(key)
        return await self._store.create(key, data)


async def test_an_erasure_waits_for_manifests_of_a_writer_that_died(directory: ObjectStore) -> None:
    log, now = await LogWriter.open(directory), START
    await grow(directory, log, 0)
    table_of = of(directory, log, clock=lambda: now)
    await table_of.write()
    await grow(directory, log, 10, key=PERSON)
    with pytest.raises(Crash):
        await of(Dying(directory, ".metadata.json"), log).write()
    assert b"mara" in await everything(directory)
    await erased(directory, log, _key=PERSON.decode())
    await table_of.write()
    version = table(directory).version()
    assert await counts(directory) == [("append", 7), ("append", 10)], "no snapshot has had the rows"
    now += int(DAY * SECOND)
    await table_of.write()
    for _ in range(2):
        assert await iceberg.has_before(directory, TABLE, version)
        await table_of.sweep()
    assert not await iceberg.has_before(directory, TABLE, version)
    assert b"mara" not in await everything(directory)


async def test_an_erasure_waits_for_snapshots_on_the_way_to_its_version(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await LogWriter.open(directory)
    monkeypatch.setattr(writer, "SNAPSHOTS_MAX", 2)  # so that the one before the window goes first
    now = START
    table_of = of(directory, log, clock=lambda: now)
    await grow(directory, log, 0, key=PERSON)
    await table_of.write()
    now += int(DAY * SECOND) // 2
    await grow(directory, log, 10)
    await erased(directory, log, _key=PERSON.decode())
    await table_of.write()
    version = table(directory).version()
    assert await counts(directory) == [("append", 14), ("delete", 10)]
    assert await iceberg.has_before(directory, TABLE, version)
    now += int(DAY * SECOND)
    await table_of.write()
    await table_of.sweep()
    await table_of.sweep()
    assert not await iceberg.has_before(directory, TABLE, version)


async def test_a_backup_leaves_it_out_since_it_names_files_of_one_place(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await grow(directory, log, 0)
    await of(directory, log).write()
    names = [item.key.removeprefix(f"{TABLE}/") for item in await directory.list(TABLE)]
    kept = [name for name in names if is_of_table(name, table(directory).version())]
    assert len(kept) == 4, "two versions and two files"


@pytest.mark.slow
@pytest.mark.s3
async def test_a_bucket_is_read_with_its_own_key(s3: Endpoint) -> None:
    store = open_store(f"{s3.new_bucket()}/root", s3.options)
    log = await LogWriter.open(store)
    for first in (0, 10):
        await grow(store, log, first)
        await of(store, log).write()
    await join(store, log)
    await of(store, log).write()
    found = await iceberg.current(store, TABLE)
    assert found is not None
    key = {
        "s3.endpoint": s3.options["AWS_ENDPOINT_URL"],
        "s3.region": s3.options["AWS_REGION"],
        "s3.access-key-id": s3.options["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": s3.options["AWS_SECRET_ACCESS_KEY"],
    }
    uri = iceberg.table_uri(store, iceberg.metadata_key(TABLE, found.number))

    def read() -> tuple[list[str], pa.Table]:
        there = StaticTable.from_metadata(uri, key)
        return [each.summary.operation.value for each in there.snapshots()], there.scan().to_arrow()

    operations, newest = await asyncio.to_thread(read)
    assert operations == ["append", "append", "replace"]
    assert in_order(newest) == in_order(table(store).to_pyarrow_table())
