"""Summaries of all shards, for lists: an answer is made of them and walks no lanes.

A process makes the summaries of the shards that it holds, a small one when it is asked for and a large one every some
seconds. It stores those of its own large shards while other processes are there, so that a process that is asked about
shards of others need not load them. A summary in the store is a hint for people: no log, claim or right depends on it,
and one that is missing, too old, or from before a split is made again from the shard itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import time
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.clock import ADVICE, HubClock
from weft.cloud_hub.part import Part
from weft.cloud_hub.reads.edge_reports import EdgeReport, copies_of, disk_view, functions_view, pair_view, with_error
from weft.cloud_hub.reads.records import LOADING, named_shards
from weft.cloud_hub.reads.views import (
    SLICE_S,
    LaneFacts,
    StreamPart,
    StreamSummary,
    StreamTally,
    merged,
    reason_name,
    renamed_lanes,
    stream_parts,
)
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import CachedShard, Shards, conflict_views, open_gap_views
from weft.config.log_lines import Repeats, left_out
from weft.hub_api.answers import MissingShard, Moment, moment, moment_of
from weft.hub_api.edges import EdgeAlarm, EdgeAnswer, EdgeOfHub, LossesOfEdge, LossOfEdge
from weft.hub_api.status import ConflictOfLane, LostOfLane, OpenGapOfLane
from weft.protocols.chunk_index import StreamKey
from weft.protocols.lane import AUDIT_EDGE, AUDIT_TENANT, DOWN_STREAM, Lane, NodeName, format_log_id
from weft.protocols.segment import GapReason
from weft.protocols.shard.completeness import Completeness, HeldBack, LostRecords, Reason, Tally
from weft.protocols.shard.completeness import moment_of as moment_of_lane
from weft.protocols.shard.lane_state import LaneState, begins_at, follows, new_name
from weft.protocols.shard.placement import Split
from weft.protocols.shard.shard_state import ShardState
from weft.storage import hub_keys
from weft.storage.chunk_log import missing_shards
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed, StoreError

# Known edges: linked ones, and disconnected ones.
#
# An edge is known by its lanes in the folded state of its shard (one shard has all of an edge), so a list of edges
# reads no log. The release of an edge is not in that state. This process knows it for edges that were linked to it
# since it started.

# Not counted with each chunk: the fold is what limits a hub, and a chunk of a busy shard changes all lanes.
GIVEN_UP = {GapReason.BUDGET, GapReason.CORRUPTION, GapReason.EXPIRED}
"""Reasons of gaps that are losses: no one decided on them, and no other lane has the records."""
LOSSES_SHOWN_MAX = 8
"""Maximum number of an edge's gaps in a view, those with the most records."""
STREAMS_NAMED_MAX = 64
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
    lost: int | None = None
    """Number of records that the edge gave up (``GIVEN_UP``); None in a list of an earlier release."""
    gaps: Sequence[tuple[int, int, int, str, int]] = ()
    """Gaps that no other lane fills: records, first number, log, stream and reason; the largest, at most
    ``LOSSES_SHOWN_MAX``."""
    gaps_all: tuple[int, int] = (0, 0)
    """Number of such gaps, and of their records."""
    stream_names: Sequence[str] = ()
    """Names of its streams, at most ``STREAMS_NAMED_MAX``; empty in a list of an earlier release."""

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


def losses_view(row: EdgeRow) -> LossesOfEdge:
    """Return the gaps of an edge."""
    total, records = row.gaps_all
    return LossesOfEdge(
        tenant=row.tenant,
        edge=row.edge,
        shard=row.shard,
        last_seen=moment(row.last_seen or None),
        retired=row.is_retired,
        losses=[
            LossOfEdge(first, first + count, reason_name(reason), stream=stream, log=format_log_id(log))
            for count, first, log, stream, reason in row.gaps
        ],
        losses_more=total - len(row.gaps),
        records=records or row.lost or 0,
    )


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
    lost: Sequence[LostOfLane] = ()
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
        self._copies = copies_of(reports)
        self._last_release = last_release
        self._groups = groups

    def view(self, row: EdgeRow) -> EdgeOfHub:
        """Return the hub's view of an edge."""
        name = row.name
        link = self._linked.get(name)
        clock_off = None if link is None else link.clock_off
        report = self._reports.get(name)
        of_link = None if link is None else report
        alarms = [(with_error(worst, stream, of_link), count, stream) for worst, count, stream in row.alarms]
        return EdgeOfHub(
            tenant=name.tenant,
            edge=name.edge,
            shard=row.shard,
            logs=row.logs,
            streams=row.streams,
            last_seen=moment(row.last_seen or None),
            groups=list(self._groups(*name)),
            connected_since=None if link is None else moment_of(link.since),
            connected_at=None if link is None else link.at,
            software=self._last_release(name) if link is None else link.software,
            clock_off_seconds=None if clock_off is None else clock_off / 1e9,
            missing_records=row.missing,
            lost_records=UNSET if row.lost is None else row.lost,
            complete_up_to=moment(row.complete_up_to),
            retired=row.is_retired,
            disk=disk_view(report),
            pair=pair_view(report, self._copies.get(name, [])),
            alarms=[
                EdgeAlarm(
                    reason=worst.reason.value,
                    lanes=count,
                    stream=stream,
                    log=None if worst.log_id is None else format_log_id(worst.log_id),
                    since=moment(worst.since),
                    why=worst.why,
                    what_to_do=worst.advice,
                )
                for worst, count, stream in alarms
            ],
        )

    def answer(self, row: EdgeRow, unknown_at: Sequence[str]) -> EdgeAnswer:
        """Return the view of one edge, with what is too much for a list.

        Args:
            unknown_at: processes whose links are not known.
        """
        known = self._reports.get(row.name)
        report = None if known is None or not known.has_functions else known.report
        return EdgeAnswer(
            **msgspec.structs.asdict(self.view(row)),
            stream_names=list(row.stream_names),
            functions=None if report is None else functions_view(report),
            functions_more=0 if report is None else report.functions_more,
            links_unknown_at=list(unknown_at) or UNSET,
        )


class EdgeTally:
    """Facts about the lanes of one edge, added one by one."""

    def __init__(self, facts: LaneFacts) -> None:
        self._facts = facts
        self._last_seen = 0
        self._missing = self._lost = self._gap_records = 0
        self._gaps: list[tuple[int, int, int, str, int]] = []
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
        for gap in held.gaps:
            if gap.reason != GapReason.RENAMED:
                records = gap.end - gap.first
                self._gaps.append((records, gap.first, lane.log_id, lane.stream, int(gap.reason)))
                self._gap_records += records
                self._lost += records if gap.reason in GIVEN_UP else 0
        if not held.counts:
            return
        newest = held.newest_mark
        self._missing += max(held.ranges.end, newest.seq if newest else 0) - held.ranges.count()
        reached = moment_of_lane(held, peers=self._facts.peers)
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
            *name,
            shard,
            [format_log_id(log) for log in newest],
            len(self._streams),
            self._last_seen,
            self._missing,
            complete_up_to,
            self._is_retired,
            list(self._alarms.values()),
            self._lost,
            heapq.nlargest(LOSSES_SHOWN_MAX, self._gaps),
            (len(self._gaps), self._gap_records),
            sorted(self._streams)[:STREAMS_NAMED_MAX],
        )


# Completeness of a hub's streams: from the states of its shards, and the expected edges of the configuration.

SLICE_LANES = 500
"""Number of lanes walked without a pause: some milliseconds."""


class StreamCompleteness:
    """The moments of all streams.

    Args:
        shards: the shards that this process holds at present.
        known: every shard of the store, as far as this process knows it.
        expected: stream -> names and patterns of edges that it needs to be complete.
        wall_clock: nanoseconds since 1970.
        peers: whether another cluster may have records that this one lacks.
        table_error: returns the reason why a stream's table is not being updated; None if it is.
    """

    def __init__(
        self,
        shards: Iterable[Sequencer],
        expected: Mapping[StreamKey, tuple[str, ...]],
        clock: HubClock,
        *,
        known: Iterable[CachedShard] = (),
        peers: bool = False,
        table_error: Callable[[StreamKey], str | None] = lambda _: None,
    ) -> None:
        self._table_error = table_error
        self.peers = peers
        self._shards = shards
        self._known = known
        self._expected = expected
        self._clock = clock

    async def of(self, states: Sequence[ShardState], tenant: str, stream: str) -> Completeness:
        """Return the moment up to which a stream is complete, and the reasons that hold it back, without blocking the
        event loop.

        Chunks may be applied meanwhile: moments only advance, so an older one claims nothing false.

        Args:
            states: of all shards.
        """
        expected = self._expected.get((tenant, stream), ())
        ended = renamed_lanes(states, tenant, stream, peers=self.peers)
        tally = Tally(expected, self._clock.now(), peers=self.peers, behind=self.behind, lost=self.lost, renamed=ended)
        for state in states:
            for gap in state.open_gaps.get((tenant, stream), ()):
                tally.add_gap(gap)
            await asyncio.sleep(0)
            names = state.stream_lane_names(tenant, stream)
            for start in range(0, len(names), SLICE_LANES):
                for lane in names[start : start + SLICE_LANES]:
                    held = state.lanes.get(lane)
                    if held is not None:  # it has not left the state meanwhile
                        tally.add(lane, held)
                await asyncio.sleep(0)
        answer, error = tally.answer(), self._table_error((tenant, stream))
        if answer.slowest is not None:
            answer = answer._replace(held_back_by=[answer.slowest, *answer.held_back_by])
        if error is not None:
            answer = answer._replace(held_back_by=[_stopped_table(tenant, stream, error), *answer.held_back_by])
        if (wrong := self._clock.wrong()) is not None:
            # Which edges are silent, and which left as not seen for long, is by a clock.
            answer = answer._replace(complete_up_to=None, held_back_by=[_by_clock(wrong), *answer.held_back_by])
        return answer

    @property
    def facts(self) -> LaneFacts:
        """Return what is known of lanes beside their states at present."""
        return LaneFacts(self._clock.now(), self.peers, self.behind, self.lost)

    def expected(self, key: StreamKey) -> Sequence[str]:
        """Return the names and patterns of edges that a stream needs to be complete."""
        return self._expected.get(key, ())

    async def parts(self, states: Sequence[ShardState], tenant: str, stream: str) -> list[StreamPart]:
        """Return facts about a stream's lanes in each shard, without blocking the event loop."""
        key = tenant, stream
        return await stream_parts(states, key, self.expected(key), self.facts)

    def summary(self, parts: Sequence[StreamPart], key: StreamKey) -> StreamSummary:
        """Return facts about a stream's lanes, including its moment, from its parts of all shards."""
        found = merged(parts, self.expected(key))
        if (wrong := self._clock.wrong()) is None:
            return found
        return found._replace(complete_up_to=None, held_back_by=[_by_clock(wrong), *found.held_back_by])

    async def summarise(self, states: Sequence[ShardState], tenant: str, stream: str) -> StreamSummary:
        """Return facts about a stream's lanes, including its moment, without blocking the event loop."""
        return self.summary(await self.parts(states, tenant, stream), (tenant, stream))

    def expecting(self) -> dict[StreamKey, Callable[[], Awaitable[int | None]]]:
        """Return the streams with expected edges, each with a function that returns its moment."""
        return {key: partial(self._moment, *key) for key, edges in self._expected.items() if edges}

    async def _moment(self, tenant: str, stream: str) -> int | None:
        states = [shard.state for shard in self._known]
        moment = (await self.summarise(states, tenant, stream)).complete_up_to
        return None if missing_shards(states) else moment

    def lost(self, lane: Lane, held: LaneState) -> LostRecords | None:
        """Return the acknowledged records of a lane that this hub lacks, by a linked edge's account; None without
        any."""
        found = (sequencer.sessions.lost_of(lane, held) for sequencer in self._shards)
        return next((each for each in found if each is not None), None)

    def behind(self, lane: Lane) -> int | None:
        """Return the nanoseconds by which the clock of a linked edge was set back; None if it was not."""
        found = (sequencer.sessions.behind.get(lane) for sequencer in self._shards)
        return next((each for each in found if each is not None), None)


def _by_clock(wrong: str) -> HeldBack:
    return HeldBack("", None, Reason.HUB_CLOCK, None, None, wrong, ADVICE)


def _stopped_table(tenant: str, stream: str, error: str) -> HeldBack:
    """Return the reason for a reader of only the table: the moment is about the log."""
    return HeldBack(
        "",
        None,
        Reason.TABLE,
        None,
        None,
        f"the moment speaks of the log, and the table of {tenant}/{stream} is not being updated: {error}",
        "do what the error says; until then read the stream through the hub, not from the table alone",
    )


# The summary of one shard: its streams, its edges and its troubles, made by one walk over its lanes.
#
# A large shard's is made every some seconds by the process that owns it, which stores it for the others.

CONFLICTS_MAX = 1000
"""Maximum number of conflicts in a summary, and in an answer."""
BYTES_MAX = 32 << 20
"""Longest summary as it is stored: 65,536 edges with alarms have some 10 MB."""
DECODED_BYTES_MAX = 256 << 20


class Begun(msgspec.Struct, frozen=True, array_like=True):
    """A lane that began by a rename of its edge: the former name may be in another shard."""

    tenant: str
    stream: str
    log_id: int
    epoch: int
    seq: int
    """Its first sequence number."""
    edge: str = ""
    """Empty from a process of an earlier release: then it continues no other lane."""


class ShardSummary(msgspec.Struct, frozen=True, array_like=True):
    """A shard at one moment. It is in the store, so fields are only added, at the end."""

    shard: int
    n: int
    """Number of the last chunk that it counts."""
    at: int
    """Nanoseconds since 1970 by the hub's clock."""
    splits: list[Split]
    streams: list[StreamPart]
    """Parts by tenant and name, deleted ones included."""
    edges: list[EdgeRow]
    """Rows by tenant and name."""
    begun: list[Begun]
    conflicts: list[ConflictOfLane]
    conflicts_more: int
    open_gaps: list[OpenGapOfLane]
    """Those of retired lanes, the latest first."""
    open_gaps_more: int

    @property
    def lanes(self) -> int:
        """Return the number of the shard's lanes."""
        return sum(part.lanes for part in self.streams)


class Walk(NamedTuple):
    """The knowledge that a summary is made with.

    Args:
        facts: what is known beside the states.
        expected: names and patterns of edges that a stream needs to be complete.
        states: of the shards at hand, for lanes that ended by a rename.
        begun: lanes of other shards that began by a rename.
    """

    facts: LaneFacts
    expected: Callable[[StreamKey], Sequence[str]]
    states: Sequence[ShardState]
    begun: Iterable[Begun] = ()

    async def summary(self, state: ShardState, clock: Callable[[], float] = time.perf_counter) -> ShardSummary:
        """Return the summary of a shard, without blocking the event loop. Chunks may be applied meanwhile."""
        n, facts, ended = state.n, self.facts, _Ended(self)
        tallies: dict[StreamKey, StreamTally] = {}
        rows: list[EdgeRow] = []
        begun: list[Begun] = []
        began = clock()
        for name in state.edge_names():
            lanes = state.edge_lanes(*name)
            if not lanes:
                continue
            edge = EdgeTally(facts)
            for lane, held in lanes.items():
                is_renamed = held.last_word is not None and ended.by_rename(lane, held)
                key = lane.tenant, lane.stream
                if (tally := tallies.get(key)) is None:
                    tally = tallies[key] = StreamTally(facts)
                tally.add(lane, held, counts=held.counts and not is_renamed)
                if lane.stream != DOWN_STREAM:  # the hub's own lane: messages may wait for an edge that is gone
                    edge.add(lane, held, is_renamed=is_renamed)
                if held.gaps and (first := begins_at(held.gaps)):
                    begun.append(Begun(*key, lane.log_id, held.epoch, first, lane.edge))
            if name != (AUDIT_TENANT, AUDIT_EDGE):
                rows.append(edge.row(NodeName(*name), state.shard))
            if clock() - began >= SLICE_S:
                await asyncio.sleep(0)
                began = clock()
        for key in state.next_offset:
            tallies.setdefault(key, StreamTally(facts))
        conflicts, (gaps, gaps_more) = conflict_views([state]), open_gap_views([state])
        rows.sort(key=lambda row: row.name)
        return ShardSummary(
            state.shard,
            n,
            facts.now,
            list(state.splits),
            [tallies[key].part(state, key, self.expected(key)) for key in sorted(tallies)],
            rows,
            begun,
            conflicts[:CONFLICTS_MAX],
            max(0, len(conflicts) - CONFLICTS_MAX),
            gaps,
            gaps_more,
        )


class _Ended:
    """Lanes that ended by a rename, looked up by stream once."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._here: dict[StreamKey, set[Lane]] = {}
        # One look for each lane: a tenant may have very many of both.
        self._begun = {Lane(each.tenant, each.edge, each.log_id, each.stream): each for each in walk.begun}

    def by_rename(self, lane: Lane, held: LaneState) -> bool:
        peers = self._walk.facts.peers
        if not held.ended_in_order(peers=peers):
            return False
        key = lane.tenant, lane.stream
        if key not in self._here:
            self._here[key] = renamed_lanes(self._walk.states, *key, peers=peers)
        if lane in self._here[key]:
            return True
        begun = None if (named := new_name(lane, held)) is None else self._begun.get(named)
        return begun is not None and follows(begun.edge, begun.epoch, begun.seq, held)


def encode(summary: ShardSummary) -> bytes:
    """Return the object of a summary."""
    return zlib.compress(msgspec.msgpack.encode(summary), 1)


_DECODER = msgspec.msgpack.Decoder(ShardSummary)


def decode(data: bytes) -> ShardSummary:
    """Return the summary of an object.

    Raises:
        MsgspecError, zlib.error, ValueError: it holds something else.
    """
    if len(data) > BYTES_MAX:
        raise ValueError(f"{len(data)} bytes")
    inflate = zlib.decompressobj()
    plain = inflate.decompress(data, DECODED_BYTES_MAX)
    if inflate.unconsumed_tail:
        raise ValueError(f"more than {DECODED_BYTES_MAX} bytes")
    return _DECODER.decode(plain)


_logger = logging.getLogger(__name__)
SMALL_LANES_MAX = 512
"""Number of lanes up to which a shard is small: a walk over them takes some 5 ms, and to load it some 10 ms."""
SMALL_LANES_OF_ALL = 8_192
"""Number of lanes of all small shards together: of many shards, each is small with fewer lanes."""
SMALL_AGE_S_MAX = 0.25
"""Maximum age of a small shard's summary, while the shard has no new chunk."""
MAKE_S = 10.0
"""Shortest time between two summaries of a large shard."""
LANES_PER_S = 5_000
"""Number of lanes of large shards that a process walks a second on average: some 5 % of a core. One with 50,000 makes
its summaries each ten seconds, one with 200,000 each 40."""
READ_AGE_S = 5.0
"""Maximum age of what was read from the store."""
STORED_AGE_NS_MAX = 120 * 10**9
"""Age from which on a stored summary is not used: its shard's owner has been killed, or is slow."""
ASKED_S = 300.0
"""Time after a question for which a process that is alone keeps summaries of large shards ready."""
READS_AT_ONCE = 16


class Listed(NamedTuple):
    """The shards for a list."""

    summaries: list[ShardSummary]
    """Those of readable shards, by number."""
    missing: dict[int, str]
    """Numbers of the unreadable shards, with the reasons."""
    now: int
    """Nanoseconds since 1970 by the hub's clock."""

    @property
    def missing_shards(self) -> list[MissingShard] | UnsetType:
        """Return the unreadable shards as an answer names them."""
        return named_shards(self.missing)

    @property
    def as_of(self) -> Moment | UnsetType:
        """Return the moment that an answer is of; unset if it is of now."""
        oldest = min((each.at for each in self.summaries), default=self.now)
        return moment_of(oldest) if self.now - oldest > 10**9 else UNSET

    async def tenants(self) -> list[str]:
        """Return the tenants that have streams that are not deleted, by name. Others have a turn after each shard."""
        found = set[str]()
        for each in self.summaries:
            found.update(part.tenant for part in each.streams if part.is_there)
            await asyncio.sleep(0)
        return sorted(found)

    async def streams(self, tenant: str) -> dict[str, list[StreamPart]]:
        """Return a tenant's streams that are not deleted, by name, each with its parts by shard.

        Others have a turn after each shard, which has at most ``limits.streams_per_tenant`` of them.
        """
        found: dict[str, list[StreamPart]] = {}
        for each in self.summaries:
            first = bisect_left(each.streams, (tenant,), key=lambda part: (part.tenant,))
            for at in range(first, len(each.streams)):
                part = each.streams[at]
                if part.tenant != tenant:
                    break
                found.setdefault(part.stream, []).append(part)
            await asyncio.sleep(0)
        return {name: found[name] for name in sorted(found) if any(part.is_there for part in found[name])}

    @property
    def ages(self) -> dict[int, float]:
        """Return the age of each shard's summary in seconds."""
        return {each.shard: max(0, self.now - each.at) / 1e9 for each in self.summaries}


class _Made(NamedTuple):
    summary: ShardSummary
    at: float


class _Stored(NamedTuple):
    summary: ShardSummary | None
    etag: str
    read_at: float


class ShardSummaries(Part):
    """The summaries of one process. Event loop's thread only.

    Args:
        moments: completeness of streams, with what is known beside the states of lanes.
        others: returns whether other processes are there.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        shards: Shards,
        moments: StreamCompleteness,
        others: Callable[[], bool],
        monotonic: Callable[[], float],
    ) -> None:
        self._store, self._shards, self._moments, self._others = store, shards, moments, others
        self._monotonic = monotonic
        self._made: dict[int, _Made] = {}
        self._making: dict[int, asyncio.Task[_Made]] = {}
        self._stored: dict[int, _Stored] = {}
        self._etags: dict[int, str] = {}
        self._reading = asyncio.Lock()
        self._asked_at = float("-inf")
        self._repeats = Repeats()
        self._task = BackgroundTask()

    def start(self) -> None:
        """Keep summaries of large shards ready in the background."""
        self._task.start(self._run(), name="shard-summaries")

    async def close(self) -> None:
        """Stop. What is stored is too old for readers soon."""
        await self._task.close()
        for task in list(self._making.values()):
            task.cancel()

    async def own(self) -> Listed:
        """Return the process's own shards. None is missed."""
        return await self._listed(self._shards.own, [])

    async def every(self) -> Listed:
        """Return all shards. Those of other processes whose summary is not in the store are loaded."""
        held = await self._shards.held()
        others = [shard for shard in range(self._shards.count) if shard not in held]
        stored = await self._read(others)
        rest = [shard for shard in others if shard not in stored]
        loaded = await self._shards.these(rest) if rest else []
        return await self._listed([*held.values(), *loaded], list(stored.values()))

    async def _listed(self, sequencers: Iterable[Sequencer], stored: Sequence[ShardSummary]) -> Listed:
        self._asked_at = self._monotonic()
        found, missing = list(stored), dict[int, str]()
        for each in sequencers:
            if each.loaded:
                found.append(await self._local(each))
            else:
                missing[each.log.shard] = each.public_trouble or LOADING
        found.sort(key=lambda each: each.shard)
        missing = dict.fromkeys(missing_shards(found), LOADING) | missing
        return Listed(found, missing, self._moments.facts.now)

    async def _local(self, sequencer: Sequencer) -> ShardSummary:
        """Return the summary of a shard that is held here."""
        made, shard = self._made.get(sequencer.log.shard), sequencer.log.shard
        if made is not None and self._is_good(made, sequencer):
            return made.summary
        task = self._making.get(shard)
        if task is None:  # all who ask meanwhile wait for one walk
            task = self._making[shard] = asyncio.create_task(self._make(sequencer), name=f"summary-{shard}")
            task.add_done_callback(lambda _: self._making.pop(shard, None))
        return (await asyncio.shield(task)).summary

    def _is_good(self, made: _Made, sequencer: Sequencer) -> bool:
        age_s = self._monotonic() - made.at
        if len(sequencer.state.lanes) <= self._small_lanes:
            return age_s < SMALL_AGE_S_MAX and made.summary.n == sequencer.state.n
        # A look that comes late makes no request walk.
        return age_s < 2 * self._interval_s and made.summary.n <= sequencer.state.n

    @property
    def _small_lanes(self) -> int:
        return min(SMALL_LANES_MAX, SMALL_LANES_OF_ALL // self._shards.count)

    @property
    def _interval_s(self) -> float:
        small = self._small_lanes
        large = (made.summary.lanes for made in self._made.values() if made.summary.lanes > small)
        return max(MAKE_S, sum(large) / LANES_PER_S)

    async def _make(self, sequencer: Sequencer) -> _Made:
        states = [each.state for each in self._shards if each.loaded]
        begun = [each for stored in self._stored.values() if stored.summary for each in stored.summary.begun]
        walk = Walk(self._moments.facts, self._moments.expected, states, begun)
        at = self._monotonic()
        made = self._made[sequencer.log.shard] = _Made(await walk.summary(sequencer.state), at)
        return made

    async def _read(self, shards: Sequence[int]) -> dict[int, ShardSummary]:
        """Return the usable ones of stored summaries."""
        async with self._reading:
            now = self._monotonic()
            due = [
                each for each in shards if each not in self._stored or now - self._stored[each].read_at >= READ_AGE_S
            ]
            for at in range(0, len(due), READS_AT_ONCE):
                await asyncio.gather(*(self._read_one(shard, now) for shard in due[at : at + READS_AT_ONCE]))
        wall = self._moments.facts.now
        found = {shard: self._stored[shard].summary for shard in shards}
        return {shard: each for shard, each in found.items() if each is not None and self._is_usable(each, wall)}

    def _is_usable(self, summary: ShardSummary, now: int) -> bool:
        """Return whether a stored summary is new enough. One from before a split has edges that moved."""
        halved = {split.shard for split in summary.splits}
        return abs(now - summary.at) < STORED_AGE_NS_MAX and halved.issuperset(self._shards.children(summary.shard))

    async def _read_one(self, shard: int, now: float) -> None:
        known = self._stored.get(shard)
        try:
            found = await self._store.get(hub_keys.summary_key(shard))
            if known is not None and known.summary is not None and known.etag == found.etag:
                self._stored[shard] = known._replace(read_at=now)
                return
            summary = await asyncio.to_thread(decode, found.data)
            self._stored[shard] = _Stored(summary if summary.shard == shard else None, found.etag, now)
        except (NotFound, StoreError, msgspec.MsgspecError, zlib.error, ValueError):
            # Without an object the shard is small, or has no owner at present.
            self._stored[shard] = _Stored(None, "", now)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except StoreError as error:
                count = self._repeats.due("write", self._monotonic())
                if count is not None:
                    _logger.warning("other processes load shards for lists: %s%s", error, left_out(count))
            except Exception:  # without this task, every list would walk the lanes
                _logger.exception("a summary of a shard could not be made")
            await asyncio.sleep(MAKE_S)

    async def look(self) -> None:
        """Make the summaries of own large shards that are due, and store them if other processes are there.

        Raises:
            StoreError: the store did not answer.
        """
        now, others = self._monotonic(), self._others()
        is_asked = now - self._asked_at < ASKED_S
        held = {each.log.shard for each in self._shards}
        self._made = {shard: made for shard, made in self._made.items() if shard in held}
        if not is_asked:
            self._stored.clear()
        if not others and not is_asked:
            return
        for each in self._shards.own:
            if not each.loaded or len(each.state.lanes) <= self._small_lanes:
                continue
            made = self._made.get(each.log.shard)
            # Nearly as old counts: a look takes place each MAKE_S.
            if made is None or now - made.at >= self._interval_s - MAKE_S / 2:
                summary = (await self._make(each)).summary
                if others:
                    await self._write(summary)

    async def _write(self, summary: ShardSummary) -> None:
        key, data = hub_keys.summary_key(summary.shard), await asyncio.to_thread(encode, summary)
        etag = self._etags.pop(summary.shard, None)
        try:
            self._etags[summary.shard] = (
                await self._store.create(key, data) if etag is None else await self._store.swap(key, data, etag)
            )
        except (AlreadyExists, PreconditionFailed):  # of this shard's earlier owner, or of an attempt without an answer
            with contextlib.suppress(NotFound):
                self._etags[summary.shard] = (await self._store.get(key)).etag  # which the next summary replaces
