"""Shards of other processes, loaded while they are needed."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import CLUSTER as FABRIC_CLUSTER
from tests.cloud_hub.fabric import SETTINGS, SequencerNode, Session, machine, make_sequencer
from tests.cloud_hub.faulty_store import CALM
from tests.cloud_hub.http.test_application import records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.cloud_hub.virtual_time import NS, VirtualLoop, now_ns
from tests.protocols.shard.test_shard_state import LANE, next_chunk, update
from tests.support.epochs import MemoryEpochs
from tests.support.later_fold import LATER
from tests.support.waiting import until
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.shard import sequencer
from weft.cloud_hub.shard.sequencer import (
    SNAPSHOTS_TO_LOCATE,
    Sequencer,
    Snapshotter,
    WatermarkGuard,
    thin_snapshots,
    write_snapshot,
)
from weft.cloud_hub.shard.shards import Shards
from weft.protocols.chunk_index import RELEASE, FoldRules, LaneFlag
from weft.protocols.lane import Lane
from weft.protocols.link import RefuseCode
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.fold import apply
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.placement import shard_of
from weft.protocols.shard.shard_state import ShardState
from weft.replication.events import LinkState
from weft.replication.runner import LinkIdentity
from weft.storage import hub_keys
from weft.storage.chunk_log import SNAPSHOTS_TO_START, Manifest, ShardLog, changed
from weft.storage.cluster import Cluster, ClusterCache
from weft.storage.hub_keys import chunk_key
from weft.storage.object_store import Listed, ObjectStore, StoreError, open_store
from weft.storage.object_store.directory import MemoryStore


def test_a_shard_that_is_needed_again_while_another_is_closed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        owners = machine(2, 0, processes=3)
        known = ClusterCache(Cluster(bytes(16), 2, splits=(0,)))
        shards = Shards(known, owners, lambda _: make_sequencer(MemoryStore(), random.Random(1)), idle_s=100)
        await shards.start()
        others = [shard for shard in range(3) if not owners.is_own(shard)]
        first, second = [await shards.get(shard) for shard in others]
        closing, resume, close = asyncio.Event(), asyncio.Event(), Sequencer.close

        async def slowly(sequencer: Sequencer) -> None:
            closing.set()
            await resume.wait()
            await close(sequencer)

        monkeypatch.setattr(Sequencer, "close", slowly)
        await closing.wait()
        assert await shards.get(others[1]) is second
        resume.set()
        await asyncio.sleep(50)
        assert not first.is_running
        assert second.is_running
        await asyncio.sleep(100)
        assert not second.is_running, "and later it is idle, too"
        await shards.close()

    virtual_time.run(main())


# --- Snapshots: written beside the commits, thinned out, and never by a node that keeps less than the log holds


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


# --- What a damaged object in the store costs: its own shard, with a word about which object it is, and nothing else


EDGES = [f"press-{n}" for n in range(8)]
NAMES = {shard_of("default", edge, 2): LinkIdentity("default", edge, 1, "test") for edge in EDGES}
"""An edge in each of two shards."""


async def deliver(hub: Hub, shard: int, first: int, end: int) -> None:
    log = EdgeLog()
    log.append(*records(0, [b"x"] * end))
    async with running_link(hub, log, NAMES[shard], epochs=MemoryEpochs(first)):
        await log.until_released(end)


async def swap_bytes(store: ObjectStore, key: str, data: bytes) -> bytes:
    before = (await store.get(key)).data
    await store.delete(key)
    await store.create(key, data)
    return before


def assert_neutral(text: str, folder: Path) -> None:
    """Check that edges and readers, who may be of other tenants, learn why and no name in the store."""
    assert "damaged or missing; the hub's operator sees which one" in text
    assert str(folder) not in text
    assert "shard-1/" not in text


@pytest.mark.parametrize("name", ["chunk", "manifest"])
async def test_a_hub_starts_without_a_damaged_shard_and_takes_it_up_when_it_is_mended(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(str(tmp_path))
    async with running_hub(store) as hub:
        for shard in (0, 1):
            await deliver(hub, shard, 0, 3)
    key = f"shard-1/chunk/{1:020d}" if name == "chunk" else "shard-1/manifest"
    if name == "manifest":
        await store.create(key, b"{}")
    whole = await swap_bytes(store, key, b"garbage" * 20)
    async with running_hub(store) as hub:
        await deliver(hub, 0, 1, 6)

        log = EdgeLog()
        log.append(*records(0, [b"x"] * 6))
        async with running_link(hub, log, NAMES[1], epochs=MemoryEpochs(1)) as status:
            await until(lambda: status.state is LinkState.WAITING)
            assert_neutral(status.last_error, tmp_path)
            assert "nothing is lost" in status.last_error
            assert f"{key} is damaged" in caplog.text

            _, node = await get(hub, "/v1/status")
            assert node["shards"][0]["trouble"] is None
            assert f"{key} is damaged" in node["shards"][1]["trouble"]
            assert (await get(hub, "/readyz"))[0] == 200, "edges of shard 0 are served"
            assert (await get(hub, "/healthz"))[0] == 200
            assert "restore this object" in node["shards"][1]["trouble"]
            # Shard 0 is answered for. What shard 1 holds of the stream is not known: no completeness is claimed.
            for path in ("", "/lanes", "/completeness", "/records"):
                code, answer = await get(hub, "/v1/streams/telemetry" + path)
                assert code == 200
                assert [missing["shard"] for missing in answer["missing_shards"]] == [1]
                assert_neutral(answer["missing_shards"][0]["trouble"], tmp_path)
                assert answer.get("complete_up_to") is None
            assert len(answer["records"]) == 6
            code, answer = await get(hub, "/v1/streams/telemetry/records?shard=1")
            assert code == 503
            assert_neutral(answer["detail"], tmp_path)
            code, answer = await get(hub, "/v1/streams/alarms")
            assert_neutral(answer["detail"], tmp_path)
            assert code == 503, "it may be in the shard that cannot be read"

            await swap_bytes(store, key, whole)
            await log.until_released(6)
        assert (await get(hub, "/v1/streams/telemetry"))[1]["records"] == 12


async def test_a_damaged_section_is_named_to_the_operator_and_other_records_can_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(str(tmp_path))
    async with running_hub(store) as hub:
        for shard in (0, 1):
            await deliver(hub, shard, 0, 3)
        chunks = await store.list("shard-1/chunk")
        key = max(chunks, key=lambda item: item.size).key
        damaged = bytearray((await store.get(key)).data)
        damaged[100] ^= 1
        await swap_bytes(store, key, bytes(damaged))
        code, answer = await get(hub, "/v1/streams/telemetry/records?shard=1")
        assert code == 500
        assert_neutral(answer["detail"], tmp_path)
        assert f"{key} is damaged" in caplog.text
        code, answer = await get(hub, "/v1/streams/telemetry/records?shard=0")
        assert (code, len(answer["records"]), "missing_shards" in answer) == (200, 3, False)
        code, answer = await get(hub, "/v1/streams/telemetry/records")
        assert (code, len(answer["records"]), list(answer["next_offset"])) == (200, 3, ["0"])
        assert_neutral(answer["missing_shards"][0]["trouble"], tmp_path)
        await deliver(hub, 1, 1, 6)


# --- A node that was paused while the collector went past it must not acknowledge into the void


DELETION_DELAY_S = 900.0
"""G of docs/architecture.md: between publishing the watermark and deleting."""
WATERMARK_LANE = Lane("default", "paused-edge", 1, "telemetry")
OTHER = Lane("default", "busy-edge", 2, "telemetry")


async def _collect(store: MemoryStore) -> int:
    """What the collector does: raise the watermark to the newest snapshot, wait, delete what is below it."""
    log = ShardLog(store, FABRIC_CLUSTER, 0)
    manifest, etag = await log.manifest()
    watermark = manifest.snapshot_n + 1
    assert await log.swap_manifest(Manifest(manifest.snapshot_n, manifest.snapshot, watermark), etag)
    await asyncio.sleep(DELETION_DELAY_S)
    for n in range(watermark):
        await store.delete(chunk_key(0, n))
    return watermark


async def _write_elsewhere(node: SequencerNode, session: Session, first: int, end: int) -> None:
    assert node.sequencer is not None
    for seq in range(first, end):
        await session.send(seq, seq + 1)
        await session.until_acked(seq, seq + 1)
        await asyncio.sleep(0.2)


async def _pause_and_collect(seed: int, validity_s: float) -> tuple[RangeSet, RangeSet, SequencerNode]:
    """Returns what the paused node's edge heard acknowledged, what the log truly holds, and the node."""
    rng = random.Random(seed)
    store = MemoryStore()
    settings = replace(SETTINGS, watermark_validity_s=validity_s, follow_interval_s=1e6)
    paused, busy = (
        SequencerNode(store, rng, settings),
        SequencerNode(store, rng, replace(settings, watermark_validity_s=8.0)),
    )
    await paused.start()
    await busy.start()
    assert paused.sequencer is not None
    assert busy.sequencer is not None
    session = Session(paused.sequencer, WATERMARK_LANE, 1)
    assert await session.open()
    await session.send(0, 5)
    await session.until_acked(0, 5)
    # The pause falls on any of the steps of a commit: before the chunk is put, or after it.
    await session.send(5, 10)
    await asyncio.sleep(rng.random() * 0.12)
    paused.store.running.clear()
    other = Session(busy.sequencer, OTHER, 1)
    assert await other.open()
    await _write_elsewhere(busy, other, 0, 40)
    watermark = await _collect(store)
    assert watermark > 10
    paused.store.running.set()
    await asyncio.sleep(30.0)
    truth = await ShardLog(store, FABRIC_CLUSTER, 0).load()
    held = truth.lanes[WATERMARK_LANE].ranges
    await busy.kill()
    return session.acked, held, paused


@pytest.mark.parametrize("seed", range(20))
def test_a_node_that_the_collector_has_passed_acknowledges_only_what_the_log_holds(seed: int) -> None:
    async def main() -> None:
        acked, held, node = await _pause_and_collect(seed, validity_s=8.0)
        assert not [hole for first, end in acked for hole in held.missing(first, end)]
        assert acked.covers(0, 10), "once it knows better, the node commits what it had pending"
        await node.kill()

    virtual_time.run(main())


def test_an_idle_session_whose_lane_went_elsewhere_meanwhile_hears_it_when_the_state_is_loaded_again() -> None:
    async def main() -> None:
        rng, store = random.Random(1), MemoryStore()
        settings = replace(SETTINGS, follow_interval_s=1e6)
        paused, busy = SequencerNode(store, rng, settings), SequencerNode(store, rng, settings)
        await paused.start()
        await busy.start()
        assert paused.sequencer is not None
        assert busy.sequencer is not None
        idle, working = Session(paused.sequencer, OTHER, 1), Session(paused.sequencer, WATERMARK_LANE, 1)
        assert await idle.open()
        assert await working.open()
        paused.store.running.clear()
        await working.send(0, 5)
        moved = Session(busy.sequencer, OTHER, 2)
        assert await moved.open()
        await _write_elsewhere(busy, moved, 0, 40)
        await _collect(store)
        paused.store.running.set()
        await working.until_acked(0, 5)
        assert paused.sequencer.counters.reloads > 0
        assert idle.refusal is RefuseCode.IDENTITY_CONFLICT
        await paused.kill()
        await busy.kill()

    virtual_time.run(main())


def test_without_the_check_the_same_histories_lose_acknowledged_records() -> None:
    """The scenario bites: a look at the watermark that never expires is no check at all."""
    lost = 0
    for seed in range(20):

        async def main(seed: int = seed) -> bool:
            acked, held, node = await _pause_and_collect(seed, validity_s=1e9)
            await node.kill()
            return any(held.missing(first, end) for first, end in acked)

        lost += virtual_time.run(main())
    assert lost > 0


def test_a_relay_is_served_where_the_log_ends_at_the_watermark() -> None:
    """A relay writes nothing when it opens, so the state stays the loaded one."""

    async def main() -> None:
        store = MemoryStore()
        settings = replace(SETTINGS, snapshot_chunks=1)
        writer = SequencerNode(store, random.Random(0), settings)
        await writer.start()
        assert writer.sequencer is not None
        session = Session(writer.sequencer, WATERMARK_LANE, 1)
        assert await session.open()
        await session.send(0, 5)
        await session.until_acked(0, 5)
        await asyncio.sleep(5.0)
        await writer.kill()
        watermark = await _collect(store)
        node = SequencerNode(store, random.Random(1), settings)
        await node.start()
        assert node.sequencer is not None
        assert node.sequencer.state.n == watermark - 1
        relay = Session(node.sequencer, WATERMARK_LANE, 0, flags=int(LaneFlag.RELAY))
        async with asyncio.timeout(10.0):
            assert await relay.open()
        assert relay.acked == RangeSet([(0, 5)])
        assert node.sequencer.counters.reloads == 0
        await node.kill()

    virtual_time.run(main())


async def _guarded(watermark: int) -> tuple[WatermarkGuard, MemoryStore, SequencerNode]:
    store = MemoryStore()
    node = SequencerNode(store, random.Random(0))
    log = ShardLog(node.store, FABRIC_CLUSTER, 0)
    assert await log.swap_manifest(Manifest(watermark, None, watermark), None)
    return WatermarkGuard(log, now_ns, 8.0), store, node


def test_a_look_at_the_watermark_holds_for_its_validity_and_no_longer() -> None:
    async def main() -> None:
        guard, store, _ = await _guarded(5)
        log = ShardLog(store, FABRIC_CLUSTER, 0)
        assert await guard.passed(4)
        assert not await guard.passed(5)
        _, etag = await log.manifest()
        assert await log.swap_manifest(Manifest(9, None, 9), etag)
        await asyncio.sleep(7.0)
        assert not await guard.passed(5), "within the validity nothing is read"
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.jump(1.5)  # the machine slept
        assert await guard.passed(5)

    virtual_time.run(main())


def test_a_look_that_took_longer_than_its_validity_is_not_used() -> None:
    async def main() -> None:
        guard, store, node = await _guarded(0)
        node.store.faults = replace(CALM, latency_s=0.0)
        node.store.running.clear()
        answer = asyncio.create_task(guard.passed(5))
        await asyncio.sleep(60.0)
        _, etag = await ShardLog(store, FABRIC_CLUSTER, 0).manifest()
        node.store.running.set()
        await ShardLog(store, FABRIC_CLUSTER, 0).swap_manifest(Manifest(9, None, 9), etag)
        assert await answer

    virtual_time.run(main())


def test_while_the_manifest_cannot_be_read_nothing_is_known() -> None:
    async def main() -> None:
        guard, _, node = await _guarded(0)
        node.store.faults = replace(CALM, read=1.0)
        with pytest.raises(StoreError):
            await guard.passed(5)
        assert now_ns() < NS

    virtual_time.run(main())
