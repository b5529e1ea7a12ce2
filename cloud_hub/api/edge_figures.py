"""Figures of edges for the metrics: how many the hub knows, how many are silent and for how long, how many have alarms,
and how many have a disk that lasts for few hours.

Ten thousand edges are ten thousand reasons not to have a series of each: these are 17, however many edges there are.
Each process counts the edges of its own shards, so that sums over all processes are those of the hub. Lanes are walked
in slices, at most once in ``REFRESH_S``, and only when metrics are requested.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator

from weft.cloud_hub.api.edge_reports import outage_left
from weft.cloud_hub.api.edges import LinksElsewhere
from weft.cloud_hub.api.streams.summary import renamed_lanes
from weft.cloud_hub.shard.message_lanes import AUDIT_EDGE, AUDIT_TENANT, DOWN_STREAM
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.config.metrics.exposition import Sample
from weft.protocols.lane import Lane, NodeName
from weft.protocols.shard.completeness import SILENT_NS, Reason, held_back
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.shard_state import StreamKey

REFRESH_S = 15.0
"""Maximum age of figures: about the interval of a scraper."""
SLICE_LANES = 1_000
"""Number of lanes walked without a pause: about a millisecond."""
AGES = {"4m": SILENT_NS, "1h": 3600 * 10**9, "1d": 86_400 * 10**9, "7d": 7 * 86_400 * 10**9}
"""Label -> time for which nothing was heard of an edge. An edge counts at each that it has reached."""
OUTAGES = {"4h": 4 * 3600, "1d": 86_400}
"""Label -> seconds. An edge whose disk lasts for less counts at each."""
REPORTS_AGE_S = 60.0
"""Maximum age of what other processes tell of edges, which they write as often."""
ALARMS = (
    Reason.CONFLICT, Reason.NO_MARK, Reason.HOLE, Reason.ABSENT, Reason.LOST, Reason.CLOCK, Reason.SILENT,
)  # fmt: skip
"""Reasons of lanes that hold an edge back."""


class EdgeFigures:
    """The figures of the edges of this process's own shards.

    Args:
        own: returns these shards.
        now: nanoseconds since 1970 by the hub's clock.
        monotonic: seconds.
        peers: whether another cluster may have records that this one lacks.
        told: returns which edges are linked to any process, and the last report of each.
    """

    def __init__(
        self,
        own: Callable[[], Iterable[Sequencer]],
        now: Callable[[], int],
        monotonic: Callable[[], float],
        *,
        peers: bool,
        told: Callable[[], Awaitable[LinksElsewhere]],
    ) -> None:
        self._own, self._now, self._monotonic, self._peers, self._told = own, now, monotonic, peers, told
        self._refreshing = asyncio.Lock()
        self._refreshed_at: float | None = None
        self._edges = 0
        self._silent = Counter[str]()
        self._alarms = Counter[Reason]()
        self._short = Counter[tuple[str, bool]]()
        self._unknown = 0

    async def refresh(self) -> None:
        """Count again when the figures are older than ``REFRESH_S``. Concurrent callers wait for it."""
        async with self._refreshing:
            began = self._monotonic()
            if self._refreshed_at is None or began - self._refreshed_at >= REFRESH_S:
                await self._count()
                self._refreshed_at = began

    def samples(self) -> Iterator[Sample]:
        """Yield the figures as of the last ``refresh``."""
        yield Sample("weft_hub_edges", self._edges)
        for age in AGES:
            yield Sample("weft_hub_edges_silent", self._silent[age], (age,))
        for reason in ALARMS:
            yield Sample("weft_hub_edges_in_alarm", self._alarms[reason], (reason.value,))
        for under in OUTAGES:
            for is_linked in (True, False):
                labels = under, str(int(is_linked))
                yield Sample("weft_hub_edges_outage_left_short", self._short[under, is_linked], labels)
        yield Sample("weft_hub_edges_outage_left_unknown", self._unknown)

    async def _count(self) -> None:
        told = await self._told()
        now, edges, unknown = self._now(), 0, 0
        silent, alarms, short = Counter[str](), Counter[Reason](), Counter[tuple[str, bool]]()
        for sequencer in [each for each in self._own() if each.loaded]:
            state = sequencer.state
            seen: dict[NodeName, int] = {}
            in_alarm = dict[Reason, set[NodeName]]()
            ended: dict[StreamKey, set[Lane]] = {}
            # Copies, since chunks are applied between slices.
            lanes, states = list(state.lanes), list(state.lanes.values())
            for start in range(0, len(lanes), SLICE_LANES):
                end = start + SLICE_LANES
                for lane, held in zip(lanes[start:end], states[start:end], strict=True):
                    name = NodeName(lane.tenant, lane.edge)
                    if lane.stream == DOWN_STREAM or held.retired is not None or name == (AUDIT_TENANT, AUDIT_EDGE):
                        continue
                    if held.last_seen > seen.get(name, -1):
                        seen[name] = held.last_seen
                    if (reason := self._reason(sequencer, lane, held, now, ended)) is not None:
                        in_alarm.setdefault(reason, set()).add(name)
                await asyncio.sleep(0)
            edges += len(seen)
            for age, limit in AGES.items():
                silent[age] += sum(now - last >= limit for last in seen.values())
            for reason, names in in_alarm.items():
                alarms[reason] += len(names)
            for name in seen:
                is_linked = name in told.edges
                left = outage_left(told.reports.get(name), now, is_linked=is_linked)
                unknown += left is None
                for under, limit in OUTAGES.items():
                    short[under, is_linked] += left is not None and left < limit
        self._edges, self._silent, self._alarms = edges, silent, alarms
        self._short, self._unknown = short, unknown

    def _reason(
        self, sequencer: Sequencer, lane: Lane, held: LaneState, now: int, ended: dict[StreamKey, set[Lane]]
    ) -> Reason | None:
        if not held.counts:
            return None
        sessions = sequencer.sessions
        if held.ended_in_order():
            key = lane.tenant, lane.stream
            if key not in ended:
                ended[key] = renamed_lanes([sequencer.state], *key, peers=self._peers)
            if lane in ended[key]:
                return None
        found = held_back(lane, held, now, peers=self._peers, behind=sessions.behind.get, lost=sessions.lost_of)
        return None if found is None else found.reason
