"""Clocks of the logs on one link: an edge's own, and those of nodes that it relays for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.cloud_hub.shard.clock_notices import ClockNotices
from weft.cloud_hub.shard.lane_session import LaneSession
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.protocols.chunk import ClockUpdate
from weft.protocols.lane import Lane, NodeName
from weft.protocols.link import Clock
from weft.protocols.ranges import Range
from weft.protocols.shard.shard_state import BOOTS_MAX

LOGS_AT_ONCE = 256
"""Number of logs with one id that get a clock notice without a pause. Two nodes have the same id only on purpose."""


class OpenedLane(NamedTuple):
    """An open lane of a link."""

    session: LaneSession
    sequencer: Sequencer
    acknowledged: Sequence[Range] = ()
    """Records that this hub had acknowledged before, by the edge's account."""


@dataclass(slots=True)
class _Log:
    """One log with open lanes on the link."""

    clocks: ClockNotices = field(default_factory=ClockNotices)
    lanes: dict[int, OpenedLane] = field(default_factory=dict)


class LinkClocks:
    """The clock notices of one link, for the chunks with batches of their boots."""

    def __init__(self) -> None:
        self._clocks: dict[tuple[int, int], Clock] = {}
        """(log id, boot) -> the edge's clock notice."""
        self._logs: dict[int, dict[NodeName, _Log]] = {}
        """Log id -> logs of the open lanes: a node's own, and relayed ones."""

    def notices(self, lane: Lane) -> ClockNotices:
        """Return the notices of a lane's log."""
        return self._log_of(lane).clocks

    def add(self, number: int, opened: OpenedLane) -> None:
        """Add an open lane; the first of a log gets the notices that came before."""
        log = self._log_of(opened.session.lane)
        log.lanes[number] = opened
        for clock in self._clocks.values() if len(log.lanes) == 1 else ():
            _put_clock(opened, clock)

    def take_out(self, number: int, lane: Lane) -> None:
        """Remove a lane, and its log with the last one."""
        log = self._log_of(lane)
        log.lanes.pop(number, None)
        if not log.lanes:
            del self._logs[lane.log_id][NodeName(lane.tenant, lane.edge)]
            if not self._logs[lane.log_id]:
                del self._logs[lane.log_id]

    async def put(self, clock: Clock) -> None:
        """Store a measurement of the edge's clock, for the chunks with batches of that boot."""
        if len(self._clocks) < BOOTS_MAX or (clock.log_id, clock.boot) in self._clocks:
            self._clocks[clock.log_id, clock.boot] = clock
        for at, log in enumerate(list(self._logs.get(clock.log_id, {}).values()), 1):
            if (opened := next(iter(log.lanes.values()), None)) is not None:
                _put_clock(opened, clock)
            if at % LOGS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _log_of(self, lane: Lane) -> _Log:
        return self._logs.setdefault(lane.log_id, {}).setdefault(NodeName(lane.tenant, lane.edge), _Log())


def _put_clock(opened: OpenedLane, clock: Clock) -> None:
    lane = opened.session.lane
    if lane.log_id == clock.log_id:
        notice = ClockUpdate(*lane[:3], clock.boot, clock.monotonic, clock.offset, clock.error)
        opened.sequencer.put_clock(opened.session, notice)
