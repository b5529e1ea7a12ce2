"""A stream that an operator deletes: refused while it is in use, exactly once across the deletion, its name free."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import (
    CLUSTER,
    SETTINGS,
    TRUE_START,
    SequencerNode,
    Session,
    check_log,
    make_batch,
    read_chunks,
)
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.cloud_hub.tables.logs import LANE, OTHER, START, TOPICS, LogWriter, Run, contents, expected, rows
from tests.cloud_hub.virtual_time import now_ns
from tests.support.epochs import MemoryEpochs
from tests.support.slices import SLICE
from tests.support.waiting import PATIENCE_S
from weft.cloud_hub import stream_deletion
from weft.cloud_hub.reads.metrics import StreamFigures
from weft.cloud_hub.stream_deletion import CannotDelete, Deleted, Deletion, Patience
from weft.protocols.lane import Lane
from weft.replication.runner import LinkIdentity
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import Cluster
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.object_store.directory import MemoryStore
from weft.storage.table_writer.service import TableService

KEY = LANE.tenant, LANE.stream
LATER = START + 3600 * 10**9
WANTED = Deletion(KEY, "mara", "trial is over", keeps_tables=True)
EDGE = LinkIdentity("default", "edge-1", 7, "test")
TWO = Cluster(CLUSTER.cluster_id, 1, 2)


async def delete(store: ObjectStore, cluster: Cluster, wanted: Deletion = WANTED, now: int = LATER) -> Deleted:
    bits = random.Random(1).getrandbits
    return await stream_deletion.delete(store, cluster, wanted, wall_clock=lambda: now, random_bits=bits)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


async def follow(log: LogWriter) -> None:
    """Read on behind the deletion."""
    for shard, state in enumerate(log.states):
        await ShardLog(log.store, log.cluster, shard).extend(state)


async def test_rows_are_exactly_once_on_both_sides_of_a_deletion(store: ObjectStore) -> None:
    log = await LogWriter.open(store)
    before, again = Run(LANE, 0, 3, topics=TOPICS), Run(LANE._replace(log_id=70), 0, 4, topics=TOPICS)
    others = Run(OTHER, 0, 2, topics=TOPICS)
    await log.append(0, before, Run(LANE._replace(stream="alarms"), 0, 2))
    await log.append(1, others)
    tables = TableService(store, log.cluster)
    with pytest.raises(CannotDelete, match="no rows of offsets 0 to 2 of shard 0 yet: wait for the next round"):
        await delete(store, log.cluster)
    await tables.run_once()
    ends = {0: 3, 1: 2}
    assert await delete(store, log.cluster) == Deleted(5, 2, 2, ends)
    assert await delete(store, log.cluster) == Deleted(0, 0, 0, ends)
    assert await tables.run_once() == 0
    assert [each.stream for each in tables.status()] == ["alarms"]
    assert await TableService(store, log.cluster).run_once() == 0, "nor does a node that starts now"
    await follow(log)
    await log.append(0, again)
    fresh = TableService(store, log.cluster)
    assert sum(await asyncio.gather(tables.run_once(), fresh.run_once())) == 4, "whoever of several makes the rows"
    later = [
        row
        for row in rows(store, columns=["_shard", "_offset", "_log"]).to_pylist()
        if row["_offset"] >= ends[row["_shard"]]
    ]
    assert len(later) == 4
    assert {row["_log"] for row in later} == {f"{again.lane.log_id:016x}"}, "no row of the deleted stream is among them"
    assert contents(store) == expected({0: [before, again], 1: [others]})
    assert set(rows(store, columns=["_shard", "_offset", "line"]).column("line").to_pylist()) == {"a"}


async def test_a_forced_deletion_waits_for_the_next_round_of_the_tables(store: ObjectStore) -> None:
    log = await LogWriter.open(store)
    await log.append(0, Run(LANE, 0, 3, topics=TOPICS))
    await log.append(1, Run(OTHER, 0, 2, topics=TOPICS))
    said: asyncio.Queue[str] = asyncio.Queue()
    bits = random.Random(1).getrandbits
    deletion = asyncio.create_task(
        stream_deletion.delete(
            store,
            log.cluster,
            WANTED._replace(is_forced=True),
            wall_clock=lambda: START,
            random_bits=bits,
            patience=Patience(PATIENCE_S, said.put_nowait),
        )
    )
    reported = await asyncio.wait_for(said.get(), PATIENCE_S)
    assert "waiting for the next round of the tables" in reported
    assert "no rows of offsets 0 to 2 of shard 0 yet" in reported
    await TableService(store, log.cluster).run_once()
    assert await asyncio.wait_for(deletion, PATIENCE_S) == Deleted(5, 2, 2, {0: 3, 1: 2})
    assert said.empty(), "it is said once"


async def test_a_table_that_does_not_come_ends_the_wait_and_every_sender_is_counted(store: ObjectStore) -> None:
    log = await LogWriter.open(store, 1)
    edges = [f"press-{at:02}" for at in range(12)]
    await log.append(0, *(Run(Lane("default", edge, 1, "telemetry"), 0, 2, topics=TOPICS) for edge in edges))
    named = f"{', '.join(edges[:10])} and 2 more, 12 in all, the last 60 s ago"
    now = START + 60 * 10**9
    with pytest.raises(CannotDelete, match=f"edges still send to default/telemetry: {named}"):
        await delete(store, log.cluster, now=now)
    bits = random.Random(1).getrandbits
    with pytest.raises(CannotDelete, match=rf"yet, after 0 s\. Edges still send: {named}\. Remove the stream from"):
        await stream_deletion.delete(
            store,
            log.cluster,
            WANTED._replace(is_forced=True),
            wall_clock=lambda: now,
            random_bits=bits,
            patience=Patience(0.0, lambda reported: None),
        )
    assert (await ShardLog(store, log.cluster, 0).load()).n == 0, "nothing was written"


async def test_what_was_collected_after_a_deletion_needs_no_table(store: ObjectStore) -> None:
    log = await LogWriter.open(store, 1)
    await log.append(0, Run(LANE, 0, 3))
    tables = TableService(store, log.cluster)
    await tables.run_once()
    await delete(store, log.cluster)
    await tables.run_once()
    await store.delete(f"{(await store.list('tables/'))[0].key}")  # the operator moves the table away
    assert await tables.first_untabled(0) == 2


async def test_a_stream_in_use_and_one_that_is_not_there_are_refused(store: ObjectStore) -> None:
    log = await LogWriter.open(store, 1)
    await log.append(0, Run(LANE, 0, 3), Run(OTHER, 0, 1))
    wanted = WANTED._replace(keeps_tables=False)
    with pytest.raises(CannotDelete, match=r"press-1, press-2, the last 60 s ago. Remove the stream from"):
        await delete(store, log.cluster, wanted, START + 60 * 10**9)
    with pytest.raises(CannotDelete, match="no stream telemetri of tenant default: `weft streams` lists"):
        await delete(store, log.cluster, wanted._replace(stream=("default", "telemetri")))
    forced = wanted._replace(is_forced=True)
    assert await delete(store, log.cluster, forced, START + 60 * 10**9) == Deleted(4, 2, 1, {0: 4})
    state = await ShardLog(store, log.cluster, 0).load()
    assert state.forgotten[KEY].tabled is False, "there never was a table"
    assert await TableService(store, log.cluster).run_once() == 4, "one that comes later has them"


async def test_lanes_leave_some_at_a_time(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_deletion, "DROPS_MAX", 2)
    log = await LogWriter.open(store, 1)
    for at in range(5):
        await log.append(0, Run(Lane("default", f"press-{at}", at, "telemetry"), 0, 2))
    assert await delete(store, log.cluster, WANTED._replace(keeps_tables=False)) == Deleted(10, 5, 1, {0: 10})
    state = await ShardLog(store, log.cluster, 0).load()
    assert (state.n, state.lanes, state.open_gaps) == (7, {}, {})


def test_an_edge_that_sends_again_while_its_stream_is_deleted_goes_on_once() -> None:
    async def main() -> None:
        store = MemoryStore()
        node = SequencerNode(store, random.Random(3))
        await node.start()
        assert node.sequencer is not None
        lane = Lane("default", "edge-1", 7, "telemetry")
        session = Session(node.sequencer, lane, 1, ["plant/{line}/t"])
        assert await session.open()
        await session.send(0, 10)
        await session.until_acked(0, 10)
        wanted = WANTED._replace(keeps_tables=False, is_forced=True)
        now = TRUE_START + now_ns()
        assert await delete(store, TWO, wanted, now) == Deleted(10, 1, 1, {0: 10})
        await session.send(5, 15)
        await session.until_acked(0, 15)
        back = Session(node.sequencer, lane, 2, ["plant/{line}/t"])
        assert await back.open()
        assert list(back.acked) == [(0, 15)]
        state, _ = check_log(await read_chunks(store))
        assert (state.next_offset[KEY], state.stream_fields(*KEY), state.forgotten) == (15, ["line"], {})
        assert state.encode() == node.sequencer.state.encode()
        await node.kill()

    virtual_time.run(main())


def test_names_return_to_a_tenant_that_has_as_many_as_it_may() -> None:
    async def main() -> None:
        store = MemoryStore()
        node = SequencerNode(store, random.Random(3), replace(SETTINGS, streams_per_tenant_max=2))
        await node.start()
        assert node.sequencer is not None
        sequencer = node.sequencer
        lanes = [Lane("default", "edge-1", 7, f"s{at}") for at in range(3)]
        for lane in lanes[:2]:
            session = Session(sequencer, lane, 1)
            assert await session.open()
            await session.send(0, 2)
            await session.until_acked(0, 2)
            sequencer.leave(session.lane_session)
        full = sequencer.no_room(lanes[2], [])
        assert full is not None
        assert full.setting == "limits.streams_per_tenant"
        wanted = WANTED._replace(stream=("default", "s0"), keeps_tables=False, is_forced=True)
        await delete(store, TWO, wanted, TRUE_START + now_ns())
        await asyncio.sleep(3)  # longer than followers take
        assert sequencer.no_room(lanes[2], []) is None
        session = Session(sequencer, lanes[2], 1)
        assert await session.open()
        full = sequencer.no_room(lanes[0], [])
        assert full is not None, "the deleted one counts as a new one again"
        await node.kill()

    virtual_time.run(main())


async def send_on(nodes: list[SequencerNode], lane: Lane, records: int, rng: random.Random) -> None:
    """Send records, over a link to either node that ends now and then."""
    end = epoch = 0
    while end < records:
        node = rng.choice(nodes)
        assert node.sequencer is not None
        epoch += 1
        assert epoch < 500, "records that were acknowledged are asked for again"
        session = Session(node.sequencer, lane, epoch, ["plant/{line}/t"])
        if not await session.open():
            continue
        while end < records and session.refusal is None and rng.random() < 0.9:
            more = min(records, end + rng.randrange(1, 5))
            # A record that was stored comes again: it must not be stored twice.
            await session.send(max(0, end - rng.randrange(3)), more)
            with contextlib.suppress(AssertionError, TimeoutError):  # refused, or the rest comes with the next link
                async with asyncio.timeout(5):
                    await session.until_acked(0, more)
                    end = more
            await asyncio.sleep(rng.random())
        node.sequencer.leave(session.lane_session)


def simulate_deletions(seed: int) -> int:
    """Edges send through two nodes, while a stream is deleted again and again."""

    async def main() -> int:
        rng, store = random.Random(seed), MemoryStore()
        nodes = [SequencerNode(store, random.Random(rng.random())) for _ in range(2)]
        for node in nodes:
            await node.start()
        lanes = [Lane("default", f"edge-{at}", at, stream) for at, stream in enumerate(["telemetry", "telemetry", "s"])]
        sending = [asyncio.create_task(send_on(nodes, lane, 40, random.Random(rng.random()))) for lane in lanes]
        done = 0
        while not all(task.done() for task in sending):
            await asyncio.sleep(rng.random() * 3)
            wanted = WANTED._replace(keeps_tables=False, is_forced=True)
            with contextlib.suppress(CannotDelete):  # no record came yet
                done += (await delete(store, TWO, wanted, TRUE_START + now_ns())).shards
        await asyncio.gather(*sending)
        await asyncio.gather(*(send_on(nodes, lane._replace(log_id=100), 1, rng) for lane in lanes))
        for lane in lanes:  # that of a deletion after its last record is back
            assert nodes[0].sequencer is not None
            assert await Session(nodes[0].sequencer, lane, 1000).open()
        await asyncio.sleep(3)
        state, seqs = check_log(await read_chunks(store))
        assert {lane: seqs[lane] for lane in lanes} == {lane: list(range(40)) for lane in lanes}
        for node in nodes:
            assert node.sequencer is not None
            assert node.sequencer.state.encode() == state.encode()
            await node.kill()
        return done

    return virtual_time.run(main())


def test_a_history_with_deletions_stores_every_record_once() -> None:
    assert simulate_deletions(1) > 2


@pytest.mark.search
def test_so_do_many_histories() -> None:
    for seed in SLICE.seeds(ci=20, night=300):
        simulate_deletions(seed)


async def test_a_deleted_stream_is_in_no_answer_of_a_running_hub(store: ObjectStore) -> None:
    async with running_hub(store, shards=1) as hub:
        log, lane, epochs = EdgeLog(), Lane("default", "edge-1", 7, "telemetry"), MemoryEpochs()
        async with running_link(hub, log, EDGE, epochs=epochs):
            log.append(*make_batch(lane, 0, 3))
            await log.until_released(3)
        assert 'stream="telemetry"' in (await get(hub, "/metrics"))[1]
        wanted = WANTED._replace(keeps_tables=False, is_forced=True)
        await delete(store, hub.cluster, wanted, (await hub.sequencers[0].log.load()).created)
        await hub.sequencers[0].catch_up(0)
        assert (await get(hub, "/v1/streams"))[1]["streams"] == []
        status, answer = await get(hub, "/v1/streams/telemetry")
        assert status == 404
        assert "was deleted at" in answer["detail"]
        assert "trial is over" in answer["detail"]
        next(part for part in hub.parts if isinstance(part, StreamFigures))._refreshed_at = None
        assert 'stream="telemetry"' not in (await get(hub, "/metrics"))[1]
        async with running_link(hub, log, EDGE, epochs=epochs):
            log.append(*make_batch(lane, 3, 5))
            await log.until_released(5)
        answer = (await get(hub, "/v1/streams/telemetry/records"))[1]
        assert [record["seq"] for record in answer["records"]] == list(range(5)), "the log has kept them all"
