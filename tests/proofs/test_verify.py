"""A verification names what a store lacks, and finds nothing in one that is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cloud_hub.tables.logs import LANE, OTHER, LogWriter, Run, rows, table
from tests.proofs.backup.places import backed_up, busy, quiet, view_of
from weft.proofs.backup.backup import prune, restore
from weft.proofs.verify import StoreFault, VerifyReport, verify
from weft.protocols.chunk_index import GapRange
from weft.protocols.segment import GapReason
from weft.storage import hub_keys
from weft.storage.chunk_log import ShardLog, changed
from weft.storage.object_store import Object, ObjectStore, open_store
from weft.storage.object_store.directory import MemoryStore
from weft.storage.table_writer.shards import load_shards
from weft.storage.table_writer.tiering import Tierer


def found(report: VerifyReport) -> list[tuple[str, str]]:
    return [(each.what, each.sentence) for each in report.findings]


async def flip(store: ObjectStore, key: str, at: int) -> None:
    """Change one byte of an object."""
    data = bytearray((await store.get(key)).data)
    data[at] ^= 1
    await store.delete(key)
    await store.create(key, data)


async def test_a_whole_store_and_its_backup_are_good() -> None:
    store, place = MemoryStore(), MemoryStore()
    await busy(store)
    await backed_up(store, place)
    for each in (store, place):
        report = await verify(each)
        assert report.is_whole
        assert [(shard.first, shard.end, shard.chunks, shard.snapshots) for shard in report.shards] == [
            (0, 6, 6, 1),
            (0, 1, 1, 0),
        ]
        ends = {(lane.edge, lane.shard): lane.next_seq for lane in report.lanes}
        assert ends == {(LANE.edge, 0): 60, (OTHER.edge, 0): 30, (LANE.edge, 1): 1}
    assert (await verify(store)).backup_of is None
    assert (await verify(place)).backup_of == 1_800_000_000_000_000_000


async def test_missing_chunks_are_named_and_the_records_that_were_in_them() -> None:
    store = MemoryStore()
    writer = await busy(store)
    for n in range(6, 9):
        await writer.append(0, Run(LANE, 10 * n, 10))
    await writer.snapshot(0)
    await writer.append(0, Run(LANE, 90, 10))
    for n in (5, 6):
        await store.delete(hub_keys.chunk_key(0, n))
    report = await verify(store)
    assert found(report) == [("missing", "chunks 5 to 6 are missing or damaged")]
    assert [(run.edge, run.first, run.end) for run in report.lost] == [(LANE.edge, 50, 70), (OTHER.edge, 25, 30)]
    assert {lane.edge: lane.next_seq for lane in report.lanes if lane.shard == 0} == {LANE.edge: 100, OTHER.edge: 30}


async def test_a_hole_without_a_later_snapshot_says_that_no_hub_can_load_the_shard() -> None:
    store = MemoryStore()
    await busy(store)
    await store.delete(hub_keys.chunk_key(0, 4))
    assert found(await verify(store)) == [
        ("missing", "chunk 4 is missing or damaged"),
        ("missing", "no snapshot leads to the head of the log behind what is missing: a hub cannot load this shard"),
    ]


async def test_a_log_that_ends_before_its_snapshot_is_named() -> None:
    store = MemoryStore()
    await busy(store)
    for n in (3, 4, 5):
        await store.delete(hub_keys.chunk_key(0, n))
    report = await verify(store)
    assert [each.what for each in report.findings] == ["missing"]
    assert [(run.edge, run.first, run.end) for run in report.lost] == [(LANE.edge, 30, 40), (OTHER.edge, 15, 20)]
    assert "chunks 3 to 3, which shard-0/snapshot/" in report.findings[0].sentence


async def test_damage_is_named_by_object_and_offsets() -> None:
    store = MemoryStore()
    await busy(store)
    chunk = await ShardLog(store, (await LogWriter.open(store)).cluster, 0).index(1)
    assert chunk is not None
    section = chunk.footer.streams[0]
    await flip(store, hub_keys.chunk_key(0, 1), section.position + 3)
    [finding] = (await verify(store)).findings
    assert finding.what == "damaged"
    assert "offsets 15 to 29 of default/telemetry are damaged" in finding.sentence
    [snapshot] = await store.list(hub_keys.snapshot_prefix(0))
    await flip(store, snapshot.key, snapshot.size - 1)
    assert [each.place for each in (await verify(store)).findings] == [hub_keys.chunk_key(0, 1), snapshot.key]


async def test_a_snapshot_that_is_not_what_the_chunks_make_is_named() -> None:
    store, other = MemoryStore(), MemoryStore()
    writer = await busy(store)
    twin = LogWriter(other, writer.cluster)
    for n in range(4):
        await twin.append(0, Run(LANE, 10 * n, 9), Run(OTHER, 5 * n, 5))
    log = ShardLog(store, writer.cluster, 0)
    key = await log.put_snapshot(3, 77, twin.states[0].encode())
    [finding] = (await verify(store)).findings
    assert (finding.place, finding.what) == (key, "differs")


async def test_records_that_an_edge_had_no_more_are_lost() -> None:
    store = MemoryStore()
    writer = await LogWriter.open(store)
    await writer.append(
        0, Run(LANE, 0, 10, gaps=[GapRange(10, 15, GapReason.ABSENT), GapRange(15, 20, GapReason.BUDGET)])
    )
    [lane] = (await verify(store)).lanes
    assert (lane.gone, lane.next_seq) == ([(10, 15)], 20)


async def test_a_collected_log_begins_at_its_watermark() -> None:
    store = MemoryStore()
    writer = await busy(store)
    await writer.snapshot(0)
    log = ShardLog(store, writer.cluster, 0)
    manifest, etag = await log.manifest()
    await log.swap_manifest(changed(manifest, watermark=4), etag)
    for n in range(4):
        await store.delete(hub_keys.chunk_key(0, n))
    report = await verify(store)
    assert report.is_whole
    assert (report.shards[0].first, report.shards[0].end) == (4, 6)


async def collected(store: ObjectStore, writer: LogWriter, watermark: int) -> None:
    """Delete the chunks of the first shard below a watermark, as the hub does."""
    await writer.snapshot(0)
    log = ShardLog(store, writer.cluster, 0)
    manifest, etag = await log.manifest()
    assert await log.swap_manifest(changed(manifest, watermark=watermark), etag)
    for n in range(watermark):
        await store.delete(hub_keys.chunk_key(0, n))


class Collects(MemoryStore):
    """A store whose hub collects chunks and snapshots while they are read."""

    writer: LogWriter
    watermark = 0

    async def get(self, key: str) -> Object:
        if key == hub_keys.chunk_key(0, 0) and self.watermark:
            watermark, self.watermark = self.watermark, 0
            older = await self.list(hub_keys.snapshot_prefix(0))
            await collected(self, self.writer, watermark)
            for item in older:
                await self.delete(item.key)
        return await super().get(key)


@pytest.mark.parametrize("watermark", [4, 6])
async def test_chunks_that_are_collected_meanwhile_are_no_hole(watermark: int) -> None:
    store = Collects()
    store.writer = await busy(store)
    store.watermark = watermark
    report = await verify(store)
    assert report.findings == []
    assert (report.shards[0].first, report.shards[0].end) == (watermark, 6)
    assert {lane.edge: lane.next_seq for lane in report.lanes if lane.shard == 0} == {LANE.edge: 60, OTHER.edge: 30}


class TestTables:
    @pytest.fixture
    async def store(self, tmp_path: Path) -> ObjectStore:
        store = open_store(str(tmp_path / "store"))
        writer = await busy(store)
        views = await load_shards(store, writer.cluster)
        tierer = Tierer(store, writer.cluster, "default", "telemetry", views)
        await tierer.step()
        return store

    async def test_a_table_is_whole_in_store_and_backup(self, store: ObjectStore, tmp_path: Path) -> None:
        place = open_store(str(tmp_path / "backup"))
        await backed_up(store, place)
        for each in (store, place):
            report = await verify(each)
            assert report.findings == []
            [table] = report.tables
            assert table.rows_up_to == {0: 90, 1: 1}
            assert table.files == 2

    async def test_a_pruned_backup_has_what_its_record_needs_and_no_more(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        place = open_store(str(tmp_path / "backup"))
        await store.create("facts/a", b"first")
        await backed_up(store, place)
        before = {item.key for item in await place.list("")}
        assert await prune(place, await view_of(place)) == 0
        writer = await LogWriter.open(store)
        for shard in range(2):
            await writer.follow(shard)
        await writer.append(0, Run(LANE, 60, 10))
        views = await load_shards(store, writer.cluster)
        await Tierer(store, writer.cluster, "default", "telemetry", views).step()
        await collected(store, writer, 5)
        await store.swap("facts/a", b"second", (await store.get("facts/a")).etag)
        home = next(key for key in before if key.endswith(".parquet")).rpartition("/")[0]
        others = ["tables/default/deleted/2b1f/x.parquet", "tables/default/telemetry/another-life/x.parquet"]
        for key in (*others, f"{home}/orphan.parquet"):
            await place.create(key, b"x")
        await backed_up(store, place)
        deleted = await prune(place, await view_of(place))
        after = {item.key for item in await place.list("")}
        gone = {hub_keys.chunk_key(0, n) for n in range(5)} | {*others, f"{home}/orphan.parquet"}
        assert before - after == {key for key in before if key in gone or "snapshot" in key} | (
            {key for key in before if key.startswith("contents/")} - after
        )
        assert not gone & after
        assert deleted == len(gone) + 1 + 2  # the former snapshot, the former fact and the former list of facts
        assert (await verify(place)).findings == []

    async def test_a_table_behind_a_checkpoint_comes_back_whole(self, store: ObjectStore, tmp_path: Path) -> None:
        table(store).create_checkpoint()
        writer = await LogWriter.open(store)
        for shard in range(2):
            await writer.follow(shard)
        await writer.append(0, Run(LANE, 60, 10))
        await Tierer(store, writer.cluster, "default", "telemetry", await load_shards(store, writer.cluster)).step()
        place, new = open_store(str(tmp_path / "backup")), open_store(str(tmp_path / "new"))
        await backed_up(store, place)
        assert await prune(place, await view_of(place)) == 1, "the entry before the checkpoint"
        await restore(await view_of(place), new, clock=lambda: 1, note=quiet)
        assert rows(new) == rows(store)
        for each in (place, new):
            assert (await verify(each)).findings == []
            [found] = (await verify(each)).tables
            assert (found.files, found.rows_up_to) == (3, {0: 100, 1: 1})

    async def test_a_missing_file_is_named(self, store: ObjectStore) -> None:
        files = [item.key for item in await store.list("tables") if item.key.endswith(".parquet")]
        await store.delete(files[0])
        assert [(each.place, each.what) for each in (await verify(store)).findings] == [(files[0], "missing")]

    async def test_a_log_that_is_older_than_the_table_is_named(self, store: ObjectStore) -> None:
        await store.delete(hub_keys.chunk_key(0, 5))
        [finding] = (await verify(store)).findings
        assert finding.what == "ahead"
        assert "rows of shard 0 up to offset 90, the log ends at 75" in finding.sentence

    async def test_rows_that_are_neither_in_log_nor_table_are_named(self, store: ObjectStore) -> None:
        writer = await LogWriter.open(store)
        for shard in range(2):
            await writer.follow(shard)
        await writer.append(0, Run(LANE, 60, 10))
        await writer.append(0, Run(LANE, 70, 10))
        await writer.snapshot(0)
        log = ShardLog(store, writer.cluster, 0)
        manifest, etag = await log.manifest()
        await log.swap_manifest(changed(manifest, watermark=7), etag)
        for n in range(7):
            await store.delete(hub_keys.chunk_key(0, n))
        assert (
            StoreFault(
                "tables/default/telemetry",
                "rows_missing",
                "offsets 90 to 99 of default/telemetry in shard 0 are neither in the table nor in a chunk",
            )
            in (await verify(store)).findings
        )

    async def test_a_table_of_another_history_is_named(self, store: ObjectStore) -> None:
        writer = await LogWriter.open(store)
        await store.delete(hub_keys.chunk_key(0, 5))
        for shard in range(2):
            await writer.follow(shard)
        await writer.append(0, Run(LANE, 50, 15))
        await writer.append(0, Run(LANE, 65, 10))
        [finding] = (await verify(store)).findings
        assert (finding.what, finding.sentence) == (
            "other_history",
            "tables/default/telemetry has rows of chunk 5 of shard 0, which is another one",
        )


async def test_a_backup_hides_what_came_after_its_record() -> None:
    store, place = MemoryStore(), MemoryStore()
    writer = await busy(store)
    await backed_up(store, place)
    await writer.append(0, Run(LANE, 60, 10))
    for item in await store.list("shard-0/chunk"):
        if item.key == hub_keys.chunk_key(0, 6):
            await place.create(item.key, (await store.get(item.key)).data)  # a run that ended early
    view = await view_of(place)
    assert [item.key for item in await view.list("shard-0/chunk", after=hub_keys.chunk_key(0, 4))] == [
        hub_keys.chunk_key(0, 5)
    ]
    assert (await verify(place)).shards[0].end == 6
