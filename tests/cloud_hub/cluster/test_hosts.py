"""Hub nodes on one store, with real links: edges move to who joins, and away from who leaves."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from tests.cloud_hub.api.test_application import records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.waiting import until
from weft.cloud_hub import administration, cluster
from weft.cloud_hub.clock import LOOKS
from weft.cloud_hub.facts.hub import drain, undo_drain
from weft.cloud_hub.hub import Hub
from weft.protocols.shard.placement import shard_of
from weft.replication.runner import LinkIdentity
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.object_store import open_store
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.protocol import Written

BEAT_S = 0.2
AHEAD_S = 40
SLOWLY_S = 30.0
"""Time for an entry to be believed, edges to be looked at, and shards to be loaded."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no host count as gone that a busy machine keeps from writing for three short beats: all of them leave in
    order here."""
    monkeypatch.setattr(cluster, "MISSED_MAX", int(SLOWLY_S / BEAT_S))


def own(hub: Hub) -> set[int]:
    return {view.shard for view in hub.status().shards if view.own}


def linked(hub: Hub) -> list[str]:
    return [view.edge for view in hub.status().links if view.edge]


async def test_any_process_tells_load_and_clock_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "READ_AGE_S", 0.0)
    store = MemoryStore()
    async with running_hub(store) as hub, running_hub(store) as other:
        for _ in range(LOOKS):  # the store's server says that the clock is ahead
            boot = other._clock.boot()
            other._clock.wrote(boot, boot, Written(time.time_ns() - AHEAD_S * 10**9, by_store=True))
        other._membership.look_now()

        async def reported() -> dict[str, float | None]:
            nodes = (await get(hub, "/v1/nodes"))[1]["nodes"]
            assert all(node["load"] > 0 for node in nodes), nodes
            return {node["name"]: node["clock_off_seconds"] for node in nodes}

        wanted = {hub.status().name: 0, other.status().name: pytest.approx(AHEAD_S, abs=1.5)}

        async def is_reported() -> bool:
            return await reported() == wanted

        await until(is_reported)


@pytest.mark.slow
async def test_an_edge_goes_to_a_host_that_joins_and_back_when_it_leaves(tmp_path: Path) -> None:
    store, log = open_store(str(tmp_path)), EdgeLog()
    log.append(*records(0, [b"1"]))
    async with running_hub(store, shards=4, beat_interval_s=BEAT_S) as first, contextlib.AsyncExitStack() as later:
        assert own(first) == {0, 1, 2, 3}
        edge = next(f"press-{n}" for n in range(999) if shard_of("default", f"press-{n}", 4) == 0)
        async with running_link(first, log, LinkIdentity("default", edge, 0xABC, "weft 0.1.0")) as status:
            await until(lambda: status.records_acked == 1)
            second = await later.enter_async_context(running_hub(store, shards=4, beat_interval_s=BEAT_S))
            third = await later.enter_async_context(running_hub(store, shards=4, beat_interval_s=BEAT_S))
            hubs = [first, second, third]

            def are_divided() -> bool:
                shares = list(map(own, hubs))
                return sorted(map(len, shares)) == [1, 1, 2] and set.union(*shares) == {0, 1, 2, 3}

            await until(are_divided, SLOWLY_S)
            (owner,) = [hub for hub in hubs if 0 in own(hub)]
            await until(lambda: [hub for hub in hubs if linked(hub)] == [owner], SLOWLY_S)
            log.append(*records(1, [b"2"]))
            await until(lambda: status.records_acked == 2)
            await later.aclose()
            await until(lambda: own(first) == {0, 1, 2, 3} and linked(first) == [edge], SLOWLY_S)
            log.append(*records(2, [b"3"]))
            await until(lambda: status.records_acked == 3)
            (read,) = (await get(first, "/v1/streams"))[1]["streams"]
            assert read["records"] == 3


async def test_every_process_tells_how_busy_each_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.cloud_hub.administration.READ_AGE_S", 0.0)
    store, log = MemoryStore(), EdgeLog()
    log.append(*records(0, [b"1"] * 100))
    async with (
        running_hub(store, beat_interval_s=BEAT_S) as busy,
        running_hub(store, beat_interval_s=BEAT_S) as idle,
        running_link(busy, log, LinkIdentity("default", "press-1", 0xABC, "weft 0.1.0")),
    ):
        seen: dict[str, dict[str, float]] = {}

        async def is_reported() -> bool:
            nodes = (await get(idle, "/v1/nodes"))[1]["nodes"]
            seen.update({each["name"]: each["intake"] for each in nodes if each["intake"] is not None})
            return len(seen) == 2 and any(each["records_per_second"] for each in seen.values())

        await until(is_reported, SLOWLY_S)
        of_the_busy, of_the_idle = (seen[each.status().name] for each in (busy, idle))
    assert of_the_busy["bytes_per_second"] > of_the_busy["records_per_second"] > 0
    assert of_the_idle["records_per_second"] == of_the_idle["bytes_per_second"] == 0


@pytest.mark.slow
async def test_a_drained_host_gives_its_edges_away_and_takes_some_again(tmp_path: Path) -> None:
    store, log = open_store(str(tmp_path)), EdgeLog()
    log.append(*records(0, [b"1"]))
    soon = {"shards": 2, "beat_interval_s": BEAT_S, "cluster_log_interval_s": BEAT_S}
    async with running_hub(store, **soon) as first, running_hub(store, **soon) as second:
        await until(lambda: len(own(first)) == len(own(second)) == 1, SLOWLY_S)
        edge = next(f"press-{n}" for n in range(99) if shard_of("default", f"press-{n}", 2) in own(second))
        async with running_link(first, log, LinkIdentity("default", edge, 0xABC, "weft 0.1.0")) as status:
            await until(lambda: linked(second) == [edge] and status.records_acked == 1, SLOWLY_S)
            cluster_log = ClusterLog(store, first.cluster.cluster_id)
            name = second.status().name
            await cluster_log.append(drain(name, [("another", "another")]), Author(time.time_ns(), "mara", ""))
            await until(lambda: linked(first) == [edge] and own(first) == {0, 1}, SLOWLY_S)
            assert second.status().state == "leaving"
            log.append(*records(1, [b"2"]))
            await until(lambda: status.records_acked == 2)
            await cluster_log.append(undo_drain(name), Author(time.time_ns(), "mara", ""))
            await until(lambda: linked(second) == [edge], SLOWLY_S)
