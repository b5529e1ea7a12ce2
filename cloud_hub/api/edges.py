"""Known edges: linked ones, and disconnected ones.

An edge is known by its lanes in the folded state of its shard (one shard has all of an edge), so a list of edges reads
no log and no store. The release of an edge is not in that state. This process knows it for edges that were linked to it
since it started.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from weft.cloud_hub.api.pages import SLICE_S
from weft.cloud_hub.api.streams.summary import renamed_lanes
from weft.cloud_hub.api.views import View, moment
from weft.cloud_hub.shard.message_lanes import AUDIT_EDGE, AUDIT_TENANT, DOWN_STREAM
from weft.protocols.lane import Lane, NodeName, format_log_id
from weft.protocols.shard.completeness import Behind, HeldBack, LostOf, held_back, moment_of
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.shard_state import ShardState, StreamKey

SLICE_EDGES = 5_000
"""Number of names that are processed without a pause: some milliseconds."""
LOGS_SHOWN_MAX = 8
"""Maximum number of an edge's logs in a view, the most recently active first."""


class EdgeOf(NamedTuple):
    """An edge, and the state of the shard that has its lanes."""

    name: NodeName
    state: ShardState


async def edges_after(
    states: Sequence[ShardState], tenant: str | None, after: str | None, limit: int
) -> tuple[list[EdgeOf], bool]:
    """Return edges in the order of tenant and name, and whether there are more.

    Args:
        tenant: only the edges of this tenant; None: of all.
        after: end of the previous page, as TENANT/EDGE.
    """
    floor = ("", "") if after is None else tuple(after.split("/", 1))
    found: list[tuple[tuple[str, str], int]] = []
    for at, state in enumerate(states):
        names = state.edge_names()
        for start in range(0, len(names), SLICE_EDGES):
            some = [
                (name, at)
                for name in names[start : start + SLICE_EDGES]
                if name > floor
                and (tenant is None or name[0] == tenant)
                and state.lane_count(*name)
                and name != (AUDIT_TENANT, AUDIT_EDGE)
            ]
            found = sorted([*found, *some])[: limit + 1]
            await asyncio.sleep(0)
    return [EdgeOf(NodeName(*name), states[at]) for name, at in found[:limit]], len(found) > limit


class Linked(NamedTuple):
    """The link of an edge to a hub process."""

    since: int
    """Time of its connection, nanoseconds since 1970."""
    software: str
    clock_off: int | None
    """Nanoseconds by which the edge's clock was ahead then; None while nothing vouches for it, and of other
    processes."""
    at: str
    """Name of the process."""


class LinksElsewhere(NamedTuple):
    """Edges that are linked to other processes of the store."""

    edges: Mapping[NodeName, Linked]
    unknown_at: Sequence[str]
    """Processes whose links are not known."""
    lost: Sequence[View] = ()
    """Lanes of other processes' shards with acknowledged records that the hub lacks (``lost_views``)."""


class EdgeViews:
    """Views of edges, one after the other, for one request.

    Args:
        states: states of all readable shards; the two names of a renamed edge may be in different ones.
        linked: the edges with a link.
        last_release: release of an edge whose link has ended; None if unknown.
        now: nanoseconds since 1970 by the hub's clock.
        peers: whether another cluster may have records that this one lacks.
        behind: step of the clock, for lanes whose edges are linked to this node (``completeness``).
        lost: acknowledged records of a lane that this hub lacks (``completeness``).
        groups: declared groups of an edge of a tenant.
    """

    def __init__(
        self,
        states: Sequence[ShardState],
        linked: Mapping[NodeName, Linked],
        last_release: Callable[[NodeName], str | None],
        now: int,
        *,
        peers: bool,
        behind: Behind,
        lost: LostOf = lambda *_: None,
        groups: Callable[[str, str], Sequence[str]] = lambda *_: (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._states = states
        self._linked = linked
        self._last_release = last_release
        self._now = now
        self._peers = peers
        self._behind = behind
        self._lost = lost
        self._groups = groups
        self._renamed: dict[StreamKey, set[Lane]] = {}
        self._clock = clock

    async def view(self, edge: EdgeOf) -> View:
        """Return the hub's view of an edge; lanes with many ranges are counted in slices."""
        name, began = edge.name, self._clock()
        known = _EdgeFacts()
        # The hub's own lane says nothing about the edge: messages may wait for one that is gone.
        lanes = [each for each in edge.state.edge_lanes(*name).items() if each[0].stream != DOWN_STREAM]
        for lane, held in lanes:
            known.add(lane, held, self._peers, self._alarm(lane, held))
            if self._clock() - began >= SLICE_S:
                await asyncio.sleep(0)
                began = self._clock()
        link = self._linked.get(name)
        clock_off = None if link is None else link.clock_off
        return {
            "tenant": name.tenant,
            "edge": name.edge,
            "shard": edge.state.shard,
            "logs": [format_log_id(log) for log in known.newest_logs()],
            "streams": len({lane.stream for lane, _ in lanes}),
            "last_seen": moment(known.last_seen or None),
            "groups": list(self._groups(*name)),
            "connected_since": None if link is None else moment(link.since),
            "connected_at": None if link is None else link.at,
            "software": self._last_release(name) if link is None else link.software,
            "clock_off_seconds": None if clock_off is None else clock_off / 1e9,
            "missing_records": known.missing,
            "complete_up_to": moment(known.complete_up_to),
            "retired": known.is_retired,
            "alarms": known.alarms(),
        }

    def _alarm(self, lane: Lane, held: LaneState) -> HeldBack | None:
        if not held.counts or (held.ended_in_order() and lane in self._renamed_of(lane.tenant, lane.stream)):
            return None
        return held_back(lane, held, self._now, peers=self._peers, behind=self._behind, lost=self._lost)

    def _renamed_of(self, tenant: str, stream: str) -> set[Lane]:
        found = self._renamed.get((tenant, stream))
        if found is None:
            found = self._renamed[tenant, stream] = renamed_lanes(self._states, tenant, stream, peers=self._peers)
        return found


class _EdgeFacts:
    """Facts about the lanes of one edge, added one by one."""

    def __init__(self) -> None:
        self.last_seen = 0
        self.missing = 0
        """Number of records that the edge has announced and the hub lacks."""
        self.is_retired = True
        """True while every lane that is not empty is retired."""
        self._seen: dict[int, int] = {}
        self._earliest: int | None = None
        self._is_known = True
        self._counts = False
        self._alarms: dict[str, tuple[HeldBack, str, int]] = {}
        """Reason -> the lane that it holds back the most, that lane's stream, and the number of lanes."""

    def add(self, lane: Lane, held: LaneState, peers: bool, alarm: HeldBack | None) -> None:
        """Add a lane."""
        self.last_seen = max(self.last_seen, held.last_seen)
        self._seen[lane.log_id] = max(self._seen.get(lane.log_id, 0), held.last_seen)
        self.is_retired &= held.retired is not None
        if not held.counts:
            return
        newest = held.newest_mark
        self.missing += max(held.ranges.end, newest.seq if newest else 0) - held.ranges.count()
        reached = moment_of(held, peers=peers)
        self._counts = True
        if reached is None:
            self._is_known = False
        elif self._earliest is None or reached < self._earliest:
            self._earliest = reached
        if alarm is not None:
            worst, stream, count = self._alarms.get(alarm.reason, (alarm, lane.stream, 0))
            if (alarm.up_to or 0) < (worst.up_to or 0):
                worst, stream = alarm, lane.stream
            self._alarms[alarm.reason] = (worst, stream, count + 1)

    @property
    def complete_up_to(self) -> int | None:
        """Return the moment up to which the hub has all of the edge; None if unknown."""
        return self._earliest if self._is_known and self._counts else None

    def newest_logs(self) -> Iterable[int]:
        """Return the ids of the edge's logs, the most recently active first."""
        return sorted(self._seen, key=lambda log: -self._seen[log])[:LOGS_SHOWN_MAX]

    def alarms(self) -> list[View]:
        """Return the alarms of the edge: an entry for each reason, with the lane that it holds back the most."""
        return [
            {
                "reason": worst.reason.value,
                "lanes": count,
                "stream": stream,
                "log": None if worst.log_id is None else format_log_id(worst.log_id),
                "since": moment(worst.since),
                "why": worst.why,
                "what_to_do": worst.advice,
            }
            for worst, stream, count in self._alarms.values()
        ]
