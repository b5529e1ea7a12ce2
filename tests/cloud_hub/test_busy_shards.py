"""Automatic splits of shards that keep a process busy."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cloud_hub.live import running_hub
from tests.cloud_hub.test_split_hub import Edge, states_of
from tests.support.silence import silent_logs
from tests.support.waiting import until
from weft.cloud_hub import cluster, splits
from weft.cloud_hub.facts.acts import OwnActs, lines
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.splits import BUSY, SAMPLE_S, SUSTAINED_S, ProcessLoad
from weft.protocols.lane import Lane
from weft.protocols.shard.placement import digest_of
from weft.storage.cluster import Cluster, declare_split, read_cluster
from weft.storage.cluster_log import ClusterLog
from weft.storage.object_store import ObjectStore
from weft.storage.object_store.directory import MemoryStore


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
    """A process is busy whatever it does, at once."""
    monkeypatch.setattr(splits, "SAMPLE_S", 0.15)
    monkeypatch.setattr(splits, "SUSTAINED_S", 0.2)
    monkeypatch.setattr(splits, "BUSY", -1.0)
    monkeypatch.setattr(cluster, "READ_INTERVAL_S", 0.05)
    with silent_logs():
        yield


LANES = [
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
    store, edges = MemoryStore(), [Edge(lane) for lane in LANES]
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
    assert held == {lane: [(0, 120)] for lane in LANES}


async def test_of_two_processes_that_split_at_once_the_slower_one_names_no_split(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, splits.__name__)
    store, edges = MemoryStore(), [Edge(lane) for lane in LANES]
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
    store, edges = MemoryStore(), [Edge(lane) for lane in LANES]
    async with running_hub(store, shards=2, **settings) as hub:
        await send_for_a_while(hub, edges)
    assert await splits_of(store) == 0
