"""A backup is a store at one moment of each shard, whatever ends a run, and whatever the hub does meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import random
from functools import partial
from pathlib import Path

import msgspec
import pytest

from tests.cloud_hub.tables.logs import LANE, LogWriter, Run
from tests.proofs.backup.places import backed_up, busy, quiet, restored, states, view_of
from tests.storage.declaring import MARA, declares
from weft.cloud_hub.splits import Apart, Splitter
from weft.proofs.backup import backup
from weft.proofs.backup.backup import make_backup, prune, restore
from weft.proofs.backup.view import RECORD, BackupUnusable
from weft.proofs.verify import verify
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane
from weft.storage import hub_keys
from weft.storage.chunk_log import ShardLog, changed, first_logs, load_every_shard
from weft.storage.cluster import ClusterCache, ClusterUnusable, declare_split, open_cluster
from weft.storage.cluster_log import NODE, Change, ClusterLog
from weft.storage.fenced_store import check_store
from weft.storage.object_store import NotFound, Object, ObjectStore, StoreError, open_store
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.opening import PlacedStore, bare
from weft.storage.object_store.protocol import Buffer, Listing
from weft.storage.presence import NodeEntry
from weft.storage.table_writer.service import TableService


async def test_a_restored_store_is_the_one_of_the_backup_and_says_when_it_was_restored() -> None:
    store, place = MemoryStore(), MemoryStore()
    writer = await busy(store)
    then = await states(store)
    await backed_up(store, place)
    await writer.append(0, Run(LANE, 60, 10))
    new = await restored(place)
    assert await states(new) == then
    cluster = await open_cluster(new, None)
    assert (cluster.cluster_id, cluster.restored) == (writer.cluster.cluster_id, 1_900_000_000_000_000_000)
    assert "restoring" not in [item.key for item in await new.list("")]


async def test_a_second_run_copies_only_what_is_new() -> None:
    store, place = MemoryStore(), MemoryStore()
    writer = await busy(store)
    _, first = await backed_up(store, place)
    await writer.append(0, Run(LANE, 60, 10))
    record, second = await backed_up(store, place)
    assert first.objects > 7
    assert second.objects == 1
    assert [(part.first, part.end) for part in record.shards] == [(0, 7), (0, 1)]
    assert await states(await restored(place)) == await states(store)


class EndsEarly(MemoryStore):
    """A place whose writes fail from one on."""

    left = 10**9

    async def create(self, key: str, data: Buffer) -> str:
        self.left -= 1
        if self.left < 0:
            raise StoreError("the network is gone")
        return await super().create(key, data)


@pytest.mark.parametrize("writes", [0, 1, 4, 7])
async def test_a_run_that_ends_early_leaves_the_last_backup_and_the_next_one_goes_on(writes: int) -> None:
    store, place = MemoryStore(), EndsEarly()
    writer = await busy(store)
    then = await states(store)
    await backed_up(store, place)
    for n in range(6, 12):
        await writer.append(0, Run(LANE, 10 * n, 10))
    await writer.snapshot(0)
    place.left = writes
    with pytest.raises(StoreError):
        await backed_up(store, place)
    assert await states(await restored(place)) == then
    place.left = 10**9
    _, copied = await backed_up(store, place)
    assert copied.objects == 7 - writes
    assert await states(await restored(place)) == await states(store)


async def test_a_restore_that_ends_early_is_no_store_and_goes_on() -> None:
    store, place, target = MemoryStore(), MemoryStore(), EndsEarly()
    await busy(store)
    await backed_up(store, place)
    target.left = 5
    with pytest.raises(StoreError):
        await restore(await view_of(place), target, clock=lambda: 1, note=quiet)
    with pytest.raises(NotFound):
        await target.get(hub_keys.CLUSTER)
    target.left = 10**9
    await restore(await view_of(place), target, clock=lambda: 2, note=quiet)
    assert await states(target) == await states(store)


async def test_what_was_drained_in_the_lost_store_is_not_in_the_restored_one() -> None:
    """A host of the same name would take no shards, and no one would know why."""
    store, place, target = MemoryStore(), MemoryStore(), EndsEarly()
    writer = await busy(store)
    log = ClusterLog(store, writer.cluster.cluster_id)
    await log.append(lambda _: Change(NODE, "hub-2", b'{"drained":true}'), MARA)
    await backed_up(store, place)
    _, ended = await restore(await view_of(place), target, clock=lambda: 7, note=quiet)
    assert ended == ["hub-2"]
    restored_log = ClusterLog(target, writer.cluster.cluster_id)
    state = await restored_log.load()
    assert state.facts(NODE) == {}
    (last,) = await restored_log.newest(state, 1)
    assert (last.kind, last.name, last.document, last.at) == (NODE, "hub-2", None, 7)

    cut = EndsEarly()
    cut.left = 10**9 - target.left - 1  # all but the object that makes it a store
    with pytest.raises(StoreError):
        await restore(await view_of(place), cut, clock=lambda: 7, note=quiet)
    cut.left = 10**9
    await restore(await view_of(place), cut, clock=lambda: 8, note=quiet)
    assert (await ClusterLog(cut, writer.cluster.cluster_id).load()).facts(NODE) == {}


class KeepsItsMark(MemoryStore):
    """A new store that is cut off when a restore deletes its mark for the first time."""

    cut = False

    async def delete(self, key: str) -> None:
        if key == hub_keys.RESTORING and not self.cut:
            self.cut = True
            raise StoreError("the network is gone")
        await super().delete(key)


class Collects(MemoryStore):
    """A store whose hub collects chunks while they are copied."""

    writer: LogWriter
    reads = 0

    async def get(self, key: str) -> Object:
        if "/chunk/" in key:
            self.reads += 1
            if self.reads == 3:
                await collect(self, self.writer, 4)
        return await super().get(key)


async def collect(store: MemoryStore, writer: LogWriter, watermark: int) -> None:
    """Raise the watermark of the first shard, and delete what is below it."""
    await writer.snapshot(0)
    log = ShardLog(store, writer.cluster, 0)
    manifest, etag = await log.manifest()
    assert await log.swap_manifest(changed(manifest, watermark=watermark), etag)
    for n in range(watermark):
        await store.delete(hub_keys.chunk_key(0, n))


async def test_chunks_that_are_collected_meanwhile_are_no_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector waits far longer between the watermark and deleting than a watermark may be used."""
    times = itertools.count(0, 40_000_000_000)
    monkeypatch.setattr(backup, "ShardLog", partial(ShardLog, boot_clock=lambda: next(times)))
    store, place = Collects(), MemoryStore()
    store.writer = await busy(store)
    record, _ = await backed_up(store, place)
    assert [(part.first, part.end) for part in record.shards] == [(4, 6), (0, 1)]
    assert await states(await restored(place)) == await states(store)


async def test_a_backup_after_a_collection_does_not_show_what_is_between() -> None:
    store, place = MemoryStore(), MemoryStore()
    writer = await busy(store)
    await backed_up(store, place)
    for n in range(6, 12):
        await writer.append(0, Run(LANE, 10 * n, 10))
    await collect(store, writer, 10)
    record, _ = await backed_up(store, place)
    assert (record.shards[0].first, record.shards[0].end) == (10, 12)
    assert await states(await restored(place)) == await states(store)


class ChangesItsCluster(MemoryStore):
    """A store whose cluster file is written again while it is copied, as by a change of its level."""

    reads = 0

    async def get(self, key: str) -> Object:
        if "/chunk/" in key:
            self.reads += 1
            if self.reads == 2:
                found = await super().get(hub_keys.CLUSTER)
                await self.swap(hub_keys.CLUSTER, found.data + b" ", found.etag)
        return await super().get(key)


async def test_a_cluster_that_changes_meanwhile_is_copied_as_it_is_after() -> None:
    store, place = ChangesItsCluster(), MemoryStore()
    await busy(store)
    lines: list[str] = []
    record, _ = await make_backup(store, place, clock=lambda: 1, note=lines.append)
    assert record.cluster == (await store.get(hub_keys.CLUSTER)).data
    assert any("cluster.json has changed meanwhile" in line for line in lines)


class Raises(MemoryStore):
    """A store whose cluster file is written again right after a run has read it."""

    reads = 0

    async def get(self, key: str) -> Object:
        found = await super().get(key)
        if key == hub_keys.CLUSTER:
            self.reads += 1
            if self.reads == 2:
                await self.swap(key, found.data + b" ", found.etag)
        return found


async def test_a_cluster_that_changes_between_two_readings_is_read_again() -> None:
    store, place = Raises(), MemoryStore()
    await busy(store)
    store.reads = 0
    lines: list[str] = []
    record, _ = await make_backup(store, place, clock=lambda: 1, note=lines.append)
    assert record.cluster == (await store.get(hub_keys.CLUSTER)).data
    assert any("cluster.json has changed meanwhile" in line for line in lines)


async def test_a_place_inside_the_store_is_refused(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    await busy(store)
    (tmp_path / "link").symlink_to(tmp_path / "store")
    for inside in ("store/backup", "link/deep/backup"):
        with pytest.raises(BackupUnusable, match="the place of the backup is inside the store: name another"):
            await backed_up(store, open_store(str(tmp_path / inside)))
    await backed_up(store, open_store(str(tmp_path / "store-2")))


async def test_a_run_that_prunes_stops_once_another_one_has_replaced_the_record() -> None:
    store, place = MemoryStore(), MemoryStore()
    await busy(store)
    await store.create("facts/a", b"first")
    await backed_up(store, place)
    old = await view_of(place)
    await store.swap("facts/a", b"second", (await store.get("facts/a")).etag)
    await backed_up(store, place)
    with pytest.raises(BackupUnusable, match="never let runs with --prune overlap"):
        await prune(place, old)
    assert (await (await restored(place)).get("facts/a")).data == b"second"
    assert await prune(place, await view_of(place)) == 2, "the former fact and the former list of facts"


async def test_a_restore_that_lacked_only_its_last_step_copies_nothing_again() -> None:
    store, place, target = MemoryStore(), MemoryStore(), KeepsItsMark()
    await busy(store)
    await backed_up(store, place)
    with pytest.raises(StoreError):
        await restore(await view_of(place), target, clock=lambda: 1, note=quiet)
    await target.delete(hub_keys.chunk_key(0, 0))  # collected by its hub meanwhile
    copied, _ = await restore(await view_of(place), target, clock=lambda: 2, note=quiet)
    names = [item.key for item in await target.list("")]
    assert (copied.objects, copied.there) == (0, 0)
    assert not {hub_keys.chunk_key(0, 0), hub_keys.RESTORING} & {*names}


async def test_a_store_of_another_history_is_refused() -> None:
    store, place = MemoryStore(), MemoryStore()
    await busy(store)
    await backed_up(store, place)
    shorter = await restored(place)
    await shorter.delete(hub_keys.chunk_key(0, 5))
    with pytest.raises(BackupUnusable, match="lacks chunk of that number"):
        await backed_up(shorter, place)
    other = MemoryStore()
    await busy(other)
    with pytest.raises(BackupUnusable, match="the place has a backup of cluster"):
        await backed_up(other, place)
    with pytest.raises(BackupUnusable, match="holds a hub's store"):
        await backed_up(store, other)
    with pytest.raises(BackupUnusable, match="is not empty"):
        await restore(await view_of(place), other, clock=lambda: 1, note=quiet)


async def test_objects_of_later_releases_come_along_and_those_of_running_nodes_do_not() -> None:
    store, place = MemoryStore(), MemoryStore()
    await busy(store)
    kept = {
        "facts/manifest": b"first",
        "deletions/default/telemetry/0": b"declared",
        "groups/a": b"a position",
        "shard-0/lease": b"of a later release",
        "tenants/acme/shard-0/chunk/0": b"another log",
    }
    for key, data in kept.items():
        await store.create(key, data)
    for key in ("nodes/a", "keepers/b", "probe/c/object", "tables/default/telemetry/x.part"):
        await store.create(key, b"passing")
    await backed_up(store, place)
    await store.swap("facts/manifest", b"second", (await store.get("facts/manifest")).etag)
    new = await restored(place)
    assert {key: (await new.get(key)).data for key in kept} == kept
    names = [item.key for item in await new.list("")]
    assert not [name for name in names if name.startswith(("nodes", "keepers", "probe", "tables"))]
    await backed_up(store, place)
    assert (await (await restored(place)).get("facts/manifest")).data == b"second"


async def test_declared_facts_come_along_as_they_were() -> None:
    store, place = MemoryStore(), MemoryStore()
    writer = await busy(store)
    log = ClusterLog(store, writer.cluster.cluster_id)
    for n in range(70):  # over a snapshot
        await log.append(declares(f"edge-{n}"), MARA)
    await backed_up(store, place)
    for n in range(70, 75):
        await log.append(declares(f"edge-{n}"), MARA)
    new = await restored(place)
    _, copied = await backed_up(store, place)
    assert copied.objects == 5 + 1, "the new ones, and their list"
    assert copied.there == 0, "the former ones are not read again"
    state = await ClusterLog(new, writer.cluster.cluster_id).load()
    assert (state.n, len(state.facts("token")), list(state.skipped)) == (70, 70, [])
    report = await verify(place)
    assert report.findings == []
    await new.delete(hub_keys.entry_key(67))
    [fault] = (await verify(new)).findings
    assert "entry/00000000000000000067 is missing" in fault.sentence


async def test_long_objects_of_later_releases_come_along() -> None:
    store, place = MemoryStore(), MemoryStore()
    await busy(store)
    await store.create("groups/long", bytes(9 << 20))
    await backed_up(store, place)
    assert (await (await restored(place)).get("groups/long")).data == bytes(9 << 20)


async def test_no_hub_takes_a_backup_or_a_half_restored_store_for_a_new_one() -> None:
    store, place, target = MemoryStore(), MemoryStore(), EndsEarly()
    await busy(store)
    await backed_up(store, place)
    with pytest.raises(ClusterUnusable, match="holds a backup, on which no hub runs"):
        await check_store(place)
    target.left = 5
    with pytest.raises(StoreError):
        await restore(await view_of(place), target, clock=lambda: 1, note=quiet)
    with pytest.raises(ClusterUnusable, match="a backup is being restored into the store"):
        await check_store(target)
    target.left = 10**9
    await restore(await view_of(place), target, clock=lambda: 1, note=quiet)
    await check_store(target)


async def test_states_of_lanes_that_left_come_along_up_to_the_end() -> None:
    store, place = MemoryStore(), MemoryStore()
    await busy(store)
    gone = Lane("default", "press-9", 9, "telemetry")
    for n in (2, 9):
        await store.create(hub_keys.ended_key(0, gone, n), b"state")
    await backed_up(store, place)
    new = await restored(place)
    assert [hub_keys.parse_ended_key(item.key)[1] for item in await new.list("shard-0/ended")] == [2]


async def test_a_damaged_record_and_one_of_a_later_release_are_named() -> None:
    for data, sentence in ((b"{", "is damaged"), (b'{"format": 2}', "use the release that made the backup")):
        place = MemoryStore()
        await place.create(RECORD, data)
        with pytest.raises(BackupUnusable, match=sentence):
            await view_of(place)


async def test_a_place_that_a_hub_process_uses_is_refused_also_when_it_comes_meanwhile() -> None:
    store, place = MemoryStore(), MemoryStore()
    await busy(store)
    await backed_up(store, place)
    now = 1_900_000_000_000_000_000
    entry = NodeEntry("1", "http://127.0.0.1:8090", "weft", 1, now - 4_000_000_000, name="hub-1:8090")
    used = MemoryStore()
    await used.create("nodes/1", msgspec.json.encode(entry))
    with pytest.raises(BackupUnusable, match=r"hub-1:8090 at http://127.0.0.1:8090 wrote to it 4 s ago. Stop it"):
        await restore(await view_of(place), used, clock=lambda: now, note=quiet)

    class Joined(MemoryStore):
        joins = True

        async def create(self, key: str, data: Buffer) -> str:
            if key.startswith("shard-0/chunk/") and self.joins:
                self.joins = False
                await super().create("nodes/1", msgspec.json.encode(entry))
            return await super().create(key, data)

    joined = Joined()
    with pytest.raises(BackupUnusable, match="a hub process uses this place"):
        await restore(await view_of(place), joined, clock=lambda: now, note=quiet)
    assert "cluster.json" not in [item.key for item in await joined.list("")]
    await joined.delete("nodes/1")
    await restore(await view_of(place), joined, clock=lambda: now, note=quiet)
    assert await states(joined) == await states(await restored(place))


# --- A backup of a store with a tenant that is set apart, and a store that is restored from it


ACME = LANE._replace(tenant="acme")


async def names(store: ObjectStore) -> set[str]:
    return {item.key for item in await bare(store).list("")}


async def test_a_restored_store_has_the_tenant_below_its_prefix_again() -> None:
    store, place, target = (PlacedStore(MemoryStore()) for _ in range(3))
    await busy(store)
    shard = await Apart(store, wall_clock=lambda: 0, random_bits=random.Random(1).getrandbits).set("acme")
    cluster = await open_cluster(store, None)
    writer = LogWriter(store, cluster)
    writer.states = [state for _, state in await load_every_shard(first_logs(store, cluster))]
    for n in range(4):
        await writer.append(shard, Run(ACME, 10 * n, 10))
    await writer.snapshot(shard)
    await store.create("deletions/acme/telemetry/00000000000000000000", b"{}")

    await backed_up(store, place)
    assert not [name for name in await names(place) if name.startswith("tenants/")], "a backup has one layout"
    assert [item.key for item in await place.list(f"shard-{shard}/chunk")]
    assert (await verify(place)).findings == []
    await restore(await view_of(place), target, clock=lambda: 1_900_000_000_000_000_000, note=quiet)
    assert await names(target) == await names(store)
    assert await states(target) == await states(store)
    found = await verify(target)
    assert found.findings == []
    assert [(lane.tenant, lane.shard) for lane in found.lanes if lane.tenant == "acme"] == [("acme", shard)]

    again = PlacedStore(bare(target))  # another process reads where the objects are
    assert await states(again) == await states(store)


# --- A backup of a store whose shard is split, before, while and after the split comes into force


MOVES = Lane("default", "press-5", 9, "telemetry")
"""A lane that a split of shard 0 moves to shard 1; LANE stays."""


async def declared(store: ObjectStore) -> None:
    """A log of one shard, and a split of it that is not in force."""
    writer = await LogWriter.open(store, shards=1)
    for n in range(3):
        await writer.append(0, Run(LANE, 10 * n, 10), Run(MOVES, 5 * n, 5))
    await declare_split(store, 0, writer.cluster)


async def begin(store: ObjectStore) -> None:
    cluster = await open_cluster(store, None)
    splitter = Splitter(
        lambda shard: ShardLog(store, cluster, shard),
        ClusterCache(cluster),
        wall_clock=lambda: 0,
        random_bits=random.Random(1).getrandbits,
    )
    await splitter.begin(1)


async def writer_of(store: ObjectStore) -> LogWriter:
    cluster = await open_cluster(store, None)
    writer = LogWriter(store, cluster)
    writer.states = [state for _, state in await load_every_shard(first_logs(store, cluster))]
    return writer


async def lanes(store: ObjectStore) -> list[tuple[str, int, int]]:
    """Edge, shard and next number of every lane of a store without a finding."""
    report = await verify(store)
    assert report.findings == []
    return [(lane.edge, lane.shard, lane.next_seq) for lane in report.lanes]


class Splits(MemoryStore):
    """A store whose declared split comes into force after a backup has read the manifests."""

    dies = False
    """Whether the process that puts it into force ends before the new shard's manifest is there."""

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        if prefix == "tables":
            with contextlib.suppress(StoreError):
                await begin(self)
        return await super().list(prefix, after, limit)

    async def create(self, key: str, data: Buffer) -> str:
        if self.dies and key == hub_keys.manifest_key(1):
            raise StoreError("the process has ended")
        return await super().create(key, data)


@pytest.mark.parametrize("dies", [False, True])
async def test_a_split_that_comes_into_force_meanwhile_is_whole_in_the_backup(*, dies: bool) -> None:
    store, place = Splits(), MemoryStore()
    await declared(store)
    store.dies = dies
    record, _ = await backed_up(store, place)
    assert [part.manifest is None for part in record.shards] == [True, dies]
    for n in (7, 90):  # of a later run that ended early
        await place.create(hub_keys.snapshot_key(1, n, 7), b"later")
    new = await restored(place)
    store.dies = False
    for each in (store, place, new):
        assert await lanes(each) == [(LANE.edge, 0, 30), (MOVES.edge, 1, 15)]
    assert await states(new) == await states(store)
    assert len(await new.list(hub_keys.snapshot_prefix(1))) == 1
    await begin(new)
    await (await writer_of(new)).append(1, Run(MOVES, 15, 5))
    assert (MOVES.edge, 1, 20) in await lanes(new)


async def test_a_new_shard_without_a_chunk_has_its_state_in_the_backup() -> None:
    store, place = MemoryStore(), MemoryStore()
    await declared(store)
    await begin(store)
    for _ in range(2):
        await backed_up(store, place)
    assert await states(await restored(place)) == await states(store)
    await (await writer_of(store)).append(1, Run(MOVES, 15, 5))
    await backed_up(store, place)
    assert await lanes(place) == [(LANE.edge, 0, 30), (MOVES.edge, 1, 20)]


async def test_a_declared_split_that_is_not_in_force_is_whole_in_the_backup() -> None:
    store, place = MemoryStore(), MemoryStore()
    await declared(store)
    await backed_up(store, place)
    assert await lanes(place) == [(LANE.edge, 0, 30), (MOVES.edge, 0, 15)]
    assert await states(await restored(place)) == await states(store)


async def test_a_missing_state_of_a_new_shard_is_named() -> None:
    store = Splits()
    store.dies = True
    await declared(store)
    with pytest.raises(StoreError):
        await begin(store)
    for item in await store.list(hub_keys.snapshot_prefix(1)):
        await store.delete(item.key)
    with pytest.raises(Corrupt, match="with which shard 1 begins, is missing"):
        await states(store)
    [finding] = (await verify(store)).findings
    assert (finding.place.rpartition("-")[0], finding.what) == (f"shard-1/snapshot/{3:020}", "missing")


async def test_the_state_of_an_attempt_that_the_log_did_not_take_is_passed_over() -> None:
    store = MemoryStore()
    await declared(store)
    await begin(store)
    writer = await writer_of(store)
    state = writer.states[1]
    log, crc = ShardLog(store, writer.cluster, 1), state.footer_crc
    state.footer_crc = crc ^ 1
    for nonce in (0, 2**64 - 1):
        await log.put_snapshot(state.n, nonce, state.encode())
    state.footer_crc = crc
    for at in (15, 20):
        await writer.append(1, Run(MOVES, at, 5))
        assert (MOVES.edge, 1, at + 5) in await lanes(store)
        await writer.snapshot(1)
    for key in ((await log.manifest())[0].snapshot, (await log.snapshots())[-2][1]):
        assert key is not None
        await store.delete(key)
    with pytest.raises(Corrupt, match="no readable snapshot reaches chunk 3"):
        await log.load()


async def test_a_table_of_a_store_with_a_split_is_whole(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    await declared(store)
    await begin(store)
    writer = await writer_of(store)
    await writer.append(1, Run(MOVES, 15, 5))
    assert await TableService(store, writer.cluster).run_once() == 50
    report = await verify(store)
    assert report.findings == []
    assert report.tables[0].rows_up_to == {0: 45, 1: 5}
