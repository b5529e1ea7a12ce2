"""The list of streams: the right facts, and a loop that is free for links however many lanes there are."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import msgspec
import pytest

from tests.support.speed import slowness
from tests.support.steps import TRIES, stepped
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.reads import summaries
from weft.cloud_hub.reads.summaries import Begun, Listed, StreamCompleteness, Walk
from weft.cloud_hub.reads.views import (
    SLICE_LANES,
    LaneFacts,
    StreamSummary,
    encoded,
    lane_view,
    lanes_after,
    merged,
    position,
    stream_parts,
)
from weft.cloud_hub.shard.shards import open_gap_views
from weft.protocols.chunk_index import GapRange, LastWord, Mark
from weft.protocols.lane import Lane
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.completeness import HELD_BACK_MAX, completeness
from weft.protocols.shard.lane_state import LaneState, OpenGap, RetiredBy, Retirement
from weft.protocols.shard.shard_state import ShardState

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
