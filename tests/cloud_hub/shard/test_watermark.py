"""A node that was paused while the collector went past it must not acknowledge into the void."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import CLUSTER, SETTINGS, SequencerNode, Session
from tests.cloud_hub.faulty_store import CALM
from tests.cloud_hub.virtual_time import NS, VirtualLoop, now_ns
from weft.cloud_hub.shard.sequencer import WatermarkGuard
from weft.protocols.chunk_index import LaneFlag
from weft.protocols.lane import Lane
from weft.protocols.link import RefuseCode
from weft.protocols.ranges import RangeSet
from weft.storage.chunk_log import Manifest, ShardLog
from weft.storage.hub_keys import chunk_key
from weft.storage.object_store import StoreError
from weft.storage.object_store.directory import MemoryStore

DELETION_DELAY_S = 900.0
"""G of docs/architecture.md: between publishing the watermark and deleting."""
LANE = Lane("default", "paused-edge", 1, "telemetry")
OTHER = Lane("default", "busy-edge", 2, "telemetry")


async def _collect(store: MemoryStore) -> int:
    """What the collector does: raise the watermark to the newest snapshot, wait, delete what is below it."""
    log = ShardLog(store, CLUSTER, 0)
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
    session = Session(paused.sequencer, LANE, 1)
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
    truth = await ShardLog(store, CLUSTER, 0).load()
    held = truth.lanes[LANE].ranges
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
        idle, working = Session(paused.sequencer, OTHER, 1), Session(paused.sequencer, LANE, 1)
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
        session = Session(writer.sequencer, LANE, 1)
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
        relay = Session(node.sequencer, LANE, 0, flags=int(LaneFlag.RELAY))
        async with asyncio.timeout(10.0):
            assert await relay.open()
        assert relay.acked == RangeSet([(0, 5)])
        assert node.sequencer.counters.reloads == 0
        await node.kill()

    virtual_time.run(main())


async def _guarded(watermark: int) -> tuple[WatermarkGuard, MemoryStore, SequencerNode]:
    store = MemoryStore()
    node = SequencerNode(store, random.Random(0))
    log = ShardLog(node.store, CLUSTER, 0)
    assert await log.swap_manifest(Manifest(watermark, None, watermark), None)
    return WatermarkGuard(log, now_ns, 8.0), store, node


def test_a_look_at_the_watermark_holds_for_its_validity_and_no_longer() -> None:
    async def main() -> None:
        guard, store, _ = await _guarded(5)
        log = ShardLog(store, CLUSTER, 0)
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
        _, etag = await ShardLog(store, CLUSTER, 0).manifest()
        node.store.running.set()
        await ShardLog(store, CLUSTER, 0).swap_manifest(Manifest(9, None, 9), etag)
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
