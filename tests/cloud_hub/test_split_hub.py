"""Splits of a running hub's shard: who may split what, who finishes a split, and lanes that had left before."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pyarrow as pa
import pytest

from tests.cloud_hub.fabric import CLOCK
from tests.cloud_hub.links.test_canary import SOON, until_proven
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.epochs import MemoryEpochs
from tests.support.silence import silent_logs
from tests.support.waiting import until
from weft.cloud_hub import cluster as membership
from weft.cloud_hub import splits as declaring
from weft.cloud_hub import splits as splitting
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.shard import lane_ends
from weft.cloud_hub.shard.lane_ends import LaneKeeper
from weft.cloud_hub.splits import CannotSplit
from weft.protocols import batch
from weft.protocols.lane import Lane
from weft.protocols.shard.placement import digest_of
from weft.protocols.shard.shard_state import ShardState
from weft.replication.runner import LinkIdentity
from weft.storage.chunk_log import NotBegun, ShardLog, first_logs, load_every_shard, log_of_edge
from weft.storage.cluster import Cluster, ClusterUnusable, declare_split, open_cluster, read_cluster
from weft.storage.object_store import ObjectStore
from weft.storage.object_store.directory import MemoryStore

NAMES = [next(f"press-{n}" for n in range(99) if digest_of("default", f"press-{n}") & 1 == bit) for bit in (0, 1)]
"""An edge that stays in shard 0, and one that moves to shard 1."""
LANES = [Lane("default", name, number, "telemetry") for number, name in enumerate(NAMES, 1)]
MOVES = LANES[1]
YEAR = 365 * 86_400 * 10**9


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(membership, "READ_INTERVAL_S", 0.05)
    with silent_logs():
        yield


class Edge:
    """An edge with one lane and a log in memory."""

    def __init__(self, lane: Lane) -> None:
        self.lane, self.log, self.epochs, self.end = lane, EdgeLog(), MemoryEpochs(), 0

    def linked(self, hub: Hub) -> Any:
        identity = LinkIdentity("default", self.lane.edge, self.lane.log_id, "test")
        return running_link(hub, self.log, identity, epochs=self.epochs)

    async def send(self, count: int) -> None:
        """Append records, and wait until the hub has them."""
        times = struct.pack(f"<{count}q", *range(self.end, self.end + count))
        columns = batch.columns_from_lists(times, [b"plant/a/b/telemetry"] * count, [b"x"] * count)
        data = batch.encode(1, self.end, columns, CLOCK)
        self.log.append(batch.verify(data), data)
        self.end += count
        await self.log.until_released(self.end)


async def declare(store: ObjectStore, shard: int = 0) -> Cluster:
    return await declare_split(store, shard, await read_cluster(store))


async def split(store: ObjectStore, shard: int = 0, *, force: bool = False) -> int:
    cluster = await open_cluster(store, None)
    await declaring.look(store, cluster, shard, force=force)
    return await declaring.split(store, cluster, shard, wall_clock=lambda: 0, random_bits=random.Random(1).getrandbits)


async def states_of(store: ObjectStore) -> dict[int, ShardState]:
    found = await load_every_shard(first_logs(store, await read_cluster(store)))
    return {log.shard: state for log, state in found}


async def test_a_running_hub_moves_the_edges_of_a_split() -> None:
    store, edges = MemoryStore(), [Edge(lane) for lane in LANES]
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(running_hub(store, shards=1))
        for edge in edges:
            await stack.enter_async_context(edge.linked(hub))
            await edge.send(10)
        assert await split(store) == 1
        for edge in edges:
            await edge.send(7)
        states = await states_of(store)
        assert [set(states[shard].lanes) for shard in (0, 1)] == [{LANES[0]}, {MOVES}]
        assert [list(states[shard].lanes[lane].records) for shard, lane in enumerate(LANES)] == [[(0, 17)]] * 2
        assert [state.next_offset["default", "telemetry"] for state in states.values()] == [27, 7]
        assert {each.log.shard for each in hub.sequencers} == {0, 1}
        status, answer = await get(hub, "/v1/streams/telemetry")
        assert (status, answer["records"], answer["lanes"]) == (200, 34, 2)


@pytest.mark.slow
async def test_the_canary_of_an_edge_goes_to_the_shard_that_it_is_moved_to() -> None:
    store, identity = MemoryStore(), LinkIdentity(*MOVES[:3], "test")
    async with running_hub(store, shards=1) as hub, running_link(hub, EdgeLog(), identity, sender=SOON) as link:
        await until_proven(link)
        assert await split(store, force=True) == 1
        await until(lambda: link.connections == 2)
        await until_proven(link)
        before = {each.log.shard: each.state.n for each in hub.sequencers}
        await until_proven(link)
        assert link.connections == 2
        now = {each.log.shard: each.state.n for each in hub.sequencers}
        assert now[1] > before[1], "the edge's lane is there"


async def test_a_node_finishes_what_was_only_declared() -> None:
    store, edge = MemoryStore(), Edge(MOVES)
    async with running_hub(store, shards=1) as hub, edge.linked(hub):
        await edge.send(10)
        cluster = await declare(store)
        with pytest.raises(NotBegun, match="shard 1 has not begun"):
            await ShardLog(store, cluster, 1).load()
        await edge.send(5)
        await until(lambda: 1 in {each.log.shard for each in hub.sequencers if each.loaded})
        await edge.send(5)
    assert list((await states_of(store))[1].lanes[MOVES].records) == [(0, 20)]


async def test_a_node_finishes_a_split_that_has_no_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    store, edge = MemoryStore(), Edge(MOVES)
    async with running_hub(store, shards=1) as hub, edge.linked(hub):
        await edge.send(10)

    async def dies(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(splitting, "_name", dies)
        with pytest.raises(KeyboardInterrupt):
            await split(store, force=True)
    assert set((await states_of(store))[1].lanes) == {MOVES}, "readers know what is in the halved shard's log"
    async with running_hub(store, shards=1) as hub, edge.linked(hub):
        await edge.send(5)
    assert list((await states_of(store))[1].lanes[MOVES].records) == [(0, 15)]


async def test_a_lane_that_had_left_before_the_split_comes_back_as_it_was() -> None:
    store, edge, other = MemoryStore(), Edge(MOVES), Edge(LANES[0])
    async with running_hub(store, shards=1) as hub:
        async with edge.linked(hub), other.linked(hub):
            await edge.send(10)
            await other.send(1)
        log = ShardLog(store, await read_cluster(store), 0)

        async def leave(state: ShardState) -> lane_ends.Ending:
            now = state.created + YEAR
            return lane_ends.by_age(state, now, 1, 1, lambda _: True, [MOVES])

        for _ in range(2):  # it is retired, and then it leaves
            await lane_ends.write_ending(log, leave, wall_clock=lambda: 0, random_bits=random.Random(1).getrandbits)
        assert set((await log.load()).lanes) == {LANES[0]}
        assert await split(store, force=True) == 1
        async with edge.linked(hub):
            await edge.send(5)
        state = (await states_of(store))[1]
        assert list(state.lanes[MOVES].records) == [(0, 15)]
        assert state.next_offset == {("default", "telemetry"): 5}, "nothing is stored twice"
        found = await log_of_edge(store, await read_cluster(store), "default", MOVES.edge)
        assert found.lineage == (1, 0)


async def test_nothing_is_claimed_complete_by_a_node_that_does_not_know_the_new_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership, "READ_INTERVAL_S", 3600.0)
    monkeypatch.setattr(membership.Membership, "read_soon", lambda _: None)
    store, edges = MemoryStore(), [Edge(lane) for lane in LANES]
    async with running_hub(store, shards=1) as hub:
        async with edges[0].linked(hub), edges[1].linked(hub):
            for edge in edges:
                await edge.send(10)
            await until(lambda: _is_complete(hub))
        assert await split(store) == 1
        await until(lambda: _is_missing(hub, 1))
        answer = (await get(hub, "/v1/streams/telemetry/completeness"))[1]
        assert answer["complete_up_to"] is None
        assert (await get(hub, "/v1/streams/telemetry"))[1]["complete_up_to"] is None
        await hub._grow(await read_cluster(store))
        await until(lambda: _is_complete(hub))
        answer = (await get(hub, "/v1/streams/telemetry/completeness"))[1]
        assert sorted(lane["edge"] for lane in answer["lanes"]) == sorted(NAMES)


async def _is_complete(hub: Hub) -> bool:
    status, answer = await get(hub, "/v1/streams/telemetry/completeness")
    return status == 200 and answer["complete_up_to"] is not None


async def _is_missing(hub: Hub, shard: int) -> bool:
    answer = (await get(hub, "/v1/streams/telemetry/completeness"))[1]
    return [each["shard"] for each in answer.get("missing_shards", ())] == [shard]


async def rows_of(hub: Hub, shard: int) -> pa.Table | int:
    """Return the rows of a shard, or the status of another answer."""
    url = f"{hub.url}/v1/streams/telemetry/rows?shard={shard}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return pa.ipc.open_stream(await answer.read()).read_all() if answer.status == 200 else answer.status


async def test_rows_from_before_a_split_have_their_topic_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "READ_INTERVAL_S", 3600.0)
    monkeypatch.setattr(membership.Membership, "read_soon", lambda _: None)
    store, edges = MemoryStore(), [Edge(lane) for lane in LANES]
    async with running_hub(store, shards=1) as hub:
        async with edges[0].linked(hub), edges[1].linked(hub):
            for edge in edges:
                await edge.send(10)
        assert await split(store) == 1
        await until(lambda: _is_missing(hub, 1))
        assert [await rows_of(hub, shard) for shard in (0, 1, 2)] == [503] * 3, "none has null for what is not known"
        await hub._grow(await read_cluster(store))
        table = await rows_of(hub, 0)
        assert isinstance(table, pa.Table)
        assert table["line"].to_pylist() == ["a"] * 20


async def test_a_lane_ends_only_when_the_table_has_what_it_left_in_the_halved_shard() -> None:
    store, edge = MemoryStore(), Edge(MOVES)
    async with running_hub(store, shards=1) as hub, edge.linked(hub):
        await edge.send(10)
        await split(store, force=True)
    states, cluster, positions = await states_of(store), await read_cluster(store), {0: 9}
    keeper = LaneKeeper(
        [ShardLog(store, cluster, shard) for shard in range(2)],
        states.get,
        lambda tenant, stream, shard: positions.get(shard),
        HubSettings("given"),
        clock=HubClock(lambda: YEAR, lambda: 0),
        random_bits=lambda _: 1,
    )
    states[0].created += 1
    keeper._lineages = {0: (0,), 1: (1, 0)}
    assert not keeper._is_tiered(states[1], MOVES)
    positions[0] = 10
    assert keeper._is_tiered(states[1], MOVES)
    del states[0]
    assert not keeper._is_tiered(states[1], MOVES), "the halved shard is not known"


# -- who may split what


async def test_what_cannot_be_split_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    store, edge = MemoryStore(), Edge(MOVES)
    async with running_hub(store, shards=2) as hub, edge.linked(hub):
        await edge.send(3)
    cluster = await read_cluster(store)
    with pytest.raises(CannotSplit, match="no shard 2: its shards are 0 to 1"):
        await declaring.look(store, cluster, 2)
    empty, full = (0, 1) if cluster.tree.shard_of("default", MOVES.edge) else (1, 0)
    with pytest.raises(CannotSplit, match="it has no edge"):
        await declaring.look(store, cluster, empty)
    with pytest.raises(CannotSplit, match=f"it has only edge default/{MOVES.edge}, which is in one shard as a whole"):
        await declaring.look(store, cluster, full)
    await declaring.look(store, cluster, full, force=True)
    monkeypatch.setattr(declaring, "SHARDS_MAX", 2)
    with pytest.raises(CannotSplit, match="cannot be split further: the hub has 2 shards"):
        await declaring.look(store, cluster, full, force=True)


async def test_a_split_waits_for_the_one_before() -> None:
    store, edge = MemoryStore(), Edge(MOVES)
    async with running_hub(store, shards=1) as hub, edge.linked(hub):
        await edge.send(3)
    cluster = await declare(store)
    with pytest.raises(CannotSplit, match="the split of shard 0 is declared and not done yet: start a hub node"):
        await declaring.look(store, cluster, 0, force=True)


async def test_of_two_splits_at_once_one_is_declared() -> None:
    store = MemoryStore()
    known = await open_cluster(store, 1)
    first = await declare_split(store, 0, known)
    assert first.splits == (0,)
    assert (await declare_split(store, 0, known)).splits == (0,), "the second is told of the first"
    with pytest.raises(CannotSplit, match="another split was declared meanwhile"):
        await declaring.split(store, known, 1, wall_clock=lambda: 0, random_bits=lambda _: 1)
    assert (await declare_split(store, 1, first)).splits == (0, 1)
    with pytest.raises(ValueError, match="the split that made shard 3 is of shard 7"):
        await declare_split(store, 7, await read_cluster(store))


@pytest.mark.parametrize("splits", ["[7]", "[-1]", '["0"]', '{"a": 1}', "[" * 40_000])
async def test_a_list_of_splits_that_names_no_shards_is_damage(splits: str) -> None:
    store = MemoryStore()
    await open_cluster(store, 1)
    found = await store.get("cluster.json")
    await store.swap("cluster.json", found.data.replace(b'"splits":[]', f'"splits":{splits}'.encode()), found.etag)
    with pytest.raises(ClusterUnusable, match=r"cluster\.json is damaged"):
        await read_cluster(store)
