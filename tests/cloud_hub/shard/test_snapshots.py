"""Snapshots: written beside the commits, thinned out, and never by a node that keeps less than the log holds."""

from __future__ import annotations

import asyncio
import random
import threading
from itertools import pairwise

import pytest

from tests.protocols.test_shard_state import LANE, next_chunk, update
from tests.support.later_fold import LATER
from weft.cloud_hub.shard import sequencer
from weft.cloud_hub.shard.sequencer import SNAPSHOTS_TO_LOCATE, Snapshotter, thin_snapshots, write_snapshot
from weft.protocols.chunk_index import RELEASE, FoldRules
from weft.protocols.shard.fold import apply
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.shard_state import ShardState
from weft.storage import hub_keys
from weft.storage.chunk_log import SNAPSHOTS_TO_START, ShardLog, changed
from weft.storage.cluster import Cluster
from weft.storage.object_store import Listed
from weft.storage.object_store.directory import MemoryStore

CLUSTER = Cluster(b"c" * 16, 1)


def log_of(store: MemoryStore, rules: FoldRules = RELEASE) -> ShardLog:
    return ShardLog(store, CLUSTER, 0, rules=rules)


def state_at(n: int, rules: FoldRules = RELEASE, lanes: int = 1) -> ShardState:
    state = ShardState(CLUSTER.cluster_id, 0, rules)
    for i in range(lanes):
        state.set_lane(LANE._replace(edge=f"e{i}"), LaneState(epoch=n + 1))
    state.n = n
    return state


class Counting(MemoryStore):
    """Counts listings."""

    listings = 0

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> list[Listed]:
        self.listings += prefix == hub_keys.snapshot_prefix(0)
        return await super().list(prefix, after, limit)


async def test_a_start_lists_snapshots_only_when_the_manifests_one_fails() -> None:
    store = Counting()
    log = log_of(store)
    for n in (3, 7):
        assert await write_snapshot(log, n, state_at(n).encode(), n)
    assert (await log.load_snapshot()).n == 7
    assert store.listings == 0
    await store.delete(hub_keys.snapshot_key(0, 7, 7))
    assert (await log.load_snapshot()).n == 3
    assert store.listings == 1


async def test_a_snapshot_that_newer_ones_replaced_meanwhile_is_no_loss() -> None:
    store = Counting()
    log = log_of(store)
    await write_snapshot(log, 3, state_at(3).encode(), 3)
    manifest, etag = await log.manifest()

    class Late(ShardLog):
        """Read the manifest before all that happened."""

        stale = True

        async def manifest(self):  # type: ignore[no-untyped-def]
            stale, self.stale = self.stale, False
            return (manifest, etag) if stale else await super().manifest()

    for n in range(4, 90):
        await write_snapshot(log, n, state_at(n).encode(), n)
    await thin_snapshots(log)
    await store.delete(hub_keys.snapshot_key(0, 3, 3))
    store.listings = 0
    assert (await Late(store, CLUSTER, 0).load_snapshot()).n == 89
    assert store.listings == 0


async def test_old_snapshots_are_deleted_and_the_rest_still_locates() -> None:
    store = MemoryStore()
    log = log_of(store)
    for n in range(0, 4000, 10):
        await write_snapshot(log, n, state_at(n).encode(), n)
        if n % 80 == 0:
            await thin_snapshots(log)
    await thin_snapshots(log)
    numbers = [n for n, _ in await log.snapshots()]
    assert len(numbers) == SNAPSHOTS_TO_START + SNAPSHOTS_TO_LOCATE
    assert numbers[-SNAPSHOTS_TO_START:] == [3960, 3970, 3980, 3990]
    steps = [later - earlier for earlier, later in pairwise(numbers)]
    assert max(steps) <= 4 * 4000 / SNAPSHOTS_TO_LOCATE, "spread over the log"
    manifest, etag = await log.manifest()
    await log.swap_manifest(changed(manifest, watermark=3000), etag)
    await thin_snapshots(log)
    assert min(n for n, _ in await log.snapshots()) >= 2999, "what is below the watermark serves no start"
    assert (await log.load_snapshot()).n == 3990


def snapshotter(log: ShardLog) -> Snapshotter:
    return Snapshotter(log, 60.0, 1, asyncio.get_running_loop().time, random.Random(1).getrandbits)


async def test_a_large_state_is_encoded_in_a_thread_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequencer, "LANES_INLINE", 3)
    store = MemoryStore()
    log, state = log_of(store), state_at(-1, lanes=10)
    apply(state, next_chunk(state, update(ranges=[(0, 5)])))
    threads = []
    frozen = state.freeze()

    def encode() -> bytes:
        threads.append(threading.current_thread())
        return frozen()

    writer, before = snapshotter(log), state.n
    with monkeypatch.context() as during:
        during.setattr(ShardState, "freeze", lambda _: encode)
        writer.consider(state)
    apply(state, next_chunk(state, update(ranges=[(5, 9)])))
    await writer.close()
    found = await log.load_snapshot()
    assert (found.n, found.lanes[LANE].ranges.end) == (before, 5)
    assert threads != [threading.main_thread()]


async def test_a_node_that_keeps_less_than_the_log_holds_writes_no_snapshot() -> None:
    store = MemoryStore()
    log = log_of(store)
    poor, later = state_at(5), state_at(6, LATER)
    poor.fold_level = later.fold_level = LATER.level
    writer = snapshotter(log)
    writer.consider(poor)
    await writer.close()
    assert await log.snapshots() == []
    writer = snapshotter(log_of(store, LATER))
    writer.consider(later)
    await writer.close()
    assert (await log.load_snapshot()).n == 6, "a node of an earlier release starts from a later one's"
    # And one that was written all the same is passed over by those who would lose by it.
    await write_snapshot(log, 9, poor.encode(), 9)
    assert (await log_of(store, LATER).load_snapshot()).n == 6
