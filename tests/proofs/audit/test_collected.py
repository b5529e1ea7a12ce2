"""Audits of a log whose older chunks the collector has really deleted: the table stands for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.cloud_hub.tables.logs import LANE, OTHER, LogWriter, Run, rows, table
from tests.cloud_hub.tables.test_tierer import drain, new_tierer
from weft.proofs.audit.audit import audit
from weft.protocols.chunk_index import GapRange
from weft.protocols.segment import GapReason
from weft.storage.chunk_log import ShardLog, changed
from weft.storage.hub_keys import chunk_key
from weft.storage.object_store import ObjectStore, open_store


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


async def collect(log: LogWriter, watermark: int, shard: int = 0) -> None:
    """Publish a watermark and delete what is below it."""
    shard_log = ShardLog(log.store, log.cluster, shard)
    manifest, etag = await shard_log.manifest()
    assert await shard_log.swap_manifest(changed(manifest, watermark=watermark), etag)
    for n in range(watermark):
        await log.store.delete(chunk_key(shard, n))


@pytest.fixture
async def log(store: ObjectStore) -> LogWriter:
    """Two lanes, six chunks in the table, of which three are gone; and one chunk that is not in the table."""
    log = await LogWriter.open(store)
    for n in range(5):
        gaps = [GapRange(50, 52, GapReason.BUDGET)] if n == 1 else ()
        await log.append(0, Run(LANE, 10 * n, 10, gaps=gaps), Run(OTHER, 5 * n, 5))
    await log.append(1, Run(LANE._replace(edge="press-9", log_id=9), 0, 4))
    await drain(await new_tierer(store, log))
    await log.snapshot(0)
    await log.append(0, Run(LANE, 52, 8))
    await collect(log, 3)
    return log


async def test_collected_records_are_in_the_table(store: ObjectStore, log: LogWriter) -> None:
    found = await audit(store, "default", "telemetry", payloads=True)
    assert (found.problems, found.damage, found.agrees) == ([], [], True)
    lane = next(lane for lane in found.lanes if lane.edge == LANE.edge)
    assert (lane.records, lane.table_records, lane.waiting, lane.holes) == (58, 50, 8, 0)
    assert lane.gaps == {"budget": 2}
    assert [(shard.chunks, shard.log_end, shard.position) for shard in found.shards] == [(3, 83, 75), (1, 4, 4)]


async def test_a_stream_all_of_whose_chunks_were_collected(store: ObjectStore, log: LogWriter) -> None:
    await log.append(0, Run(LANE._replace(stream="alarms"), 0, 3))
    await drain(await new_tierer(store, log))
    await log.snapshot(0)
    await collect(log, 6)
    found = await audit(store, "default", "telemetry")
    assert (found.problems, found.total("records"), found.total("waiting")) == ([], 87, 0)


async def test_a_collected_record_without_a_row_is_missing(store: ObjectStore, log: LogWriter) -> None:
    table(store).delete("_seq = 3 and _edge = 'press-1'")
    found = await audit(store, "default", "telemetry")
    assert "press-1/0000000000000007: 1 records are missing from the table" in found.problems
    assert "shard 0: 1 offsets below the table's position have no row" in found.problems


async def test_a_collected_record_with_two_rows_is_doubled(store: ObjectStore, log: LogWriter) -> None:
    write_deltalake(table(store), rows(store).slice(3, 2), mode="append")
    found = await audit(store, "default", "telemetry")
    assert "press-1/0000000000000007: 2 records are in the table twice" in found.problems
    assert not any("log twice" in problem for problem in found.problems)


async def test_a_collected_record_that_came_again_is_doubled_in_the_log(store: ObjectStore, log: LogWriter) -> None:
    log.states[0].lanes.clear()  # a sequencer with a fault
    await log.append(0, Run(LANE, 5, 2))
    found = await audit(store, "default", "telemetry")
    assert "press-1/0000000000000007: 2 records are in the log twice" in found.problems


async def test_collected_chunks_without_a_table_are_a_problem(store: ObjectStore, tmp_path: Path) -> None:
    log = await LogWriter.open(store)
    for n in range(3):
        await log.append(0, Run(LANE, 10 * n, 10))
    await log.snapshot(0)
    await collect(log, 2)
    found = await audit(store, "default", "telemetry")
    assert found.damage == ["shard 0: chunks with offsets up to 20 were deleted, and the table ends at 0"]


async def test_rows_above_the_chunks_that_are_left_are_not_the_logs(store: ObjectStore, log: LogWriter) -> None:
    strange = rows(store).slice(0, 1)
    for name, value in (("_seq", 777), ("_offset", 900)):
        index = strange.schema.get_field_index(name)
        strange = strange.set_column(index, strange.schema.field(index), pa.array([value], pa.int64()))
    write_deltalake(table(store), strange, mode="append")
    found = await audit(store, "default", "telemetry")
    assert "press-1/0000000000000007: 1 records are in the table and not in the log" in found.problems


async def test_the_collector_passes_an_audit_that_reads(
    store: ObjectStore, log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two chunks that are in the table are deleted between the index of the first and its records."""
    section = ShardLog.section
    collected: list[int] = []

    async def slow(self: ShardLog, n: int, wanted: object) -> bytes:
        if not collected:
            collected.append(n)
            await collect(log, 5)
        return await section(self, n, wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(ShardLog, "section", slow)
    found = await audit(store, "default", "telemetry", payloads=True)
    assert collected == [3]
    assert (found.problems, found.total("records"), found.total("waiting")) == ([], 87, 8)


async def test_a_table_that_is_older_than_what_was_collected_is_read_again(
    store: ObjectStore, log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = ShardLog.load_snapshot
    ran: list[bool] = []

    async def slow(self: ShardLog, *only: Any) -> object:
        if not ran:
            ran.append(True)
            await drain(await new_tierer(store, log))
            await log.append(0, Run(LANE, 60, 1))
            await log.snapshot(0)
            await collect(log, 6)
            await self.manifest()
        return await load(self, *only)

    monkeypatch.setattr(ShardLog, "load_snapshot", slow)
    found = await audit(store, "default", "telemetry")
    assert (found.problems, found.total("records"), found.total("waiting")) == ([], 88, 1)
