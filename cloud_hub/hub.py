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
from collections.abc import Callable

from aiohttp import web

from weft.bounds import Refusals
from weft.cloud_hub.api.access import Access, ApiError
from weft.cloud_hub.api.application import Api
from weft.cloud_hub.api.edge_figures import REPORTS_AGE_S, EdgeFigures
from weft.cloud_hub.api.edge_reports import newest
from weft.cloud_hub.api.edges import EdgeViews, LinksElsewhere
from weft.cloud_hub.api.fleet import FleetRequests
from weft.cloud_hub.api.metrics import Metrics
from weft.cloud_hub.api.streams.completeness import StreamCompleteness
from weft.cloud_hub.api.streams.figures import StreamFigures
from weft.cloud_hub.api.streams.rates import StreamRates, followed
from weft.cloud_hub.api.streams.shard_views import ShardViews
from weft.cloud_hub.api.streams.tail import StreamTails
from weft.cloud_hub.api.summaries.summaries import ShardSummaries
from weft.cloud_hub.api.views import View, conflict_views, lost_views, open_gap_views
from weft.cloud_hub.clock import ADVICE, HubClock
from weft.cloud_hub.cluster.membership import Membership, Work, software
from weft.cloud_hub.cluster.owners import Owners, Site
from weft.cloud_hub.console.assets import ConsolePages
from weft.cloud_hub.console.changes import ChangeStreams
from weft.cloud_hub.declared.acts.acting import OwnActs
from weft.cloud_hub.declared.acts.requests import ActsRequests
from weft.cloud_hub.declared.declarations import Declarations
from weft.cloud_hub.declared.nodes import NodeRequests
from weft.cloud_hub.declared.pairing import PairRequests
from weft.cloud_hub.declared.requested import RequestedChanges
from weft.cloud_hub.declared.tenants.counts import TenantCounts
from weft.cloud_hub.declared.tenants.link_quota import LinkQuota
from weft.cloud_hub.declared.tenants.requests import TenantRequests
from weft.cloud_hub.declared.tenants.use import Tenants
from weft.cloud_hub.declared.token_use import TokenUse
from weft.cloud_hub.declared.tokens import TokenRequests
from weft.cloud_hub.down.acts_stream import ActsStream
from weft.cloud_hub.down.requests import read_body
from weft.cloud_hub.health import Health
from weft.cloud_hub.links import link_log
from weft.cloud_hub.links.edge_link import EdgeLink
from weft.cloud_hub.links.frame_budget import FrameBudget
from weft.cloud_hub.links.link_log import HubLinkLog
from weft.cloud_hub.links.linked_edges import LinkedEdges
from weft.cloud_hub.links.open_links import OpenLinks
from weft.cloud_hub.links.refused import note_refused
from weft.cloud_hub.listener import SHUTDOWN_S, HubListener
from weft.cloud_hub.openapi.asked import Asked
from weft.cloud_hub.openapi.served import SelfDescription
from weft.cloud_hub.pipelines import FIGURES_READ_S, PipelineRequests
from weft.cloud_hub.regions.link import RegionLink
from weft.cloud_hub.regions.regions import Regions
from weft.cloud_hub.regions.requests import RegionRequests
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.shard.schedule import CommitPace
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import KnownShards, Shards, shard_views
from weft.cloud_hub.splits.busy import Clocks, Load
from weft.cloud_hub.splits.making import ShardMaker
from weft.cloud_hub.store import HubStore
from weft.cloud_hub.tables.hub_tables import HubTables
from weft.cloud_hub.to_edges import ToEdges
from weft.config.log_lines.throttle import Throttle
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.shard_state import RELEASE, FoldRules
from weft.replication.runner import serve_link
from weft.storage.cluster import Cluster
from weft.storage.object_store import ObjectStore
from weft.storage.object_store.placed import requests_of
from weft.storage.region_positions import RegionPositions

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
        link_log.logger.addFilter(self._throttle)
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
        link_log.logger.removeFilter(self._throttle)
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
