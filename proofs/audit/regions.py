"""Comparison of what the logs of two regions hold of a stream, number by number.

The states of the shards have the numbers of all records that a hub holds, so no chunk and no table is read: what tables
have of a log is what ``audit`` compares in each region. Lanes that left the states because their edges were silent for
months are not compared.
"""

from __future__ import annotations

import asyncio

import msgspec

from weft.protocols.lane import Lane
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.shard.lane_state import LaneState
from weft.storage.chunk_log import open_cluster
from weft.storage.every_shard import first_logs, load_every_shard
from weft.storage.object_store import ObjectStore

RANGES_LISTED_MAX = 20


class RegionLane(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one lane in two regions. Numbers are those that the edge gave to its records."""

    edge: str
    log_id: str
    both: int
    """Records in both logs."""
    only_first: int
    only_second: int
    ranges: tuple[list[Range], list[Range]]
    """The first ranges of the records that only the first, and only the second region has: [first, end)."""
    complete_up_to: tuple[int | None, int | None]
    """Moment up to which each region claims the lane, nanoseconds since 1970; None for no claim."""


class RegionsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one stream in two regions."""

    tenant: str
    stream: str
    lanes: list[RegionLane]
    agree: bool
    """True if each has every record that the other has."""


async def compare_regions(stores: tuple[ObjectStore, ObjectStore], tenant: str, stream: str) -> RegionsReport:
    """Compare what the logs in two stores hold of a stream.

    Records that arrive meanwhile may be in the log that is read later alone.

    Raises:
        ClusterUnusable: a store holds no hub, or not all of one.
        StoreError: a store did not answer.
    """
    first, second = await asyncio.gather(*(_lanes(store, tenant, stream) for store in stores))
    lanes = [_compared(lane, first.get(lane), second.get(lane)) for lane in sorted({*first, *second})]
    agree = not any(each.only_first or each.only_second for each in lanes)
    return RegionsReport(tenant=tenant, stream=stream, lanes=lanes, agree=agree)


async def _lanes(store: ObjectStore, tenant: str, stream: str) -> dict[Lane, LaneState]:
    cluster = await open_cluster(store, None)
    found = await load_every_shard(first_logs(store, cluster, tenant=tenant), frozenset([(tenant, stream)]))
    lanes: dict[Lane, LaneState] = {}
    for _, state in found:
        for lane, held in state.lanes.items():
            if (lane.tenant, lane.stream) == (tenant, stream):
                lanes[lane] = held  # of a lane that moved, the new shard has the later state, and the higher number
    return lanes


def _compared(lane: Lane, first: LaneState | None, second: LaneState | None) -> RegionLane:
    here, there = (RangeSet() if each is None else each.records for each in (first, second))
    only_here, only_there = here.minus(there), there.minus(here)
    return RegionLane(
        edge=lane.edge,
        log_id=f"{lane.log_id:016x}",
        both=here.count() - only_here.count(),
        only_first=only_here.count(),
        only_second=only_there.count(),
        ranges=(list(only_here)[:RANGES_LISTED_MAX], list(only_there)[:RANGES_LISTED_MAX]),
        complete_up_to=(_claim(first), _claim(second)),
    )


def _claim(held: LaneState | None) -> int | None:
    return None if held is None else held.complete_up_to
