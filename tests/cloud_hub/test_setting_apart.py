"""Tenants that are set apart: where their data goes, who may be, and what a command leaves that did not end."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from tests.cloud_hub.live import get, running_hub, running_link
from tests.cloud_hub.test_split_hub import Edge
from tests.support.epochs import MemoryEpochs
from tests.support.silence import silent_logs
from tests.support.waiting import until
from weft.cloud_hub import cluster as membership
from weft.cloud_hub import splits as declaring
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.splits import Apart, CannotSetApart
from weft.protocols.lane import Lane
from weft.protocols.shard.placement import TENANT_APART_EDGE
from weft.replication.runner import LinkIdentity
from weft.storage import hub_keys
from weft.storage.chunk_log import ShardLog, first_logs, load_every_shard
from weft.storage.cluster import Cluster, open_cluster, read_cluster
from weft.storage.object_store import ObjectStore
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.opening import PlacedStore, bare
from weft.storage.object_store.protocol import Buffer

ACME, OTHER = Lane("acme", "press-1", 1, "telemetry"), Lane("default", "press-1", 2, "telemetry")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(membership, "READ_INTERVAL_S", 0.05)
    with silent_logs():
        yield


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


async def test_a_table_without_a_log_is_data(store: ObjectStore) -> None:
    await open_cluster(store, 2)
    await store.create("tables/acme/telemetry/_delta_log/00000000000000000000.json", b"{}")
    with pytest.raises(CannotSetApart, match="a table of tenant acme: tables/acme/telemetry"):
        await apart(store).set("acme")


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
