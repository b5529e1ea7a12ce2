"""A running hub tells linked edges their configurations, and keeps what they say."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.cloud_hub.facts.test_edges import cluster
from tests.cloud_hub.facts.test_hub import declare, token
from tests.cloud_hub.live import EdgeLog, running_hub, running_link
from tests.support.waiting import until
from weft.cloud_hub import rollouts
from weft.cloud_hub import rollouts as states_module
from weft.cloud_hub.facts import edges as edge_configs
from weft.cloud_hub.facts import tenants as tenant_changes
from weft.cloud_hub.facts.edges import DesiredConfigs, Groups, RolloutDocument
from weft.cloud_hub.facts.fact import CONFIG, Decision
from weft.cloud_hub.facts.tenants import Quotas
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.rollouts import (
    LOOKED_AT_ONCE,
    TAKES_NONE,
    WHOLE_LOOKS,
    ConfigStates,
    Rollouts,
    StatesReader,
    read_states,
)
from weft.hub_api.rights import Scope
from weft.protocols.lane import NodeName
from weft.protocols.link import ConfigDesired, ConfigOutcome, ConfigState
from weft.replication.events import LinkState
from weft.replication.runner import LinkIdentity
from weft.storage import hub_keys
from weft.storage.cluster_log import Change
from weft.storage.hub_keys import config_states_key
from weft.storage.object_store import Object
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.protocol import Listing

SOON = {"cluster_log_interval_s": 0.02}
LOG_IDS = itertools.count(1)
TEXT = "streams: {alarms: {from: 'alarms/#'}}"


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "STATES_INTERVAL_S", 0.01)
    monkeypatch.setattr(rollouts, "INTERVAL_S", 0.01)


class Door:
    """An edge's side (``ConfigReceiver``) that answers as a test wants."""

    def __init__(
        self, outcome: ConfigOutcome | None = ConfigOutcome.CONFIRMED, has: ConfigDesired | None = None
    ) -> None:
        self.has = has or ConfigDesired(0, "", [])
        self.outcome = outcome
        self.wanted: list[ConfigDesired] = []
        self._tell: Callable[[ConfigState], None] | None = None

    def opened(self, cluster_id: str, tell: Callable[[ConfigState], None]) -> ConfigState:
        assert len(cluster_id) == 32
        self._tell = tell
        return ConfigState(self.has.version, self.has.digest, 0, "", self.has.version, self.has.digest)

    def closed(self) -> None:
        self._tell = None

    def own_urls(self) -> tuple[str, ...]:
        return ()

    def desire(self, desired: ConfigDesired, cluster_id: str) -> None:
        del cluster_id
        self.wanted.append(desired)
        if self._tell is not None and self.outcome is not None:
            self.say(desired, self.outcome)

    def say(self, desired: ConfigDesired, outcome: ConfigOutcome, reason: str = "") -> None:
        assert self._tell is not None
        self._tell(ConfigState(desired.version, desired.digest, outcome, reason, desired.version, desired.digest))


@contextlib.asynccontextmanager
async def edge(hub: Hub, name: str, door: Door | None, secret: str | None = None, tenant: str = "default") -> Any:
    identity = LinkIdentity(tenant, name, next(LOG_IDS), "test")
    async with running_link(hub, EdgeLog(), identity, secret, config=door) as status:
        await until(lambda: status.connections > 0)
        yield status


@contextlib.asynccontextmanager
async def hub_with_group(store: MemoryStore) -> AsyncIterator[Hub]:
    async with running_hub(store, **SOON) as hub:
        await declare(hub, store, edge_configs.set_group(("default", "presses"), ("press-*",)))
        yield hub


def set_group(text: str, rollout: RolloutDocument | None = None) -> Any:
    return edge_configs.set_config(("default", "group", "presses"), text, rollout)


@pytest.mark.usefixtures("_at_once")
async def test_edges_are_told_when_they_link_and_when_it_changes_and_their_words_are_kept() -> None:
    store = MemoryStore()
    async with hub_with_group(store) as hub:
        door, oven = Door(), Door()
        async with edge(hub, "press-1", door), edge(hub, "oven", oven):
            await asyncio.sleep(0.05)
            assert not door.wanted
            assert await read_states(store) == {}, "nothing is kept of edges without a configuration"
            await declare(hub, store, set_group(TEXT))
            await until(lambda: len(door.wanted) == 1)
            assert [(layer.name, layer.text) for layer in door.wanted[0].layers] == [("group presses", TEXT)]
            await declare(hub, store, edge_configs.set_config(("default", "edge", "press-1"), "disk: {budget: 2GiB}"))
            await until(lambda: len(door.wanted) == 2)
            assert [layer.name for layer in door.wanted[1].layers] == ["group presses", "edge press-1"]
        late = Door(has=door.wanted[1])
        async with edge(hub, "press-1", late):
            await declare(hub, store, edge_configs.remove_config(("default", "group", "presses")))
            await until(lambda: len(late.wanted) == 1)
            assert [layer.name for layer in late.wanted[0].layers] == ["edge press-1"]
            await declare(hub, store, edge_configs.remove_config(("default", "edge", "press-1")))
            await until(lambda: len(late.wanted) == 2)
            assert late.wanted[1].layers == []
        assert not oven.wanted
    found = await read_states(store)
    assert list(found) == [NodeName("default", "press-1")]
    assert (found["default", "press-1"].outcome, found["default", "press-1"].active_version) == (2, 0)  # type: ignore[index]


@pytest.mark.usefixtures("_at_once")
async def test_an_edge_of_an_earlier_release_or_without_the_right_is_told_nothing_and_named() -> None:
    store = MemoryStore()
    async with hub_with_group(store) as hub:
        await declare(hub, store, set_group(TEXT))
        async with edge(hub, "press-1", None) as status:
            await asyncio.sleep(0.05)
            assert status.state is LinkState.CONNECTED
    (said,) = (await read_states(store)).values()
    assert said.outcome == TAKES_NONE


@pytest.mark.usefixtures("_at_once")
async def test_a_token_of_another_tenant_or_edge_changes_and_learns_nothing() -> None:
    store = MemoryStore()
    async with running_hub(store, tokens_required=True, **SOON) as hub:
        await declare(hub, store, tenant_changes.set_tenant("acme", Quotas(), is_new=True))
        await declare(hub, store, token("other", "secret", Scope.EDGE, edge="press-1", tenant="acme"))
        await declare(hub, store, edge_configs.set_config(("default", "edge", "press-1"), TEXT))
        door = Door()
        async with edge(hub, "press-1", door, "secret", "acme"):
            await asyncio.sleep(0.05)
            assert not door.wanted
            stranger = Door()
            identity = LinkIdentity("default", "press-1", 7, "test")
            async with running_link(hub, EdgeLog(), identity, "secret", config=stranger) as status:
                await until(lambda: status.state is LinkState.REFUSED)
                assert not stranger.wanted
    assert await read_states(store) == {}


@pytest.mark.usefixtures("_at_once")
async def test_an_edge_that_answers_with_other_digests_does_not_have_the_hub_send_without_end() -> None:
    store = MemoryStore()
    async with hub_with_group(store) as hub:
        await declare(hub, store, set_group(TEXT))
        door = Door(None)
        async with edge(hub, "press-1", door):
            await until(lambda: len(door.wanted) == 1)
            for n in range(20):
                door.say(ConfigDesired(n, f"{n:016x}", []), ConfigOutcome.CONFIRMED)
            await asyncio.sleep(0.05)
            assert len(door.wanted) == 1


@pytest.mark.usefixtures("_at_once")
async def test_a_declaration_that_cannot_be_read_leaves_edges_with_what_they_have() -> None:
    store = MemoryStore()
    async with hub_with_group(store) as hub:
        await declare(hub, store, set_group(TEXT))
        door = Door()
        async with edge(hub, "press-1", door):
            await until(lambda: len(door.wanted) == 1)
            await declare(hub, store, lambda _: Change(CONFIG, "default/group/presses", b'{"revision": "later"}'))
            await declare(hub, store, lambda _: Change(CONFIG, "of-a-later-release", b"{}"))
            await asyncio.sleep(0.05)
            assert len(door.wanted) == 1
            assert {each.kind for each in hub.status().cluster_log.unusable} == {"config"}


@pytest.mark.usefixtures("_at_once")
async def test_two_processes_that_hear_edges_of_one_shard_lose_no_word() -> None:
    store = MemoryStore()
    async with hub_with_group(store) as hub, running_hub(store, **SOON) as second:
        doors = [Door() for _ in range(20)]
        async with contextlib.AsyncExitStack() as stack:
            for n, door in enumerate(doors):
                await stack.enter_async_context(edge((hub, second)[n % 2], f"press-{n}", door))
            await declare(hub, store, set_group(TEXT))
            await until(lambda: all(door.wanted for door in doors))
    found = await read_states(store)
    assert len(found) == 20
    assert {said.outcome for said in found.values()} == {ConfigOutcome.CONFIRMED}


@pytest.mark.usefixtures("_at_once")
async def test_words_of_ten_thousand_edges_are_one_write_for_each_shard_and_no_entry_of_the_log() -> None:
    store, now = MemoryStore(), 1_000
    heard = rollouts.ConfigStates(store, lambda node: int(node.edge[6:]) % 16, lambda: now)
    said = ConfigState(7, "d" * 16, ConfigOutcome.CONFIRMED, "", 7, "d" * 16)
    for n in range(10_000):
        heard.note(NodeName("default", f"press-{n}"), said)
    await heard.write()
    sizes = [item.size for item in await store.list(hub_keys.CONFIG_STATES + "/")]
    assert len(sizes) == 16
    assert sum(sizes) < 2 << 20
    etags = [(await store.get(hub_keys.config_states_key(shard))).etag for shard in range(16)]
    for n in range(10_000):  # all link again
        heard.note(NodeName("default", f"press-{n}"), said)
    await heard.write()
    assert [(await store.get(hub_keys.config_states_key(shard))).etag for shard in range(16)] == etags
    assert len(await read_states(store)) == 10_000


@pytest.mark.usefixtures("_at_once")
async def test_a_rollout_goes_on_by_itself_and_stops_when_edges_take_it_back() -> None:
    store = MemoryStore()
    async with hub_with_group(store) as hub:
        await declare(hub, store, set_group(TEXT))
        doors = {f"press-{n}": Door() for n in range(16)}
        async with contextlib.AsyncExitStack() as stack:
            for name, door in doors.items():
                await stack.enter_async_context(edge(hub, name, door))
            await until(lambda: all(len(door.wanted) == 1 for door in doors.values()))
            better = TEXT.replace("alarms/#", "alarms/+")
            await declare(hub, store, set_group(better, RolloutDocument(0.25, steps=(0.5, 1.0))))
            await until(lambda: all(len(door.wanted) == 2 for door in doors.values()))
            assert {door.wanted[1].layers[0].text for door in doors.values()} == {better}
            for door in doors.values():
                door.outcome = ConfigOutcome.ROLLED_BACK
            worse = TEXT.replace("alarms/#", "alarms/-")
            await declare(hub, store, set_group(worse, RolloutDocument(0.25, steps=(0.5, 1.0))))

            def rollout() -> RolloutDocument:
                found = hub._declared.configs.documents["default/group/presses"].rollout
                assert found is not None
                return found

            await until(lambda: rollout().state == "stopped")
            assert "reverted it: press-" in rollout().why
            reached = [name for name, door in doors.items() if len(door.wanted) == 3]
            assert 0 < len(reached) < 12
            await declare(hub, store, edge_configs.abort(("default", "group", "presses"), "it is wrong"))
            await until(lambda: all(len(doors[name].wanted) == 4 for name in reached))
            assert {doors[name].wanted[3].layers[0].text for name in reached} == {better}
            assert sum(len(door.wanted) == 2 for door in doors.values()) == 16 - len(reached)


# --- Requests that a running rollout makes: what the hub's store is asked for at each look


SHARDS = 16


def place(node: NodeName) -> int:
    return int(node.edge.rpartition("-")[2]) % SHARDS


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    async def get(self, key: str) -> Object:
        self.asked["get"] += 1
        return await super().get(key)

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        self.asked["list"] += 1
        return await super().list(prefix, after, limit)

    def take(self) -> dict[str, int]:
        taken, self.asked = dict(self.asked), Counter()
        return taken


class Fleet:
    """A group with a rollout, over a store with the words of 160 other edges."""

    def __init__(self, *edges: str) -> None:
        self.store = CountingStore()
        self.made = cluster(presses=edges)
        text = RolloutDocument(0.5, failures_max=1)
        self.made.declare(edge_configs.set_config(("default", "group", "presses"), "disk: {budget: 2GiB}"))
        self.made.declare(edge_configs.set_config(("default", "group", "presses"), "disk: {budget: 3GiB}", text))
        self.groups = Groups.of(self.made.state)
        self.configs = DesiredConfigs(self.groups)
        self.configs.refresh(self.made.state)
        self.heard = ConfigStates(self.store, place, lambda: 1)
        self.declared: list[Decision] = []
        reader = StatesReader(self.store, lambda node: (place(node),))
        self.rollouts = Rollouts(self.configs, self.groups, lambda: True, reader.read, self._declare)

    async def _declare(self, decision: Decision) -> None:
        self.declared.append(decision)

    async def say(self, *edges: str, outcome: ConfigOutcome = ConfigOutcome.CONFIRMED) -> None:
        for edge in edges:
            wanted = self.configs.of_edge("default", edge)
            assert wanted is not None
            state = ConfigState(wanted.version, wanted.digest, outcome, "", wanted.version, wanted.digest)
            self.heard.note(NodeName("default", edge), state)
        await self.heard.write()

    async def look(self) -> dict[str, int]:
        self.store.take()
        await self.rollouts.look()
        return self.store.take()


def reached(fleet: Fleet, number: int) -> str:
    """An edge in a shard that the rollout has reached."""
    names = (f"press-{number + SHARDS * at}" for at in range(1, 99))
    wanted = {name: fleet.configs.of_edge("default", name) for name in names}
    return next(name for name, each in wanted.items() if each is not None and "3GiB" in each.layers[0].text)


async def test_a_look_for_a_group_of_named_edges_reads_their_shards_alone() -> None:
    fleet = Fleet("press-1", "press-2", "press-17")
    await fleet.say(*(f"oven-{at}" for at in range(160)))
    assert len(await read_states(fleet.store)) == 160
    for _ in range(3):
        assert await fleet.look() == {"get": 2}
    await fleet.say("press-1", "press-2", "press-17", outcome=ConfigOutcome.ROLLED_BACK)
    await fleet.look()
    assert len(fleet.declared) == 1, "one failure is too many"


async def test_a_look_for_a_group_with_patterns_reads_shards_with_such_edges_and_those_that_grew() -> None:
    fleet = Fleet("press-*")
    await fleet.say(*(f"oven-{at}" for at in range(160)))
    first, second = reached(fleet, 1), reached(fleet, 2)
    await fleet.say(first)
    assert await fleet.look() == {"list": 1, "get": SHARDS}
    assert await fleet.look() == {"list": 1, "get": 1}
    await fleet.say(second, outcome=ConfigOutcome.REFUSED)
    assert await fleet.look() == {"list": 1, "get": 2}
    assert len(fleet.declared) == 1, "an edge that had said nothing before stops the rollout at once"


async def test_an_edge_that_becomes_a_member_is_seen_and_all_objects_are_read_now_and_then() -> None:
    fleet = Fleet("press-*")
    await fleet.say(*(f"oven-{at}" for at in range(160)))
    assert (await fleet.look())["get"] == SHARDS
    assert await fleet.look() == {"list": 1}
    fleet.made.declare(edge_configs.set_group(("default", "presses"), ("press-*", "oven-3")))
    fleet.groups.refresh(fleet.made.state)
    assert (await fleet.look())["get"] == SHARDS
    looks = [(await fleet.look()).get("get", 0) for _ in range(WHOLE_LOOKS)]
    assert sorted(looks) == [1] * (WHOLE_LOOKS - 1) + [SHARDS]


def heard(store: MemoryStore, count: int, reason: str = "") -> ConfigStates:
    """Words of edges of one shard, the last ones last."""
    times = iter(range(count))
    states = ConfigStates(store, lambda _: 0, times.__next__)
    for at in range(count):
        states.note(NodeName("default", f"oven-{at}"), ConfigState(1, "", ConfigOutcome.REFUSED, reason, 0, ""))
    return states


async def test_the_words_of_a_shard_are_looked_through_in_steps() -> None:
    store, count, turns = MemoryStore(), 16 * LOOKED_AT_ONCE, 0
    await heard(store, count).write()

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(count_turns())
    await heard(store, count, "no room").write()
    others.cancel()
    assert turns >= 2 * 16, "the object's words, and the new ones"


async def test_an_object_has_as_many_last_words_as_readers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states_module, "OBJECT_BYTES_MAX", 4096)
    store = MemoryStore()
    await heard(store, 64, "x" * 400).write()
    assert 3500 < len((await store.get(config_states_key(0))).data) <= 4096
    found = await read_states(store)
    assert 7 < len(found) < 12
    assert list(found) == [NodeName("default", f"oven-{at}") for at in range(64 - len(found), 64)]
