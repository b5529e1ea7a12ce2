"""Composition of a hub process: the store, a sequencer for each shard, and the HTTP server. All state is in the store.

A node can be killed at any instant and started again anywhere. ``close`` only saves connected peers a time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from aiohttp import web

from weft.bounds import Refusals
from weft.cloud_hub.administration import Administration
from weft.cloud_hub.auth.access import Access
from weft.cloud_hub.clock import ADVICE, HubClock
from weft.cloud_hub.cluster import Membership, Owners, Site, Work
from weft.cloud_hub.down.hub_down import HubDown
from weft.cloud_hub.down.lane_writer import ActsStream
from weft.cloud_hub.facts.acts import OwnActs
from weft.cloud_hub.facts.declarations import Declarations, Watched
from weft.cloud_hub.facts.tokens import TokenUse
from weft.cloud_hub.http.application import Api
from weft.cloud_hub.http.changes import ChangeStreams, ConsolePages
from weft.cloud_hub.http.exchange import Asked, Orders
from weft.cloud_hub.http.iceberg import Catalogue
from weft.cloud_hub.http.listener import SHUTDOWN_S, HubListener
from weft.cloud_hub.http.messages import Messages, message_rates
from weft.cloud_hub.http.pipelines import FIGURES_READ_S, PipelineRequests
from weft.cloud_hub.http.process import (
    AdministrationRequests,
    Health,
    PairRequests,
    ProcessRequests,
    SelfDescription,
    TroubleRequests,
    UsageRequests,
)
from weft.cloud_hub.http.pulls import PullRequests
from weft.cloud_hub.http.sql import SqlRequests
from weft.cloud_hub.http.tail import StreamTails
from weft.cloud_hub.links import edge_link
from weft.cloud_hub.links.edge_link import EdgeLink, FrameBudget, HubLinkLog
from weft.cloud_hub.links.open_links import LinkedEdges, OpenLinks, note_refused
from weft.cloud_hub.part import Part, Step
from weft.cloud_hub.pulls import HubPulls
from weft.cloud_hub.quotas import LinkQuota, TenantCounts, Tenants
from weft.cloud_hub.reads.edge_reports import newest
from weft.cloud_hub.reads.metrics import (
    REPORTS_AGE_S,
    EdgeFigures,
    Metrics,
    ShardPositions,
    StreamFigures,
    StreamRates,
    followed,
)
from weft.cloud_hub.reads.records import ShardViews
from weft.cloud_hub.reads.summaries import EdgeViews, LinksElsewhere, ShardSummaries, StreamCompleteness
from weft.cloud_hub.regions.regions import RegionLink, Regions
from weft.cloud_hub.rollouts import FleetConfigs
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.shard.sequencer import CommitPace, Sequencer
from weft.cloud_hub.shard.shards import ShardCache, Shards, lost_views
from weft.cloud_hub.splits import Clocks, EveryLog, Load, ShardMaker
from weft.cloud_hub.store import HubStore
from weft.cloud_hub.tables.hub_tables import hub_tables
from weft.config.log_lines import Throttle
from weft.config.release import SOFTWARE
from weft.hub_api.answers import ApiError
from weft.hub_api.status import LostOfLane, StatusAnswer
from weft.protocols.chunk_index import RELEASE, FoldRules
from weft.replication.runner import Beats, serve_link
from weft.storage.chunk_log import RegionPositions
from weft.storage.cluster import Cluster, ClusterCache
from weft.storage.cluster_log import ClusterLog
from weft.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from weft.cloud_hub.http.sharing import Sharing
    from weft.cloud_hub.kafka.listener import KafkaListener

# The way from a hub process to edges, put together: messages, configurations, and requests for records.


class ToEdges(Part):
    """Configurations, pulls and messages of one process to edges. ``down`` outlives it: links use it until they end.

    Args:
        down: the messages to edges.
        links: the open links of this process.
        messages_per_s: messages to edges that one tenant may publish a second.
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
        links: OpenLinks,
        down: HubDown,
        messages_per_s: float,
    ) -> None:
        self._declared, self._shards, self._owners, self._clock = declared, shards, owners, clock
        self._down = down
        self.fleet = FleetConfigs(
            store, cluster_id, declared, places=shards.places, is_own=owners.is_own, now=clock.now, links=links.__iter__
        )
        self._rates = message_rates(messages_per_s, time.monotonic)
        self.pulls = HubPulls(store, cluster_id, declared, shards, is_own=owners.is_own, clock=clock)

    def start(self) -> None:
        """Begin. The declared facts have been read."""
        self.fleet.start()
        self.pulls.start()

    def add_to(self, application: web.Application, access: Access) -> None:
        """Add the requests to the application of the API."""
        Messages(
            self._down,
            self._shards,
            access,
            self._owners.elsewhere,
            self._clock,
            groups=self._declared.groups,
            rates=self._rates,
        ).add_to(application)
        PullRequests(self.pulls, self._declared.pulls, self._shards, access, self._clock).add_to(application)

    async def close(self) -> None:
        """Stop."""
        await self.pulls.close()
        await self.fleet.close()


logger = logging.getLogger(__name__)


def boot_time_ns() -> int:
    """Return nanoseconds since the machine started, including suspend."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


async def _done(step: Callable[[], Awaitable[None] | None]) -> None:
    """Make a step, whether it has to be waited for or not."""
    if (waits := step()) is not None:
        await waits


class Hub:
    """A running hub process; ``open`` makes it.

    Args:
        store: the store, after the checks of the start.
        rules: rules by which the release writes and folds chunks.
    """

    def __init__(self, settings: HubSettings, clock: HubClock, store: HubStore, rules: FoldRules) -> None:
        self._settings, self._clock, self._store, self._rules = settings, clock, store, rules
        self._random_bits = random.SystemRandom().getrandbits
        self._refusals = Refusals(time.monotonic)
        self._known = ClusterCache(store.cluster)
        self._closing = contextlib.AsyncExitStack()
        self._frames = FrameBudget(self._refusals, time.monotonic)
        self._link_log = HubLinkLog(time.monotonic)
        self._listener = HubListener(settings, self._refusals)
        self._make_members()
        self._make_work()
        self._make_answers()
        throttle = Throttle()
        # Thousands of edges connect at once after a restart.
        of_links = Step(partial(edge_link.logger.addFilter, throttle), partial(edge_link.logger.removeFilter, throttle))
        self.parts: Sequence[Part] = (
            of_links,
            clock,
            self._listener,
            Step(close=self._links.end_all),  # else the listener waits some seconds for those without a lane
            self._declared,
            self._shards,
            self._down,
            self._to_edges,
            self._tenants,
            self._acts_stream,
            self._tables,
            *self._of_store,
            self._of_edges,
            self._rates,
            self._summaries,
            Step(close=self._tails.close),
            *self._shared,
            self._sql,
            self._changes,
            self._links,
            Step(self._listen, self._listener.stop_listening),
            *self._kafka,
            Step(self._announce, self._membership.close),
            *self._for_people,
            self._regions,
            store,
            Step(close=self._drain),
        )
        """Parts in the order of their start. They end in reverse order."""

    @classmethod
    async def open(
        cls,
        settings: HubSettings,
        *,
        store: ObjectStore | None = None,
        wall_clock: Callable[[], int] = time.time_ns,
        boot_clock: Callable[[], int] = boot_time_ns,
        rules: FoldRules = RELEASE,
    ) -> Hub:
        """Open the store, load every shard, and listen. On an error, close the parts that were started.

        Args:
            store: instead of opening ``settings.store``.
            wall_clock: nanoseconds since 1970.
            boot_clock: nanoseconds on a clock that counts suspend.
            rules: rules by which the release writes and folds chunks.

        Raises:
            StoreUnfit, StoreError: the store breaks its promises, or does not answer.
            ClusterUnusable: the store is not usable for this hub.
            OSError: the port cannot be bound.
        """
        clock = HubClock(wall_clock, boot_clock)
        hub = cls(settings, clock, await HubStore.open(settings, store, clock, rules.level), rules)
        await hub._start()
        return hub

    async def _start(self) -> None:
        await self._store.steps.answered(self._membership.look)
        async with contextlib.AsyncExitStack() as stack:
            for part in self.parts:
                stack.push_async_callback(_done, part.close)  # before its start, which may fail halfway
                await _done(part.start)
            self._closing = stack.pop_all()

    async def close(self) -> None:
        """Close the links and stop. Edges keep every record that was not acknowledged."""
        await self._closing.aclose()

    # -- what it is made of

    def _make_members(self) -> None:
        """Make who declares, who owns which shard, and the shards."""
        settings, clock, store, known = self._settings, self._clock, self._store.store, self._known
        cluster, node_id = self._store.cluster, f"{self._random_bits(64):016x}"
        self._node_id = node_id
        self._declared = declared = Declarations(
            settings, store, cluster.cluster_id, now=clock.agreed, doubted=clock.doubted
        )
        self._beats = Beats()
        self._links = OpenLinks(
            settings.links_max, settings.links_per_token_max, self._refusals, clock.now, declared.credentials
        )
        declared.watch(Watched.LOG, self._links.end_revoked)
        self._access = Access(
            declared.credentials,
            settings.open_to_network,
            settings.hosts,
            self._listener.certificates,
            self._refusals.events,
            now=clock.now,
        )
        site = Site(
            platform.node(),
            settings.port,
            settings.process,
            settings.processes,
            settings.advertise,
            settings.cores,
            label="" if settings.port else node_id,
            scheme=settings.scheme,
        )
        self._owners = owners = Owners(
            known,
            site,
            node_id,
            cluster=(cluster.cluster_id.hex(), cluster.restored),
            is_drained=declared.drained.covers,
            wall_clock=clock.now,
            beat_s=settings.beat_interval_s,
        )
        self._membership = membership = Membership(
            store,
            node_id,
            software=SOFTWARE,
            level=cluster.level,
            release_level=self._rules.level,
            clock=clock,
            owners=owners,
        )
        declared.watch(Watched.DRAINED, membership.look_now)
        self._maker = ShardMaker(
            store,
            known,
            settings.sequencer,
            clock=clock,
            random_bits=self._random_bits,
            level=lambda: membership.writes,
            rules=self._rules,
            moved=membership.read_soon,
            pace=CommitPace(settings.sequencer, time.thread_time),
        )
        clocks = Clocks(time.monotonic, time.process_time)
        self._load = Load(clocks)
        own_acts = OwnActs(store, cluster.cluster_id, clock.now)
        beside = self._maker.beside(settings.shards_max, clocks, membership.read_soon, own_acts)
        self._shards = Shards(known, owners, self._maker.sequencer, beside=beside)
        owners.watch(self._shards.load_own)

    def _make_work(self) -> None:
        """Make what works with the shards."""
        settings, clock, store, cluster = self._settings, self._clock, self._store.store, self._store.cluster
        declared, shards, owners = self._declared, self._shards, self._owners
        self._tenants = Tenants(
            declared.quotas,
            TenantCounts(shards, time.monotonic),
            self._refusals,
            time.monotonic_ns,
            others=owners.others,
            changed=self._membership.look_now,
        )
        declared.watch(Watched.QUOTAS, self._tenants.limited)
        logs = EveryLog(self._maker, self._known)
        self._tables = hub_tables(settings, store, cluster, clock, declared, shards=shards, logs=logs, name=owners.own)
        self._down = HubDown(shards, clock.now)
        self._to_edges = ToEdges(
            store,
            cluster.cluster_id,
            declared,
            shards,
            owners,
            clock=clock,
            links=self._links,
            down=self._down,
            messages_per_s=settings.messages_per_s,
        )
        self._acts_stream = ActsStream(store, cluster, declared, shards, owners.is_own)
        self._regions = Regions(
            settings.regions,
            shards,
            RegionPositions(store, cluster),
            clock=clock,
            host=owners.own,
            declared=declared.regions,
            retain_log_s=settings.retain_log_s,
        )
        credentials = declared.credentials
        linked = LinkedEdges(
            store,
            self._node_id,
            self._links.by_edge,
            self._lost,
            owners.others,
            reports=self._links.reports,
            monotonic=time.monotonic,
        )
        self._for_people = linked, TokenUse(store, lambda: credentials.used, credentials.is_declared, time.monotonic)

    def _make_answers(self) -> None:
        """Make what readers and operators ask."""
        settings, clock, store, shards = self._settings, self._clock, self._store.store, self._shards
        tables, owners, declared = self._tables, self._owners, self._declared
        known = ShardCache(shards, self._store.cluster.cluster_id, tables.service)
        self._moments = moments = StreamCompleteness(
            shards, declared.expected_edges, clock, known=known, peers=settings.peers, table_error=tables.error_of
        )
        self._of_edges = EdgeFigures(self._own, clock.now, time.monotonic, peers=settings.peers, links=self._edge_links)
        self._rates = StreamRates(self._positions, time.monotonic)
        self._summaries = ShardSummaries(store, shards, moments, lambda: bool(owners.others()), time.monotonic)
        self._orders = Orders(self._access, clock)
        self._pipelines = PipelineRequests(store, self._orders, clock.now, time.monotonic)
        figures = StreamFigures(known, tables.service, clock, time.monotonic, moments.expecting, peers=settings.peers)
        # The first process of a host knows streams and pipelines as a whole.
        self._of_store: Sequence[Part] = (figures, self._pipelines) if settings.process == 0 else ()
        self._changes = ChangeStreams(
            self._positions, self._links.since, lambda: declared.position, self._access, self._refusals
        )
        self._elsewhere = self._for_people[0].elsewhere
        of_shards = ShardViews(shards, self._maker.log, settings.response_bytes_max, time.monotonic)
        self._api = Api(
            tables,
            of_shards,
            self._access,
            settings.response_bytes_max,
            moments=moments,
            rates=self._rates,
            summaries=self._summaries,
            schemas=declared.schemas,
            edges=self._edge_views,
            elsewhere=self._elsewhere,
            refusals=self._refusals,
            monotonic=time.monotonic,
        )
        self._shared: list[Sharing] = []
        if settings.sharing:
            from weft.cloud_hub.http.sharing import Sharing  # imports pyarrow, which others need not

            self._shared.append(
                Sharing(
                    self._store,
                    self._access,
                    declared,
                    self._summaries,
                    clock,
                    refusals=self._refusals,
                    settings=settings,
                    monotonic=time.monotonic,
                )
            )
        self._sql = SqlRequests(
            self._store.store,
            self._access,
            declared.tables,
            summaries=self._summaries,
            moments=moments,
            tables=tables,
            refusals=self._refusals,
            settings=settings,
        )
        self._tails = StreamTails(self._api, self._access, self._refusals)
        self._kafka: Sequence[Part] = () if settings.kafka_port is None else [self._make_kafka(of_shards)]
        self.health = Health(shards, tables, self._membership, clock, self._store.fence)

    def _make_kafka(self, views: ShardViews) -> KafkaListener:
        from weft.cloud_hub.kafka.broker import Broker  # imports kio, which others need not
        from weft.cloud_hub.kafka.listener import KafkaListener
        from weft.cloud_hub.kafka.partitions import PartitionReads, ProcessorTime
        from weft.cloud_hub.kafka.topics import Brokers, Topics

        settings = self._settings
        brokers = Brokers(self._owners, settings.kafka_advertise)
        time_of = ProcessorTime(self._refusals, time.monotonic)
        broker = Broker(
            self._store.cluster.cluster_id.hex(),
            self._shards,
            brokers,
            Topics(views, self._summaries, time.monotonic),
            reads=PartitionReads(time_of, time.monotonic),
            bytes_max=settings.response_bytes_max,
        )
        return KafkaListener(
            settings,
            self._listener,
            self._access,
            broker,
            answers=self._api.answers,
            brokers=brokers,
            refusals=self._refusals,
            time_of=time_of,
        )

    def _application(self) -> web.Application:
        """Return the application that serves all requests."""
        store, clock, access = self._store.store, self._clock, self._access
        application = self._api.application(
            self._listener.middleware, inner=[access.middleware, Asked(access).middleware]
        )
        metrics = Metrics(self.parts, self._refusals)
        ProcessRequests(self.status, self.serve_link, self.health, metrics, access).add_to(application)
        self._to_edges.add_to(application, access)
        TroubleRequests(
            access, summaries=self._summaries, own=self._own, elsewhere=self._elsewhere, tenants=self._tenants
        ).add_to(application)
        log = ClusterLog(store, self._store.cluster.cluster_id)
        PairRequests(log, self._declared.credentials, clock.now, time.monotonic).add_to(application)
        administration = Administration(
            store,
            log,
            clock,
            self._settings,
            self._known,
            orders=self._declared.regions,
            known=self._declared.state,
            split=self._membership.read_soon,
        )
        AdministrationRequests(administration, self._orders).add_to(application)
        UsageRequests(
            access,
            clock,
            self._tenants,
            self._summaries,
            quotas=self._declared.quotas,
            tables=self._tables,
            response_bytes_max=self._settings.response_bytes_max,
        ).add_to(application, self._api.bounded)
        self._pipelines.add_to(application)
        self._changes.add_to(application)
        self._tails.add_to(application)
        for each in self._shared:
            each.add_to(application)
        tables, has_iceberg = self._declared.tables, self._settings.iceberg
        Catalogue(store, access, tables, self._summaries, has_iceberg).add_to(application, self._api)
        self._sql.add_to(application)
        ConsolePages(access).add_to(application)
        SelfDescription(access).add_to(application)
        return application

    # -- steps of start and end

    async def _listen(self) -> None:
        await self._listener.listen(self._application())
        self._owners.listens(self._listener.port)

    async def _announce(self) -> None:
        await self._membership.start(self.url, self._work, self._grow)

    async def _drain(self) -> None:
        await self._membership.drain(lambda: len(self._links), lambda: self._links.send_on(within_s=SHUTDOWN_S))

    # -- what parts ask of others

    def _work(self) -> Work:
        tables = self._tables.maker.made if self._tables.maker is not None else None
        return Work(
            self._shards.loaded,
            len(self._links),
            self._declared.position,
            self._tenants.entry(),
            tables,
            self._load.used(),
            self._tenants.intake(),
        )

    async def _grow(self, cluster: Cluster) -> None:
        """Adopt new shards. Links whose edges moved are sent on, or end when they send."""
        self._known.cluster = cluster
        self._tables.grow(cluster)
        await self._owners.grow()

    def _positions(self) -> list[ShardPositions]:
        return followed(self._shards, self._tables.service, time.monotonic())

    def _edge_views(self, elsewhere: LinksElsewhere) -> EdgeViews:
        links = self._links
        return EdgeViews(
            {**elsewhere.edges, **links.by_edge(self._owners.own)},
            newest(links.reports(), elsewhere.reports),
            links.last_release,
            groups=self._declared.groups.of_edge,
        )

    async def _edge_links(self) -> LinksElsewhere:
        """Return the edges that are linked to any process, and the last reports of edges, for metrics."""
        there, links = LinksElsewhere({}, []), self._links
        with contextlib.suppress(TimeoutError):  # a store that hangs must not keep the metrics that say so
            async with asyncio.timeout(FIGURES_READ_S):
                there = await self._elsewhere(REPORTS_AGE_S)
        return there._replace(edges={**there.edges, **links.by_edge()}, reports=newest(links.reports(), there.reports))

    def _own(self) -> list[Sequencer]:
        return self._shards.own

    def _lost(self) -> list[LostOfLane]:
        return lost_views(self._own())

    # -- the running hub

    @property
    def cluster(self) -> Cluster:
        """Return the cluster as this process last read it."""
        return self._known.cluster

    @property
    def sequencers(self) -> list[Sequencer]:
        """Return the sequencers of the shards that this process has loaded."""
        return list(self._shards)

    @property
    def regions(self) -> list[RegionLink]:
        """Return the links of this process to other regions."""
        return list(self._regions)

    @property
    def url(self) -> str:
        """Return the URL of the process."""
        return self._listener.url

    @property
    def kafka_port(self) -> int:
        """Return the port for Kafka's clients of a hub that serves them."""
        (listener,) = cast("Sequence[KafkaListener]", self._kafka)
        return listener.port

    def reload(self) -> None:
        """Read the certificates again. If the new files cannot be used, the previous ones stay in force."""
        self._listener.reload()
        says = "no certificate is set" if self._settings.tls is None else "reading certificates again"
        logger.info("SIGHUP: %s", says)

    async def failed(self) -> str:
        """Wait until the process cannot continue, and return the reason. The caller has to start another process."""
        return await self._store.failed()

    async def serve_link(self, request: web.Request) -> web.StreamResponse:
        """Run an edge's link until it ends."""
        settings, peer = self._settings, request.remote or "an unknown address"
        try:
            identity = self._access.link(request)
            self._links.check_room(identity)
            if self._membership.is_outdated:
                raise ApiError(
                    503, "the cluster's level is above that of this node's release", "connect to another node"
                )
            if (wrong := self._clock.wrong()) is not None:
                raise ApiError(503, wrong, ADVICE)
            if (away := self._store.fence.trouble) is not None:
                raise ApiError(503, away, "the edge tries again by itself, here and at other nodes")
        except ApiError as error:
            self._link_log.turned_away(peer, f"refused ({error.status}): {error.error}; {error.advice}")
            raise
        link = EdgeLink(
            self._shards,
            identity,
            self._clock.now,
            self._link_log,
            peer,
            refusals=self._refusals,
            elsewhere=self._owners.elsewhere(request.host),
            down=self._down,
            configs=self._to_edges.fleet.links,
            quota=LinkQuota(self._tenants),
            frames=self._frames,
        )
        with self._links.opened(link, identity), self._listener.linked(request, link.end):
            response = await serve_link(
                request,
                self._to_edges.pulls.guarded(link),
                settings.receiver(),
                self.cluster.cluster_id.hex(),
                beats=self._beats,
                software=SOFTWARE,
                wall_clock=self._clock.now,
            )
        await note_refused(link, response, self._clock.sound, self._random_bits)
        return response

    def status(self) -> StatusAnswer:
        """Return the document of ``GET /v1/status``."""
        return StatusAnswer(
            software=SOFTWARE,
            cluster_id=self.cluster.cluster_id.hex(),
            level=self._membership.level,
            release_level=self._rules.level,
            name=self._owners.own,
            state=self._owners.state,
            process=self._settings.process,
            processes=self._settings.processes,
            peers=self._owners.peers(),
            **{member: view for part in self.parts for member, view in part.views().items()},
        )
