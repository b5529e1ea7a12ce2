"""Lists of a process that owns no shard: made of the summaries of those that do, and right without them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.cloud_hub.live import get, running_hub
from tests.cloud_hub.test_split_hub import LANES, Edge, split
from tests.support.silence import silent_logs
from tests.support.waiting import until
from weft.cloud_hub import cluster
from weft.cloud_hub.auth.access import CHECKED_AT_ONCE, Access
from weft.cloud_hub.http import answers
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.reads import summaries
from weft.cloud_hub.reads.summaries import EdgeRow, Listed, ShardSummaries, ShardSummary, edges_after
from weft.cloud_hub.reads.views import StreamPart
from weft.protocols.lane import NodeName
from weft.storage import hub_keys
from weft.storage.object_store.directory import MemoryStore

LISTS = {"/v1/edges": "edges", "/v1/streams": "streams", "/v1/usage": "streams", "/v1/troubles": "conflicts"}


@pytest.fixture(autouse=True)
def every_shard_is_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(summaries, "SMALL_LANES_MAX", -1)
    monkeypatch.setattr(summaries, "MAKE_S", 0.0)
    monkeypatch.setattr(summaries, "LANES_PER_S", 1e9)
    monkeypatch.setattr(summaries, "READ_AGE_S", 0.0)
    monkeypatch.setattr(cluster, "READ_INTERVAL_S", 0.05)
    monkeypatch.setattr(ShardSummaries, "start", lambda _: None)  # the test says when a look takes place
    with silent_logs():
        yield


async def look(hub: Hub) -> None:
    hub._summaries._others = lambda: True  # it sees the other one with its next beat
    await hub._summaries.look()


@asynccontextmanager
async def two_hubs(store: MemoryStore, shards: int) -> AsyncIterator[tuple[Hub, Hub]]:
    """A hub with two edges, and one that has just come, and owns nothing for half a minute."""
    async with running_hub(store, shards=shards) as owner:
        for edge in map(Edge, LANES):
            async with edge.linked(owner):
                await edge.send(10)
        async with running_hub(store, shards=shards) as asked:
            yield owner, asked


async def reported(hub: Hub) -> dict[str, Any]:
    """What the lists say of the shards: not what the process knows of its own links."""
    found = {path: (await get(hub, path))[1] for path in LISTS}
    assert not any(answer.get("missing_shards") for answer in found.values())
    edges = [(each["edge"], each["shard"], each["logs"], each["alarms"]) for each in found["/v1/edges"]["edges"]]
    names = "stream", "records", "next_offset", "lanes", "edges", "complete_up_to"
    streams = [[each[name] for name in names] for each in found["/v1/streams"]["streams"]]
    usage = [found["/v1/usage"][name] for name in ("lanes", "streams_count")]
    return {"edges": edges, "streams": streams, "usage": usage, "conflicts": found["/v1/troubles"]["conflicts"]}


def held(hub: Hub) -> list[int]:
    return [each.log.shard for each in hub.sequencers]


async def test_a_process_lists_shards_of_others_without_loading_them_also_after_their_owner_died() -> None:
    async with two_hubs(MemoryStore(), 4) as (owner, asked):
        await look(owner)
        expected = await reported(owner)
        assert [each[0] for each in expected["edges"]] == sorted(lane.edge for lane in LANES)
        assert expected["streams"][0][:2] == ["telemetry", 20]
        assert await reported(asked) == expected
        assert held(asked) == []
        await owner.close()
        assert await reported(asked) == expected
        assert held(asked) == []


@pytest.mark.parametrize("fault", ["missing", "damaged", "of another shard", "old"])
async def test_a_summary_that_cannot_be_used_costs_no_more_than_the_load_of_its_shard(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    async with two_hubs(store, 2) as (owner, asked):
        await look(owner)
        good = (await store.get(hub_keys.summary_key(1))).data
        await store.delete(hub_keys.summary_key(0))
        if fault == "damaged":
            await store.create(hub_keys.summary_key(0), good[: len(good) // 2])
        elif fault == "of another shard":
            await store.create(hub_keys.summary_key(0), good)
        elif fault == "old":
            monkeypatch.setattr(summaries, "STORED_AGE_NS_MAX", 0)
        assert await reported(asked) == await reported(owner)
        assert 0 in held(asked)


async def test_a_summary_from_before_a_split_lists_no_edge_that_moved() -> None:
    store = MemoryStore()
    async with two_hubs(store, 1) as (owner, asked):
        await look(owner)
        before = (await store.get(hub_keys.summary_key(0))).data
        assert await split(store) == 1
        await until(lambda: len(owner.cluster.tree.lineage(1)) == len(asked.cluster.tree.lineage(1)) == 1)
        await until(lambda: 1 in held(owner))
        await store.delete(hub_keys.summary_key(0))
        await store.create(hub_keys.summary_key(0), before)
        assert {each[0]: each[1] for each in (await reported(asked))["edges"]} == {
            lane.edge: shard for shard, lane in enumerate(LANES)
        }
        assert (await reported(asked))["usage"] == [2, 1]


async def test_what_a_tenant_uses_is_told_in_pages_and_within_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "WAIT_S", 0.05)
    names = [f"s{at:03}" for at in range(99)]
    parts = [StreamPart("default", name, 0, True, 1, [], 0, 1, 1, [], True, True, None, None, []) for name in names]
    listed, may_go_on = Listed([ShardSummary(0, 1, 1, [], parts, [], [], [], 0, [], 0)], {}, 1), asyncio.Event()

    async def every() -> Listed:
        await may_go_on.wait()
        return listed

    async with running_hub(MemoryStore(), response_bytes_max=2_000) as hub:
        monkeypatch.setattr(hub._summaries, "every", every)
        asked = [asyncio.create_task(get(hub, "/v1/usage")) for _ in range(answers.AT_ONCE_OF_OWNER)]
        await until(lambda: hub._api.answers.bytes == answers.AT_ONCE_OF_OWNER * 2_000)
        assert (await get(hub, "/v1/usage"))[0] == 429
        may_go_on.set()
        assert [status for status, _ in await asyncio.gather(*asked)] == [200] * len(asked)
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            _, page = await get(hub, f"/v1/usage?after={after}")
            found += [each["stream"] for each in page["streams"]]
            assert 0 < len(page["streams"]) < 30, "as many as the longest answer has room for"
            after = page["next_after"]
        assert found == names


@pytest.mark.parametrize("path", ["/v1/streams", "/v1/usage"])
async def test_one_step_of_a_list_checks_few_streams_of_a_token_with_many_rights(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stream may be held against 64 patterns, and a tenant has thousands in each shard."""
    names = [f"s{at:04}" for at in range(3000)]
    parts = [StreamPart("default", name, 0, True, 1, [], 0, 1, 1, [], True, True, None, None, []) for name in names]
    listed, steps, asked = Listed([ShardSummary(0, 1, 1, [], parts, [], [], [], 0, [], 0)], {}, 1), [0], 0

    async def every() -> Listed:
        return listed

    def is_readable(name: str) -> bool:
        nonlocal asked
        asked += 1
        steps[-1] += 1
        return name == names[-1]

    async def count() -> None:
        while asked < len(names):
            steps.append(0)
            await asyncio.sleep(0)

    async with running_hub(MemoryStore()) as hub:
        monkeypatch.setattr(hub._summaries, "every", every)
        monkeypatch.setattr(Access, "streams", lambda *_: ("default", is_readable))
        (status, page), _ = await asyncio.gather(get(hub, path), count())
        assert (status, len(page["streams"])) == (200, 1)
    assert max(steps) <= CHECKED_AT_ONCE


class Counted(list[EdgeRow]):
    """Rows of a shard that count how many of them are looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[EdgeRow]:
        raise AssertionError("a walk over all edges")


def test_a_page_of_a_large_fleet_looks_at_the_edges_that_it_shows() -> None:
    every = [EdgeRow("default", f"edge-{n:05d}", n % 16, [], 20, 0, 0, None, False, []) for n in range(10_000)]
    shards = [Counted(every[shard::16]) for shard in range(16)]
    for after in (None, "default/edge-04999", "default/edge-09900"):
        for shard in shards:
            shard.looks = 0
        page, more = edges_after(shards, "default", after, 100)
        first = 0 if after is None else every.index(next(row for row in every if str(row.name) == after)) + 1
        assert page == every[first : first + 100]
        assert more == (first + 100 < len(every))
        # Two for each row of the page and for the next one of each shard, and a binary search in each.
        assert sum(shard.looks for shard in shards) <= 2 * (100 + 16) + 16 * 11
    assert str(NodeName("default", "edge-00000")) == "default/edge-00000"
