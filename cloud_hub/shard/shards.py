"""The shards of a store in one hub process: its own, and those of other processes while it needs them.

Who owns a shard is known by ``cluster.owners``, and may change. The log decides who writes, so ownership only concerns
cost: a process loads another's shard for a link that could not reach the owner, or for a reader, and closes it after
some minutes without either.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

from weft.cloud_hub.part import Part
from weft.cloud_hub.shard.sequencer import Sequencer, ShardCounters
from weft.config.metrics.exposition import AnySample, HistogramSample, Sample
from weft.hub_api.answers import moment, moment_of
from weft.hub_api.status import ConflictOfLane, LostOfLane, OpenGapOfLane, ShardOfProcess, WrittenByProcess
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.shard.completeness import OPEN_GAPS_MAX
from weft.protocols.shard.lane_state import OpenGap, open_gap
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import missing_shards
from weft.storage.cluster import ClusterCache
from weft.storage.histogram import Histogram

logger = logging.getLogger(__name__)

IDLE_S = 300.0
"""Time after which the shard of another process is closed, when neither a link nor a reader has needed it."""
LOAD_S_MAX = 10.0
"""Longest time that a start or a request waits for a shard. Loading continues, and the shard counts as missing
meanwhile."""
OWN_LOOK_S_MAX = 0.5
"""Longest time that a reader waits for a look at own shards: an idle one looks rarely, and no one else writes to it as
a rule."""
READ_AGE_S_MAX = 0.25
"""Maximum age of another process's shard for a reader."""
LOST_LISTED_MAX = 1000
"""Maximum number of lanes with lost records in a status."""
RETIRED_LOOKED_AT_MAX = 2_000
"""Maximum number of retired lanes that one answer checks for open gaps, the last retired ones."""


class Ownership(Protocol):
    """The owner of each shard (``cluster.owners``)."""

    def is_own(self, shard: int) -> bool:
        """Return whether this process owns a shard."""
        ...

    def owner(self, shard: int) -> str:
        """Return the name of the process that owns a shard."""
        ...


class Placed(Protocol):
    """Names of an edge: a lane, or HELLO."""

    @property
    def tenant(self) -> str: ...
    @property
    def edge(self) -> str: ...


async def _within(seconds: float, looks: Iterator[Coroutine[None, None, None]]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*looks)


class CachedShard(NamedTuple):
    """A shard as far as a process knows it without reading for it."""

    state: ShardState
    loaded: bool
    """False while nothing is known of it: the state is then empty."""


class Shards(Part):
    """The shards of one hub process.

    Args:
        known: the shards of the store, of which splits make more.
        owners: who owns which shard, at present.
        make: makes the sequencer of a shard, without starting it.
        idle_s: time without use after which a shard of another process is closed.
        beside: work with the shards that runs from ``start`` to ``close``.
    """

    def __init__(
        self,
        known: ClusterCache,
        owners: Ownership,
        make: Callable[[int], Sequencer],
        *,
        idle_s: float = IDLE_S,
        beside: Callable[[Shards], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._known = known
        self._owners = owners
        self._make = make
        self._idle_s = idle_s
        self._now = asyncio.get_running_loop().time
        self._sequencers: dict[int, Sequencer] = {}
        """Own shards from ``start`` on, and needed ones of others."""
        self._starts: dict[int, asyncio.Task[None]] = {}
        self._used_at: dict[int, float] = {}
        self._beside = beside
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def count(self) -> int:
        """Return the number of shards of the store."""
        return self._known.cluster.tree.count

    def place(self, edge: Placed) -> int:
        """Return the shard where an edge belongs, as this process knows it."""
        return self._known.cluster.tree.shard_of(edge.tenant, edge.edge)

    def places(self, edge: Placed) -> tuple[int, ...]:
        """Return the shard where an edge belongs, and those before it that were split, the last first."""
        tree = self._known.cluster.tree
        shard = tree.shard_of(edge.tenant, edge.edge)
        return shard, *tree.lineage(shard)

    def children(self, shard: int) -> list[int]:
        """Return the shards that splits of a shard have made, as this process knows them."""
        return [new for _, new in self._known.cluster.tree.children(shard)]

    def __iter__(self) -> Iterator[Sequencer]:
        """Iterate over the shards that this process holds at present, by number."""
        return iter([self._sequencers[shard] for shard in sorted(self._sequencers)])

    @property
    def own(self) -> list[Sequencer]:
        """Return the process's own shards, by number."""
        return [sequencer for sequencer in self if self._owners.is_own(sequencer.log.shard)]

    @property
    def loaded(self) -> tuple[int, ...]:
        """Return the numbers of the shards that are loaded here."""
        return tuple(sequencer.log.shard for sequencer in self if sequencer.loaded)

    async def start(self) -> None:
        """Load the process's own shards. A shard that cannot be loaded is retried; the others work meanwhile."""
        self._tasks = [asyncio.create_task(self._sweep(), name="idle-shards")]
        if self._beside is not None:
            self._tasks.append(asyncio.create_task(self._beside(self), name="beside-shards"))
        await self.load_own()

    async def load_own(self) -> None:
        """Load the shards that the process owns by now, once it has started. Others are closed some time after their
        last use."""
        if not self._tasks:
            return
        now = self._now()
        self._used_at.update(dict.fromkeys(self._sequencers, now))
        await asyncio.gather(*(self.get(shard) for shard in range(self.count) if self._owners.is_own(shard)))

    async def get(self, shard: int) -> Sequencer:
        """Return a shard's started sequencer. If it is not loaded, it has trouble, or is slow."""
        self._used_at[shard] = self._now()
        if shard not in self._sequencers:
            if not self._owners.is_own(shard):
                logger.info("shard %d belongs to %s, and is loaded here too", shard, self._owners.owner(shard))
            sequencer = self._sequencers[shard] = self._make(shard)
            self._starts[shard] = asyncio.create_task(sequencer.start(), name=f"start-shard-{shard}")
        sequencer, start = self._sequencers[shard], self._starts[shard]
        if not start.done():
            await asyncio.wait([start], timeout=LOAD_S_MAX)
        return sequencer

    async def all(self) -> list[Sequencer]:
        """Return every shard of the store, by number, for a reader. Those of other processes were read up to the log's
        head at most ``READ_AGE_S_MAX`` ago, own ones ``follow_interval_s`` ago, unless the store fails."""
        return await self.these(range(self.count))

    async def these(self, shards: Iterable[int]) -> list[Sequencer]:
        """Return some shards of the store, read as ``all`` reads them. Those of other processes are loaded."""
        sequencers = await asyncio.gather(*map(self.get, shards))
        others = [each for each in sequencers if not self._owners.is_own(each.log.shard)]
        own = [each for each in sequencers if self._owners.is_own(each.log.shard)]
        await _within(OWN_LOOK_S_MAX, (each.catch_up() for each in own))
        await _within(LOAD_S_MAX, (each.catch_up(READ_AGE_S_MAX) for each in others))
        return list(sequencers)

    async def held(self) -> dict[int, Sequencer]:
        """Return own shards, and loaded ones of others, by number, for a reader; read as ``all`` reads them."""
        own = [shard for shard in range(self.count) if self._owners.is_own(shard)]
        loaded = [shard for shard in self.loaded if not self._owners.is_own(shard)]
        held = {shard: await self.get(shard) for shard in own}
        held |= {shard: self._sequencers[shard] for shard in loaded if shard in self._sequencers}
        await _within(OWN_LOOK_S_MAX, (held[shard].catch_up() for shard in own))
        await _within(LOAD_S_MAX, (held[shard].catch_up(READ_AGE_S_MAX) for shard in loaded if shard in held))
        return held

    async def close(self) -> None:
        """Stop all shards."""
        tasks = [task for task in (*self._tasks, *self._starts.values()) if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(sequencer.close() for sequencer in self))

    def samples(self) -> Iterator[AnySample]:
        """Yield the figures of the shards that this process holds."""
        held = list(self)
        for sequencer in held:
            yield from _shard(sequencer)
        yield Sample("weft_hub_conflicts", sum(len(each.state.conflicts) for each in held))
        skips = [skip for each in held for known in each.state.skips.values() for skip in known]
        yield Sample("weft_hub_skipped_records", sum(skip.end - skip.first for skip in skips))
        yield _sum("weft_hub_store_put_latency_seconds", [each.counters.put for each in held])
        yield _sum("weft_hub_commit_latency_seconds", [each.counters.commit for each in held])

    def views(self) -> dict[str, object]:
        """Return the shards that this process holds, and the troubles of its own."""
        own = self.own
        gaps, more = open_gap_views(sequencer.state for sequencer in own)
        return {
            "shards": [_view(sequencer, self._owners) for sequencer in self],
            "conflicts": conflict_views(sequencer.state for sequencer in own),
            "open_gaps": gaps,
            "open_gaps_more": more,
            "lost": lost_views(own),
        }

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._idle_s / 10)
            for shard in list(self._sequencers):
                if not self._is_idle(shard):  # again: a link may have come during a close
                    continue
                sequencer = self._sequencers.pop(shard)
                del self._starts[shard]
                logger.info("shard %d has not been needed here for a while, and is closed", shard)
                await sequencer.close()

    def _is_idle(self, shard: int) -> bool:
        if self._owners.is_own(shard) or self._sequencers[shard].sessions.count:
            return False
        return self._starts[shard].done() and self._now() - self._used_at[shard] >= self._idle_s


class _Tables(Protocol):
    def state(self, shard: int) -> ShardState | None: ...


class ShardCache:
    """Every shard of the store, by number: those that a process holds, and others as of the last round of its tables.

    Args:
        cluster_id: of the store, for a state that is empty.
        tables: the tables, for which every shard is read anyway; None if another process keeps them.
    """

    def __init__(self, shards: Shards, cluster_id: bytes, tables: _Tables | None) -> None:
        self._shards, self._cluster_id, self._tables = shards, cluster_id, tables

    async def read(self) -> None:
        """Load and read shards of other processes, where no round of tables does so."""
        if self._tables is None:
            await self._shards.all()

    def __iter__(self) -> Iterator[CachedShard]:
        """Iterate over what is known at the moment. States may change with the next await."""
        held = {each.log.shard: each.state for each in self._shards if each.loaded}
        known = []
        for shard in range(self._shards.count):
            state = held.get(shard)
            if state is None and self._tables is not None:
                state = self._tables.state(shard)
            known.append(CachedShard(state or ShardState(self._cluster_id, shard), state is not None))
        # A log may have a split of which the process has not read yet otherwise.
        new = [shard for shard in missing_shards([each.state for each in known]) if shard >= len(known)]
        return iter([*known, *(CachedShard(ShardState(self._cluster_id, shard), False) for shard in new)])


def _view(sequencer: Sequencer, owners: Ownership) -> ShardOfProcess:
    counters, shard = sequencer.counters, sequencer.log.shard
    return ShardOfProcess(
        shard=shard,
        owner=owners.owner(shard),
        own=owners.is_own(shard),
        chunk=sequencer.state.n if sequencer.state.n >= 0 else None,
        lanes=len(sequencer.state.lanes),
        sessions=sequencer.sessions.count,
        pending_bytes=sequencer.sessions.pending_bytes,
        trouble=sequencer.trouble,
        written=WrittenByProcess(counters.chunks, counters.records, counters.bytes),
    )


def conflict_views(states: Iterable[ShardState]) -> list[ConflictOfLane]:
    """Return the lanes whose logs a second node claims to own."""
    found = []
    for state in states:
        for lane in state.conflicts:
            held = state.lanes[lane]
            assert held.conflict is not None
            found.append(
                ConflictOfLane(
                    tenant=lane.tenant,
                    edge=lane.edge,
                    log=format_log_id(lane.log_id),
                    shard=state.shard,
                    stream=lane.stream,
                    since=moment_of(held.conflict.time),
                    refused_epoch=held.conflict.epoch,
                    why=held.conflict.reason,
                )
            )
    return found


def open_gap_views(states: Iterable[ShardState]) -> tuple[list[OpenGapOfLane], int]:
    """Return the open gaps of retired lanes, the latest first, and a lower bound of the number of others."""
    retired = [(state, lane) for state in states for lane in islice(reversed(state.retired), RETIRED_LOOKED_AT_MAX)]
    found = [
        (gap, lane, state.shard)
        for state, lane in retired[:RETIRED_LOOKED_AT_MAX]
        if (gap := open_gap(lane, state.lanes[lane])) is not None
    ]
    found.sort(key=lambda each: (-each[0].until, each[1]))
    shown = [_open_gap(gap, lane, shard) for gap, lane, shard in found[:OPEN_GAPS_MAX]]
    return shown, len(found) - len(shown)


def _open_gap(gap: OpenGap, lane: Lane, shard: int) -> OpenGapOfLane:
    return OpenGapOfLane(
        tenant=lane.tenant,
        stream=lane.stream,
        shard=shard,
        edge=gap.edge,
        log=format_log_id(gap.log_id),
        first=gap.first,
        records=None,
        since=moment(gap.since),
        until=moment_of(gap.until),
        other_lanes=gap.others,
        why=gap.why,
    )


def lost_views(sequencers: Iterable[Sequencer]) -> list[LostOfLane]:
    """Return the lanes with acknowledged records that the hub lacks, at most ``LOST_LISTED_MAX``."""
    found = (
        LostOfLane(
            lane.tenant,
            lane.edge,
            format_log_id(lane.log_id),
            sequencer.log.shard,
            lane.stream,
            lost.records,
            lost.first,
        )
        for sequencer in sequencers
        for lane in list(sequencer.sessions.lost)
        if (held := sequencer.state.lanes.get(lane)) is not None
        and (lost := sequencer.sessions.lost_of(lane, held)) is not None
    )
    return list(islice(found, LOST_LISTED_MAX))


_COUNTERS = ("chunks", "records", "bytes", "foreign_chunks", "unclear", "reloads")


def _shard(sequencer: Sequencer) -> Iterator[Sample]:
    labels = (str(sequencer.log.shard),)
    for name in _COUNTERS:
        yield Sample(f"weft_hub_{name}_total", _value(sequencer.counters, name), labels)
    yield Sample("weft_hub_retries_total", sequencer.retries, labels)
    yield Sample("weft_hub_sessions_refused_total", sequencer.sessions.refused, labels)
    yield Sample("weft_hub_pending_bytes", sequencer.sessions.pending_bytes, labels)
    yield Sample("weft_hub_chunk", sequencer.state.n, labels)
    yield Sample("weft_hub_store_trouble", sequencer.trouble is not None, labels)


def _value(counters: ShardCounters, name: str) -> int:
    return int(getattr(counters, name))


def _sum(name: str, parts: Sequence[Histogram]) -> HistogramSample:
    total = Histogram()
    for part in parts:
        total.add(part)
    return HistogramSample(name, total.bounds, total.counts, total.seconds)
