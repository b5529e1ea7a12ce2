"""The list of edges that a hub knows: linked or gone, page by page, from the state of the shards alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cloud_hub.api.test_application import deliver, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.speed import slowness
from tests.support.steps import STEP_S_MAX, TRIES, stepped
from tests.support.tokens import create_token
from tests.support.waiting import until
from weft.cloud_hub.reads.summaries import EdgeRow, EdgeViews, Walk, edges_after
from weft.cloud_hub.reads.views import LaneFacts
from weft.hub_api.rights import Scope
from weft.protocols.chunk_index import Mark
from weft.protocols.lane import Lane
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.completeness import SILENT_NS
from weft.protocols.shard.lane_state import LaneState, Retirement
from weft.protocols.shard.shard_state import ShardState
from weft.replication.runner import LinkIdentity
from weft.storage.object_store.directory import MemoryStore

NOW = 1_800_000_000_000_000_000
PRESS, SAW = LinkIdentity("default", "press-1", 0xABC, "weft 9.1"), LinkIdentity("default", "saw-2", 0xDEF, "weft 8")


async def test_an_edge_that_is_gone_is_listed_with_its_release_and_when_it_was_last_seen() -> None:
    store = MemoryStore()
    async with running_hub(store) as hub:
        press, saw = EdgeLog(), EdgeLog()
        press.append(*records(0, [b"x"] * 3))
        saw.append(*records(0, [b"x"]))
        await deliver(hub, press, 3, PRESS)
        async with running_link(hub, saw, SAW):
            await saw.until_released(1)
            await until(lambda: linked(hub, ["saw-2"]))
            _, answer = await get(hub, "/v1/edges")
            gone, here = answer["edges"]
            assert (gone["edge"], gone["software"], gone["connected_since"]) == ("press-1", "weft 9.1", None)
            assert (here["edge"], here["software"], here["logs"]) == ("saw-2", "weft 8", ["0000000000000def"])
            assert gone["last_seen"] is not None
            assert [gone["streams"], gone["missing_records"], gone["alarms"], gone["retired"]] == [1, 0, [], False]
            assert answer["next_after"] is None
    async with running_hub(store) as again:
        _, answer = await get(again, "/v1/edges")
        assert [(each["edge"], each["software"]) for each in answer["edges"]] == [("press-1", None), ("saw-2", None)]


async def linked(hub: Any, edges: list[str]) -> bool:
    _, answer = await get(hub, "/v1/edges?shards=own")
    return [each["edge"] for each in answer["edges"] if each["connected_since"]] == edges


async def test_a_reader_sees_the_edges_of_its_tenant_alone(tmp_path: Path) -> None:
    tokens = str(tmp_path / "tokens.json")
    link = create_token(tokens, "link", Scope.EDGE, "acme", "press-1")
    reader, other, admin = (
        create_token(tokens, name, scope, tenant)
        for name, scope, tenant in (("r", Scope.READER, "acme"), ("o", Scope.READER, "other"), ("a", Scope.ADMIN, "x"))
    )
    async with running_hub(MemoryStore(), tokens=tokens) as hub:
        log = EdgeLog()
        log.append(*records(0, [b"x"]))
        async with running_link(hub, log, LinkIdentity("acme", "press-1", 1, "test"), link):
            await log.until_released(1)
        seen = [
            (await get(hub, path, token))[1]["edges"]
            for path, token in (
                ("/v1/edges", reader),
                ("/v1/edges", admin),
                ("/v1/edges?tenant=acme", admin),
                ("/v1/edges", other),
                ("/v1/edges?tenant=other", admin),
            )
        ]
        assert [[each["edge"] for each in edges] for edges in seen] == [["press-1"]] * 3 + [[], []]
        assert (await get(hub, "/v1/edges?tenant=acme", other))[0] == 403
        assert (await get(hub, "/v1/edges?shards=mine", admin))[0] == 400


def state(edges: int, shard: int = 0) -> ShardState:
    made = ShardState(b"0" * 16, shard)
    for number in range(edges):
        held = LaneState(ranges=RangeSet([(0, 5)]), mark=Mark(NOW, 5), whole_mark=Mark(NOW, 5), last_seen=NOW)
        made.set_lane(Lane("default", f"edge-{number:05d}", 1, "s"), held)
    return made


async def rows(states: list[ShardState], now: int = NOW) -> list[list[EdgeRow]]:
    walk = Walk(LaneFacts(now, peers=False), lambda _: (), states)
    return [(await walk.summary(state)).edges for state in states]


async def test_pages_have_every_edge_once_and_no_step_holds_the_loop() -> None:
    states = [state(10_000), state(0, 1)]
    states[1].set_lane(Lane("default", "edge-00000x", 1, "s"), LaneState())
    states[0].set_lane(Lane("default", "edge-00007", 1, "s"), None)  # dropped: it is no edge of the hub any more
    expected = sorted({*(f"edge-{n:05d}" for n in range(10_000) if n != 7), "edge-00000x"})
    quickest = float("inf")
    for _ in range(TRIES):
        found, longest = await stepped(pages(states))
        assert found == expected
        if (quickest := min(quickest, longest)) < STEP_S_MAX:
            return
    assert quickest < STEP_S_MAX * slowness()


async def pages(states: list[ShardState]) -> list[str]:
    names, after, found = list[str](), None, await rows(states)
    while True:
        edges, more = edges_after(found, None, after, 4_000)
        names += [each.name.edge for each in edges]
        if not more:
            return names
        after = str(edges[-1].name)


@pytest.mark.parametrize(
    ("held", "later", "missing", "alarms", "retired"),
    [
        (LaneState(ranges=RangeSet([(0, 5)]), whole_mark=Mark(NOW, 5)), 0, 0, [], False),
        (LaneState(ranges=RangeSet([(0, 5)]), whole_mark=Mark(NOW, 5)), SILENT_NS, 0, ["silent"], False),
        (LaneState(ranges=RangeSet([(0, 2), (4, 5)]), pending_marks=[Mark(NOW, 9)]), 0, 6, ["hole"], False),
        (LaneState(ranges=RangeSet([(0, 5)])), 0, 0, ["no_mark"], False),
        (LaneState(ranges=RangeSet([(0, 5)]), retired=Retirement(NOW, 2, "")), SILENT_NS, 0, [], True),
    ],
    ids=["well", "silent", "records are missing", "no mark", "retired"],
)
async def test_an_edge_has_an_alarm_for_each_reason_that_holds_its_lanes_back(
    held: LaneState, later: int, missing: int, alarms: list[str], retired: bool
) -> None:
    made = ShardState(b"0" * 16, 0)
    for stream in ("a", "b"):
        made.set_lane(Lane("default", "press-1", 1, stream), held)
    ((row,),) = await rows([made], NOW + later)
    view = EdgeViews({}, {}, lambda _: None).view(row)
    assert (view.missing_records, [each.reason for each in view.alarms], view.retired) == (2 * missing, alarms, retired)
    assert all(each.lanes == 2 for each in view.alarms)
