"""Old chunks are deleted once tables and snapshots hold all of them, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cloud_hub.tables.logs import LANE, OTHER, SECOND, START, LogWriter, Run, contents, expected, table
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.shard import collector as collectors
from weft.cloud_hub.shard.collector import Collector, Pins, ShardCollector
from weft.proofs.audit.audit import audit
from weft.protocols.errors import CodecError
from weft.storage.chunk_log import CollectedPast, Manifest, RegionPosition, RegionPositions, ShardLog
from weft.storage.hub_keys import chunk_key, chunk_prefix
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table.actions import DeltaState
from weft.storage.table.delta_log import TableLog
from weft.storage.table_writer.service import TableService

MINUTE = 60 * SECOND
RETAIN_S = 600.0


@pytest.fixture(params=["memory", "folder"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> ObjectStore:
    return open_store("memory://" if request.param == "memory" else str(tmp_path / "store"))


class Clocks:
    """Wall and boot clock, turned by hand."""

    def __init__(self) -> None:
        self.since = 0

    def wall(self) -> int:
        return START + self.since

    def boot(self) -> int:
        return 5 * SECOND + self.since


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
async def log(store: ObjectStore, clocks: Clocks) -> LogWriter:
    """A chunk a minute, for half an hour, with a snapshot after every third from the fifteenth on."""
    log = await LogWriter.open(store, 1)
    for n in range(30):
        log.created = START + n * MINUTE
        await log.append(0, Run(LANE, 10 * n, 10))
        if n >= 15 and n % 3 == 0:
            await log.snapshot(0)
    clocks.since = 30 * MINUTE
    return log


class Tables:
    """How far the tables are, as the collector hears it."""

    def __init__(self) -> None:
        self.first_untabled: int | None = 29
        """The last chunk is in no table: while that is so, the log does not count as an idle one."""

    async def __call__(self, shard: int) -> int | None:
        assert shard == 0
        return self.first_untabled


@pytest.fixture
def tables() -> Tables:
    return Tables()


Make = Callable[[], ShardCollector]


@pytest.fixture
def make(log: LogWriter, tables: Tables, clocks: Clocks) -> Make:
    def made() -> ShardCollector:
        shard = ShardLog(log.store, log.cluster, 0, clocks.boot)
        return ShardCollector(shard, tables, RETAIN_S, clock=HubClock(clocks.wall, clocks.boot))

    return made


async def chunks(store: ObjectStore) -> list[int]:
    return [int(item.key[-20:]) for item in await store.list(chunk_prefix(0))]


async def watermark(log: LogWriter) -> int:
    return (await ShardLog(log.store, log.cluster, 0).manifest())[0].watermark


async def test_chunks_go_some_time_after_the_watermark_was_raised(log: LogWriter, make: Make, clocks: Clocks) -> None:
    collector = make()
    await collector.look()
    assert (await watermark(log), await chunks(log.store)) == (18, list(range(30)))
    clocks.since += int((collectors.GRACE_S - 1) * SECOND)
    await collector.look()
    assert await chunks(log.store) == list(range(30))
    clocks.since += 2 * SECOND
    await collector.look()
    assert (await chunks(log.store), collector.deleted) == (list(range(18, 30)), 18)
    state = await ShardLog(log.store, log.cluster, 0).load()
    assert state.encode() == log.states[0].encode()


async def test_young_chunks_stay(log: LogWriter, make: Make, clocks: Clocks) -> None:
    clocks.since = 17 * MINUTE
    await make().look()
    assert await watermark(log) == 8, "chunk 7 is ten minutes old, chunk 8 nine"


async def test_a_stream_with_a_longer_term_keeps_the_chunks_from_its_first_young_record_on(
    tables: Tables, clocks: Clocks
) -> None:
    """A chunk a minute, snapshots as above, and records of a quiet stream in the fourth and the thirteenth."""
    quiet = LANE._replace(stream="quiet")
    writer = await LogWriter.open(open_store("memory://"), 1)
    for n in range(30):
        writer.created = START + n * MINUTE
        await writer.append(0, Run(quiet if n in {3, 12} else LANE, 10 * n, 10))
        if n >= 15 and n % 3 == 0:
            await writer.snapshot(0)

    async def kept(minutes: dict[str, int]) -> int:
        terms = {("default", stream): 60 * each for stream, each in minutes.items()}
        shard = ShardLog(writer.store, writer.cluster, 0, clocks.boot)
        await ShardCollector(
            shard, tables, RETAIN_S, clock=HubClock(clocks.wall, clocks.boot), terms=lambda: terms
        ).look()
        return await watermark(writer)

    clocks.since = 30 * MINUTE
    assert await kept({"quiet": 60, "unknown": 90}) == 0
    assert await kept({"quiet": 25}) == 6, "the first chunk of 25 minutes at most"
    assert await kept({"quiet": 25, "telemetry": 24}) == 6, "the longest term counts"
    clocks.since += 6 * MINUTE
    assert await kept({"quiet": 25}) == 12, "the term continues"
    clocks.since += 4 * MINUTE
    assert await kept({"quiet": 25}) == 18, "chunks of 25 minutes are there, and have none of its records"


async def test_what_a_table_lacks_stays(log: LogWriter, make: Make, tables: Tables) -> None:
    tables.first_untabled = 5
    await make().look()
    assert await watermark(log) == 5


async def test_any_of_the_newest_snapshots_is_enough_to_start_from(log: LogWriter, make: Make, clocks: Clocks) -> None:
    collector = make()
    await collector.look()
    clocks.since += 1000 * SECOND
    await collector.look()
    shard = ShardLog(log.store, log.cluster, 0)
    known = await shard.snapshots()
    assert await watermark(log) == known[-4][0], "not above it: a node that starts there would take itself for passed"
    for _, key in known[-3:]:
        await log.store.delete(key)
    assert (await shard.load()).encode() == log.states[0].encode()


async def test_while_the_tables_are_in_trouble_nothing_is_deleted(
    log: LogWriter, make: Make, tables: Tables, clocks: Clocks
) -> None:
    collector = make()
    await collector.look()
    clocks.since += 1000 * SECOND
    tables.first_untabled = None
    await collector.look()
    assert await chunks(log.store) == list(range(30))
    tables.first_untabled = 3  # a table was put back from a backup
    await collector.look()
    assert await chunks(log.store) == list(range(3, 30))


async def test_a_collector_that_starts_waits_for_itself(log: LogWriter, make: Make, clocks: Clocks) -> None:
    await make().look()
    clocks.since += 1000 * SECOND
    late = make()
    await late.look()
    assert await chunks(log.store) == list(range(30)), "it does not know since when the watermark stands there"
    clocks.since += 1000 * SECOND
    await late.look()
    assert (await chunks(log.store))[0] >= 18


async def test_what_a_paused_writer_makes_again_is_deleted_again(log: LogWriter, make: Make, clocks: Clocks) -> None:
    collector = make()
    await collector.look()
    clocks.since += 1000 * SECOND
    await collector.look()
    await log.store.create(chunk_key(0, 7), b"the chunk of a writer that slept")
    clocks.since += 3600 * SECOND
    await collector.look()
    assert (await chunks(log.store))[0] >= 18


async def test_a_store_that_went_back_in_time_starts_anew(log: LogWriter, make: Make, clocks: Clocks) -> None:
    collector, shard = make(), ShardLog(log.store, log.cluster, 0)
    earlier, _ = await shard.manifest()
    await collector.look()
    clocks.since += 1000 * SECOND
    _, etag = await shard.manifest()
    assert await shard.swap_manifest(earlier, etag)
    await collector.look()
    assert await chunks(log.store) == list(range(30))


async def test_without_a_readable_snapshot_nothing_is_given_up(log: LogWriter, make: Make) -> None:
    manifest, _ = await ShardLog(log.store, log.cluster, 0).manifest()
    assert manifest.snapshot is not None
    await log.store.delete(manifest.snapshot)
    await log.store.create(manifest.snapshot, b"rotten")
    with pytest.raises(CodecError):
        await make().look()
    assert await watermark(log) == 0


async def test_without_snapshots_nothing_is_collected(store: ObjectStore, tables: Tables, clocks: Clocks) -> None:
    log = await LogWriter.open(store, 1)
    await log.append(0, Run(LANE, 0, 10))
    clocks.since = 1 * MINUTE
    shard = ShardLog(store, log.cluster, 0)
    await ShardCollector(shard, tables, 61.0, clock=HubClock(clocks.wall, clocks.boot)).look()
    assert (await shard.manifest())[0] == Manifest()
    assert await shard.snapshots() == []


async def test_a_round_deletes_a_bounded_number(
    log: LogWriter, make: Make, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectors, "DELETES_MAX", 8)
    monkeypatch.setattr(collectors, "LISTED_MAX", 4)
    collector = make()
    await collector.look()
    clocks.since += 1000 * SECOND
    assert await collector.look()
    assert len(await chunks(log.store)) == 22


async def test_one_shard_in_trouble_keeps_no_other(
    log: LogWriter, tables: Tables, clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    await log.store.create("shard-1/manifest", b"rotten")

    async def tabled(_: int) -> int | None:
        return 30

    logs = [ShardLog(log.store, log.cluster, shard) for shard in (1, 0)]
    await Collector(logs, tabled, RETAIN_S, clock=HubClock(clocks.wall, clocks.boot)).look()
    assert await watermark(log) == 18
    assert "shard 1: old chunks were not collected" in caplog.text


# -- with real tables


@pytest.fixture
def folder(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


async def tabled_log(store: ObjectStore) -> tuple[LogWriter, TableService]:
    log = await LogWriter.open(store, 1)
    for n in range(10):
        await log.append(0, Run(LANE, 10 * n, 10), Run(OTHER._replace(stream="alarms"), 5 * n, 5))
        await log.snapshot(0)
    service = TableService(store, log.cluster)
    await service.run_once()
    return log, service


async def test_the_tables_say_themselves_how_far_they_are(folder: ObjectStore, tmp_path: Path) -> None:
    log, service = await tabled_log(folder)
    assert await service.first_untabled(0) == 10
    await log.append(0, Run(LANE, 100, 10))
    assert await service.first_untabled(0) == 10, "the service has not read it yet"
    away = tmp_path / "away"
    (tmp_path / "store/tables/default/alarms").rename(away)
    assert await service.first_untabled(0) is None
    away.rename(tmp_path / "store/tables/default/alarms")
    await service.run_once()
    assert await service.first_untabled(0) == 11
    assert table(folder, "alarms").version() >= 1


async def test_a_round_opens_each_table_once_for_all_shards(
    folder: ObjectStore, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await LogWriter.open(folder, 4)
    for shard in range(4):
        for stream in ("telemetry", "alarms"):
            await log.append(shard, Run(LANE._replace(stream=stream, log_id=shard), 0, 5))
        await log.snapshot(shard)
    service = TableService(folder, log.cluster)
    await service.run_once()
    opened, read = list[str](), TableLog.read

    async def counted(log: TableLog) -> DeltaState | None:
        opened.append(log._key.rpartition("/")[2])
        return await read(log)

    monkeypatch.setattr(TableLog, "read", counted)
    clocks.since = 60 * MINUTE
    logs = [ShardLog(folder, log.cluster, shard) for shard in range(4)]
    collector = Collector(
        logs, service.first_untabled, 60.0, clock=HubClock(clocks.wall, clocks.boot), in_round=service.opened_once
    )
    for _ in range(2):
        await collector.look()
        assert sorted(opened) == ["alarms", "telemetry"]
        assert [(await each.manifest())[0].watermark for each in logs] == [1] * 4
        opened.clear()


@pytest.mark.parametrize("snapshots", [[], [0], [0, 1, 2, 3, 4, 5]])
async def test_the_last_records_of_an_idle_shard_go_in_their_time(
    folder: ObjectStore, clocks: Clocks, snapshots: list[int]
) -> None:
    """Two hubs collect, and no edge sends any more."""
    log = await LogWriter.open(folder, 1)
    for n in range(6):
        await log.append(0, Run(LANE, 10 * n, 10))
        if n in snapshots:
            await log.snapshot(0)
    services = [TableService(folder, log.cluster) for _ in range(2)]
    both = [
        ShardCollector(
            ShardLog(folder, log.cluster, 0), service.first_untabled, RETAIN_S, clock=HubClock(clocks.wall, clocks.boot)
        )
        for service in services
    ]
    objects = []
    for _ in range(8):
        clocks.since += 16 * MINUTE
        for service in services:
            await service.run_once()
        await asyncio.gather(*(each.look() for each in both))
        objects.append(len(await folder.list("shard-0/")))
    log.created = START + clocks.since
    shard = ShardLog(folder, log.cluster, 0)
    (last,) = await chunks(folder)
    found = await shard.index(last)
    assert found is not None
    assert (last, found.footer.streams) == (6, [])
    assert objects[-1] == objects[-4] <= 1 + 1 + 4 + len(snapshots), "it is done once: chunk, manifest, snapshots"
    for _, key in (await shard.snapshots())[-3:]:
        await folder.delete(key)
    await log.follow(0)
    assert (await shard.load()).encode() == log.states[0].encode()
    await log.append(0, Run(LANE, 60, 10))
    await services[0].run_once()
    assert contents(folder) == expected({0: [Run(LANE, 0, 70)]})
    assert (await audit(folder, "default", "telemetry", payloads=True)).problems == []


async def test_a_table_in_trouble_holds_the_log(folder: ObjectStore, tmp_path: Path) -> None:
    log, service = await tabled_log(folder)
    await log.append(0, Run(LANE, 100, 10))
    (tmp_path / f"store/{chunk_key(0, 10)}").write_bytes(b"rotten")
    await service.run_once()
    assert service.error is not None
    assert await service.first_untabled(0) is None


async def test_a_table_of_another_history_holds_the_log(folder: ObjectStore, tmp_path: Path) -> None:
    _, service = await tabled_log(folder)
    (tmp_path / f"store/{chunk_key(0, 9)}").unlink()
    assert await service.first_untabled(0) is None


async def test_readers_that_slept_through_a_collection_go_on(folder: ObjectStore, clocks: Clocks) -> None:
    """Tables of another node, a reader of the log, and an audit."""
    log, service = await tabled_log(folder)
    asleep = TableService(folder, log.cluster)
    await asleep.run_once()
    reader = ShardLog(folder, log.cluster, 0, clocks.boot)
    state = await reader.load()
    for n in range(10, 20):
        await log.append(0, Run(LANE, 10 * n, 10), Run(OTHER._replace(stream="alarms"), 5 * n, 5))
        await log.snapshot(0)
    await service.run_once()
    clocks.since = 60 * MINUTE
    shard = ShardLog(folder, log.cluster, 0)
    collector = ShardCollector(shard, service.first_untabled, 60.0, clock=HubClock(clocks.wall, clocks.boot))
    await collector.look()
    clocks.since += 1000 * SECOND
    await collector.look()
    assert await chunks(folder) == list(range(16, 21))
    await log.follow(0)  # the chunk without records behind an idle log
    await log.append(0, Run(LANE, 200, 10))
    with pytest.raises(CollectedPast):
        await reader.extend(state)
    # The other node's last look at the watermark was longer ago than it believes it.
    for view in asleep._views:
        view.log._looked_at = None
    for _ in range(2):
        await asleep.run_once()
    assert (asleep.error, [status.error for status in asleep.status()]) == (None, [None, None])
    assert contents(folder) == expected({0: [Run(LANE, 0, 210)]})
    assert (await audit(folder, "default", "telemetry", payloads=True)).problems == []
    assert (await audit(folder, "default", "alarms", payloads=True)).problems == []


async def test_chunks_that_another_region_lacks_stay_for_as_long_as_its_pin(
    log: LogWriter, tables: Tables, clocks: Clocks
) -> None:
    positions = RegionPositions(log.store, log.cluster)

    async def kept(pin_minutes: int) -> int:
        shard = ShardLog(log.store, log.cluster, 0, clocks.boot)
        pins = Pins(positions, {"east": 60.0 * pin_minutes, "west": 60.0 * pin_minutes})
        clock = HubClock(clocks.wall, clocks.boot)
        await ShardCollector(shard, tables, RETAIN_S, clock=clock, pins=pins).look()
        return await watermark(log)

    assert await kept(60) == 0, "no position is known: the link begins at the log's beginning"
    await positions.write("east", 0, RegionPosition(next=25), None)
    etag = await positions.write("west", 0, RegionPosition(next=7), None)
    assert await kept(60) == 7
    assert await kept(18) == 13, "chunk 12 is 18 minutes old"
    await positions.write("west", 0, RegionPosition(next=29), etag)
    assert await kept(60) == 18, "both have what is older than the log's retention"
