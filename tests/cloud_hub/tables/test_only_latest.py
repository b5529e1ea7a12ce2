"""A latest table instead of the table of all rows: what is made, what the collector may delete, and what is said."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cloud_hub.live import get, running_hub
from tests.cloud_hub.tables.latest_tables import drain_latest, latest, new_latest, opened
from tests.cloud_hub.tables.logs import LANE, START, TOPICS, LogWriter, Run, rows
from tests.hub_api.answers import check_answer
from tests.support.processes import weft
from tests.support.waiting import until
from weft.cloud_hub.facts.streams import LatestDocument, TableDocument
from weft.cloud_hub.tables.erasure import Author, Choice, Eraser, erasures
from weft.cloud_hub.tables.service import DeclaredTableWork
from weft.proofs.audit.audit import audit
from weft.proofs.backup.backup import make_backup, restore
from weft.proofs.backup.view import open_backup
from weft.storage.chunk_log import ShardLog, changed
from weft.storage.hub_keys import chunk_key, table_key
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table.delta_log import TableLog
from weft.storage.table.latest import INSTEAD_PROPERTY
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.settings import TableTerms

STREAM = ("default", "telemetry")


class Clock:
    """Seconds that pass when told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


Works = tuple[TableService, DeclaredTableWork]


async def works(store: ObjectStore, log: LogWriter, clock: Clock, is_instead: Callable[[], bool]) -> Works:
    """The two works of a hub process that makes tables."""

    class Declared:
        @property
        def documents(self) -> dict[tuple[str, str], TableDocument]:
            return {STREAM: TableDocument(LatestDocument(("_key",), 1.0, instead=is_instead()))}

    declared: Any = Declared()
    tables = TableService(
        store, log.cluster, monotonic=clock, terms=TableTerms(instead=lambda key: is_instead() and key == STREAM)
    )
    tables._makes_all = True
    hub_clock: Any = SimpleNamespace(now=lambda: START, wrong=lambda: None)
    return tables, DeclaredTableWork(store, log.cluster, tables, declared, hub_clock, monotonic=clock)


async def work(of: Works, clock: Clock) -> None:
    """Rounds of both, until each has seen what the other did."""
    tables, beside = of
    for _ in range(3):
        await tables.run_once()
        await beside.look()
        clock.now += 20


async def filled(store: ObjectStore) -> LogWriter:
    """A log of one shard whose chunks have the records of one key each."""
    log = await LogWriter.open(store, shards=1)
    for n in range(3):
        await log.append(0, Run(LANE, 4 * n, 4, key=b"plant/a/m%d/telemetry" % n, topics=TOPICS))
    return log


async def collect(store: ObjectStore, log: LogWriter, end: int) -> None:
    """Delete the chunks before ``end``, as the collector does."""
    await log.snapshot(0)
    shard_log = ShardLog(store, log.cluster, 0)
    manifest, etag = await shard_log.manifest()
    assert await shard_log.swap_manifest(changed(manifest, watermark=end), etag)
    for n in range(end):
        await store.delete(chunk_key(0, n))


async def test_no_table_of_all_rows_is_made_and_the_log_may_go_once_the_latest_table_has_it(
    directory: ObjectStore,
) -> None:
    log, clock = await filled(directory), Clock()
    tables, beside = of = await works(directory, log, clock, lambda: True)
    await tables.run_once()
    assert await tables.first_untabled(0) is None, "no table has the records yet"
    await work(of, clock)
    assert await TableLog(directory, table_key(*STREAM)).read() is None
    assert len(latest(directory)) == 3
    assert opened(directory).metadata().configuration[INSTEAD_PROPERTY] == "true"
    (reported,) = tables.status()
    assert (reported.kind, reported.lag_records, reported.error) == ("latest", 0, None)
    assert [(each.instead, each.gone) for each in beside.status()] == [(True, 0)]
    assert await tables.first_untabled(0) == log.states[0].n + 1
    assert tables.tierer(STREAM) is None, "nobody counts rows of a table that is not there"


async def test_a_table_of_all_rows_that_is_there_is_kept_until_it_is_moved_away(
    directory: ObjectStore, tmp_path: Path
) -> None:
    log, clock, is_instead = await filled(directory), Clock(), False
    tables, beside = of = await works(directory, log, clock, lambda: is_instead)
    await work(of, clock)
    is_instead = True
    await log.append(0, Run(LANE, 12, 4, key=b"plant/a/m1/telemetry"))
    await work(of, clock)
    assert rows(directory).num_rows == 16, "it continues"
    assert [each.instead for each in beside.status()] == [False]
    folder = Path(directory.location(table_key(*STREAM))[0])
    folder.rename(tmp_path / "moved")
    await log.append(0, Run(LANE, 16, 4, key=b"plant/a/m1/telemetry"))
    await work(of, clock)
    assert not folder.exists(), "the hub makes no other"
    assert [(each.instead, each.lag_records) for each in beside.status()] == [(True, 0)]
    assert [each.kind for each in tables.status()] == ["latest"]
    await log.append(0, Run(LANE, 20, 4, key=b"plant/a/m1/telemetry"))
    (tmp_path / "moved").rename(folder)
    await work(of, clock)
    assert rows(directory).num_rows == 24, "back again, it is caught up"
    assert [each.kind for each in tables.status()] == ["all"]


async def test_records_that_left_the_log_before_are_counted_and_the_others_taken(directory: ObjectStore) -> None:
    log = await filled(directory)
    await drain_latest(await new_latest(directory, log, instead=True))
    await collect(directory, log, 2)
    for path in await directory.list("latest"):
        await directory.delete(path.key)
    await log.append(0, Run(LANE, 12, 4, key=b"plant/a/m7/telemetry"))
    tierer = await new_latest(directory, log, instead=True)
    with pytest.raises(Exception, match="offsets 0 to 7 of shard 0 cannot become rows: their chunks were deleted"):
        await drain_latest(await new_latest(directory, log))
    await drain_latest(tierer)
    assert sorted(latest(directory)) == ["plant/a/m2/telemetry", "plant/a/m7/telemetry"]
    assert tierer.gone == 8
    again = await new_latest(directory, log, instead=True)
    await again.open()
    assert again.gone == 8, "the table itself says it"


@pytest.mark.parametrize("is_collected", [False, True])
async def test_an_audit_says_what_it_cannot_know(directory: ObjectStore, is_collected: bool) -> None:
    log = await filled(directory)
    await drain_latest(await new_latest(directory, log, instead=True))
    if is_collected:
        await collect(directory, log, 2)
    await log.append(0, Run(LANE, 12, 4, key=b"plant/a/m7/telemetry"))
    found = await audit(directory, *STREAM, payloads=True)
    assert (found.problems, found.only_latest) == ([], True)
    totals = {name: found.total(name) for name in ("records", "table_records", "waiting", "missing", "replaced")}
    assert totals == {"records": 16, "table_records": 3, "waiting": 4, "missing": 0, "replaced": 9}


async def test_an_erasure_ends_with_the_chunks_that_are_there(directory: ObjectStore) -> None:
    log = await filled(directory)
    await drain_latest(await new_latest(directory, log, instead=True))
    eraser = Eraser(
        directory, log.cluster, STREAM, clock=time.time_ns, monotonic=time.monotonic, nonce=lambda: "abcdef0123456789"
    )
    done = await eraser.erase(Choice([("_key", "plant/a/m1/telemetry")]), Author("anna", "case 12", START))
    assert (done.rows, done.latest, done.recorded) == (0, 1, 1)
    assert sorted(latest(directory)) == ["plant/a/m0/telemetry", "plant/a/m2/telemetry"]
    assert await TableLog(directory, table_key(*STREAM)).read() is None
    (reported,) = await erasures(directory, STREAM)
    assert any("the log of shard 0 has chunks up to 2" in wait for wait in reported.waits)
    assert (await audit(directory, *STREAM)).problems == []


@pytest.mark.slow
async def test_a_hub_answers_for_a_stream_without_a_table_of_all_rows(tmp_path: Path) -> None:
    config = tmp_path / "hub.yaml"
    config.write_text(f"store: {tmp_path / 'store'}\n")
    store = open_store(str(tmp_path / "store"))
    log = await filled(store)

    async def run(*arguments: object) -> str:
        result = await asyncio.to_thread(weft, "hub", *arguments)
        return result.output if result.exception is None else str(result.exception)

    await run("table", "set", config, "telemetry", "--latest", "_key", "--every", "1s", "--instead")
    assert "retention of the table of all rows" in await run("table", "set", config, "telemetry", "--retain", "30d")
    (tmp_path / "rules.yaml").write_text("rules: {topic: {not_null: machine}}\n")
    reported = await run("quality", "set", config, "telemetry", tmp_path / "rules.yaml")
    assert "latest table instead of a table of all rows" in reported
    settings: dict[str, Any] = {"shards": 1, "table_interval_s": 0.2, "cluster_log_interval_s": 0.1}
    async with running_hub(store, **settings) as hub:

        async def is_made() -> bool:
            found = (await get(hub, "/v1/status"))[1]["latest_tables"]
            return [(each["instead"], each["lag_records"]) for each in found] == [(True, 0)]

        await until(is_made)

        async def is_known() -> bool:
            table = (await get(hub, "/v1/streams/telemetry"))[1]["table"]
            return table is not None and (table["kind"], table["lag_records"]) == ("latest", 0)

        await until(is_known)
        status = (await get(hub, "/v1/status"))[1]
        check_answer("GET", "/v1/status", status)
        (table,) = [each for each in status["tables"] if each["stream"] == "telemetry"]
        assert (table["kind"], table["version"] >= 0, table["error"]) == ("latest", True, None)
        found = (await get(hub, "/v1/streams/telemetry"))[1]
        check_answer("GET", "/v1/streams/{stream}", found)
        assert (found["table"]["path"], found["table_rows"]) == ("latest/default/telemetry", 12)
        await collect(store, log, 2)
        code, records = await get(hub, "/v1/streams/telemetry/records?since=1&limit=100")
        check_answer("GET", "/v1/streams/{stream}/records", records)
        assert ([each["seq"] for each in records["records"]], records["only_latest"]) == ([8, 9, 10, 11], True)
        code, refused = await get(hub, "/v1/streams/telemetry/records?shard=0&offset=0")
        assert (code, "if that has all rows" in refused["advice"]) == (410, True)
        complete = (await get(hub, "/v1/streams/telemetry/completeness"))[1]
        check_answer("GET", "/v1/streams/{stream}/completeness", complete)
        assert complete["only_latest"]
    assert not (tmp_path / "store" / "tables" / "default").exists()
    assert "can no longer be made" in await run("table", "remove", config, "telemetry")
    reported = await run("table", "list", config)
    assert "_key, and no other table" in reported
    place = open_store(str(tmp_path / "backup"))
    lines: list[str] = []
    await make_backup(store, place, clock=time.time_ns, note=lines.append)
    assert any("latest/default/telemetry, the only table" in line for line in lines)
    view = await open_backup(place)
    assert view is not None
    target = open_store(str(tmp_path / "restored"))
    await restore(view, target, clock=time.time_ns, note=lambda line: None)
    async with running_hub(target, **settings) as hub:

        async def is_again() -> bool:
            found = (await get(hub, "/v1/status"))[1]["latest_tables"]
            return [(each["gone"], each["lag_records"], each["error"]) for each in found] == [(8, 0, None)]

        await until(is_again)
    assert sorted(latest(target)) == ["plant/a/m2/telemetry"]
