"""Messages to groups of edges: who gets one, in which steps, and what the answer says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from tests.cloud_hub.down.test_hub_down import Taker, linked, messages, settled
from tests.cloud_hub.facts.test_edges import cluster
from tests.cloud_hub.facts.test_hub import SOON, declare
from tests.cloud_hub.live import get, running_hub
from tests.cloud_hub.reads.test_summaries import state
from tests.support.processes import weft
from tests.support.speed import slowness
from tests.support.steps import STEP_S_MAX, TRIES, stepped
from tests.support.waiting import Patience
from weft.cloud_hub.facts import edges as edge_configs
from weft.cloud_hub.facts.edges import Groups
from weft.cloud_hub.http import messages as requests
from weft.cloud_hub.http.messages import UnknownGroup, members
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.shard.lane_session import LaneClaim, LaneSession
from weft.output import Failed
from weft.protocols.lane import DOWN_STREAM, Lane, NodeName
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.lane_state import LaneState, Retirement
from weft.protocols.shard.shard_state import ShardState
from weft.replication.runner import LinkIdentity
from weft.storage.object_store import open_store
from weft.storage.object_store.directory import MemoryStore

KEY = ("default", "presses")


async def pages(known: Groups, states: list[ShardState], limit: int) -> list[str]:
    names, after = list[str](), ""
    while True:
        page = await members(known, KEY, states, after, limit=limit)
        assert len(page.edges) <= limit
        names += page.edges
        if page.next_after is None:
            return names
        after = page.next_after


async def test_pages_have_each_edge_of_a_group_once_and_no_step_holds_the_loop() -> None:
    states = [state(3_000), state(0, 1)]
    states[1].set_lane(Lane("default", "edge-00000x", 1, "s"), LaneState())
    states[1].set_lane(Lane("acme", "edge-0", 1, "s"), LaneState())
    states[1].set_lane(Lane("default", "oven", 1, "s"), LaneState())
    gone = LaneState(ranges=RangeSet([(0, 5)]), retired=Retirement(1, 2, ""))
    states[1].set_lane(Lane("default", "edge-gone", 1, "s"), gone)
    states[1].set_lane(Lane("default", "edge-gone", 0, DOWN_STREAM), LaneState())
    known = Groups.of(cluster(presses=("edge-*", "never-linked", "edge-00001", "edge-*1")).state)
    expected = sorted({*(f"edge-{n:05d}" for n in range(3_000)), "edge-00000x", "never-linked"})
    quickest = float("inf")
    for _ in range(TRIES):
        found, longest = await stepped(pages(known, states, 500))
        assert found == expected
        if (quickest := min(quickest, longest)) < STEP_S_MAX:
            break
    assert quickest < STEP_S_MAX * slowness()
    with pytest.raises(UnknownGroup, match="no group ovens"):
        await members(known, ("default", "ovens"), states, "", limit=5)


async def post(hub: Hub, **fields: Any) -> tuple[int, Any]:
    body = {"topic": "down/x", "payload": "x", **fields}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{hub.url}/v1/messages", json=body, headers={"Idempotency-Key": "k"}) as answer:
            return answer.status, await answer.json()


async def test_a_message_to_a_group_is_published_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "EDGES_MAX", 2)
    store, takers = MemoryStore(), [Taker() for _ in range(4)]
    names = [*(f"press-{at}" for at in (1, 2, 3)), "oven"]
    async with running_hub(store, **SOON) as hub:
        await declare(hub, store, edge_configs.set_group(KEY, ("press-*", "welder")))
        for at, (name, taker) in enumerate(zip(names, takers, strict=True), 1):
            async with linked(hub, taker, LinkIdentity("default", name, at, "test")):
                pass
        _, edges = await get(hub, "/v1/edges")
        assert [each["groups"] for each in edges["edges"]] == [[], ["presses"], ["presses"], ["presses"]]
        status, first = await post(hub, group="presses")
        assert (status, [each["edge"] for each in first["messages"]]) == (200, ["press-1", "press-2"])
        assert first["next_after"] == "press-2"
        _, second = await post(hub, group="presses", after="press-2")
        assert [each.get("status") for each in second["messages"]] == [None, 404], "welder never linked"
        assert second["next_after"] is None
        _, again = await post(hub, group="presses")
        assert again["messages"] == first["messages"], "the key names the message of each edge"
        async with linked(hub, takers[0]):
            assert await settled(hub, 1) == ["published"]
        assert takers[0].stored == ["x"]
        for fields, status in (
            ({"group": "ovens"}, 404),
            ({"group": "*"}, 400),
            ({"group": "presses", "edge": "oven"}, 400),
            ({"group": "presses", "edges": ["oven"]}, 400),
            ({"edge": "oven", "after": "a"}, 400),
            ({"group": ""}, 400),
        ):
            assert (await post(hub, **fields))[0] == status, fields


async def test_the_command_publishes_to_a_group_and_says_what_was_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "EDGES_MAX", 2)
    store, config = MemoryStore(), tmp_path / "hub.yaml"

    def run(*words: str) -> Any:
        return asyncio.to_thread(weft, "hub", "publish", config, *words)

    async with running_hub(store, **SOON) as hub:
        config.write_text(f"listen: {hub.url.removeprefix('http://')}\nstore: store\n")
        await declare(hub, store, edge_configs.set_group(KEY, ("press-*",)))
        for at in (1, 2, 3):
            async with linked(hub, None, LinkIdentity("default", f"press-{at}", at, "test")):
                pass
        lines = (await run("--group", "presses", "down/x", "hello")).output.splitlines()
        assert [line.partition(",")[0] for line in lines[:3]] == [
            f"press-{at}: message 0 is stored" for at in (1, 2, 3)
        ]
        assert lines[3].startswith("group presses: 3 edges in ")
        assert (await messages(hub))["waiting"][0]["topic"] == "down/x"
        await declare(hub, store, edge_configs.set_group(KEY, ("press-*", "welder")))
        failed = await run("--group", "presses", "down/x", "hello", "--json")
        assert isinstance(failed.exception, Failed)
        assert "1 message not stored: welder: no edge welder" in str(failed.exception)
        assert [each["edge"] for each in json.loads(failed.output)["messages"]][:3] == ["press-1", "press-2", "press-3"]
        assert "expected --group GROUP TOPIC" in str((await run("--group", "presses", "press-1", "a", "b")).exception)
        assert "expected EDGE[,EDGE...] TOPIC" in str((await run("press-1")).exception)


async def test_a_tenant_that_publishes_too_fast_is_told_when_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one is not held up, and the command waits by itself."""
    monkeypatch.setattr(requests, "EDGES_MAX", 2)
    store, config = MemoryStore(), tmp_path / "hub.yaml"
    async with running_hub(store, messages_per_s=0.2, **SOON) as hub:
        config.write_text(f"listen: {hub.url.removeprefix('http://')}\nstore: store\n")
        async with linked(hub, None), linked(hub, None, LinkIdentity("default", "press-2", 2, "test")):
            pass
        body: dict[str, Any] = {"topic": "down/x", "edges": ["press-1", "press-2"]}
        async with aiohttp.ClientSession() as session:
            url = f"{hub.url}/v1/messages"
            async with session.post(url, json=body) as answer:
                assert answer.status == 200
            async with session.post(url, json=body) as answer:
                assert answer.status == 429
                assert 0 < int(answer.headers["Retry-After"]) <= 10
                assert "too many messages a second" in (await answer.json())["detail"]
            async with session.post(f"{url}?tenant=acme", json=body) as answer:
                assert [each["status"] for each in (await answer.json())["messages"]] == [404, 404]
        slept: list[float] = []

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            hub_rates = asyncio.run_coroutine_threadsafe(forgive(hub), loop)
            hub_rates.result()

        loop = asyncio.get_running_loop()
        monkeypatch.setattr("weft.commands.running.time", SimpleNamespace(sleep=sleep))  # not that of other threads
        done = await asyncio.to_thread(weft, "hub", "publish", config, "press-1,press-2", "down/x", "hello")
        assert done.output.count("message 1 is stored") == 2
        assert [0 < seconds <= 10 for seconds in slept] == [True]
        assert len((await messages(hub))["waiting"]) == 2


async def forgive(hub: Hub) -> None:
    """Let the time pass that the rate of the default tenant asks for."""
    hub._to_edges._rates.charge("default", -2)


@pytest.mark.slow
async def test_a_message_to_ten_thousand_edges_is_durable_within_a_minute(tmp_path: Path) -> None:
    """They are of one hub process, with a store on the disk; the answers are read as they come."""
    edges = 10_000
    store = open_store(str(tmp_path / "store"))
    async with running_hub(store, shards=16, **SOON) as hub:
        await enrol(hub, [NodeName("default", f"press-{at:05d}") for at in range(edges)])
        await declare(hub, store, edge_configs.set_group(KEY, ("press-*",)))
        stored, after, patience = 0, "", Patience(60.0)
        while after is not None:
            status, answer = await post(hub, group="presses", payload="x" * 200, after=after)
            assert not patience.is_over()
            assert status == 200, answer
            stored += sum("number" in each for each in answer["messages"])
            after = answer["next_after"]
        assert stored == edges


async def enrol(hub: Hub, names: list[NodeName]) -> None:
    """Make edges known to a hub, each by an empty lane."""
    shards = {each.log.shard: each for each in hub.sequencers}
    sessions = []
    for name in names:
        lane = Lane(*name, 7, "telemetry")
        session = LaneSession(lane, LaneClaim(1), [], lambda _: None, lambda *_: None)
        shards[hub._shards.place(name)].open(session)
        sessions.append((shards[hub._shards.place(name)], session))
    for sequencer, session in sessions:
        await session.opened
        sequencer.leave(session)
