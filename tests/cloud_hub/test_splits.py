"""Splits of a running hub's shard: who may split what, who finishes a split, and lanes that had left before."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cloud_hub.fabric import CLOCK
from tests.cloud_hub.links.test_edge_link import SOON, until_proven
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.epochs import MemoryEpochs
from tests.support.silence import silent_logs
from tests.support.waiting import until
from weft.cloud_hub import cluster, splits
from weft.cloud_hub import cluster as membership
from weft.cloud_hub import splits as declaring
from weft.cloud_hub import splits as splitting
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.facts.acts import OwnActs, lines
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.shard import lane_ends
from weft.cloud_hub.shard.lane_ends import LaneKeeper
from weft.cloud_hub.splits import BUSY, SAMPLE_S, SUSTAINED_S, Apart, CannotSetApart, CannotSplit, ProcessLoad
from weft.protocols import batch
from weft.protocols.lane import Lane
from weft.protocols.shard.placement import TENANT_APART_EDGE, digest_of
from weft.protocols.shard.shard_state import ShardState
from weft.replication.runner import LinkIdentity
from weft.storage import hub_keys
from weft.storage.chunk_log import NotBegun, ShardLog, first_logs, load_every_shard, log_of_edge
from weft.storage.cluster import Cluster, ClusterUnusable, declare_split, open_cluster, read_cluster
from weft.storage.cluster_log import ClusterLog
from weft.storage.object_store import ObjectStore
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.opening import PlacedStore, bare
from weft.storage.object_store.protocol import Buffer

NAMES = [next(f"press-{n}" for n in range(99) if digest_of("default", f"press-{n}") & 1 == bit) for bit in (0, 1)]
"""An edge that stays in shard 0, and one that moves to shard 1."""
LANES = [Lane("default", name, number, "telemetry") for number, name in enumerate(NAMES, 1)]
MOVES = LANES[1]
YEAR = 365 * 86_400 * 10**9


@pytest.fixture
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


@pytest.mark.usefixtures("quiet")
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


@pytest.mark.usefixtures("quiet")
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


@pytest.mark.usefixtures("quiet")
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


@pytest.mark.usefixtures("quiet")
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


@pytest.mark.usefixtures("quiet")
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


@pytest.mark.usefixtures("quiet")
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


@pytest.mark.usefixtures("quiet")
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


@pytest.mark.usefixtures("quiet")
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


@pytest.mark.usefixtures("quiet")
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


@pytest.mark.usefixtures("quiet")
async def test_a_split_waits_for_the_one_before() -> None:
    store, edge = MemoryStore(), Edge(MOVES)
    async with running_hub(store, shards=1) as hub, edge.linked(hub):
        await edge.send(3)
    cluster = await declare(store)
    with pytest.raises(CannotSplit, match="the split of shard 0 is declared and not done yet: start a hub node"):
        await declaring.look(store, cluster, 0, force=True)


@pytest.mark.usefixtures("quiet")
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


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("splits", ["[7]", "[-1]", '["0"]', '{"a": 1}', "[" * 40_000])
async def test_a_list_of_splits_that_names_no_shards_is_damage(splits: str) -> None:
    store = MemoryStore()
    await open_cluster(store, 1)
    found = await store.get("cluster.json")
    await store.swap("cluster.json", found.data.replace(b'"splits":[]', f'"splits":{splits}'.encode()), found.etag)
    with pytest.raises(ClusterUnusable, match=r"cluster\.json is damaged"):
        await read_cluster(store)


# --- Automatic splits of shards that keep a process busy


def run(samples: list[tuple[float, dict[int, int]]]) -> list[tuple[int, int]]:
    """Feed parts of a core and bytes per shard of each interval. Return the index and the shard of each split."""
    load, cpu_s, written, found = ProcessLoad(), 0.0, {0: 0, 1: 0}, []
    load.sample(0.0, 0.0, written)
    for index, (part, grown) in enumerate(samples, 1):
        cpu_s += part * SAMPLE_S
        written = {shard: written[shard] + grown.get(shard, 0) for shard in written}
        if (shard := load.sample(index * SAMPLE_S, cpu_s, written)) is not None:
            found.append((index, shard))
    return found


COUNT = int(SUSTAINED_S / SAMPLE_S)
HOT = (0.9, {0: 10, 1: 90})


def test_a_shard_that_keeps_a_process_busy_for_long_is_named_once() -> None:
    assert run([HOT] * (COUNT + 5)) == [(COUNT, 1)]
    assert run([HOT] * (2 * COUNT)) == [(COUNT, 1), (2 * COUNT, 1)]


@pytest.mark.parametrize(
    "pause",
    [(BUSY - 0.1, {1: 100}), (0.9, {0: 90, 1: 10}), (0.9, {}), (0.9, {0: 0, 1: 0})],
    ids=["idle", "another shard", "nothing", "no bytes"],
)
def test_a_pause_begins_anew(pause: tuple[float, dict[int, int]]) -> None:
    assert run([HOT] * (COUNT - 1) + [pause] + [HOT] * (COUNT - 1)) == []


@given(st.lists(st.tuples(st.floats(0, 2), st.dictionaries(st.sampled_from([0, 1]), st.integers(0, 99))), max_size=90))
def test_splits_are_as_far_apart_as_load_has_to_last(samples: list[tuple[float, dict[int, int]]]) -> None:
    found = [0, *(index for index, _ in run(samples))]
    assert all(later - earlier >= COUNT for earlier, later in itertools.pairwise(found))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process is busy whatever it does, at once, and acknowledges at once."""
    receiver = HubSettings.receiver
    monkeypatch.setattr(HubSettings, "receiver", lambda hub: replace(receiver(hub), ack_interval=0))
    monkeypatch.setattr(splits, "SAMPLE_S", 0.15)
    monkeypatch.setattr(splits, "SUSTAINED_S", 0.2)
    monkeypatch.setattr(splits, "BUSY", -1.0)
    monkeypatch.setattr(cluster, "READ_INTERVAL_S", 0.05)
    with silent_logs():
        yield


BUSY_SHARDS_LANES = [
    Lane(
        "default",
        next(f"press-{n}" for n in range(99) if digest_of("default", f"press-{n}") & 3 == low),
        low,
        "telemetry",
    )
    for low in range(4)
]
"""Two edges of each of two shards, which a split parts."""
URLS = ("http://127.0.0.1:1", "http://127.0.0.1:2")
"""Of two processes; edges reach neither by them, and stay where they are."""


async def send_for_a_while(hub: Hub, edges: list[Edge]) -> None:
    async with AsyncExitStack() as stack:
        for edge in edges:
            await stack.enter_async_context(edge.linked(hub))
        for _ in range(20):
            for edge in edges:
                await edge.send(3)
            await asyncio.sleep(0.02)


async def splits_of(store: ObjectStore) -> int:
    return len((await read_cluster(store)).splits)


@pytest.mark.usefixtures("hasty")
async def test_a_busy_shard_is_split_up_to_the_maximum() -> None:
    store, edges = MemoryStore(), [Edge(lane) for lane in BUSY_SHARDS_LANES]
    async with running_hub(store, shards=2, processes=2, advertise=URLS, shards_max=3) as hub:
        await send_for_a_while(hub, edges)
        assert await splits_of(store) == 1
        await until(lambda: hub.cluster.tree.count == 3)
        await send_for_a_while(hub, edges)
        assert await splits_of(store) == 1
    reported = await lines(ClusterLog(store, hub.cluster.cluster_id), 1, 3)
    assert [(each.act, each.by, each.command) for each in reported] == [
        ("began", "the hub", "automatic split"),
        ("ended", "the hub", "automatic split"),
    ]
    assert "kept a process busy" in reported[0].reason
    assert reported[1].reason == "done"
    states = await states_of(store)
    assert sorted(len(state.lanes) for state in states.values()) == [1, 1, 2]
    held = {lane: list(each.records) for state in states.values() for lane, each in state.lanes.items()}
    assert held == {lane: [(0, 120)] for lane in BUSY_SHARDS_LANES}


async def test_of_two_processes_that_split_at_once_the_slower_one_names_no_split(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, splits.__name__)
    store, edges = MemoryStore(), [Edge(lane) for lane in BUSY_SHARDS_LANES]
    async with running_hub(store, shards=2, processes=2, advertise=URLS) as hub, AsyncExitStack() as stack:
        for edge in edges:
            await stack.enter_async_context(edge.linked(hub))
            await edge.send(3)
        (own,) = (each.log.shard for each in hub._shards.own)

        async def read_and_lose(store: ObjectStore) -> Cluster:
            found = await read_cluster(store)
            await declare_split(store, 1 - own, found)
            return found

        monkeypatch.setattr(splits, "read_cluster", read_and_lose)
        assert await splits._split(store, hub._shards, own, 8, OwnActs(store, hub.cluster.cluster_id, lambda: 1)), (
            "the cluster has to be read again"
        )
    assert (await read_cluster(store)).splits == (1 - own,)
    assert [each for each in caplog.records if each.name == splits.__name__] == []


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("settings", [{"processes": 2, "advertise": URLS}, {"shards_max": 8}])
async def test_without_the_setting_or_another_process_nothing_is_split(settings: dict[str, Any]) -> None:
    store, edges = MemoryStore(), [Edge(lane) for lane in BUSY_SHARDS_LANES]
    async with running_hub(store, shards=2, **settings) as hub:
        await send_for_a_while(hub, edges)
    assert await splits_of(store) == 0


# --- Tenants that are set apart: where their data goes, who may be, and what a command leaves that did not end


ACME, OTHER = Lane("acme", "press-1", 1, "telemetry"), Lane("default", "press-1", 2, "telemetry")


@pytest.fixture
def store() -> ObjectStore:
    return PlacedStore(MemoryStore())


def apart(store: ObjectStore) -> Apart:
    return Apart(store, wall_clock=lambda: 0, random_bits=random.Random(1).getrandbits)


class TenantEdge(Edge):
    """An edge of any tenant."""

    def linked(self, hub: Hub) -> Any:
        identity = LinkIdentity(self.lane.tenant, self.lane.edge, self.lane.log_id, "test")
        return running_link(hub, self.log, identity, epochs=self.epochs)


async def lanes_of(store: ObjectStore) -> dict[int, set[Lane]]:
    found = await load_every_shard(first_logs(store, await read_cluster(store)))
    return {log.shard: set(state.lanes) for log, state in found}


async def names(store: ObjectStore, prefix: str) -> list[str]:
    return [item.key for item in await bare(store).list(prefix)]


@pytest.mark.usefixtures("quiet")
@pytest.mark.slow
async def test_a_tenant_gets_shards_and_a_prefix_of_its_own_under_a_running_hub(store: ObjectStore) -> None:
    edges = [TenantEdge(ACME), TenantEdge(OTHER)]
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(running_hub(store))
        await stack.enter_async_context(edges[1].linked(hub))
        await edges[1].send(5)
        assert await apart(store).set("acme") == 2
        assert await apart(store).set("acme") == 2, "a second call changes nothing"
        await stack.enter_async_context(edges[0].linked(hub))
        for edge in edges:
            await edge.send(10)
        status, answer = await get(hub, "/v1/streams/telemetry?tenant=acme")
        assert (status, answer["records"]) == (200, 10)
    lanes = await lanes_of(store)
    assert lanes.pop(2) == {ACME}
    assert set.union(*lanes.values()) == {OTHER}
    assert await names(store, "shard-2") == []
    assert "tenants/acme/shard-2/chunk/00000000000000000000" in await names(store, "tenants/acme")
    assert set(await names(store, "tenants")) == set(await names(store, "tenants/acme"))
    for name in await names(store, ""):
        data = (await bare(store).get(name)).data
        assert name.startswith("tenants/") or name == hub_keys.CLUSTER or b"press-1" not in data or b"acme" not in data


@pytest.mark.usefixtures("quiet")
@pytest.mark.slow
async def test_a_tenant_with_data_stays_where_it_is(store: ObjectStore) -> None:
    edge = TenantEdge(ACME)
    async with running_hub(store) as hub, edge.linked(hub):
        await edge.send(5)
        with pytest.raises(CannotSetApart, match=r"shard \d has records or lanes of tenant acme.*declare another one"):
            await apart(store).set("acme")
        await edge.send(5)
    assert (await read_cluster(store)).apart == ()
    states = await load_every_shard(first_logs(store, await read_cluster(store)))
    assert [state.apart for _, state in states] == [frozenset()] * 2, "shards that had said it take the tenant again"


@pytest.mark.usefixtures("quiet")
async def test_a_table_without_a_log_is_data(store: ObjectStore) -> None:
    await open_cluster(store, 2)
    await store.create("tables/acme/telemetry/_delta_log/00000000000000000000.json", b"{}")
    with pytest.raises(CannotSetApart, match="a table of tenant acme: tables/acme/telemetry"):
        await apart(store).set("acme")


@pytest.mark.usefixtures("quiet")
@pytest.mark.slow
async def test_a_command_that_ended_early_is_repeated_or_taken_back(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: object) -> Cluster:
        raise ConnectionError

    edge, epochs = TenantEdge(ACME), MemoryEpochs()
    async with running_hub(store) as hub:
        with monkeypatch.context() as patch:
            patch.setattr("weft.cloud_hub.splits.declare_apart", die)
            with pytest.raises(ConnectionError):
                await apart(store).set("acme")
        identity = LinkIdentity("acme", edge.lane.edge, edge.lane.log_id, "test")
        async with running_link(hub, edge.log, identity, epochs=epochs) as status:
            await until(lambda: "tenant acme is set apart" in status.last_error)
            assert set.union(*(await lanes_of(store)).values()) == set(), "nothing of it is taken meanwhile"
            await apart(store).take_back("acme")
            await edge.send(5)
    with pytest.raises(CannotSetApart, match="has records"):
        await apart(store).set("acme")


@pytest.mark.usefixtures("quiet")
async def test_what_is_apart_cannot_be_taken_back(store: ObjectStore) -> None:
    await open_cluster(store, 2)
    await apart(store).take_back("acme")
    assert await apart(store).set("acme") == 2
    assert b'"placement":"%b"' % TENANT_APART_EDGE.encode() in (await store.get(hub_keys.CLUSTER)).data
    with pytest.raises(CannotSetApart, match="acme is set apart, with shard 2: this cannot be reverted"):
        await apart(store).take_back("acme")


class Suspended(PlacedStore):
    """A store whose process stands still before one of its changes, and lets another command run to its end."""

    def __init__(self, store: ObjectStore, at: int, other: Callable[[], Awaitable[object]]) -> None:
        super().__init__(store)
        self._at, self._other = at, other

    async def _step(self) -> None:
        self._at -= 1
        if self._at == 0:
            with suppress(CannotSetApart):
                await self._other()

    async def create(self, key: str, data: Buffer) -> str:
        await self._step()
        return await super().create(key, data)

    async def swap(self, key: str, data: Buffer, expected_etag: str) -> str:
        await self._step()
        return await super().swap(key, data, expected_etag)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("first", ["set", "take_back"])
@pytest.mark.parametrize("second", ["set", "take_back"])
async def test_a_command_that_goes_on_behind_another_one_undoes_nothing(first: str, second: str, at: int) -> None:
    memory = MemoryStore()
    store = PlacedStore(memory)
    await open_cluster(store, 2)
    if first == "take_back":
        with suppress(ConnectionError):
            await Apart(Suspended(memory, 4, unreachable), wall_clock=lambda: 0, random_bits=lambda _: 1).set("acme")
    suspended = Suspended(memory, at, lambda: getattr(apart(store), second)("acme"))
    is_overtaken = False
    try:
        await getattr(apart(suspended), first)("acme")
    except CannotSetApart as error:
        is_overtaken = "at the same time" in str(error)
    cluster = await read_cluster(store)
    states = await load_every_shard([ShardLog(store, cluster, shard) for shard in range(2)])
    said = ["acme" in state.apart for _, state in states]
    assert said == [bool(cluster.apart)] * 2
    if is_overtaken:
        assert bool(cluster.apart) == (second == "set")


async def unreachable() -> None:
    raise ConnectionError


@pytest.mark.usefixtures("quiet")
async def test_a_split_that_comes_between_is_not_forgotten(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new shard has split off before the halved one said that it takes nothing of the tenant."""
    await open_cluster(store, 2)
    said, say, splits = list[int](), Apart._set_apart_in, list[int]()

    async def split_first(self: Apart, log: Any, turn: tuple[int, str], *, apart: bool) -> bool:
        if not splits:
            splits.append(0)
            cluster = await open_cluster(store, None)
            bits = random.Random(2).getrandbits
            await declaring.split(store, cluster, 0, wall_clock=lambda: 0, random_bits=bits)
        said.append(log.shard)
        return await say(self, log, turn, apart=apart)

    monkeypatch.setattr(Apart, "_set_apart_in", split_first)
    assert await apart(store).set("acme") == 3
    assert said == [0, 1, 0, 1, 2]
    states = await load_every_shard(first_logs(store, await read_cluster(store)))
    assert [state.apart for _, state in states] == [frozenset({"acme"})] * 3 + [frozenset()]


@pytest.mark.usefixtures("quiet")
@pytest.mark.slow
async def test_a_shard_of_the_tenant_splits_below_its_prefix(store: ObjectStore) -> None:
    await open_cluster(store, 1)
    await apart(store).set("acme")
    edges = [TenantEdge(Lane("acme", f"press-{n}", n, "telemetry")) for n in range(1, 6)]
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(running_hub(store, shards=1))
        for edge in edges:
            await stack.enter_async_context(edge.linked(hub))
            await edge.send(3)
        cluster = await open_cluster(store, None)
        await declaring.look(store, cluster, 1)
        bits = random.Random(1).getrandbits
        assert await declaring.split(store, cluster, 1, wall_clock=lambda: 0, random_bits=bits) == 2
        for edge in edges:
            await edge.send(4)
        status, answer = await get(hub, "/v1/streams/telemetry?tenant=acme")
        assert (status, answer["records"]) == (200, 7 * len(edges))
    lanes = await lanes_of(store)
    assert not lanes[0]
    assert lanes[1]
    assert lanes[2]
    assert lanes[1] | lanes[2] == {edge.lane for edge in edges}
    assert await names(store, "shard-2") == []
    assert await names(store, "tenants/acme/shard-2")
