"""Marks of a producer's lanes: the moment up to which the derived stream is complete.

The driver sends them when every row of a micro-batch is durable, for all lanes of the query at once, so that no lane
claims a moment that another one has not reached.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from spark_sinks.blocking import run
from spark_sinks.errors import SinkError
from spark_sinks.sinks.stream.lane import Claim, ProducerLane
from spark_sinks.sinks.stream.last_record import held_epoch, lane_state, open_hub_store
from spark_sinks.sinks.stream.link import Link
from spark_sinks.sinks.stream.settings import ProducerSettings
from weft.protocols.lane import Lane
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.shard_state import ShardState
from weft.protocols.shard.spread import first_edge
from weft.storage.every_shard import first_logs, load_every_shard
from weft.storage.object_store import StoreError

NO_SHARD = -1
"""Number instead of a source shard, for the lane without records that only causes a commit."""
LINKS_MAX = 4
"""Maximum number of edges that get their marks at one time."""


def tell_marks(
    settings: ProducerSettings,
    moment: int,
    wall_clock: Callable[[], int] = time.time_ns,
    edges: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Send marks that the query's lanes are complete up to ``moment`` (ns since 1970); durable when this returns.

    Args:
        edges: edges of the query that have lanes, as an earlier call returned them; none makes it look in all shards.

    Returns:
        The edges of the query that have lanes.

    Raises:
        SinkError: the hub or its store does not answer, or refuses.
    """
    # A hub treats a mark of the future as one of the present.
    moment = min(moment, wall_clock())
    lanes = run(_lanes(settings, edges))
    behind: dict[str, list[Lane]] = {}
    for lane, held in lanes.items():
        if held.ranges and (held.newest_mark is None or held.newest_mark.time < moment):
            behind.setdefault(lane.edge, []).append(lane)
    with ThreadPoolExecutor(LINKS_MAX) as threads:
        told = [threads.submit(_tell, settings, edge, each, moment) for edge, each in sorted(behind.items())]
    for each in told:
        each.result()
    return frozenset(lane.edge for lane in lanes)


def _tell(settings: ProducerSettings, edge: str, lanes: Iterable[Lane], moment: int) -> None:
    """Send the marks of one edge. They claim no lane, so tasks need not take it over again."""
    link = Link(settings, lambda lane: run(held_epoch(settings, "", lane)), edge=edge)
    try:
        link.mark(moment, [ProducerLane(lane, 0, Claim.RELAY) for lane in lanes])
        # Marks are not acknowledged, and alone they wait for a commit for up to a minute. The hub commits the opening
        # of a lane at once, and with it the marks before it: all lanes of an edge are in one shard.
        link.open(ProducerLane(settings.lane(NO_SHARD)._replace(edge=edge)))
    finally:
        link.close()


async def _lanes(settings: ProducerSettings, edges: frozenset[str]) -> dict[Lane, LaneState]:
    """Return the query's lanes of the stream, under every spread."""
    if edges:
        # A task makes the lane of its shard at this spread; the others were there before, or their driver marks them.
        own = {settings.edge_at(place) for place in range(settings.spread)}
        at = [settings.lane(0)._replace(edge=edge) for edge in sorted(edges | own)]
        states = [state for _, state in await asyncio.gather(*(lane_state(settings, "", lane) for lane in at))]
    else:
        states = await _every_state(settings)
    return {
        lane: held
        for state in states
        for lane, held in state.stream_lanes(settings.tenant, settings.stream).items()
        if first_edge(lane.edge) == settings.edge
    }


async def _every_state(settings: ProducerSettings) -> list[ShardState]:
    store, cluster = await open_hub_store(settings, "")
    only = frozenset({(settings.tenant, settings.stream)})
    try:
        return [state for _, state in await load_every_shard(first_logs(store, cluster, tenant=settings.tenant), only)]
    except StoreError as error:
        raise SinkError(f"store {settings.store!r} does not answer: {error}") from error
