"""Marks of a producer's lanes: the moment up to which the derived stream is complete.

The driver sends them when every row of a micro-batch is durable, for all lanes of the query at once, so that no lane
claims a moment that another one has not reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_sinks.blocking import run
from spark_sinks.sinks.stream.lane import ProducerLane
from spark_sinks.sinks.stream.last_record import held_epoch, lane_state
from spark_sinks.sinks.stream.link import Link
from spark_sinks.sinks.stream.settings import ProducerSettings
from weft.protocols.lane import Lane
from weft.protocols.shard.shard_state import ShardState

NO_SHARD = -1
"""Number instead of a source shard, for the lane without records that only causes a commit."""


def tell_marks(settings: ProducerSettings, moment: int, wall_clock: Callable[[], int] = time.time_ns) -> None:
    """Send marks that the query's lanes are complete up to ``moment`` (ns since 1970); durable when this returns.

    Raises:
        SinkError: the hub or its store does not answer, or refuses.
        Superseded: another run of the query is sending.
    """
    # A hub treats a mark of the future as one of the present.
    moment = min(moment, wall_clock())
    _, state = run(lane_state(settings, "", settings.lane(0)))
    behind = _behind(settings, state, moment)
    if not behind:
        return
    link = Link(settings, lambda lane: run(held_epoch(settings, "", lane)))
    try:
        link.mark(moment, [ProducerLane(lane, state.lanes[lane].epoch) for lane in behind])
        # Marks are not acknowledged, and alone they wait for a commit for up to a minute. The hub commits the opening
        # of a lane at once, and with it the marks before it: all lanes of an edge are in one shard.
        link.open(ProducerLane(settings.lane(NO_SHARD)))
    finally:
        link.close()


def _behind(settings: ProducerSettings, state: ShardState, moment: int) -> list[Lane]:
    """Return the query's lanes with records whose newest mark is before ``moment``."""
    lanes = state.stream_lanes(settings.tenant, settings.stream)
    return [
        lane for lane, held in lanes.items()
        if lane.edge == settings.edge and held.ranges
        and (held.newest_mark is None or held.newest_mark.time < moment)
    ]  # fmt: skip
