"""The links of one hub process to other regions: one for each region and each shard that the process owns."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace

import msgspec

from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.facts.hub import DeclaredRegions
from weft.cloud_hub.part import Part
from weft.cloud_hub.regions.budget import RegionBudget
from weft.cloud_hub.regions.source import RegionSource, Selection
from weft.cloud_hub.settings import RegionSettings
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.config.log_lines import Repeats, left_out
from weft.config.metrics.exposition import Sample
from weft.config.release import SOFTWARE
from weft.hub_api.regions import RegionLinkOfStore, RunOfChunks, StreamOfRegionLink
from weft.protocols import chunk as chunks
from weft.protocols.errors import CodecError
from weft.protocols.shard.shard_state import ShardState
from weft.replication.events import LinkState, LinkStatus
from weft.replication.liveness import SECOND
from weft.replication.policy import PolicyRules
from weft.replication.runner import LinkIdentity, run_link
from weft.replication.runner.control import LinkControl
from weft.replication.source import Epochs
from weft.storage import hub_keys
from weft.storage.chunk_log import RegionPosition, RegionPositions, Report, StreamLag, with_lost
from weft.storage.cluster import Cluster
from weft.storage.object_store import NotFound, ObjectStore, StoreError

# The link of one shard to one region: its source, its connection, and the position in the store.

_logger = logging.getLogger(__name__)

POLL_S = 0.1
"""Interval of looks in memory for new chunks."""
RETRY_S = 5.0
"""Wait after the store failed."""
PAUSED = "paused"
"""State of a link in reports while an operator lets its records wait."""
REPORT_S = 300.0
"""Time after which the report is written without any news."""
STREAMS_MAX = 16
"""Maximum number of streams that a report names."""


class RegionLink:
    """One link. It runs until it is cancelled, and continues at any process where it stopped.

    Args:
        name: name of the region.
        host: name of this process.
        declared: an operator's orders to the links of all regions.
        budget: what the links of the region share; None without one.
    """

    def __init__(
        self,
        name: str,
        settings: RegionSettings,
        sequencer: Sequencer,
        positions: RegionPositions,
        *,
        clock: HubClock,
        host: str,
        declared: DeclaredRegions,
        budget: RegionBudget | None = None,
    ) -> None:
        self.name, self.shard, self.sequencer = name, sequencer.log.shard, sequencer
        self._settings, self._positions, self._clock = settings, positions, clock
        self._host, self._declared = host, declared
        self.comparison = declared.of(name).comparison
        """Number of the comparison with the region to which the link's position belongs."""
        rules = PolicyRules(
            rate=settings.rate,
            every=int(settings.every_s * SECOND),
            schedule=settings.schedule,
            budget=settings.budget if budget is not None else None,
        )
        self._control = LinkControl(
            rules,
            wall_clock=clock.now,
            is_paused=declared.of(name).paused,
            counts=budget,
            counts_bytes=budget is not None,
        )
        self._budget, self._budget_version = budget, 0
        self._takes = Selection(settings.tenant, settings.streams, settings.forwards)
        self.status = LinkStatus(f"{name}/{self.shard}")
        self._trouble, self._trouble_at = "", 0
        """Trouble with the store or the log, and its beginning."""
        self._stored = RegionPosition(next=0)
        self._etag: str | None = None
        self.lost: tuple[tuple[int, int], ...] = ()
        """Runs of chunks that were collected before the region had their records."""
        self._source: RegionSource | None = None
        self._settling: deque[tuple[float, int, int]] = deque()
        """(moment, position, records) that the link has reached, of which the store does not know yet."""
        self._settled = 0, 0
        self._connections = 0
        self._written_at = -REPORT_S
        self._total: int | None = None
        """Records before the position at which the link began here; None while unknown."""
        self._repeats = Repeats()

    def _monotonic(self) -> float:
        return self._clock.boot() / SECOND

    async def run(self) -> None:
        """Follow the log and send, until cancelled."""
        while True:
            try:
                await self._begin()
                break
            except (StoreError, CodecError) as error:
                self._note(f"the position of region {self.name} cannot be read: {error}")
                await asyncio.sleep(RETRY_S)
        assert self._source is not None, "it was made"
        link = asyncio.create_task(self._link(self._source), name=f"region-{self.status.name}")
        try:
            await self._follow(self._source)
        finally:
            link.cancel()
            await asyncio.gather(link, return_exceptions=True)

    async def _begin(self) -> None:
        found, self._etag = await self._positions.read(self.name, self.shard)
        cluster = self._settings.link.sender.cluster_id
        if found is not None and cluster and found.peer not in ("", cluster):
            found = None  # an operator says that the region is another cluster by now, which has nothing
        if found is not None and found.comparison != self.comparison:
            # The region lost some of what it had acknowledged. What this log no longer has, it cannot send again.
            found = RegionPosition(next=await self._first(), peer=found.peer, lost=found.lost)
        if found is None:
            found = RegionPosition(next=await self._first())
            if not self.sequencer.log.watermark and self.sequencer.log.is_first:
                found = RegionPosition(next=found.next, records=0)
        self._stored, self.lost = found, found.lost
        self._total = found.records
        self._settled = found.next, 0
        self._source = RegionSource(
            self.sequencer.log,
            self._state,
            self._takes,
            found.next,
            hub=lambda: self.status.cluster_id,
            peer=found.peer or cluster,
            now=self._monotonic,
        )

    def _state(self) -> ShardState:
        return self.sequencer.state

    async def _first(self) -> int:
        """Return the number of the first chunk of the log."""
        manifest, _ = await self.sequencer.log.manifest()
        listed = await self.sequencer.log.store.list(hub_keys.chunk_prefix(self.shard), limit=1)
        numbers = [chunks.parse_file_name(item.key.rpartition("/")[2]) for item in listed]
        return max(manifest.watermark, *(n for n in numbers if n is not None), 0)

    async def _link(self, source: RegionSource) -> None:
        settings, cluster = self._settings, self.sequencer.log.cluster
        own = int.from_bytes(cluster.cluster_id[:8], "big")
        identity = LinkIdentity(settings.tenant or "default", f"region-{self.name}-{self.shard}"[:64], own, SOFTWARE)
        # A relay claims no epoch, so there is none to keep.
        epochs = Epochs("memory", lambda: b"0", lambda _: None)
        while True:
            # Once a cluster has acknowledged something, the link takes no other for it.
            link, peer = settings.link, source.peer
            link = replace(link, sender=replace(link.sender, cluster_id=peer))
            running = asyncio.create_task(
                run_link(source, identity, link, epochs, self.status, wall_clock=self._clock.now, control=self._control)
            )
            try:
                while not peer and not source.peer and not running.done():
                    await asyncio.wait([running], timeout=POLL_S)
                if not peer and source.peer:
                    continue
                await running
            except Exception as error:
                _logger.exception("the link of shard %d to region %s failed", self.shard, self.name)
                self.status.state, self.status.last_error = LinkState.WAITING, f"internal fault: {error!r}"
                self.status.last_error_time = self._clock.now()
            finally:
                running.cancel()
                await asyncio.wait([running])
            await asyncio.sleep(link.retry_max_s)

    async def _follow(self, source: RegionSource) -> None:
        while True:
            try:
                paused = self._declared.of(self.name).paused
                if paused != self._control.policy.is_paused:
                    await self._control.pause(paused)
                if self._budget is not None and self._budget.version != self._budget_version:
                    self._budget_version = self._budget.version
                    self._control.adopt(self._control.policy.rules)  # data that waited continues
                is_behind = await source.fill()
                await self._write(source)
                self._note("")
            except (StoreError, CodecError, NotFound) as error:
                self._note(str(error))
                await asyncio.sleep(RETRY_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0 if is_behind else POLL_S):
                    await source.moved.wait()

    def _note(self, trouble: str) -> None:
        if not trouble:
            self._trouble = ""
            self._repeats.clear()
            return
        if trouble != self._trouble:
            self._trouble, self._trouble_at = trouble, self._clock.now()
        count = self._repeats.due(trouble, self._monotonic())
        if count is not None:
            _logger.warning("shard %d to region %s: %s%s", self.shard, self.name, trouble, left_out(count))

    # -- the position

    def _settle(self, source: RegionSource) -> None:
        """Note the position, and which one is old enough for the store."""
        now, position = self._monotonic(), source.position
        if self.status.connections != self._connections:
            # Marks of the earlier connection may be lost; those of lanes that are open are sent again.
            self._connections = self.status.connections
            self._settling = deque((now, at, records) for _, at, records in self._settling)
        if position > (self._settling[-1][1] if self._settling else self._settled[0]):
            self._settling.append((now, position, source.passed))
        while self._settling and self._settling[0][0] <= now - self._settings.settle_s:
            _, *settled = self._settling.popleft()
            self._settled = settled[0], settled[1]

    async def _write(self, source: RegionSource) -> None:
        """Write position and report, if there is news and the last time is long enough ago."""
        self._settle(source)
        self._count(source)
        for first, end in source.lost:
            self.lost = with_lost(self.lost, first, end)
        if source.lost:
            _logger.error(
                "shard %d: chunks %d to %d were collected before region %s had their records: it reports these "
                "records as missing. `weft hub region history` sends them from the tables",
                self.shard,
                source.lost[0][0],
                source.lost[-1][1] - 1,
                self.name,
            )
        now, report = self._monotonic(), self.report(source)
        before = self._stored.report
        news = (
            self._settled[0] > self._stored.next
            or source.peer != self._stored.peer
            or self.lost != self._stored.lost
            or before is None
            or (before.state, before.error, before.hold) != (report.state, report.error, report.hold)
        )
        source.lost.clear()
        if now - self._written_at < (self._settings.write_s if news else REPORT_S):
            return
        self._written_at = now
        report = self._with_streams(report, source)
        records = None if self._total is None else self._total + self._settled[1]
        wanted = RegionPosition(
            next=max(self._settled[0], self._stored.next),
            peer=source.peer,
            records=records,
            lost=self.lost,
            report=report,
            comparison=self.comparison,
        )
        etag = await self._positions.write(self.name, self.shard, wanted, self._etag)
        if etag is None:
            # The process that owned the shard before still writes, or an attempt of this one had an unknown outcome.
            found, self._etag = await self._positions.read(self.name, self.shard)
            self._written_at = -REPORT_S
            known = found is not None and (found.peer, found.comparison) == (source.peer, self.comparison)
            if found is not None and known:
                # `weft hub region history` brought what the region lacked of some lost chunks.
                self.lost, added = found.lost, [run for run in self.lost if run not in self._stored.lost]
                for first, end in added:
                    self.lost = with_lost(self.lost, first, end)
                if found.next > self._settled[0]:
                    self._stored = found
            return
        self._stored, self._etag = wanted, etag

    def _count(self, source: RegionSource) -> None:
        """Learn how many records the region has when it has all of them."""
        state = self._state()
        if self._total is None and source.position > state.n:
            self._total = self._records(state) - source.passed

    def _records(self, state: ShardState) -> int:
        return sum(offset for key, offset in state.next_offset.items() if self._takes.has_stream(key))

    def _with_streams(self, report: Report, source: RegionSource) -> Report:
        behind = source.behind()
        streams = tuple(
            StreamLag(
                tenant=each.key[0],
                stream=each.key[1],
                records=each.records,
                bytes=each.bytes,
                seconds=max(0.0, (report.at - each.oldest) / SECOND),
            )
            for each in behind[:STREAMS_MAX]
        )
        return msgspec.structs.replace(report, streams=streams, streams_behind=len(behind))

    def report(self, source: RegionSource | None = None) -> Report:
        """Return the link's state now."""
        source = source or self._source
        status = self.status
        error, at = (self._trouble, self._trouble_at) if self._trouble else ("", None)
        if not error and source is not None and status.state is LinkState.CONNECTED:
            error, at = source.refusals, status.last_error_time
        if not error and status.last_error and self._is_troubled():
            error, at = status.last_error, status.last_error_time
        state = self._state()
        lag = 0.0
        records = (
            None
            if source is None or self._total is None
            else (self._records(state) - self._total - source.passed - source.ahead)
        )
        if source is not None and source.position <= state.n:
            oldest = source.oldest or state.created
            lag = max(0.0, (self._clock.now() - oldest) / SECOND)
        else:
            records = 0 if source is not None else None
        size = None
        if records is not None:
            mean = None if source is None else source.mean_bytes
            size = 0 if not records else None if mean is None else int(records * mean)
        is_paused = self._control.policy.is_paused
        return Report(
            at=self._clock.now(),
            state=PAUSED if is_paused else str(status.state),
            error=error,
            error_at=at,
            lag_records=records,
            lag_bytes=size,
            lag_seconds=lag,
            host=self._host,
            hold=self._hold(records),
        )

    def _hold(self, lag_records: int | None) -> str:
        """Return why records wait by a policy, and until when; an order to pause says so by the state."""
        policy = self._control.policy
        if policy.is_paused or lag_records == 0 or self.status.state is not LinkState.CONNECTED:
            return ""
        return policy.why_held()

    def _is_troubled(self) -> bool:
        """Return whether the last error still counts: nothing was acknowledged since."""
        status = self.status
        return status.state is not LinkState.CONNECTED or (status.last_error_time or 0) > (status.last_ack_time or 0)


LOOK_S = 1.0
"""Interval of looks for shards that have come or gone."""


class Regions(Part):
    """The links, which follow the owners of shards.

    Args:
        host: name of this process.
        retain_log_s: seconds for which the log keeps all chunks; None if it deletes none.
    """

    def __init__(
        self,
        settings: Mapping[str, RegionSettings],
        shards: Shards,
        positions: RegionPositions,
        *,
        clock: HubClock,
        host: str,
        declared: DeclaredRegions,
        retain_log_s: float | None,
    ) -> None:
        self._retain_log_s = retain_log_s
        self._settings, self._shards, self._positions = settings, shards, positions
        self._clock, self._host, self._declared = clock, host, declared
        self._links: dict[tuple[str, int], tuple[RegionLink, asyncio.Task[None]]] = {}
        self._task = BackgroundTask()
        self._budgets = {
            name: RegionBudget(positions.store, name, each, links=lambda: shards.count, wall_clock=clock.now)
            for name, each in settings.items()
            if each.budget is not None
        }

    def __iter__(self) -> Iterator[RegionLink]:
        """Iterate over the links of this process."""
        return iter([link for link, _ in self._links.values()])

    def samples(self) -> Iterator[Sample]:
        """Yield the figures of the links for Prometheus."""
        for budget in self._budgets.values():
            yield from budget.samples()
        for link in self:
            labels = link.name, str(link.shard)
            report = link.report()
            yield Sample("weft_hub_region_connected", int(link.status.state == LinkState.CONNECTED), labels)
            yield Sample("weft_hub_region_lag_seconds", report.lag_seconds, labels)
            if self._retain_log_s is not None:
                kept_s = max(self._settings[link.name].pin_s, self._retain_log_s)
                yield Sample("weft_hub_region_kept_seconds", kept_s, labels)
            yield Sample("weft_hub_region_lost_chunks", len(link.lost), labels)

    def start(self) -> None:
        """Begin, if there are regions."""
        if self._settings:
            self._task.start(self._run(), name="regions")
        for budget in self._budgets.values():
            budget.start()

    async def close(self) -> None:
        """End all links. What was sent is still acknowledged by the region, and compared by the next link."""
        await self._task.close()
        await self._end(list(self._links))
        for budget in self._budgets.values():
            await budget.close()

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except Exception:  # without this task, no shard's link would begin any more
                _logger.exception("links to other regions could not be looked at")
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        own = {each.log.shard: each for each in self._shards.own if each.loaded and each.is_running}
        await self._end(
            [
                key
                for key, (link, task) in self._links.items()
                if own.get(key[1]) is not link.sequencer
                or task.done()
                or link.comparison != self._declared.of(key[0]).comparison
            ]
        )
        for name, settings in self._settings.items():
            for shard, sequencer in own.items():
                if (name, shard) in self._links:
                    continue
                link = RegionLink(
                    name,
                    settings,
                    sequencer,
                    self._positions,
                    clock=self._clock,
                    host=self._host,
                    declared=self._declared,
                    budget=self._budgets.get(name),
                )
                self._links[name, shard] = link, asyncio.create_task(link.run(), name=f"region-{name}-{shard}")

    async def _end(self, keys: list[tuple[str, int]]) -> None:
        tasks = [self._links.pop(key)[1] for key in keys]
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                _logger.error("a link to another region failed, and restarts: %r", result, exc_info=result)


# ``GET /v1/regions``: how far the links to other regions are, as their processes last wrote it to the store.

READS_AT_ONCE = 16
OLD_S = 900.0
"""Age of a report after which no process seems to run the link: one is written every five minutes."""
NOT_BEGUN, NO_NEWS = "not begun", "no news"


async def region_views(
    store: ObjectStore, cluster: Cluster, regions: Mapping[str, RegionSettings], retain_log_s: float | None, now: int
) -> list[RegionLinkOfStore]:
    """Return the state of the link of each shard to each region, as of the last report in the store.

    Args:
        retain_log_s: seconds for which the log keeps all chunks; None if it deletes none.
        now: nanoseconds since 1970.

    Raises:
        StoreError: the store did not answer.
    """
    positions = RegionPositions(store, cluster)
    wanted = [(name, shard) for name in sorted(regions) for shard in range(cluster.tree.count)]
    views: list[RegionLinkOfStore] = []
    for at in range(0, len(wanted), READS_AT_ONCE):
        some = wanted[at : at + READS_AT_ONCE]
        found = await asyncio.gather(*(positions.read(name, shard) for name, shard in some))
        for (name, shard), (position, _) in zip(some, found, strict=True):
            kept_s = None if retain_log_s is None else max(regions[name].pin_s, retain_log_s)
            views.append(_view(name, shard, position, kept_s, now))
    return views


def _view(name: str, shard: int, position: RegionPosition | None, kept_s: float | None, now: int) -> RegionLinkOfStore:
    report = None if position is None else position.report
    age = None if report is None else max(0, now - report.at) / 1e9
    state = NOT_BEGUN if report is None or age is None else NO_NEWS if age > OLD_S else report.state
    return RegionLinkOfStore(
        region=name,
        shard=shard,
        state=state,
        error="" if report is None else report.error,
        lag_records=None if report is None else report.lag_records,
        lag_bytes=None if report is None else report.lag_bytes,
        lag_seconds=None if report is None else report.lag_seconds,
        left_seconds=_left_s(report, kept_s, now),
        streams=[] if report is None else [_stream(each) for each in report.streams],
        streams_behind=0 if report is None else report.streams_behind,
        hold="" if report is None else report.hold,
        next=None if position is None else position.next,
        lost_chunks=[] if position is None else [RunOfChunks(first=first, end=end) for first, end in position.lost],
        peer=None if position is None else position.peer or None,
        process=None if report is None else report.host,
        seen_seconds_ago=age,
    )


def _left_s(report: Report | None, kept_s: float | None, now: int) -> float | None:
    """Return the seconds for which the log yet keeps the oldest chunk that the region lacks; 0 once it may be gone,
    None if it lacks nothing, nothing is known, or the log deletes nothing."""
    if report is None or kept_s is None or not report.lag_seconds:
        return None
    return max(0.0, kept_s - report.lag_seconds - max(0, now - report.at) / SECOND)


def _stream(lag: StreamLag) -> StreamOfRegionLink:
    return StreamOfRegionLink(
        tenant=lag.tenant, stream=lag.stream, lag_records=lag.records, lag_bytes=lag.bytes, lag_seconds=lag.seconds
    )
