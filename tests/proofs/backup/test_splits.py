"""A backup of a store whose shard is split, before, while and after the split comes into force."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from tests.cloud_hub.tables.logs import LANE, LogWriter, Run
from tests.proofs.backup.places import backed_up, restored, states
from weft.cloud_hub.splits import Splitter
from weft.proofs.verify import verify
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane
from weft.storage import hub_keys
from weft.storage.chunk_log import ShardLog, first_logs, load_every_shard
from weft.storage.cluster import declare_split, open_cluster
from weft.storage.object_store import ObjectStore, StoreError, open_store
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.protocol import Buffer, Listing
from weft.storage.table_writer.service import TableService

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
        lambda: cluster.tree,
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
