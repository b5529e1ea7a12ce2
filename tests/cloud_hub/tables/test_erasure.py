"""Erased rows are in no table at once, and in no object of the store after the grace; the audit says who did it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
import zstandard

from tests.cloud_hub.tables.latest_tables import drain_latest, latest, new_latest, opened
from tests.cloud_hub.tables.logs import LANE, OTHER, SECOND, START, TOPICS, LogWriter, Run, rows, table
from tests.cloud_hub.tables.test_crashes import Boundaries, Crash, WatchedStore
from tests.cloud_hub.tables.test_tiering import drain, new_tierer
from tests.support.processes import weft
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.shard.collector import GRACE_S, Collector
from weft.cloud_hub.tables.erasure import Author, Choice, ErasedRows, Eraser, erasures, tidy
from weft.config.load import parse_schema
from weft.output import Failed, Refused
from weft.proofs.audit.audit import audit
from weft.protocols import batch
from weft.protocols.chunk import decode, section_entries
from weft.protocols.payloads import PayloadKind
from weft.storage.chunk_log import ShardLog, changed
from weft.storage.hub_keys import chunk_key, chunk_prefix, table_key
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table.actions import TableError
from weft.storage.table.schemas import StreamSchema
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.shards import load_shards
from weft.storage.table_writer.tiering import Tierer

STREAM = ("default", "telemetry")
PERSON, OTHERS = b"plant/a/mara/telemetry", b"plant/a/m1/telemetry"
AUTHOR = Author("an operator", "case 12", START)
JSON = int(PayloadKind.JSON)


async def filled(store: ObjectStore) -> LogWriter:
    """Rows of a person among others, in the tables and, the last ones, in the log alone."""
    log = await LogWriter.open(store)
    for n in range(3):
        await log.append(
            0,
            Run(
                LANE,
                10 * n,
                6,
                key=PERSON if n % 2 else OTHERS,
                topics=TOPICS,
                kind=JSON,
                payloads=[b'{"person": {"id": %d}}' % seq for seq in range(10 * n, 10 * n + 6)],
            ),
        )
        await log.append(1, Run(OTHER, 10 * n, 3, key=PERSON, topics=TOPICS, kind=JSON))
        if n == 1:
            await drain(await new_tierer(store, log))
            await drain_latest(await new_latest(store, log))
    return log


async def drain_all(tierer: Tierer) -> None:
    await tierer.take()
    while tierer.is_behind:
        await tierer.step()


async def erased(store: ObjectStore, log: LogWriter, **conditions: str) -> ErasedRows:
    eraser = Eraser(
        store,
        log.cluster,
        STREAM,
        clock=lambda: START,
        monotonic=lambda: 0.0,
        nonce=iter(f"{n:016x}" for n in range(1 << 60, (1 << 60) + 1000)).__next__,
    )
    named = [(name.replace("__", "."), value) for name, value in conditions.items()]
    return await eraser.erase(Choice(named), AUTHOR)


async def test_rows_of_a_key_are_in_no_table_at_once_and_the_audit_says_by_whom(directory: ObjectStore) -> None:
    log = await filled(directory)
    assert await erased(directory, log, _key=PERSON.decode()) == ErasedRows(15, 2, 1)
    assert set(rows(directory).column("_key").to_pylist()) == {OTHERS.decode()}
    assert [*latest(directory)] == [OTHERS.decode()]
    found = await audit(directory, *STREAM, payloads=True)
    assert (found.problems, found.total("missing"), found.total("deleted")) == ([], 0, 15)
    (reported,) = found.deletions
    assert (reported.by, reported.reason, reported.rows, reported.count, reported.time, reported.is_erased) == (
        "an operator",
        "case 12",
        "by _key",
        15,
        START,
        True,
    )
    # What comes later is a row, and no part of what was erased.
    await log.append(0, Run(LANE, 100, 2, key=PERSON))
    await drain(await new_tierer(directory, log))
    await drain_latest(await new_latest(directory, log))
    assert rows(directory).num_rows == 14
    assert sorted(latest(directory)) == [OTHERS.decode(), PERSON.decode()]
    assert (await audit(directory, *STREAM)).problems == []


async def test_a_latest_table_that_is_made_after_an_erasure_does_not_have_the_rows(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    for first, key in ((0, OTHERS), (10, PERSON), (20, OTHERS)):
        await log.append(0, Run(LANE, first, 3, key=key))
    await log.append(1, Run(OTHER, 0, 2, key=PERSON))
    assert await erased(directory, log, _key=PERSON.decode()) == ErasedRows(5, 0, 1)
    await log.append(0, Run(LANE, 30, 1, key=b"plant/a/m2/telemetry"))
    await drain_latest(await new_latest(directory, log))  # the chunks are still there
    assert [*latest(directory)] == [OTHERS.decode(), "plant/a/m2/telemetry"]


async def test_a_table_that_is_made_again_after_an_erasure_does_not_have_the_rows(directory: ObjectStore) -> None:
    log = await filled(directory)
    await erased(directory, log, _key=PERSON.decode())
    shutil.rmtree(directory.location(table_key(*STREAM))[0])  # moved away, while the log still has the records
    await log.append(0, Run(LANE, 100, 2, key=PERSON))
    first = await new_tierer(directory, log, file_rows_max=3)
    await first.step()
    await drain_all(await new_tierer(directory, log, file_rows_max=3))  # another process continues
    found = rows(directory)
    assert (set(found.column("_key").to_pylist()), found.num_rows) == ({OTHERS.decode(), PERSON.decode()}, 14)
    audited = await audit(directory, *STREAM, payloads=True)
    assert (audited.problems, audited.total("missing"), audited.total("deleted")) == ([], 0, 15)


async def test_a_latest_table_that_is_made_during_an_erasure_loses_the_rows(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, Run(LANE, 0, 3, key=OTHERS), Run(LANE, 3, 3, key=PERSON))
    original = Eraser._from_table

    async def meanwhile(self: Eraser, *arguments: Any) -> int:
        await drain_latest(await new_latest(directory, log))
        return await original(self, *arguments)

    monkeypatch.setattr(Eraser, "_from_table", meanwhile)
    assert await erased(directory, log, _key=PERSON.decode()) == ErasedRows(3, 1, 1)
    assert [*latest(directory)] == [OTHERS.decode()]


async def test_typed_columns_are_refused_before_a_row_is_removed(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    schema = StreamSchema(3, parse_schema("person string, n int"))
    payloads = [b'{"person": "mara", "n": 7}', b'{"person": "m1", "n": 8}']
    await log.append(0, Run(LANE, 0, 2, topics=TOPICS, kind=JSON, payloads=payloads))
    views = await load_shards(directory, log.cluster)
    await drain(Tierer(directory, log.cluster, *STREAM, views, schema=lambda: schema))
    await drain_latest(await new_latest(directory, log, ["payload.person"]))
    with pytest.raises(TableError, match=r"column n of tables/default/telemetry is not text.*`payload\.n`"):
        await erased(directory, log, payload__n="7", n="7")
    with pytest.raises(TableError, match=r"latest/default/telemetry: the table has no column person"):
        await erased(directory, log, person="mara")
    assert rows(directory).num_rows == 2
    assert await erasures(directory, STREAM) == []
    assert await erased(directory, log, payload__person="mara") == ErasedRows(1, 1, 1)
    assert opened(directory).to_pyarrow_table().column("_by_person").to_pylist() == ["m1"]


@pytest.mark.slow
async def test_a_field_of_payloads_chooses_rows(directory: ObjectStore) -> None:
    log = await filled(directory)
    assert await erased(directory, log, payload__person__id="3", line="a") == ErasedRows(1, 0, 1)
    assert 3 not in rows(directory).filter(pl_edge()).column("_seq").to_pylist()
    with pytest.raises(TableError, match="the table has no column hall"):
        await erased(directory, log, hall="7")


def pl_edge() -> Any:
    import pyarrow.compute as pc

    return pc.field("_edge") == LANE.edge


def held(root: Path) -> str:
    """All that an object of a folder says, packed or not."""
    said = []
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        data = path.read_bytes()
        said.append(data.decode(errors="replace"))
        if path.suffix == ".parquet":
            said.append(str(pq.read_table(path).to_pylist()))
        elif "chunk" in path.parts:
            found = decode(data)
            for section in found.footer.streams:
                body = data[section.position : section.position + section.length]
                for entry in section_entries(section, body, found.footer.lanes_of(section)):
                    columns = batch.decode_columns(
                        entry.batch, batch.decode_header(entry.batch), decompressor=zstandard.ZstdDecompressor()
                    )
                    said.append(str(columns.keys) + bytes(columns.payload).decode(errors="replace"))
    return "\n".join(said)


async def collect(store: ObjectStore, log: LogWriter) -> None:
    """What the collector does once `retain_log` is over, to all but the newest chunk."""
    for shard, state in enumerate(log.states):
        await log.snapshot(shard)
        shard_log = ShardLog(store, log.cluster, shard)
        manifest, etag = await shard_log.manifest()
        assert await shard_log.swap_manifest(changed(manifest, watermark=state.n), etag)
        for n in range(state.n):
            await store.delete(chunk_key(shard, n))


async def test_an_idle_shard_without_the_stream_holds_up_no_erasure(directory: ObjectStore) -> None:
    """It has other chunks, such as of administrative acts, and no collector deletes the last ones."""
    log = await LogWriter.open(directory)
    await log.append(0, Run(LANE, 0, 3, key=PERSON, topics=TOPICS))
    await log.append(1, Run(OTHER._replace(stream="acts"), 0, 3, topics=TOPICS))
    await drain(await new_tierer(directory, log))
    await erased(directory, log, _key=PERSON.decode())
    (state,) = await erasures(directory, STREAM)
    assert [wait[:27] for wait in state.waits if "chunks up to" in wait] == ["the log of shard 0 has chun"]
    await log.append(0, Run(LANE, 1000, 2, key=OTHERS))
    await log.snapshot(0)
    await directory.delete(chunk_key(0, 0))
    (state,) = await erasures(directory, STREAM)
    assert not any("chunks up to" in wait for wait in state.waits), state.waits


async def test_an_erasure_ends_where_no_edge_is_linked_any_more(directory: ObjectStore) -> None:
    log = await filled(directory)
    await erased(directory, log, _key=PERSON.decode())
    now = START
    clock = HubClock(lambda: now, lambda: now)
    service = TableService(directory, log.cluster)
    logs = [ShardLog(directory, log.cluster, shard, lambda: now) for shard in range(2)]
    collector = Collector(logs, service.first_untabled, 86_400.0, clock=clock)

    async def waits() -> int:
        nonlocal now
        await service.run_once()
        await collector.look()
        now += int((GRACE_S + 1) * SECOND)
        (state,) = await erasures(directory, STREAM)
        return sum("chunks up to" in wait for wait in state.waits)

    assert [await waits() for _ in range(3)] == [2] * 3
    assert len(await directory.list(chunk_prefix(0))) == 3, "nothing goes, and nothing is written, before `retain_log`"
    now = START + 86_401 * SECOND
    assert [await waits() for _ in range(3)][-1] == 0
    assert (await audit(directory, *STREAM)).problems == []


@pytest.mark.slow
async def test_after_the_grace_no_engine_no_reader_and_no_object_has_it(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = open_store(str(root))
    log = await filled(store)
    secret = "mara"
    assert held(root).count(secret) > 5, "the search would find it"
    await erased(store, log, _key=PERSON.decode())
    (state,) = await erasures(store, STREAM)
    assert len(state.waits) >= 3, state.waits
    # The grace: the shards continue, the collector and the vacuum delete what is old enough.
    for shard, lane in ((0, LANE), (1, OTHER)):
        await log.append(shard, Run(lane, 1000, 2, key=OTHERS))
    await drain(await new_tierer(store, log))
    await drain_latest(await new_latest(store, log))
    await collect(store, log)
    for found in (table(store), opened(store)):
        found.alter.set_table_properties(
            {"delta.deletedFileRetentionDuration": "interval 0 hours", "delta.logRetentionDuration": "interval 0 hours"}
        )
    (tmp_path / "hub.yaml").write_text(f"store: {root}\nretain_log: 1d\n")
    left = await asyncio.to_thread(weft, "hub", "erasures", tmp_path / "hub.yaml", "telemetry", "--tidy")
    (state,) = await erasures(store, STREAM)
    assert (state.waits, "nothing is left of them" in left.output) == ([], True), left.output
    assert secret not in held(root)
    for key in ("tables", "latest"):
        folder = str(root / key / "default/telemetry")
        arrow = (table(store) if key == "tables" else opened(store)).to_pyarrow_dataset()
        counted = duckdb.connect().execute("SELECT count(*) FROM arrow WHERE _key LIKE '%mara%'")
        assert counted.fetchall() == [(0,)], arrow.schema
        assert pl.scan_delta(folder).filter(pl.col("_key").str.contains(secret)).collect().height == 0
    found = await audit(store, *STREAM, payloads=True)
    assert (found.problems, [reported.count for reported in found.deletions]) == ([], [15])


@pytest.mark.slow
async def test_dying_at_any_step_is_mended_by_the_same_call(tmp_path: Path) -> None:
    await filled(open_store(str(tmp_path / "prepared")))

    async def die_at(fatal: int | None, after: bool) -> int:
        log = await LogWriter.of_copy(tmp_path / "prepared", tmp_path / f"{fatal}")
        store, boundaries = log.store, Boundaries(fatal, after)
        watched: Any = WatchedStore(store, boundaries)
        try:
            await erased(watched, log, _key=PERSON.decode())
        except Crash:
            pass
        # As many calls as it takes: the name of a file that was written before is taken.
        eraser = Eraser(
            store,
            log.cluster,
            STREAM,
            clock=lambda: START,
            monotonic=lambda: 0.0,
            nonce=iter(f"{n:016x}" for n in range(1 << 61, (1 << 61) + 99)).__next__,
        )
        await eraser.erase(Choice([("_key", PERSON.decode())]), AUTHOR)
        assert set(rows(store).column("_key").to_pylist()) == {OTHERS.decode()}
        assert [*latest(store)] == [OTHERS.decode()]
        found = await audit(store, *STREAM)
        assert (found.problems, found.total("deleted")) == ([], 15)
        assert not any("did not end" in wait for each in await erasures(store, STREAM) for wait in each.waits)
        return len(boundaries.calls)

    calls = await die_at(None, False)
    for fatal in range(0, calls, 3):
        await die_at(fatal, bool(fatal % 2))


@pytest.mark.slow
async def test_the_command_says_what_it_erased_and_what_it_needs(tmp_path: Path) -> None:
    store, config = open_store(str(tmp_path / "store")), tmp_path / "hub.yaml"
    await filled(store)
    more = ("--reason", "case 12", "--by", "mara", "--yes")

    async def run(*arguments: object) -> Any:
        result = await asyncio.to_thread(weft, "hub", *arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.output

    config.write_text(f"store: {tmp_path / 'store'}\n")
    with pytest.raises(Failed, match="the hub keeps its log, and with it the records, without a limit"):
        await run("erase", config, "telemetry", "--key", "x", *more)
    config.write_text(f"store: {tmp_path / 'store'}\nretain_log: 1d\n")
    with pytest.raises(Refused, match="name the rows"):
        await run("erase", config, "telemetry", *more)
    with pytest.raises(Refused, match="'_seq' cannot be part of a choice"):
        await run("erase", config, "telemetry", "--where", "_seq=7", *more)
    with pytest.raises(Failed, match="have no such rows"):
        await run("erase", config, "telemetry", "--key", "x", *more)
    with pytest.raises(Failed, match="the hub has no records of stream other"):
        await run("erase", config, "other", "--key", "x", *more)
    said = await run("erase", config, "telemetry", "--where", "machine=mara", *more)
    assert said.startswith("erased 15 rows of the table of default/telemetry, and 2 of its latest table\n")
    said = await run("erasures", config, "telemetry")
    assert re.search(r"15 rows \(by machine\) by mara: case 12\n  the log of shard 0 has chunks up to 2", said)
    said = (await asyncio.to_thread(weft, "audit", "telemetry", "--store", str(tmp_path / "store"))).output
    assert re.search(r"ERASED: 15 records \(by machine\) on \d{4}-.* UTC by mara: case 12", said)


@pytest.mark.slow
async def test_the_end_is_proved_of_tables_without_new_rows(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    log = await filled(store)
    assert await erased(store, log, _key=PERSON.decode()) == ErasedRows(15, 2, 1)
    (state,) = await erasures(store, STREAM)
    assert len([wait for wait in state.waits if "entries from before" in wait]) == 2
    for path in (tmp_path / "store").rglob("_delta_log/*"):  # a month later
        os.utime(path, (0, 0))
    await tidy(store, log.cluster, STREAM, START + 7200 * SECOND)
    (state,) = await erasures(store, STREAM)
    assert not [wait for wait in state.waits if "entries from before" in wait]
