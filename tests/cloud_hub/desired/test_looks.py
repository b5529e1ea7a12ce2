"""Requests that a running rollout makes: what the hub's store is asked for at each look."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.cloud_hub.facts.test_groups import cluster
from weft.cloud_hub import rollouts as states_module
from weft.cloud_hub.facts import edges as edge_configs
from weft.cloud_hub.facts.edges import DesiredConfigs, Groups, RolloutDocument
from weft.cloud_hub.facts.fact import Decision
from weft.cloud_hub.rollouts import LOOKED_AT_ONCE, WHOLE_LOOKS, ConfigStates, Rollouts, StatesReader, read_states
from weft.protocols.lane import NodeName
from weft.protocols.link import ConfigOutcome, ConfigState
from weft.storage.hub_keys import config_states_key
from weft.storage.object_store import Object
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.protocol import Listing

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
