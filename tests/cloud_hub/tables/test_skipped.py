"""Records that cannot become rows stop their own stream only, and an operator skips them by name."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_hub.tables.logs import LANE, OTHER, START, LogWriter, Run, contents
from tests.cloud_hub.tables.test_erasure import collect
from tests.support.processes import weft
from weft.cloud_hub.shard import lane_ends
from weft.cloud_hub.shard.lane_ends import Ending
from weft.proofs.audit.audit import audit
from weft.proofs.audit.report import AuditReport
from weft.protocols import batch
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store import ObjectStore
from weft.storage.table_writer.service import TableService

KEY = ("default", "telemetry")
POISON = Run(LANE, 5, 3, key=b"k" * (batch.KEY_BYTES_MAX + 1))
BEFORE, AFTER = Run(LANE, 0, 5), Run(LANE, 8, 4)
ELSEWHERE = Run(OTHER, 0, 6)
ALARMS = Run(LANE._replace(stream="alarms"), 0, 2)


async def poisoned(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> LogWriter:
    """A log with a batch that no table takes: an earlier hub let it in."""
    log = await LogWriter.open(store)
    with monkeypatch.context() as lenient:
        lenient.setattr(batch, "check_expanded", lambda *_: None)
        await log.append(0, BEFORE, POISON, AFTER, ALARMS)
    await log.append(1, ELSEWHERE)
    return log


async def skip(
    store: ObjectStore, log: LogWriter, first: int, end: int, *, shard: int = 0, reason: str = "a bomb"
) -> Ending:
    shard_log = ShardLog(store, log.cluster, shard)

    async def plan(state: ShardState) -> Ending:
        return await lane_ends.skip(state, shard_log, KEY, first, end, reason)

    return await lane_ends.write_ending(
        shard_log, plan, wall_clock=lambda: START, random_bits=random.Random(7).getrandbits
    )


def numbers(store: ObjectStore) -> list[tuple[int, int]]:
    return [(shard, offset) for shard, offset, _ in contents(store)]


def good(report: AuditReport) -> None:
    assert report.agrees, report.problems


async def test_a_poison_batch_stops_its_own_stream_and_shard_only(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await poisoned(directory, monkeypatch)
    service = TableService(directory, log.cluster)
    for _ in range(2):
        await service.run_once()
    assert numbers(directory) == [*((0, at) for at in range(5)), *((1, at) for at in range(6))]
    assert len(contents(directory, "alarms")) == 2
    alarms, telemetry = service.status()
    assert (alarms.error, alarms.stopped, service.stopped) == (None, [], 1)
    assert [(each.shard, each.first, each.end) for each in telemetry.stopped] == [(0, 5, 8)]
    assert "65536 bytes" in telemetry.stopped[0].reason
    assert "offsets 5 to 7 of shard 0 cannot become rows" in str(telemetry.error)


async def test_every_process_knows_which_table_is_stopped_that_another_one_makes(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await poisoned(directory, monkeypatch)
    services = [TableService(directory, log.cluster, name=f"hub-{n}", node=f"host:{n}") for n in range(2)]

    async def look() -> None:
        for each in (*services, *services):
            await each.owners.look()

    await look()
    other, maker = sorted(services, key=lambda each: each.owners.keeps(KEY))
    for _ in range(2):
        for each in (maker, other):
            await each.run_once()
        await look()
    (reported,), (known,) = (
        [each for each in service.status() if each.stream == "telemetry"] for service in (other, maker)
    )
    assert reported.process == known.process == f"host:{services.index(maker)}"
    assert [(each.shard, each.first, each.end) for each in reported.stopped] == [(0, 5, 8)]
    assert reported.error == known.error == other.error_of(KEY) is not None
    assert (maker.stopped, other.stopped) == (1, 0), "a sum over processes counts it once"
    assert reported.files == 2, "it measures tables that others make"
    await skip(directory, log, 5, 8)
    for each in (maker, other):
        await each.run_once()
    await look()
    assert other.error_of(KEY) is None


async def test_the_table_goes_on_behind_what_is_skipped_and_says_so(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await poisoned(directory, monkeypatch)
    services = [TableService(directory, log.cluster) for _ in range(2)]
    for service in services:
        await service.run_once()
    endings = await asyncio.gather(skip(directory, log, 5, 8), skip(directory, log, 5, 8, reason="at once"))
    assert sorted(len(ending.controls) for ending in endings) == [0, 1]
    # Two nodes at once: what one of them passes over is passed over, and its rows are there once.
    await asyncio.gather(*(service.run_once() for service in services))
    await asyncio.gather(*(service.run_once() for service in services))
    assert numbers(directory) == [*((0, at) for at in (*range(5), *range(8, 12))), *((1, at) for at in range(6))]
    assert all(service.stopped == 0 and service.status()[1].lag_records == 0 for service in services)
    report = await audit(directory, *KEY, payloads=True)
    good(report)
    assert report.total("skipped") == 3
    assert [(lane.records, lane.table_records, lane.skipped) for lane in report.lanes] == [(12, 9, 3), (6, 6, 0)]
    assert (report.shards[0].skipped, report.shards[0].missing) == (3, 0)


async def test_what_is_skipped_outlives_snapshots_and_a_lost_table(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = await poisoned(directory, monkeypatch)
    await skip(directory, log, 5, 8)
    await TableService(directory, log.cluster).run_once()
    (tmp_path / "store" / "tables").rename(tmp_path / "moved away")
    state = await ShardLog(directory, log.cluster, 0).load()
    again = ShardState.decode(state.encode())
    assert [(each.first, each.end, each.reason) for each in again.skips[KEY]] == [(5, 8, "a bomb")]
    assert [(run.edge, run.log_id, run.first, run.end) for run in again.skips[KEY][0].runs] == [
        (LANE.edge, LANE.log_id, 5, 8)
    ]
    await TableService(directory, log.cluster).run_once()
    assert len(numbers(directory)) == 15
    good(await audit(directory, *KEY))


async def test_the_end_of_the_log_can_be_skipped(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, BEFORE)
    await skip(directory, log, 2, 5)
    service = TableService(directory, log.cluster)
    await service.run_once()
    assert numbers(directory) == [(0, 0), (0, 1)]
    assert service.status()[0].lag_records == 0
    await skip(directory, log, 0, 2)  # these are rows, and stay
    assert (await audit(directory, *KEY)).total("skipped") == 3


async def test_a_damaged_section_is_skipped_as_a_whole(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, BEFORE)
    await log.append(0, Run(LANE, 5, 5), Run(OTHER, 0, 2))
    await log.append(0, Run(LANE, 10, 2))
    key = f"shard-0/chunk/{1:020d}"
    damaged = bytearray((await directory.get(key)).data)
    damaged[100] ^= 1
    await directory.delete(key)
    await directory.create(key, bytes(damaged))
    service = TableService(directory, log.cluster)
    await service.run_once()
    assert [(each.first, each.end) for each in service.status()[0].stopped] == [(5, 12)]
    with pytest.raises(lane_ends.CannotSkip, match="skip all of them, offsets 5 to 12"):
        await skip(directory, log, 5, 8)
    assert (await audit(directory, *KEY)).damage
    await skip(directory, log, 5, 12)
    await service.run_once()
    assert numbers(directory) == [(0, at) for at in (*range(5), 12, 13)]
    report = await audit(directory, *KEY)
    good(report)
    assert {lane.edge: lane.skipped for lane in report.lanes} == {LANE.edge: 5, OTHER.edge: 2}


@pytest.mark.parametrize(
    ("first", "end", "why"),
    [(10, 13, "has offsets 0 to 12"), (3, 3, "has offsets 0 to 12"), (1, 4, "offsets 2 to 3 are skipped already")],
)
async def test_offsets_that_cannot_be_skipped_are_refused(
    directory: ObjectStore, first: int, end: int, why: str
) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, BEFORE)
    await log.append(0, Run(LANE, 5, 7))
    await skip(directory, log, 2, 3)
    with pytest.raises(lane_ends.CannotSkip, match=why):
        await skip(directory, log, first, end)


async def test_many_runs_are_named_or_refused(directory: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_ends, "SKIPPED_RUNS_MAX", 3)
    log = await LogWriter.open(directory)
    lanes = itertools.cycle((LANE, OTHER))
    for at in range(4):
        await log.append(0, Run(next(lanes), at, 1))
    with pytest.raises(lane_ends.CannotSkip, match="these offsets are 4 runs of records; skip at most 3"):
        await skip(directory, log, 0, 4)
    assert len((await skip(directory, log, 0, 3)).controls) == 1


def test_the_command_skips_once_and_says_what(tmp_path: Path) -> None:
    async def prepare() -> None:
        from weft.storage.object_store import open_store

        log = await LogWriter.open(open_store(str(tmp_path / "store")), 1)
        await log.append(0, BEFORE)

    asyncio.run(prepare())
    config = tmp_path / "hub.yaml"
    config.write_text(f"store: {tmp_path}/store\nshards: 1\n")
    arguments = ("hub", "skip", config, "telemetry", "--from", "1", "--to", "3", "--reason", "a test", "--yes")
    said = weft(*arguments)
    assert (said.exit_code, said.output) == (
        0,
        "the table of default/telemetry skips offsets 1 to 2 of shard 0: a test\n",
    )
    assert weft(*arguments).output == "the table of default/telemetry skips offsets 1 to 2 of shard 0 already\n"
    assert "has offsets 0 to 5 of the stream" in str(weft(*arguments[:7], "90", *arguments[8:]).exception)


def test_offsets_that_are_rows_are_not_skipped(tmp_path: Path) -> None:
    async def prepare() -> None:
        from weft.storage.object_store import open_store

        store = open_store(str(tmp_path / "store"))
        log = await LogWriter.open(store, 1)
        await log.append(0, BEFORE)
        await TableService(store, log.cluster).run_once()
        await log.append(0, Run(OTHER, 0, 2))

    asyncio.run(prepare())
    config = tmp_path / "hub.yaml"
    config.write_text(f"store: {tmp_path}/store\nshards: 1\n")

    def said(first: int, end: int) -> Any:
        span = ("--from", str(first), "--to", str(end))
        return weft("hub", "skip", config, "telemetry", *span, "--reason", "a test", "--yes")

    assert "the table has all offsets of shard 0 below 5, so none of these stops it" in str(said(0, 5).exception)
    assert said(5, 6).output == "the table of default/telemetry skips offsets 5 to 5 of shard 0: a test\n"


async def test_a_table_that_was_moved_away_after_its_chunks_were_deleted_says_how_to_go_on(
    directory: ObjectStore, tmp_path: Path
) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, Run(LANE, 0, 5))
    await log.append(0, Run(LANE, 5, 5))
    await log.append(1, Run(OTHER, 0, 6))
    await TableService(directory, log.cluster).run_once()
    await collect(directory, log)
    (tmp_path / "store/tables/default/telemetry").rename(tmp_path / "away")
    service = TableService(directory, log.cluster)
    await service.run_once()
    assert numbers(directory) == [(1, at) for at in range(6)], "another shard continues"
    (status,) = service.status()
    assert [(each.shard, each.first, each.end) for each in status.stopped] == [(0, 0, 5)]
    assert "deleted when a table had the rows. Put that table back" in str(status.error)
    assert "`weft hub skip` with --shard 0 --from 0 --to 5" in str(status.error)
    await skip(directory, log, 0, 5, reason="moved away")
    await service.run_once()
    assert numbers(directory) == [*((0, at) for at in range(5, 10)), *((1, at) for at in range(6))]


async def test_a_quiet_stream_without_its_chunks_goes_on_behind_what_is_skipped(
    directory: ObjectStore, tmp_path: Path
) -> None:
    log = await LogWriter.open(directory, 1)
    await log.append(0, Run(LANE, 0, 5))
    await log.append(0, ALARMS)
    await TableService(directory, log.cluster).run_once()
    await collect(directory, log)
    (tmp_path / "store/tables/default/telemetry").rename(tmp_path / "away")
    service = TableService(directory, log.cluster)
    await service.run_once()
    _, status = service.status()
    assert [(each.shard, each.first, each.end) for each in status.stopped] == [(0, 0, 5)]
    await skip(directory, log, 0, 5, reason="moved away")
    await service.run_once()
    assert [each.error for each in service.status()] == [None, None]
    await log.follow(0)
    await log.append(0, Run(LANE, 5, 2))
    await TableService(directory, log.cluster).run_once()
    assert numbers(directory) == [(0, 5), (0, 6)]
