"""Lists of a process that owns no shard: made of the summaries of those that do, and right without them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from tests.cloud_hub.http.test_application import deliver, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.cloud_hub.test_splits import LANES, Edge, split
from tests.support.silence import silent_logs
from tests.support.speed import slowness
from tests.support.steps import STEP_S_MAX, TRIES, stepped
from tests.support.tokens import create_token
from tests.support.waiting import until
from weft.cloud_hub import cluster
from weft.cloud_hub.auth.access import CHECKED_AT_ONCE, Access
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.http import exchange
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.reads import summaries
from weft.cloud_hub.reads.edge_reports import EdgeReport
from weft.cloud_hub.reads.summaries import (
    LOSSES_SHOWN_MAX,
    Begun,
    EdgeRow,
    EdgeViews,
    Linked,
    Listed,
    ShardSummaries,
    ShardSummary,
    StreamCompleteness,
    Walk,
    decode,
    edges_after,
    encode,
    losses_view,
)
from weft.cloud_hub.reads.views import (
    SLICE_LANES,
    LaneFacts,
    StreamPart,
    StreamSummary,
    encoded,
    lane_view,
    lanes_after,
    merged,
    position,
    stream_parts,
)
from weft.cloud_hub.shard.shards import open_gap_views
from weft.hub_api.rights import Scope
from weft.protocols.chunk_index import GapRange, LastWord, Mark
from weft.protocols.lane import Lane, NodeName
from weft.protocols.link import FunctionReport, NodeReport
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.completeness import HELD_BACK_MAX, SILENT_NS, completeness
from weft.protocols.shard.lane_state import LaneState, OpenGap, RetiredBy, Retirement
from weft.protocols.shard.shard_state import ShardState
from weft.replication.runner import LinkIdentity
from weft.storage import hub_keys
from weft.storage.object_store.directory import MemoryStore

LISTS = {"/v1/edges": "edges", "/v1/streams": "streams", "/v1/usage": "streams", "/v1/troubles": "conflicts"}


@pytest.fixture
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


@pytest.mark.usefixtures("every_shard_is_large")
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


@pytest.mark.usefixtures("every_shard_is_large")
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


@pytest.mark.usefixtures("every_shard_is_large")
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


@pytest.mark.usefixtures("every_shard_is_large")
async def test_what_a_tenant_uses_is_told_in_pages_and_within_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "WAIT_S", 0.05)
    names = [f"s{at:03}" for at in range(99)]
    parts = [StreamPart("default", name, 0, True, 1, [], 0, 1, 1, [], True, True, None, None, []) for name in names]
    listed, may_go_on = Listed([ShardSummary(0, 1, 1, [], parts, [], [], [], 0, [], 0)], {}, 1), asyncio.Event()

    async def every() -> Listed:
        await may_go_on.wait()
        return listed

    async with running_hub(MemoryStore(), response_bytes_max=2_000) as hub:
        monkeypatch.setattr(hub._summaries, "every", every)
        asked = [asyncio.create_task(get(hub, "/v1/usage")) for _ in range(exchange.AT_ONCE_OF_OWNER)]
        await until(lambda: hub._api.answers.bytes == exchange.AT_ONCE_OF_OWNER * 2_000)
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


@pytest.mark.usefixtures("every_shard_is_large")
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


@pytest.mark.usefixtures("every_shard_is_large")
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


# --- The list of streams: the right facts, and a loop that is free for links however many lanes there are


SECOND = 1_000_000_000


def states(lanes: dict[Lane, LaneState], shards: int = 2) -> list[ShardState]:
    made = [ShardState(b"c" * 16, shard) for shard in range(shards)]
    for n, (lane, held) in enumerate(lanes.items()):
        made[n % shards].set_lane(lane, held)
    return made


async def summarise(held: list[ShardState], tenant: str, stream: str, expected: tuple[str, ...] = ()) -> StreamSummary:
    return merged(await stream_parts(held, (tenant, stream), expected, LaneFacts(0, peers=False)), expected)


async def listed(held: list[ShardState]) -> Listed:
    walk = Walk(LaneFacts(0, peers=False), lambda _: (), held)
    return Listed([await walk.summary(state) for state in held], {}, 0)


def lane(edge: str, stream: str = "t", log: int = 1) -> Lane:
    return Lane("default", edge, log, stream)


def at(seconds: float, payload: int = 0) -> LaneState:
    mark = Mark(int(seconds * SECOND), 1)
    return LaneState(mark=mark, whole_mark=mark, payload=payload)


@pytest.mark.parametrize(
    ("expected", "moment"), [((), 70), (("a",), 70), (("gone",), 70), (("b*",), 70), (("z",), None), (("z*",), None)]
)
async def test_a_summary_says_what_completeness_says(expected: tuple[str, ...], moment: int | None) -> None:
    lanes = {
        lane("a"): at(90, PayloadKind.TEXT),
        lane("b"): at(70),
        lane("a", log=2): at(80, PayloadKind.JSON),
        lane("part"): LaneState(partial=True),
        lane("gone"): LaneState(retired=Retirement(5, RetiredBy.OPERATOR, "scrapped")),
    }
    found = await summarise(states(lanes), "default", "t", expected)
    assert (found.lanes, found.edges, found.payload) == (5, 4, PayloadKind.JSON)
    assert found.complete_up_to == (None if moment is None else moment * SECOND)
    assert found.complete_up_to == completeness(lanes, expected, 0).complete_up_to


async def test_what_an_edge_lost_is_listed_by_its_records_without_what_a_rename_handed_over() -> None:
    lossy, whole = at(90), at(90)
    lossy.add_gaps([GapRange(0, 9, GapReason.RENAMED), GapRange(20, 25, GapReason.ABSENT)])
    lossy.add_gaps([GapRange(n, n + n % 7 + 1, GapReason.BUDGET) for n in range(100, 200, 10)])
    [summary] = (await listed(states({lane("a", log=10): lossy, lane("b"): whole}, shards=1))).summaries
    rows = decode(encode(summary)).edges
    found = losses_view(rows[0])
    sizes = [each.end - each.first for each in found.losses]
    assert sizes == sorted(sizes, reverse=True)
    assert (len(sizes), found.losses_more) == (LOSSES_SHOWN_MAX, 11 - LOSSES_SHOWN_MAX)
    lost = sum(n % 7 + 1 for n in range(100, 200, 10))
    assert (found.records, rows[0].lost) == (lost + 5, lost)
    assert ("absent", 20, "t", "000000000000000a") in [
        (each.reason, each.first, each.stream, each.log) for each in found.losses
    ]
    assert not rows[1].gaps


async def test_a_renamed_lane_counts_no_more_though_its_names_are_in_different_shards() -> None:
    former, other = at(70), at(90)
    former.epoch = 3
    former.ranges = RangeSet([(0, 9)])
    other.epoch = 4
    other.add_gaps([GapRange(0, 9, GapReason.RENAMED)])
    for epoch, to, moment in ((4, "new", 90), (2, "new", 70), (4, "", 70), (4, "newer", 70)):
        other.epoch, former.last_word = epoch, LastWord(70 * SECOND, 9, to)
        held = states({lane("old"): former, lane("new"): other})
        assert (await summarise(held, "default", "t")).complete_up_to == moment * SECOND
        walks = [Walk(LaneFacts(0, peers=False), lambda _: (), [state]) for state in held]
        begun = (await walks[1].summary(held[1])).begun  # as another process stores it, which has the new name
        if not to:  # and as one of an earlier release does, which does not say whose lane it is
            begun = [msgspec.structs.replace(each, edge="") for each in begun]
        made = await walks[0]._replace(begun=begun).summary(held[0]), await walks[1].summary(held[1])
        assert merged([part for each in made for part in each.streams], ()).complete_up_to == moment * SECOND
        answer = await StreamCompleteness([], {}, HubClock(lambda: 0, lambda: 0)).of(held, "default", "t")
        assert answer.complete_up_to == moment * SECOND
        assert [each.edge for each in answer.covers] == (["new"] if moment == 90 else ["old", "new"])


async def test_each_lane_is_compared_with_one_that_began_by_a_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges choose the ids of their logs and say what they like of a rename, in every shard."""
    stopped = at(70)
    stopped.ranges, stopped.last_word = RangeSet([(0, 9)]), LastWord(70 * SECOND, 9, "new")
    lanes, compared = {lane(f"old-{n}"): stopped for n in range(50)}, Mock(return_value=False)
    monkeypatch.setattr(summaries, "follows", compared)
    begun = [Begun("default", "t", 1, 9, 9, f"new-{n}") for n in range(50)]
    walk = Walk(
        LaneFacts(0, peers=False), lambda _: (), states(lanes, 1), [*begun, Begun("default", "t", 1, 9, 9, "new")]
    )
    assert (await walk.summary(walk.states[0])).lanes == len(lanes)
    assert compared.call_count == len(lanes)


async def test_open_gaps_of_all_shards_are_told_with_those_of_lanes_that_left() -> None:
    ended = at(70)
    ended.retired = Retirement(95 * SECOND, RetiredBy.AGE, "not seen for 90 days")
    held = states({lane("a"): at(90), lane("gone"): ended})
    held[0].open_gaps["default", "t"] = [OpenGap("left", 1, 5, None, 80 * SECOND)]
    answer = await StreamCompleteness([], {}, HubClock(lambda: 0, lambda: 0)).of(held, "default", "t")
    assert answer.complete_up_to == 90 * SECOND, "they are named, and hold nothing back"
    assert [(gap.edge, gap.since, gap.until) for gap in answer.open_gaps] == [
        ("gone", 70 * SECOND, 95 * SECOND),
        ("left", None, 80 * SECOND),
    ]
    listed, more = open_gap_views(held)
    assert [(each.edge, each.stream, each.records) for each in listed] == [("gone", "t", None)]
    assert more == 0


async def test_a_lane_without_a_mark_leaves_no_moment_unless_it_is_empty() -> None:
    for other, moment in ((LaneState(), SECOND), (LaneState(ranges=RangeSet([(0, 1)])), None)):
        lanes = {lane("a"): at(1), lane("b"): other}
        assert (await summarise(states(lanes), "default", "t")).complete_up_to == moment
    assert (await summarise(states({}), "default", "t")).complete_up_to is None


async def test_a_lane_that_leaves_meanwhile_is_passed_over() -> None:
    held = states({lane(f"e{n}"): at(5) for n in range(SLICE_LANES + 10)}, 1)
    walk = asyncio.create_task(summarise(held, "default", "t"))
    await asyncio.sleep(0)
    held[0].set_lane(lane(f"e{SLICE_LANES + 5}"), None)
    assert (await walk).complete_up_to == 5 * SECOND


async def test_streams_that_are_there_are_listed() -> None:
    held = states({lane(f"e{n}", f"s{n % 3}"): at(1) for n in range(30)})
    held[0].next_offset["default", "written"] = 5
    held[0].next_offset["acme", "other"] = 5
    held[0] = ShardState.decode(held[0].encode())

    assert list(await (await listed(held)).streams("default")) == ["s0", "s1", "s2", "written"]
    assert list(await (await listed(held)).streams("acme")) == ["other"]
    for n in range(30):
        held[n % 2].set_lane(lane(f"e{n}", f"s{n % 3}"), None)
    assert list(await (await listed(held)).streams("default")) == ["written"]


async def test_pages_of_lanes_are_all_lanes_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.cloud_hub.reads.views.SLICE_LANES", 3)
    lanes = [lane(f"e{n % 7}", log=n) for n in range(25)]
    held = states({each: at(1) for each in lanes} | {lane("other", "s"): at(1)}, 3)
    found, after = [], None
    while True:
        page, more = await lanes_after(held, "default", "t", after, 4)
        found += [each[1] for each in page]
        if not more:
            break
        after = position(page[-1])
    assert found == sorted(lanes)
    for wrong in ("e1", "e1/x", "e1/zzzzzzzzzzzzzzzz"):
        with pytest.raises(ValueError, match=r"EDGE/LOG|invalid literal"):
            await lanes_after(held, "default", "t", wrong, 4)


async def test_a_page_ends_where_it_would_be_too_long() -> None:
    page = await encoded(["x" * 100] * 10, lambda text: {"text": text}, 350)
    assert (len(page.views), page.is_whole) == (3, False)
    assert len((await encoded(["x" * 100], lambda text: {"text": text}, 5)).views) == 1


async def test_what_holds_back_the_most_is_named_however_the_lanes_come() -> None:
    lanes = {lane(f"e{n:03}"): at(n + 1) for n in range(3 * HELD_BACK_MAX)}
    now = 10_000 * SECOND
    moments = StreamCompleteness([], {("default", "t"): ("z*", "e001")}, HubClock(lambda: now, lambda: now))
    answer = await moments.of(states(dict(reversed(lanes.items())), 5), "default", "t")
    assert answer.held_back_by == completeness(lanes, ("z*", "e001"), now).held_back_by
    assert [each.edge for each in answer.held_back_by[:3]] == ["z*", "e000", "e001"]
    assert (len(answer.held_back_by), answer.more) == (HELD_BACK_MAX, 2 * HELD_BACK_MAX + 1)
    assert answer.complete_up_to is None


async def test_a_list_of_streams_names_who_holds_each_back() -> None:
    now = 1_000 * SECOND
    lanes = {lane("e1"): at(990), lane("e2"): at(999)}
    moments = StreamCompleteness([], {("default", "t"): ("e*", "z1", "z2")}, HubClock(lambda: now, lambda: now))
    found = await moments.summarise(states(lanes, 3), "default", "t")
    assert found.complete_up_to is None
    assert [(each.edge, each.reason) for each in found.held_back_by] == [
        ("z1", "expected_edge_missing"),
        ("z2", "expected_edge_missing"),
        ("e1", "late"),
    ]
    answer = await moments.of(states(lanes, 3), "default", "t")
    assert answer.complete_up_to is None
    assert [each.edge for each in answer.held_back_by] == ["z1", "z2"], "without them there is no moment to wait for"


@pytest.mark.slow
async def test_two_hundred_thousand_lanes_never_hold_the_loop() -> None:
    held = states({lane(f"edge-{n}", f"s{s}"): at(1) for s in range(20) for n in range(10_000)}, 4)

    async def list_streams() -> int:
        moments = StreamCompleteness([], {("default", "s0"): ("edge-1*", "elsewhere")}, HubClock(lambda: 0, lambda: 0))
        answer = await moments.of(held, "default", "s0")
        assert (len(answer.covers), answer.complete_up_to) == (10_000, None)
        lanes, more = await lanes_after(held, "default", "s0", "edge-5/0000000000000001", 1000)
        assert (len(lanes), more, lanes[0][1].edge) == (1000, True, "edge-50")
        assert len((await encoded(lanes, lambda each: lane_view(each[1], each[2], each[0]), 1 << 20)).views) == 1000
        every = await (await listed(held)).streams("default")
        return sum(part.lanes for parts in every.values() for part in parts)

    quickest = float("inf")
    for _ in range(TRIES):
        found, longest = await stepped(list_streams())
        assert found == 200_000
        if (quickest := min(quickest, longest)) < 0.05:
            return
    assert quickest < 0.05 * slowness()


# --- The list of edges that a hub knows: linked or gone, page by page, from the state of the shards alone


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


@pytest.mark.parametrize("mark", [122_426_294, NOW - 2 * SILENT_NS], ids=["never began", "stopped"])
async def test_the_error_of_a_function_is_the_alarm_of_its_linked_edge(mark: int) -> None:
    made, name = ShardState(b"0" * 16, 0), NodeName("default", "press-1")
    made.set_lane(Lane(*name, 1, "calm"), LaneState(mark=Mark(mark, 0), whole_mark=Mark(mark, 0), last_seen=NOW))
    ((row,),) = await rows([made], NOW)
    failing = FunctionReport("calm", "python", 0, 0, 3, "score.py, line 2: OSError: no model")
    reports = {name: EdgeReport(NOW, NodeReport(1, 2, 1, None, None, [failing], 0))}
    linked = {name: Linked(NOW, "weft 1", 0, "one")}

    def alarms(links: dict[NodeName, Linked]) -> list[tuple[str, str]]:
        view = EdgeViews(links, reports, lambda _: None).view(row)
        assert (view.complete_up_to is None) == (mark < NOW // 2)
        return [(each.reason, f"{each.why}; {each.what_to_do}") for each in view.alarms]

    [(reason, text)] = alarms(linked)
    assert reason == "functions_fail"
    assert "score.py, line 2: OSError: no model" in text
    assert "retire" not in text
    [(reason, _)] = alarms({})
    assert reason == ("silent" if mark > NOW // 2 else "functions_not_started"), "what it said may be old"


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
