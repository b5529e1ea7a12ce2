"""Figures of edges: a fixed number of series says how many are known, silent, and held back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from weft.cloud_hub.api.edge_figures import REFRESH_S, EdgeFigures
from weft.protocols.chunk import Mark
from weft.protocols.lane import Lane
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
    figures = EdgeFigures(lambda: [first, second], lambda: NOW, lambda: clock[0], peers=False)
    assert await counted(figures) == {
        "": 6, "_silent4m": 4, "_silent1h": 3, "_silent1d": 2, "_silent7d": 1, "_in_alarmsilent": 4,
    }  # fmt: skip
    first.state.set_lane(Lane("default", "a", 1, "a"), LaneState(ranges=RangeSet([(0, 5)]), last_seen=NOW))
    assert "_in_alarmno_mark" not in await counted(figures), "counted at most once in some seconds"
    clock[0] += REFRESH_S
    assert (await counted(figures))["_in_alarmno_mark"] == 1


async def test_ten_thousand_edges_have_as_many_series_as_one() -> None:
    few = EdgeFigures(lambda: [shard({"a": heard(1)})], lambda: NOW, lambda: 0.0, peers=False)
    many = EdgeFigures(
        lambda: [shard({f"e{n}": heard(n) for n in range(10_000)})], lambda: NOW, lambda: 0.0, peers=False
    )
    await few.refresh()
    await many.refresh()
    assert len(list(few.samples())) == len(list(many.samples())) == 12
