"""Known edges: linked ones, and disconnected ones.

An edge is known by its lanes in the folded state of its shard (one shard has all of an edge), so a list of edges reads
no log. The release of an edge is not in that state. This process knows it for edges that were linked to it since it
started.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from weft.cloud_hub.api.edge_reports import EdgeReport, disk_view, functions_view
from weft.cloud_hub.api.streams.summary import LaneFacts
from weft.cloud_hub.api.views import View, moment
from weft.protocols.lane import Lane, NodeName, format_log_id
from weft.protocols.shard.completeness import HeldBack, moment_of
from weft.protocols.shard.lane_state import LaneState

LOGS_SHOWN_MAX = 8
"""Maximum number of an edge's logs in a view, the most recently active first."""


class EdgeRow(msgspec.Struct, frozen=True, array_like=True):
    """Facts about an edge from the state of its shard. A list of them is in the store, so fields are only added, at the
    end."""

    tenant: str
    edge: str
    shard: int
    logs: list[str]
    """The most recently active first, at most ``LOGS_SHOWN_MAX``."""
    streams: int
    last_seen: int
    """Nanoseconds since 1970 by the hub's clock; 0 for never."""
    missing: int
    """Number of records that the edge has announced and the hub lacks."""
    complete_up_to: int | None
    is_retired: bool
    """True while every lane that is not empty is retired."""
    alarms: list[tuple[HeldBack, int, str]]
    """Reasons: the lane that one holds back the most, the number of its lanes, and that lane's stream."""

    @property
    def name(self) -> NodeName:
        """Return the names of the edge."""
        return NodeName(self.tenant, self.edge)


def edges_after(
    rows: Iterable[Sequence[EdgeRow]], tenant: str | None, after: str | None, limit: int
) -> tuple[list[EdgeRow], bool]:
    """Return edges in the order of tenant and name, and whether there are more.

    Args:
        rows: of each shard, in this order.
        tenant: only the edges of this tenant; None: of all.
        after: end of the previous page, as TENANT/EDGE.
    """
    floor = ("", "") if after is None else _names(after)
    if tenant is not None:
        floor = max(floor, (tenant, ""))
    parts = [_from(part, floor, tenant) for part in rows]
    found = list(islice(heapq.merge(*parts, key=_key), limit + 1))
    return found[:limit], len(found) > limit


def edge_of(rows: Iterable[Sequence[EdgeRow]], name: NodeName) -> EdgeRow | None:
    """Return an edge; None if there is none of that name.

    Args:
        rows: of each shard, in the order of tenant and name.
    """
    for part in rows:
        at = bisect_left(part, (name.tenant, name.edge), key=_key)
        if at < len(part) and part[at].name == name:
            return part[at]
    return None


def _from(rows: Sequence[EdgeRow], floor: tuple[str, str], tenant: str | None) -> Iterator[EdgeRow]:
    for at in range(bisect_right(rows, floor, key=_key), len(rows)):
        if tenant is not None and rows[at].tenant != tenant:
            return
        yield rows[at]


def _key(row: EdgeRow) -> tuple[str, str]:
    return row.tenant, row.edge


def _names(after: str) -> tuple[str, str]:
    tenant, _, edge = after.partition("/")
    return tenant, edge


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
    reports: Mapping[NodeName, EdgeReport] = {}
    """Last statements of edges to them about themselves."""
    lost: Sequence[View] = ()
    """Lanes of other processes' shards with acknowledged records that the hub lacks (``lost_views``)."""


class EdgeViews:
    """Views of edges for one request.

    Args:
        linked: the edges with a link.
        reports: what edges have said of themselves.
        last_release: release of an edge whose link has ended; None if unknown.
        groups: declared groups of an edge of a tenant.
    """

    def __init__(
        self,
        linked: Mapping[NodeName, Linked],
        reports: Mapping[NodeName, EdgeReport],
        last_release: Callable[[NodeName], str | None],
        *,
        groups: Callable[[str, str], Sequence[str]] = lambda *_: (),
    ) -> None:
        self._linked, self._reports = linked, reports
        self._last_release = last_release
        self._groups = groups

    def view(self, row: EdgeRow) -> View:
        """Return the hub's view of an edge."""
        name = row.name
        link = self._linked.get(name)
        clock_off = None if link is None else link.clock_off
        return {
            "tenant": name.tenant,
            "edge": name.edge,
            "shard": row.shard,
            "logs": row.logs,
            "streams": row.streams,
            "last_seen": moment(row.last_seen or None),
            "groups": list(self._groups(*name)),
            "connected_since": None if link is None else moment(link.since),
            "connected_at": None if link is None else link.at,
            "software": self._last_release(name) if link is None else link.software,
            "clock_off_seconds": None if clock_off is None else clock_off / 1e9,
            "missing_records": row.missing,
            "complete_up_to": moment(row.complete_up_to),
            "retired": row.is_retired,
            "disk": disk_view(self._reports.get(name)),
            "alarms": [
                {
                    "reason": worst.reason.value,
                    "lanes": count,
                    "stream": stream,
                    "log": None if worst.log_id is None else format_log_id(worst.log_id),
                    "since": moment(worst.since),
                    "why": worst.why,
                    "what_to_do": worst.advice,
                }
                for worst, count, stream in row.alarms
            ],
        }

    def whole_view(self, row: EdgeRow) -> View:
        """Return the view of one edge, with what is too much for a list."""
        return {**self.view(row), **functions_view(self._reports.get(row.name))}


class EdgeTally:
    """Facts about the lanes of one edge, added one by one."""

    def __init__(self, facts: LaneFacts) -> None:
        self._facts = facts
        self._last_seen = 0
        self._missing = 0
        self._is_retired = True
        self._streams: set[str] = set()
        self._seen: dict[int, int] = {}
        self._earliest: int | None = None
        self._is_known = True
        self._counts = False
        self._alarms: dict[str, tuple[HeldBack, int, str]] = {}

    def add(self, lane: Lane, held: LaneState, *, is_renamed: bool) -> None:
        """Add a lane.

        Args:
            is_renamed: whether it ended by a rename, and so holds nothing back.
        """
        self._streams.add(lane.stream)
        self._last_seen = max(self._last_seen, held.last_seen)
        self._seen[lane.log_id] = max(self._seen.get(lane.log_id, 0), held.last_seen)
        self._is_retired &= held.retired is not None
        if not held.counts:
            return
        newest = held.newest_mark
        self._missing += max(held.ranges.end, newest.seq if newest else 0) - held.ranges.count()
        reached = moment_of(held, peers=self._facts.peers)
        self._counts = True
        if reached is None:
            self._is_known = False
        elif self._earliest is None or reached < self._earliest:
            self._earliest = reached
        alarm = None if is_renamed else self._facts.held_back(lane, held)
        if alarm is not None:
            worst, count, stream = self._alarms.get(alarm.reason, (alarm, 0, lane.stream))
            if (alarm.up_to or 0) < (worst.up_to or 0):
                worst, stream = alarm, lane.stream
            self._alarms[alarm.reason] = (worst, count + 1, stream)

    def row(self, name: NodeName, shard: int) -> EdgeRow:
        """Return the facts."""
        newest = sorted(self._seen, key=lambda log: -self._seen[log])[:LOGS_SHOWN_MAX]
        complete_up_to = self._earliest if self._is_known and self._counts else None
        return EdgeRow(
            *name, shard, [format_log_id(log) for log in newest], len(self._streams), self._last_seen, self._missing,
            complete_up_to, self._is_retired, list(self._alarms.values()),
        )  # fmt: skip
