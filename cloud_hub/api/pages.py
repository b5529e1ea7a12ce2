"""Pages of long lists, made in slices, so that any number of lanes or streams never blocks the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from weft.cloud_hub.api.views import LaneOf, View
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.shard.shard_state import ShardState

T = TypeVar("T")
PAGE_DEFAULT = 1000
PAGE_MAX = 10_000
LOG_DIGITS = 16
SLICE_LANES = 2_000
SLICE_S = 0.002
"""Time after which a walk yields to others."""


class Page(NamedTuple):
    """A run of views, encoded."""

    views: list[msgspec.Raw]
    is_whole: bool
    """True when all views fitted."""


async def lanes_after(
    states: Sequence[ShardState], tenant: str, stream: str, after: str | None, limit: int
) -> tuple[list[LaneOf], bool]:
    """Return lanes of a stream in the order of edge and log, and whether there are more.

    Args:
        after: end of the previous page (``position``).

    Raises:
        ValueError: ``after`` is not such a place.
    """
    floor = None if after is None else _parsed(after)
    found: list[tuple[str, int, int]] = []
    by_shard = {state.shard: state for state in states}
    for state in states:
        names = state.stream_lane_names(tenant, stream)
        for start in range(0, len(names), SLICE_LANES):
            some = [(lane.edge, lane.log_id, state.shard) for lane in names[start : start + SLICE_LANES]]
            more = [each for each in some if each[:2] > floor] if floor is not None else some
            found = sorted([*found, *more])[: limit + 1]
            await asyncio.sleep(0)
    lanes = []
    for edge, log_id, shard in found[:limit]:
        lane = Lane(tenant, edge, log_id, stream)
        held = by_shard[shard].lanes.get(lane)
        if held is not None:  # it has not left the state meanwhile
            lanes.append((shard, lane, held))
    return lanes, len(found) > limit


def position(lane: LaneOf) -> str:
    """Return the place of a lane in the list, for ``after``."""
    return f"{lane[1].edge}/{format_log_id(lane[1].log_id)}"


def _parsed(after: str) -> tuple[str, int]:
    edge, slash, log = after.rpartition("/")
    if not slash or len(log) != LOG_DIGITS:
        raise ValueError("expected EDGE/LOG")
    return edge, int(log, 16)


async def encoded(
    items: Sequence[T],
    view: Callable[[T], View | Awaitable[View]],
    bytes_max: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Page:
    """Return views of items, as many as fit, but at least one."""
    views: list[msgspec.Raw] = []
    size, began = 0, clock()
    for item in items:
        made = view(item)
        data = msgspec.json.encode(made if isinstance(made, dict) else await made)
        size += len(data)
        if views and size > bytes_max:
            return Page(views, False)
        views.append(msgspec.Raw(data))
        if clock() - began >= SLICE_S:
            await asyncio.sleep(0)
            began = clock()
    return Page(views, True)
