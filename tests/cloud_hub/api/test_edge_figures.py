"""Figures of edges: a fixed number of series says how many are known, silent, and held back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from weft.cloud_hub.reads.edge_reports import EdgeReport
from weft.cloud_hub.reads.metrics import EDGES_REFRESH_S, EdgeFigures
from weft.cloud_hub.reads.summaries import Linked, LinksElsewhere
from weft.protocols.chunk_index import Mark
from weft.protocols.lane import Lane, NodeName
from weft.protocols.link import NodeReport
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.lane_state import LaneState, Retirement
from weft.protocols.shard.shard_state import ShardState

NOW = 1_800_000_000_000_000_000
SECOND = 10**9


def shard(lanes: dict[str, LaneState], number: int = 0) -> Any:
    state = ShardState(b"0" * 16, number)
    for edge, held in lanes.items():
        for stream in ("a", "b"):
            state.set_lane(Lane("default", edge, 1, stream), held)
    sessions = SimpleNamespace(behind={}, lost_of=lambda *_: None)
    return SimpleNamespace(state=state, loaded=True, sessions=sessions)


def heard(age_s: int, **more: Any) -> LaneState:
    at = NOW - age_s * SECOND
    return LaneState(ranges=RangeSet([(0, 5)]), whole_mark=Mark(at, 5), last_seen=at, **more)


def linked(linked: tuple[str, ...] = (), **reports: EdgeReport) -> Callable[[], Awaitable[LinksElsewhere]]:
    """What the processes of a hub know of edges: which are linked, and their last reports."""

    async def reported() -> LinksElsewhere:
        return LinksElsewhere(
            {NodeName("default", name): Linked(NOW, "weft", None, "hub-1") for name in linked},
            [],
            {NodeName("default", name): report for name, report in reports.items()},
        )

    return reported


def lasting(hours: float | None, *, age_h: float = 0, rate: int | None = 2000) -> EdgeReport:
    seconds = None if hours is None else int(hours * 3600)
    return EdgeReport(NOW - int(age_h * 3600) * SECOND, NodeReport(1, 2, 1, rate, seconds, [], 0))


async def counted(figures: EdgeFigures) -> dict[str, float]:
    await figures.refresh()
    found = {
        "".join((each.name.removeprefix("weft_hub_edges"), *each.labels)): each.value for each in figures.samples()
    }
    return {name: value for name, value in found.items() if value}


async def test_edges_are_counted_once_by_how_long_they_are_silent() -> None:
    first = shard({"a": heard(2), "b": heard(239), "c": heard(240), "d": heard(7200)})
    second = shard(
        {"e": heard(90_000), "f": heard(8 * 86_400), "gone": heard(9_999, retired=Retirement(NOW, 2, ""))}, 1
    )
    clock = [0.0]
    figures = EdgeFigures(lambda: [first, second], lambda: NOW, lambda: clock[0], peers=False, links=linked())
    assert await counted(figures) == {
        "": 6,
        "_silent4m": 4,
        "_silent1h": 3,
        "_silent1d": 2,
        "_silent7d": 1,
        "_in_alarmsilent": 4,
        "_outage_left_unknown": 6,
    }
    first.state.set_lane(Lane("default", "a", 1, "a"), LaneState(ranges=RangeSet([(0, 5)]), last_seen=NOW))
    assert "_in_alarmno_mark" not in await counted(figures), "counted at most once in some seconds"
    clock[0] += EDGES_REFRESH_S
    assert (await counted(figures))["_in_alarmno_mark"] == 1


async def test_edges_whose_disk_lasts_for_few_hours_are_counted_by_whether_they_are_linked() -> None:
    edges = shard(
        {name: heard(1) for name in ("a", "b", "c", "d", "e", "f", "g")}
        | {"gone": heard(1, retired=Retirement(NOW, 2, ""))}
    )
    reported = linked(
        ("a", "b"),
        a=lasting(3, age_h=20),  # linked: its outage has not begun
        b=lasting(30),
        c=lasting(30, age_h=20),  # since then, 20 hours of the 30 are over
        d=lasting(5, age_h=20),
        e=lasting(None),  # nothing comes in: no end
        f=lasting(None, rate=None),  # it does not know its rate yet
        gone=lasting(0),
        elsewhere=lasting(0),  # of a shard of another process
    )
    figures = EdgeFigures(lambda: [edges], lambda: NOW, lambda: 0.0, peers=False, links=reported)
    found = await counted(figures)
    assert {name: value for name, value in found.items() if name.startswith("_outage")} == {
        "_outage_left_short4h1": 1,
        "_outage_left_short1d1": 1,
        "_outage_left_short4h0": 1,
        "_outage_left_short1d0": 2,
        "_outage_left_unknown": 2,
    }


async def test_ten_thousand_edges_have_as_many_series_as_one() -> None:
    few = EdgeFigures(lambda: [shard({"a": heard(1)})], lambda: NOW, lambda: 0.0, peers=False, links=linked())
    many = EdgeFigures(
        lambda: [shard({f"e{n}": heard(n) for n in range(10_000)})],
        lambda: NOW,
        lambda: 0.0,
        peers=False,
        links=linked(),
    )
    await few.refresh()
    await many.refresh()
    assert len(list(few.samples())) == len(list(many.samples())) == 17
