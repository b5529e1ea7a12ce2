"""The hub's figures for Prometheus, read from the counters at each scrape."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from weft.bounds import Refusals, Shares
from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.part import Part
from weft.cloud_hub.reads.edge_reports import outage_left
from weft.cloud_hub.reads.summaries import LinksElsewhere
from weft.cloud_hub.reads.views import StreamPart, renamed_lanes
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import ShardCache
from weft.config.metrics import exposition
from weft.config.metrics.exposition import AnySample, Sample, build_info
from weft.config.metrics.hub import HUB_METRICS
from weft.protocols.chunk_index import StreamKey
from weft.protocols.lane import AUDIT_EDGE, AUDIT_TENANT, DOWN_STREAM, Lane, NodeName, is_hubs_own
from weft.protocols.shard.completeness import SILENT_NS, Reason, held_back, moment_of
from weft.protocols.shard.lane_state import LaneState
from weft.storage.chunk_log import missing_shards

if TYPE_CHECKING:
    from weft.storage.table_writer.service import TableService


# Figures of edges for the metrics: how many the hub knows, how many are silent and for how long, how many have
# alarms, and how many have a disk that lasts for few hours.
#
# Ten thousand edges are ten thousand reasons not to have a series of each: these are 17, however many edges there
# are. Each process counts the edges of its own shards, so that sums over all processes are those of the hub. Lanes
# are walked in slices, at most once in ``EDGES_REFRESH_S``, and only when metrics are requested.

EDGES_REFRESH_S = 15.0
"""Maximum age of figures: about the interval of a scraper."""
EDGES_SLICE_LANES = 1_000
"""Number of lanes walked without a pause: about a millisecond."""
AGES = {"4m": SILENT_NS, "1h": 3600 * 10**9, "1d": 86_400 * 10**9, "7d": 7 * 86_400 * 10**9}
"""Label -> time for which nothing was heard of an edge. An edge counts at each that it has reached."""
OUTAGES = {"4h": 4 * 3600, "1d": 86_400}
"""Label -> seconds. An edge whose disk lasts for less counts at each."""
REPORTS_AGE_S = 60.0
"""Maximum age of what other processes tell of edges, which they write as often."""
ALARMS = (
    Reason.CONFLICT,
    Reason.NO_MARK,
    Reason.NOT_STARTED,
    Reason.HOLE,
    Reason.ABSENT,
    Reason.LOST,
    Reason.CLOCK,
    Reason.SILENT,
)
"""Reasons of lanes that hold an edge back."""


class EdgeFigures(Part):
    """The figures of the edges of this process's own shards.

    Args:
        own: returns these shards.
        now: nanoseconds since 1970 by the hub's clock.
        monotonic: seconds.
        peers: whether another cluster may have records that this one lacks.
        links: returns which edges are linked to any process, and the last report of each.
    """

    def __init__(
        self,
        own: Callable[[], Iterable[Sequencer]],
        now: Callable[[], int],
        monotonic: Callable[[], float],
        *,
        peers: bool,
        links: Callable[[], Awaitable[LinksElsewhere]],
    ) -> None:
        self._own, self._now, self._monotonic, self._peers, self._links = own, now, monotonic, peers, links
        self._refreshing = asyncio.Lock()
        self._refreshed_at: float | None = None
        self._edges = 0
        self._silent = Counter[str]()
        self._alarms = Counter[Reason]()
        self._short = Counter[tuple[str, bool]]()
        self._unknown = 0

    async def refresh(self) -> None:
        """Count again when the figures are older than ``EDGES_REFRESH_S``. Concurrent callers wait for it."""
        async with self._refreshing:
            began = self._monotonic()
            if self._refreshed_at is None or began - self._refreshed_at >= EDGES_REFRESH_S:
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
        linked = await self._links()
        now, edges, unknown = self._now(), 0, 0
        silent, alarms, short = Counter[str](), Counter[Reason](), Counter[tuple[str, bool]]()
        for sequencer in [each for each in self._own() if each.loaded]:
            state = sequencer.state
            seen: dict[NodeName, int] = {}
            in_alarm = dict[Reason, set[NodeName]]()
            ended: dict[StreamKey, set[Lane]] = {}
            # Copies, since chunks are applied between slices.
            lanes, states = list(state.lanes), list(state.lanes.values())
            for start in range(0, len(lanes), EDGES_SLICE_LANES):
                end = start + EDGES_SLICE_LANES
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
                # Apart by link: a small disk under a link that keeps up can wait, so alerts ask for the others.
                is_linked = name in linked.edges
                left = outage_left(linked.reports.get(name), now, is_linked=is_linked)
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


# Figures by stream for the metrics: records in the log, lag of the tables, completeness.
#
# A hub of 10,000 edges with 20 streams holds 200,000 lanes. Walking them takes a good part of a second, during which
# the hub could not serve links. So they are walked in slices, between which the event loop does other work, at most
# once in ``STREAMS_REFRESH_S``, and only when metrics are requested. Nothing is read for them: other processes' shards
# are known from the last round of the tables.

STREAMS_REFRESH_S = 5.0
"""Maximum age of figures, less than the interval of any scraper."""
STREAMS_SLICE_LANES = 2_000
"""Number of lanes walked without a pause: about a millisecond."""
LAG_INTERVAL_S = 5.0
"""Interval at which log positions are noted: the precision of the lag in seconds."""
STREAMS_MAX = 500
"""Maximum number of streams with figures of their own; each is four series in Prometheus."""
STREAMS_OF_TENANT_MAX = 400
"""Maximum number of these streams for one tenant, so that others still have some."""
OTHERS = ("(other)", "(other)")
"""Tenant and stream for the sums of all other streams. No stream can have this name."""
NOTES_MAX = 256
_UNKNOWN = -(1 << 63)
"""A value below every moment, so that the earliest of several is unknown if one of them is."""


class StreamFigure(NamedTuple):
    """The current figures of one stream."""

    tenant: str
    stream: str
    records: int
    complete_up_to: int | None
    """Nanoseconds since 1970; None while an edge has not reported, or a shard is not loaded."""
    lag_records: int | None
    """Records that are not table rows yet; None while this node does not know it."""
    lag_seconds: float | None
    """None when this node does not keep tables."""


class TableLag:
    """The waiting time of the oldest record without a table row. Records become rows in order.

    ``now`` is monotonic seconds.
    """

    def __init__(self) -> None:
        self._notes: deque[tuple[float, int]] = deque()
        """Times at which the log was first seen with a number of records, while not all of them are rows."""
        self._noted = 0

    def note(self, now: float, records: int, rows: int) -> None:
        """Note the number of records in the log and the number of rows."""
        if records > self._noted:
            self._notes.append((now, records))
            self._noted = records
        while self._notes and rows >= self._notes[0][1]:
            self._notes.popleft()
        if len(self._notes) > NOTES_MAX:
            # The oldest note remains, since the lag is counted from it. Later notes become coarser.
            self._notes = deque(list(self._notes)[::2])

    def seconds(self, now: float) -> float:
        """Return the lag with a precision of ``LAG_INTERVAL_S``; 0 if the table has everything."""
        return now - self._notes[0][0] if self._notes else 0.0


class StreamFigures(Part):
    """The figures of all streams of a hub node.

    Args:
        shards: every shard of the store, as far as this process knows it.
        tables: the tables; None if another process keeps them.
        clock: the node's; while it is wrong, no stream is complete up to any time.
        monotonic: seconds.
        expected: returns the streams with expected edges at present, each with its moment.
        peers: whether another cluster may have records that this one lacks.
    """

    def __init__(
        self,
        shards: ShardCache,
        tables: TableService | None,
        clock: HubClock,
        monotonic: Callable[[], float],
        expected: Callable[[], Mapping[StreamKey, Callable[[], Awaitable[int | None]]]] = dict,
        *,
        peers: bool = False,
    ) -> None:
        self.figures: list[StreamFigure] = []
        """Figures as of the last ``refresh``."""
        self._shards = shards
        self._tables, self._clock = tables, clock
        self._monotonic = monotonic
        self._expected = expected
        self._peers = peers
        self._refreshing = asyncio.Lock()
        self._refreshed_at: float | None = None
        self._named: Shares[str] = Shares(STREAMS_MAX, STREAMS_OF_TENANT_MAX)
        self._labels: dict[StreamKey, StreamKey] = {}
        """Streams in the order of their first appearance, so that a stream with series keeps them."""
        self._lags: dict[StreamKey, TableLag] = {}
        self._task = BackgroundTask()

    def start(self) -> None:
        """Start noting the tables' positions."""
        if self._tables is not None:
            self._task.start(self._note_lags(), name="table-lag")

    async def close(self) -> None:
        """Stop noting the tables' positions."""
        await self._task.close()

    async def refresh(self) -> None:
        """Update ``figures`` when they are older than ``STREAMS_REFRESH_S``. Concurrent callers wait."""
        async with self._refreshing:
            now = self._monotonic()
            if self._refreshed_at is None or now - self._refreshed_at >= STREAMS_REFRESH_S:
                await self._shards.read()
                complete = await self._complete_up_to()
                self._note_lag()
                self.figures = self._combined(complete)
                self._refreshed_at = self._monotonic()

    def samples(self) -> Iterator[Sample]:
        """Yield the figures as of the last ``refresh``."""
        is_wrong = self._clock.wrong() is not None
        for figures in self.figures:
            labels = (figures.tenant, figures.stream)
            complete_up_to = 0 if is_wrong or figures.complete_up_to is None else figures.complete_up_to / 1e9
            yield Sample("weft_hub_stream_records", figures.records, labels)
            if not is_hubs_own(*labels):
                yield Sample("weft_hub_stream_complete_up_to_timestamp_seconds", complete_up_to, labels)
            if figures.lag_records is not None:
                yield Sample("weft_hub_stream_table_lag_records", figures.lag_records, labels)
            if figures.lag_seconds is not None:
                yield Sample("weft_hub_stream_table_lag_seconds", figures.lag_seconds, labels)
            if self._tables is not None and (size := self._tables.size(*labels)) is not None:
                yield Sample("weft_hub_stream_table_bytes", size.bytes, labels)
                yield Sample("weft_hub_stream_table_files", size.files, labels)

    async def _note_lags(self) -> None:
        while True:
            self._note_lag()
            await asyncio.sleep(LAG_INTERVAL_S)

    def _note_lag(self) -> None:
        if self._tables is None:
            return
        now = self._monotonic()
        for key, (records, rows) in self._counted().items():
            self._lags.setdefault(key, TableLag()).note(now, records, rows or 0)

    def _counted(self) -> dict[StreamKey, tuple[int, int | None]]:
        """Return records and rows of each label."""
        totals: dict[StreamKey, int] = {}
        states = [shard.state for shard in self._shards]
        for state in states:
            for key, end in state.next_offset.items():
                totals[key] = totals.get(key, 0) + end
        for key in {key for state in states for key in state.forgotten}:
            if not any(state.has_stream(*key) for state in states):
                self._forget(key)
                del totals[key]
        counted: dict[StreamKey, tuple[int, int | None]] = {}
        for key, records in totals.items():
            label, rows = self._label(key), None if self._tables is None else self._tables.rows(*key)
            others, others_rows = counted.get(label, (0, 0))
            all_rows = None if rows is None or others_rows is None else rows + others_rows
            counted[label] = records + others, all_rows
        return counted

    def _forget(self, key: StreamKey) -> None:
        """Give the series of a deleted stream to others."""
        self._lags.pop(key, None)
        if self._labels.pop(key, None) is not None:
            self._named.free(key[0])

    def _label(self, key: StreamKey) -> StreamKey:
        known = self._labels.get(key)
        if known is None:
            if not self._named.take(key[0]):
                return OTHERS
            known = self._labels[key] = key
        return known

    async def _complete_up_to(self) -> dict[StreamKey, int]:
        """Return the earliest moment of each label's lanes, walking the lanes in slices."""
        earliest: dict[StreamKey, int] = {}
        ended: dict[StreamKey, set[Lane]] = {}
        shards = list(self._shards)
        for shard in shards:
            # Copies, since chunks are applied between slices. Marks only advance, so an older one claims nothing false.
            # Two lists of existing objects: a list of pairs would make so many new objects that Python's collector
            # scans everything, which blocks the event loop for a quarter of a second.
            lanes, states = list(shard.state.lanes), list(shard.state.lanes.values())
            for start in range(0, len(lanes), STREAMS_SLICE_LANES):
                end = start + STREAMS_SLICE_LANES
                for lane, held in zip(lanes[start:end], states[start:end], strict=True):
                    if not held.counts:
                        continue
                    key = lane.tenant, lane.stream
                    if held.last_word is not None:
                        if key not in ended:
                            ended[key] = renamed_lanes([each.state for each in shards], *key, peers=self._peers)
                        if lane in ended[key]:
                            continue
                    moment = moment_of(held, peers=self._peers)
                    moment = _UNKNOWN if moment is None else moment
                    if moment < earliest.get(key, moment + 1):
                        earliest[key] = moment
                await asyncio.sleep(0)
        for key, complete_up_to in self._expected().items():
            moment = await complete_up_to()
            earliest[key] = _UNKNOWN if moment is None else moment
        if missing_shards([each.state for each in shards]):
            return {}  # a chunk moved lanes to a shard that was not looked at
        return self._by_label(earliest.items())

    def _by_label(self, moments: Iterable[tuple[StreamKey, int]]) -> dict[StreamKey, int]:
        by_label: dict[StreamKey, int] = {}
        for key, moment in moments:
            label = self._label(key)
            by_label[label] = min(moment, by_label.get(label, moment))
        return by_label

    def _combined(self, complete: dict[StreamKey, int]) -> list[StreamFigure]:
        now, counted = self._monotonic(), self._counted()
        all_loaded = all(shard.loaded for shard in self._shards)
        figures = []
        for label in sorted(complete.keys() | counted.keys()):
            records, rows = counted.get(label, (0, None))
            moment = complete.get(label, _UNKNOWN)
            lag = self._lags.get(label)
            figures.append(
                StreamFigure(
                    *label,
                    records,
                    moment if all_loaded and moment != _UNKNOWN else None,
                    max(0, records - rows) if self._tables is not None and rows is not None else None,
                    lag.seconds(now) if lag is not None else None,
                )
            )
        return figures


class Metrics:
    """The text of ``GET /metrics``.

    Args:
        parts: of the process; each yields the samples that are about it.
        refusals: refusals by bound, and events of each kind.
    """

    def __init__(self, parts: Sequence[Part], refusals: Refusals) -> None:
        self._parts, self._refusals = parts, refusals

    async def text(self) -> bytes:
        """Return the metrics in Prometheus's text format. The figures of streams are at most some seconds old."""
        for part in self._parts:
            await part.refresh()
        await exposition.load()
        return exposition.render(HUB_METRICS, self._samples())

    def _samples(self) -> Iterator[AnySample]:
        for part in self._parts:
            yield from part.samples()
        for refused in self._refusals:
            owner = "others" if refused.owner is None else str(refused.owner)
            yield Sample("weft_hub_refusals_total", refused.times, (refused.bound, owner))
        for event, times in self._refusals.events.counts.items():
            yield Sample("weft_hub_security_events_total", times, (event,))
        yield build_info("weft_hub_build_info")


# Rates of streams: records added to the log in the last minutes.
#
# Positions of all streams are noted once a minute, and a request compares the newest ones with these. This needs no
# reads: this process follows its own shards anyway, and others for the work on the tables.

NOTE_INTERVAL_S = 60.0
"""Interval of notes: a rate covers one to two of them."""
AGE_S_MIN = 10.0
"""Minimum age of the notes for a rate. Over a shorter time, a rate would show single commits."""


class ShardPositions(NamedTuple):
    """Positions of a shard's streams at one moment."""

    shard: int
    at: float
    """Monotonic seconds."""
    ends: Mapping[StreamKey, int]
    """Offset after the last record, by stream."""


def followed(shards: Iterable[Sequencer], tables: TableService | None, now: float) -> list[ShardPositions]:
    """Return the positions of the shards that a process follows: those it holds, and those its tables are made from."""
    known = {at[0]: ShardPositions(*at) for at in tables.positions()} if tables is not None else {}
    held = {
        each.log.shard: ShardPositions(each.log.shard, now, each.state.next_offset) for each in shards if each.loaded
    }
    return list({**known, **held}.values())


class StreamRates(Part):
    """The rates of all streams of a hub.

    Args:
        positions: the newest positions of the shards that this process follows.
        monotonic: seconds.
    """

    def __init__(self, positions: Callable[[], Iterable[ShardPositions]], monotonic: Callable[[], float]) -> None:
        self._positions = positions
        self._monotonic = monotonic
        self._older: dict[int, ShardPositions] = {}
        self._newer: dict[int, ShardPositions] = {}
        self._task = BackgroundTask()

    def start(self) -> None:
        """Start to note positions."""
        self._task.start(self._run(), name="stream-rates")

    async def close(self) -> None:
        """Stop to note positions."""
        await self._task.close()

    async def _run(self) -> None:
        while True:
            await self.note()
            # A start needs some time to read the store, so the first notes are replaced soon.
            await asyncio.sleep(NOTE_INTERVAL_S if self._older else AGE_S_MIN)

    async def note(self) -> None:
        """Note the present positions."""
        noted = {}
        for each in list(self._positions()):
            noted[each.shard] = each._replace(ends=dict(each.ends))
            await asyncio.sleep(0)
        # A shard that is new in this note has a rate only from it on.
        self._older, self._newer = {**noted, **self._newer}, noted

    def rate(self, parts: Iterable[StreamPart], key: StreamKey, ages: Mapping[int, float]) -> float | None:
        """Return the records per second of a stream over the last one to two minutes; None while unknown.

        Args:
            parts: of all shards.
            ages: seconds since a part was made, by shard; a shard without was looked at just now.
        """
        now, total = self._monotonic(), 0.0
        for part in parts:
            if part.end is None:
                continue
            noted, at = self._older.get(part.shard), now - ages.get(part.shard, 0)
            if noted is None or at - noted.at < AGE_S_MIN:
                return None
            total += (part.end - noted.ends.get(key, 0)) / (at - noted.at)
        return max(total, 0.0)
