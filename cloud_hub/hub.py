"""A hub process, put together: store, a sequencer per shard, the HTTP server. All state is in the store.

A node can be killed at any instant and started again anywhere; ``close`` only spares connected peers a time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, TypedDict, TypeVar

from aiohttp import web

from weft.bounds import Refusals
from weft.bounds.rounds import BackgroundTask
from weft.cloud_hub.admin_facts.acts import OwnActs
from weft.cloud_hub.admin_facts.credentials import TokenUse
from weft.cloud_hub.admin_facts.declarations import Declarations
from weft.cloud_hub.admin_facts.requests import (
    ActsRequests,
    NodeRequests,
    PairRequests,
    RequestedChanges,
    TenantRequests,
    TokenRequests,
)
from weft.cloud_hub.admin_facts.tenants import LinkQuota, TenantCounts, Tenants
from weft.cloud_hub.api.access import Access, ApiError
from weft.cloud_hub.api.application import Api, FleetRequests, Health
from weft.cloud_hub.api.edge_reports import newest
from weft.cloud_hub.api.listener import SHUTDOWN_S, HubListener
from weft.cloud_hub.api.metrics import REPORTS_AGE_S, EdgeFigures, Metrics, StreamFigures, StreamRates, followed
from weft.cloud_hub.api.records import ShardViews
from weft.cloud_hub.api.summaries import EdgeViews, LinksElsewhere, ShardSummaries, StreamCompleteness
from weft.cloud_hub.api.tail import StreamTails
from weft.cloud_hub.api.views import View, conflict_views, lost_views, open_gap_views
from weft.cloud_hub.clock import ADVICE, HubClock
from weft.cloud_hub.cluster import Membership, Owners, Site, Work, software
from weft.cloud_hub.console.changes import ChangeStreams, ConsolePages
from weft.cloud_hub.down.hub_down import HubDown
from weft.cloud_hub.down.lane_writer import ActsStream
from weft.cloud_hub.down.requests import Messages, message_rates, read_body
from weft.cloud_hub.links import edge_link
from weft.cloud_hub.links.edge_link import EdgeLink, FrameBudget, HubLinkLog
from weft.cloud_hub.links.open_links import LinkedEdges, OpenLinks, note_refused
from weft.cloud_hub.openapi.document import Asked, SelfDescription
from weft.cloud_hub.pipelines import FIGURES_READ_S, PipelineRequests
from weft.cloud_hub.pulls import HubPulls, PullRequests
from weft.cloud_hub.regions.regions import RegionLink, RegionRequests, Regions
from weft.cloud_hub.rollouts import ConfiguredLink, FleetConfigs
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.shard.sequencer import CommitPace, Sequencer
from weft.cloud_hub.shard.shards import KnownShards, Shards, shard_views
from weft.cloud_hub.splits import Clocks, Load, ShardMaker
from weft.cloud_hub.tables.hub_tables import HubTables
from weft.config.log_lines import Throttle
from weft.config.metrics.exposition import Sample
from weft.config.units import is_bucket
from weft.protocols.chunk_index import RELEASE, FoldRules
from weft.protocols.payloads import PayloadKind
from weft.replication.runner import serve_link
from weft.storage.chunk_log import RegionPositions
from weft.storage.cluster import NEW_SHARDS, Cluster, ClusterUnusable, open_cluster, read_cluster
from weft.storage.fenced_store import FencedStore, check_store
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, StoreError, StoreUnfit, open_store
from weft.storage.object_store.directory import DirectoryStore
from weft.storage.object_store.opening import PlacedStore, bare, requests_of
from weft.storage.object_store.probe import probe_in_sequence, race, raced_key

# The way from a hub process to edges, put together: messages, configurations, and requests for records.


class ToEdges:
    """The way down of one process.

    Args:
        links: the open links of this process.
        messages_per_s: messages that a tenant publishes a second.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: bytes,
        declared: Declarations,
        shards: Shards,
        owners: Owners,
        *,
        clock: HubClock,
        links: Callable[[], Iterable[ConfiguredLink]],
        messages_per_s: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._declared, self._shards, self._owners, self._clock = declared, shards, owners, clock
        self.down = HubDown(shards, clock.now)
        self.fleet = FleetConfigs(
            store, cluster_id, declared, places=shards.places, is_own=owners.is_own, now=clock.now, links=links
        )
        self._rates = message_rates(messages_per_s, monotonic)
        self.pulls = HubPulls(store, cluster_id, declared, shards, is_own=owners.is_own, clock=clock)
        self._is_started = False

    def start(self) -> None:
        """Begin, when the declared facts are known."""
        self._is_started = True
        self.fleet.start()
        self.pulls.start()

    def add_to(self, application: web.Application, access: Access) -> None:
        """Add the requests to the application of the API."""
        Messages(
            self.down, self._shards, access, self._owners.elsewhere, self._clock, groups=self._declared.groups,
            rates=self._rates,
        ).add_to(application)  # fmt: skip
        PullRequests(self.pulls, self._declared.pulls, self._shards, access, self._clock).add_to(application)

    async def close(self) -> None:
        """Stop, except for messages, which links still bring: ``down.close`` ends them."""
        if self._is_started:
            await self.pulls.close()
            await self.fleet.close()


# The disk of a store in a folder: its free space, and how long that lasts. A bucket has no such bound.

LOOK_S = 60.0
DAY_S = 86_400.0
GROWTH_AFTER_S = 3600.0
"""Time over which free space is seen before its fall is a rate: a table that is written again takes and gives some."""


class DiskView(TypedDict):
    """Facts about the disk."""

    free_bytes: int | None
    """Bytes that the hub's user may still write; None if the file system does not answer."""
    bytes_per_day: float | None
    """Bytes by which these fall in a day, by the time below; negative: they rise. None until an hour was seen."""
    seen_seconds: float
    """Time over which the process has seen them, at most a day."""
    seconds_left: float | None
    """Time until nothing is free at this rate; None if the rate is unknown, or nothing falls."""


class StoreDisk:
    """Free space of a store's file system over the last day, as this process has seen it since its start.

    Whatever else is written to the file system counts, as it shortens the time too.

    Args:
        store: without its fence. Of one that is no folder nothing is known.
        monotonic: seconds.
    """

    def __init__(self, store: ObjectStore, monotonic: Callable[[], float]) -> None:
        self._directory = store if isinstance(store, DirectoryStore) else None
        self._monotonic = monotonic
        self._seen: deque[tuple[float, int]] = deque(maxlen=int(DAY_S / LOOK_S) + 1)
        """Moments and free bytes."""
        self._answers = False
        self._task = BackgroundTask()

    def start(self) -> None:
        """Begin to look, once a minute."""
        if self._directory is not None:
            self._task.start(self._run(self._directory), name="store-disk")

    async def close(self) -> None:
        """Stop."""
        await self._task.close()

    async def _run(self, directory: DirectoryStore) -> None:
        while True:
            await self.look(directory)
            await asyncio.sleep(LOOK_S)

    async def look(self, directory: DirectoryStore) -> None:
        """Note the free space. While the store is not in its place, that of another disk does not count."""
        try:
            free = await directory.free_bytes()
        except StoreError:
            self._answers = False
            return
        now = self._monotonic()
        self._seen.append((now, free))
        while self._seen[0][0] < now - DAY_S:
            self._seen.popleft()
        self._answers = True

    def view(self) -> DiskView | None:
        """Return what is known; None for a store that is no folder."""
        if self._directory is None:
            return None
        if not self._seen:
            return DiskView(free_bytes=None, bytes_per_day=None, seen_seconds=0.0, seconds_left=None)
        (began, before), (at, free) = self._seen[0], self._seen[-1]
        seen, rate, left = at - began, None, None
        if seen >= GROWTH_AFTER_S:
            rate = (before - free) / seen
            left = free / rate if rate > 0 else None
        return DiskView(
            free_bytes=free if self._answers else None, bytes_per_day=None if rate is None else rate * DAY_S,
            seen_seconds=seen, seconds_left=left if free else 0.0,
        )  # fmt: skip

    def samples(self) -> Iterator[Sample]:
        """Yield the free bytes for Prometheus, while they are known."""
        if self._answers:
            yield Sample("weft_hub_store_free_bytes", self._seen[-1][1])


# The store of a hub process: opened and tried at the start, and held on to while the process runs.

_logger = logging.getLogger(__name__)

T = TypeVar("T")
HICCUP_S = 15.0
"""Time of a start for which a step is tried again when a bucket does not answer it."""
AWAY_S = 60.0
"""Time for which a process that is started again waits for a store that is not in its place. Its supervisor starts it
again after that, at growing intervals."""
RACE_AFTER_S = 20.0
"""Time after the start when a store that was raced before is raced again: its edges have come back by then."""
RETRY_MIN_S, RETRY_MAX_S = 0.2, 2.0
NOTE_S = 5.0
"""Longest time that a process takes to withdraw its note about a store that breaks its promises, before it ends."""


class HubStore:
    """The store of one hub process.

    Args:
        given: instead of opening ``settings.store``.
        level: the highest level that the release knows.
    """

    def __init__(self, settings: HubSettings, given: ObjectStore | None, clock: HubClock, level: int) -> None:
        self._settings, self._given, self._clock, self._level = settings, given, clock, level
        self._is_bucket = given is None and is_bucket(settings.store)
        self._now = asyncio.get_running_loop().time
        self._began = self._now()
        self._races_later: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._task = BackgroundTask()
        self._unfit: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.fence: FencedStore
        """The store of the cluster, once it is open."""
        self.disk: StoreDisk
        """Its disk, once it is open."""

    async def open(self) -> tuple[ObjectStore, Cluster]:
        """Try the store, and return it, with the cluster in it; make one in an empty store, if the settings allow it.

        Raises:
            StoreUnfit, StoreError: the store breaks its promises, or does not answer.
            ClusterUnusable: it cannot be used for this hub, or holds none.
        """
        settings = self._settings
        store = self._given or open_store(settings.store, settings.store_options)
        second = open_store(settings.store, settings.store_options) if self._is_bucket else None
        if not settings.begins:
            await self._there(store)
        await self.answered(lambda: check_store(store, self._level))  # before the probe, which writes
        await self.answered(lambda: probe_in_sequence(store))
        note = await self.answered(lambda: raced_key(store))
        if note is None or not await self.answered(lambda: self._is_noted(store, note)):
            await self.answered(lambda: race(store, second))
        else:
            self._races_later = partial(self._race, store, second, note)
        cluster = await self.answered(
            lambda: open_cluster(
                store, settings.shards, release_level=self._level, new_shards=NEW_SHARDS if settings.begins else None
            )
        )
        self.fence = FencedStore(bare(store), cluster, self._clock.boot)
        self.disk = StoreDisk(self.fence.inner, time.monotonic)
        store = PlacedStore(self.fence)
        await self.answered(lambda: self._clock.measure(store))
        if note is not None:
            with contextlib.suppress(StoreError, AlreadyExists):
                await store.create(note, b"weft probe: raced")
        return store, cluster

    def listens(self) -> None:
        """Begin what the start has left for the time when the process serves edges."""
        self.disk.start()
        if self._races_later is not None:
            self._task.start(self._races_later(), name="store-race")

    async def close(self) -> None:
        """Stop what runs in the background."""
        await self._task.close()
        await self.disk.close()

    async def _race(self, store: ObjectStore, second: ObjectStore | None, note: str) -> None:
        """Race a store that an earlier start has raced: another server may answer at its address by now."""
        await asyncio.sleep(RACE_AFTER_S * (1 + self._settings.process))  # those of a node one after the other
        while True:
            try:
                await race(store, second)
                return
            except StoreError as error:
                _logger.info("the store is raced again later: %s", error)
            except StoreUnfit as error:
                # Before the process ends, since the next start then races before it serves anyone.
                with contextlib.suppress(StoreError, TimeoutError):
                    async with asyncio.timeout(NOTE_S):
                        await bare(store).delete(note)
                self._unfit.set_result(str(error))
                return
            await asyncio.sleep(RACE_AFTER_S)

    async def _is_noted(self, store: ObjectStore, note: str) -> bool:
        try:
            await store.get(note)
        except NotFound:
            return False
        return True

    async def answered(self, step: Callable[[], Awaitable[T]]) -> T:
        """Make a step of the start. A bucket that does not answer is asked again for some seconds, as a start from the
        beginning would take longer than most such troubles.

        Raises:
            StoreError: the store did not answer.
        """
        wait = RETRY_MIN_S
        while True:
            try:
                return await step()
            except StoreError as error:
                if not self._is_bucket or self._now() - self._began > HICCUP_S:
                    raise
                _logger.warning("the start waits for the store: %s", error)
            await asyncio.sleep(wait)
            wait = min(2 * wait, RETRY_MAX_S)

    async def _there(self, store: ObjectStore) -> None:
        """Wait until the store is in its place, which held a hub before."""
        wait, is_told = RETRY_MIN_S, False
        while True:
            try:
                await read_cluster(store)
                return
            except (StoreError, ClusterUnusable) as error:
                if self._now() - self._began > AWAY_S:
                    raise
                if not is_told:
                    _logger.error("the store cannot be used at present: %s. The start waits for it", error)
                is_told = True
            await asyncio.sleep(wait)
            wait = min(2 * wait, RETRY_MAX_S)

    async def failed(self) -> str:
        """Wait until the process cannot go on with the store, and return the reason."""
        replaced = asyncio.create_task(self.fence.replaced.wait())
        try:
            ends: list[asyncio.Future[Any]] = [replaced, self._unfit]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            replaced.cancel()
        return self._unfit.result() if self._unfit.done() else self.fence.trouble or ""


logger = logging.getLogger(__name__)


def boot_time_ns() -> int:
    """Return nanoseconds since the machine started, including suspend."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Hub:
    """A hub node.

    Args:
        store: instead of opening ``settings.store``.
        wall_clock: nanoseconds since 1970.
        boot_clock: nanoseconds on a clock that counts suspend.
        rules: rules by which the release writes and folds chunks.

    Raises:
        TokensUnusable, OSError: the tokens file cannot be used.
    """

    def __init__(
        self,
        settings: HubSettings,
        *,
        store: ObjectStore | None = None,
        wall_clock: Callable[[], int] = time.time_ns,
        boot_clock: Callable[[], int] = boot_time_ns,
        rules: FoldRules = RELEASE,
    ) -> None:
        self._settings = settings
        self._given_store = store
        self._clock = HubClock(wall_clock, boot_clock)
        self._rules = rules
        self._membership: Membership | None = None
        self._owners: Owners | None = None
        self._clocks = Clocks(time.monotonic, time.process_time)
        self._load = Load(self._clocks)
        self._random_bits = random.SystemRandom().getrandbits
        self._refusals = Refusals(time.monotonic)
        self._links = OpenLinks(settings.links_max, settings.links_per_token_max, self._refusals, self._clock.now)
        self._frames = FrameBudget(self._refusals, time.monotonic)
        self._link_log = HubLinkLog(time.monotonic)
        self._throttle = Throttle()
        self._declared = Declarations(
            settings, self._clock.agreed, self._links.end_revoked, self._look_soon, self._clock.doubted
        )
        self._tenants = Tenants(
            self._declared.quotas, TenantCounts(lambda: self._shards, time.monotonic), self._refusals,
            time.monotonic_ns, others=lambda: self._owners.others() if self._owners is not None else [],
            changed=self._look_soon,
        )  # fmt: skip
        self._declared.limited = self._tenants.limited
        self._tables = HubTables(settings, self._clock, self._declared, self._own, self._random_bits)
        self._listener = HubListener(settings, self._refusals)
        self._figures: StreamFigures | None = None
        self._rates: StreamRates | None = None
        self._summaries: ShardSummaries | None = None
        self._shards: Shards | None = None
        self._to_edges: ToEdges | None = None
        self._maker: ShardMaker
        self._acts: ActsRequests
        self._changes: ChangeStreams | None = None
        self._tails: StreamTails | None = None
        self._for_people: tuple[LinkedEdges, TokenUse] | None = None
        self._acts_stream: ActsStream | None = None
        self._regions: Regions | None = None
        self.cluster: Cluster
        self._store: HubStore

    @property
    def sequencers(self) -> list[Sequencer]:
        """Return the sequencers of the shards that this process holds at present."""
        return list(self._shards) if self._shards is not None else []

    @property
    def regions(self) -> list[RegionLink]:
        """Return the links of this process to other regions."""
        return list(self._regions) if self._regions is not None else []

    @property
    def url(self) -> str:
        """Return the URL of the started node."""
        return self._listener.url

    async def start(self) -> None:
        """Open the store, load every shard, and listen.

        Raises:
            StoreUnfit, StoreError: the store breaks its promises, or does not answer.
            ClusterUnusable: the store is not usable for this hub.
            OSError: the port cannot be bound.
        """
        settings = self._settings
        credentials = self._declared.credentials
        self._access = self._access_control()
        self._links.start(credentials)
        self._store = HubStore(settings, self._given_store, self._clock, self._rules.level)
        store, self.cluster = await self._store.open()
        node_id = f"{self._random_bits(64):016x}"
        self._owners = owners = Owners(
            lambda: self.cluster.tree.count, self._site(node_id), node_id, changed=self._owners_changed,
            cluster=(self.cluster.cluster_id.hex(), self.cluster.restored),
            is_drained=self._declared.drained.covers, wall_clock=self._clock.now, beat_s=settings.beat_interval_s,
        )  # fmt: skip
        self._membership = membership = Membership(
            store, node_id, software=software(), level=self.cluster.level, release_level=self._rules.level,
            clock=self._clock, owners=owners, work=self._work, grown=self._grow,
        )  # fmt: skip
        await self._store.answered(membership.look)
        self._maker = ShardMaker(
            store, lambda: self.cluster, settings.sequencer, clock=self._clock, random_bits=self._random_bits,
            level=lambda: membership.writes, rules=self._rules, moved=membership.read_soon,
            pace=CommitPace(settings.sequencer, time.thread_time),
        )  # fmt: skip
        own_acts = OwnActs(store, self.cluster.cluster_id, self._clock.now)
        beside = self._maker.beside(settings.shards_max, self._clocks, membership.read_soon, own_acts)
        self._shards = Shards(lambda: self.cluster.tree, owners, self._maker.sequencer, beside=beside)
        self._to_edges = ToEdges(
            store, self.cluster.cluster_id, self._declared, self._shards, owners, clock=self._clock,
            links=lambda: self._links, messages_per_s=settings.messages_per_s, monotonic=time.monotonic,
        )  # fmt: skip
        linked = LinkedEdges(
            store, node_id, self._links.by_edge, self._lost, owners.others, reports=self._links.reports,
            monotonic=time.monotonic,
        )  # fmt: skip
        self._for_people = linked, TokenUse(store, lambda: credentials.used, credentials.is_declared, time.monotonic)
        self._acts = ActsRequests(store, self.cluster.cluster_id, lambda: self._declared.position)
        self._changes = ChangeStreams(
            lambda: followed(self.sequencers, self._tables.service, time.monotonic()), self._links.since,
            lambda: self._declared.position, self._access, self._refusals,
        )  # fmt: skip
        self._acts_stream = ActsStream(store, self.cluster, self._declared, self._shards, owners.is_own)
        self._regions = Regions(
            settings.regions, self._shards, RegionPositions(store, self.cluster), clock=self._clock, host=owners.own,
            declared=self._declared.regions, retain_log_s=settings.retain_log_s)  # fmt: skip
        try:
            await self._declared.start(store, self.cluster.cluster_id)
            await self._shards.start()
            self._to_edges.start()
            self._tenants.start()
            self._acts_stream.start()
            self._tables.start(store, self.cluster, self._maker, lambda: self.cluster.tree.count, owners.own)
            await self._listen(self._shards, store)
            owners.port = self._listener.port
            await self._membership.start(self.url)
            for each in self._for_people:
                each.start()
            self._regions.start()
            self._store.listens()
        except BaseException:
            await self.close()
            raise

    def _access_control(self) -> Access:
        settings = self._settings
        return Access(
            self._declared.credentials, settings.open_to_network, settings.hosts, self._listener.certificates,
            self._refusals.events, now=self._clock.now,
        )  # fmt: skip

    def _site(self, node_id: str) -> Site:
        settings = self._settings
        return Site(
            platform.node(), settings.port, settings.process, settings.processes, settings.advertise, settings.cores,
            label="" if settings.port else node_id, scheme=settings.scheme,
        )  # fmt: skip

    def _work(self) -> Work:
        loaded = self._shards.loaded if self._shards is not None else ()
        tables = self._tables.maker.made if self._tables.maker is not None else None
        return Work(
            loaded, len(self._links), self._declared.position, self._tenants.entry(), tables, self._load.used(),
            self._tenants.intake(),
        )  # fmt: skip

    def _look_soon(self) -> None:
        if self._membership is not None:
            self._membership.look_now()

    async def _owners_changed(self) -> None:
        if self._shards is not None:
            await self._shards.load_own()

    async def _grow(self, cluster: Cluster) -> None:
        """Take up new shards. Links whose edges moved are sent on, or end when they send."""
        self.cluster = cluster
        self._tables.grow(cluster)
        if self._owners is not None:
            await self._owners.grow()

    async def _listen(self, shards: Shards, store: ObjectStore) -> None:
        # Thousands of edges connect at once after a restart.
        edge_link.logger.addFilter(self._throttle)
        peers, links, owners = self._settings.peers, self._links, self._owners
        assert owners and self._for_people and self._to_edges and self._changes, "they are made before"  # noqa: PT018
        known = KnownShards(shards, self.cluster.cluster_id, self._tables.service)
        moments = StreamCompleteness(
            shards,
            self._declared.expected_edges,
            self._clock,
            known=known,
            peers=peers,
            table_error=self._tables.error_of,
        )  # fmt: skip
        of_tables = self.table_rows, self._tables.service is not None, time.monotonic, moments.expecting
        self._figures = StreamFigures(known, *of_tables, peers=peers)
        self._figures.start()
        self._rates = StreamRates(lambda: followed(shards, self._tables.service, time.monotonic()), time.monotonic)
        self._rates.start()
        changes = RequestedChanges(self._acts.log, self._access, self._clock, read_body)
        pipelines = PipelineRequests(store, changes, self._clock.now, time.monotonic)
        metrics = self._metrics(shards, store, pipelines)
        bytes_max = self._settings.response_bytes_max
        elsewhere = self._for_people[0].elsewhere
        of_shards = ShardViews(shards, self._maker.log, bytes_max, time.monotonic)
        summaries = ShardSummaries(store, shards, moments, lambda: bool(owners.others()), time.monotonic)
        self._summaries = summaries
        summaries.start()
        api = Api(
            self, of_shards, self._access, metrics, bytes_max,
            moments=moments, rates=self._rates,
            summaries=summaries,
            edges=lambda elsewhere: EdgeViews(
                {**elsewhere.edges, **links.by_edge(owners.own)}, newest(links.reports(), elsewhere.reports),
                links.last_release, groups=self._declared.groups.of_edge,
            ),
            elsewhere=elsewhere, refusals=self._refusals, monotonic=time.monotonic,
        )  # fmt: skip
        checks = [self._access.middleware, Asked(self._access).middleware]
        application = api.application(self._listener.middleware, inner=checks)
        self._to_edges.add_to(application, self._access)
        FleetRequests(
            store, lambda: self.cluster, self._clock, self._access, summaries=summaries, own=self._own,
            elsewhere=elsewhere, monotonic=time.monotonic,
        ).add_to(application)  # fmt: skip
        self._acts.add_to(application, self._access)
        PairRequests(self._acts.log, self._declared.credentials, self._clock.now, time.monotonic, read_body).add_to(
            application
        )
        pipelines.add_to(application)
        self._requests_for_changes(changes, summaries, store, application)
        self._changes.add_to(application)
        self._tails = StreamTails(api.shards_of, api.payload_kind, self._access, self._refusals)
        self._tails.add_to(application)
        ConsolePages(self._access).add_to(application)
        SelfDescription(self._access).add_to(application)
        await self._listener.start(application)

    def _metrics(self, shards: Shards, store: ObjectStore, pipelines: PipelineRequests) -> Metrics:
        # The first process of a host knows streams and pipelines as a whole.
        is_first = self._settings.process == 0
        figures = self._figures if is_first else None
        return Metrics(
            shards, figures, self._links, self._clock, self._tables.collected, clocks_differ=self._links.clocks_differ,
            edges=EdgeFigures(
                self._own, self._clock.now, time.monotonic, peers=self._settings.peers, told=self._told_of_edges
            ),
            tables=self._tables.maker, refusals=self._refusals, events=self._refusals.events.counts,
            declared=self._declared.samples, of_listener=self._listener.samples, requests=requests_of(store),
            of_tables=self._tables.samples, tenants=self._tenants.samples,
            regions=self._regions.samples if self._regions is not None else tuple, disk=self._store.disk.samples,
            pipelines=pipelines.samples if is_first else None,
        )  # fmt: skip

    async def _told_of_edges(self) -> LinksElsewhere:
        """Return the edges that are linked to any process, and the last reports of edges, for metrics."""
        assert self._for_people is not None, "it is made before"
        there, links = LinksElsewhere({}, []), self._links
        with contextlib.suppress(TimeoutError):  # a store that hangs must not keep the metrics that say so
            async with asyncio.timeout(FIGURES_READ_S):
                there = await self._for_people[0].elsewhere(REPORTS_AGE_S)
        return there._replace(
            edges={**there.edges, **links.by_edge()}, reports=newest(links.reports(), there.reports)
        )  # fmt: skip

    def _requests_for_changes(
        self, changes: RequestedChanges, summaries: ShardSummaries, store: ObjectStore, application: web.Application
    ) -> None:
        TenantRequests(
            changes, self._tenants, summaries, quotas=self._declared.quotas.of, table_bytes=self._tables.bytes_of,
            stream_bytes=self._tables.stream_bytes,
        ).add_to(application)  # fmt: skip
        TokenRequests(store, changes).add_to(application)
        RegionRequests(
            store, lambda: self.cluster, changes, regions=self._settings.regions, declared=self._declared.regions,
            monotonic=time.monotonic,
        ).add_to(application)  # fmt: skip
        assert self._membership is not None, "it is made before"
        NodeRequests(
            store, changes, self._declared.drained, random_bits=self._random_bits, split=self._membership.read_soon
        ).add_to(application)

    def reload(self) -> None:
        """Read tokens and certificates again, changed or not. Those that cannot be used leave the earlier in force."""
        self._listener.reload()
        self._declared.reload()

    async def failed(self) -> str:
        """Wait until the node cannot go on, and return why: another process has to begin again."""
        return await self._store.failed()

    async def close(self) -> None:
        """Close the links and stop. Edges still have all unacknowledged records."""
        edge_link.logger.removeFilter(self._throttle)
        if self._membership is not None:
            await self._membership.drain(lambda: len(self._links), lambda: self._links.send_on(within_s=SHUTDOWN_S))
        if self._regions is not None:
            await self._regions.close()
        await self._links.close()
        for each in self._for_people or ():
            await each.close()
        await self._tenants.close()
        if self._to_edges is not None:
            await self._to_edges.close()
        if self._acts_stream is not None:
            await self._acts_stream.close()
        await self._declared.close()
        await self._store.close()
        await self._listener.stop_listening()
        if self._changes is not None:
            await self._changes.close()
        if self._tails is not None:
            self._tails.close()
        for part in (self._figures, self._rates, self._summaries, self._membership):
            if part is not None:
                await part.close()
        await self._tables.close()
        if self._to_edges is not None:
            self._to_edges.down.close()
        if self._shards is not None:
            await self._shards.close()
        await self._listener.close()

    async def serve_link(self, request: web.Request) -> web.StreamResponse:
        """Run an edge's link until it ends."""
        settings, peer = self._settings, request.remote or "an unknown address"
        try:
            identity = self._access.link(request)
            self._links.check_room(identity)
            if self._membership is not None and self._membership.is_outdated:
                raise ApiError(503, "the hub's cluster has outgrown this node's release", "connect to another node")
            if (wrong := self._clock.wrong()) is not None:
                raise ApiError(503, wrong, ADVICE)
            if (away := self._store.fence.trouble) is not None:
                raise ApiError(503, away, "the edge tries again by itself, here and at other nodes")
        except ApiError as error:
            self._link_log.turned_away(peer, f"refused ({error.status}): {error.error}; {error.advice}")
            raise
        to_edges = self._to_edges
        assert self._shards and self._owners and to_edges, "the hub has not been started"  # noqa: PT018
        link = EdgeLink(
            self._shards, identity, self._clock.now, self._link_log, peer, refusals=self._refusals,
            elsewhere=self._owners.elsewhere(request.host), down=to_edges.down, configs=to_edges.fleet.links,
            quota=LinkQuota(self._tenants), frames=self._frames,
        )  # fmt: skip
        with self._links.opened(link, identity), self._listener.linked(request, link.end):
            response = await serve_link(
                request, to_edges.pulls.guarded(link), settings.receiver(), self.cluster.cluster_id.hex(),
                software=software(), wall_clock=self._clock.now,
            )  # fmt: skip
        await note_refused(link, response, self._clock.sound, self._random_bits)
        return response

    def table_rows(self, tenant: str, stream: str) -> int | None:
        """Return the number of records of a stream that are table rows; None if this node does not know it."""
        return self._tables.rows(tenant, stream)

    def table_view(self, tenant: str, stream: str) -> View | None:
        """Return a stream's table for readers; None when this node does not know it."""
        return self._tables.view(tenant, stream)

    def _own(self) -> list[Sequencer]:
        return self._shards.own if self._shards is not None else []

    def _lost(self) -> list[View]:
        return lost_views(self._own())

    def health(self) -> Health:
        """Return what the health of the node depends on."""
        return Health(self._own(), self._tables.maker, self._membership, self._clock, self._store.fence)

    def table_payload(self, tenant: str, stream: str) -> PayloadKind | None:
        """Return the payload kind of a stream's table; None when this node does not know it."""
        return self._tables.payload(tenant, stream)

    def status(self) -> View:
        """Return the document of ``GET /v1/status``."""
        return {
            "software": software(),
            "cluster_id": self.cluster.cluster_id.hex(),
            "store": {"trouble": self._store.fence.trouble, "disk": self._store.disk.view()},
            "clock": {"off_seconds": self._clock.off_ns / 1e9, "trouble": self._clock.doubted()},
            "level": self._membership.level if self._membership else self.cluster.level,
            "release_level": self._rules.level,
            "name": self._owners.own if self._owners is not None else "",
            "state": self._owners.state if self._owners is not None else "",
            "tls": self._listener.view(),
            "process": self._settings.process,
            "processes": self._settings.processes,
            "cluster_log": self._declared.view(),
            "jwt": self._declared.jwt_view(),
            "backup": self._declared.backup_view(),
            "peers": self._owners.peers() if self._owners is not None else [],
            "shards": shard_views(self.sequencers, self._owners) if self._owners is not None else [],
            **self._tables.views(),
            "conflicts": conflict_views(sequencer.state for sequencer in self._own()),
            **open_gap_views(sequencer.state for sequencer in self._own()),
            "lost": self._lost(),
            "links": self._links.views(),
        }
