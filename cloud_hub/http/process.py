"""Requests about a process and the hub as a whole: its health, its metrics and status, the way in for
links, troubles, the administration, what the API says of itself, and what a tenant uses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from aiohttp import web
from msgspec import UNSET

from weft.cloud_hub.administration import Administration, quotas_answer
from weft.cloud_hub.auth.access import Access, Orders, readable
from weft.cloud_hub.auth.certificates import ReaderCertificate
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.cluster import Membership
from weft.cloud_hub.facts.tenants import DeclaredQuotas
from weft.cloud_hub.http.answers import LongAnswer, PageQuery, answered, asked, routes
from weft.cloud_hub.quotas import StreamUse, Tenants
from weft.cloud_hub.reads.metrics import Metrics
from weft.cloud_hub.reads.summaries import CONFLICTS_MAX, LinksElsewhere, ShardSummaries
from weft.cloud_hub.reads.views import encoded
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import LOST_LISTED_MAX, Shards, lost_views
from weft.cloud_hub.tables.hub_tables import HubTables
from weft.config.metrics.exposition import CONTENT_TYPE
from weft.config.release import SOFTWARE
from weft.config.units import approximate_duration
from weft.hub_api.answers import ApiError, ReceivedAnswer, StreamUseAnswer, UsageAnswer, WhoAmI, moment, moment_of
from weft.hub_api.document import document
from weft.hub_api.operations import OPERATIONS, Operation
from weft.hub_api.rights import Right
from weft.hub_api.status import StatusAnswer, TroublesAnswer
from weft.network.http_server import Handler
from weft.protocols.health import health_answer
from weft.protocols.link import PROTOCOL_VERSION
from weft.protocols.shard.completeness import OPEN_GAPS_MAX
from weft.replication.runner import LINK_PATH
from weft.storage.fenced_store import FencedStore

# ``GET /v1/troubles``: what an operator asks any process about the hub as a whole.


class TroubleRequests:
    """Handler of the request.

    Args:
        summaries: of all shards.
        own: returns the process's own shards.
        elsewhere: returns what other processes tell of their links.
    """

    def __init__(
        self,
        access: Access,
        *,
        summaries: ShardSummaries,
        own: Callable[[], Sequence[Sequencer]],
        elsewhere: Callable[[], Awaitable[LinksElsewhere]],
    ) -> None:
        self._access, self._summaries, self._own, self._elsewhere = access, summaries, own, elsewhere

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes(routes(troubles=self._get_troubles))

    async def _get_troubles(self, request: web.Request) -> web.Response:
        """Return conflicts, open gaps and lost records of all shards."""
        self._access.operate(request, Right.STATUS)
        shards, elsewhere = await self._summaries.every(), await self._elsewhere()
        conflicts = [view for each in shards.summaries for view in each.conflicts]
        more = sum(each.conflicts_more for each in shards.summaries)
        gaps = [view for each in shards.summaries for view in each.open_gaps]
        gaps_more = sum(each.open_gaps_more for each in shards.summaries)
        gaps.sort(key=lambda gap: (gap.tenant, gap.edge, gap.log, gap.stream))
        gaps.sort(key=lambda gap: gap.until, reverse=True)
        lost = [*lost_views(self._own()), *elsewhere.lost][:LOST_LISTED_MAX]
        return answered(
            TroublesAnswer(
                conflicts=conflicts[:CONFLICTS_MAX],
                conflicts_more=more + max(0, len(conflicts) - CONFLICTS_MAX),
                open_gaps=gaps[:OPEN_GAPS_MAX],
                open_gaps_more=gaps_more + max(0, len(gaps) - OPEN_GAPS_MAX),
                lost=lost,
                lost_unknown_at=list(elsewhere.unknown_at) or UNSET,
                as_of=shards.as_of,
                missing_shards=shards.missing_shards,
            )
        )


STORE_SILENCE_S = 15.0
"""Time for which the store owes a shard an answer before the shard makes the node not ready. One slow response or one
retry does not count, and a load balancer detects an outage before edges fill their windows."""
LOOK_AGE_S, LOOK_S_MAX = 1.0, 2.0
"""Age of a look at a bucket with which a probe is content, so that probes cost at most one request a second; and the
longest time that a probe waits for one."""


class Health:
    """The health of a process.

    Args:
        store: the store of the cluster.
    """

    def __init__(
        self, shards: Shards, tables: HubTables, membership: Membership, clock: HubClock, store: FencedStore
    ) -> None:
        self._shards, self._tables, self._membership = shards, tables, membership
        self._clock, self._store = clock, store

    def unhealthy(self) -> list[str]:
        """Return the reasons to restart the node; empty when a restart would not help.

        A failing store or a damaged shard is not a reason: a new process would have the same problem.
        """
        ended = [sequencer.log.shard for sequencer in self._shards.own if not sequencer.is_running]
        reasons = [f"the work on shard {shard} has ended" for shard in ended]
        if self._tables.maker is not None and not self._tables.maker.is_running:
            reasons.append("the work on the tables has ended")
        return reasons

    async def unready(self) -> list[str]:
        """Look at the store, and return the reasons why the node accepts no links and answers no readers; empty if it
        does.

        One working shard is enough: a failing shard affects only its own edges, and fails on every node.
        """
        await self._store.look(LOOK_AGE_S, LOOK_S_MAX)
        reasons, own = [], self._shards.own
        if self._membership.is_outdated:
            return [f"the cluster is at level {self._membership.level}, above this release"]
        for sequencer in own:
            shard, silent_s = sequencer.log.shard, sequencer.silent_s
            if not sequencer.loaded:
                reasons.append(f"shard {shard} is not loaded")
            elif silent_s > STORE_SILENCE_S:
                reasons.append(f"the store has not answered for {approximate_duration(silent_s)} (shard {shard})")
        doubted, leaves = self._clock.doubted(), self._membership.is_leaving
        if self._store.trouble is not None:
            return [self._store.trouble]
        if (silent_s := self._store.silent_s) > STORE_SILENCE_S:
            return [f"the store has not answered for {approximate_duration(silent_s)}"]
        general = [*self.unhealthy(), *([doubted] if doubted else []), *(["the node is leaving"] if leaves else [])]
        return general + (reasons if len(reasons) == len(own) else [])


class ProcessRequests:
    """Requests about the process itself, and the way in for links.

    Args:
        status: returns the process, its shards and its links.
        link: runs a link until it ends.
    """

    def __init__(
        self, status: Callable[[], StatusAnswer], link: Handler, health: Health, metrics: Metrics, access: Access
    ) -> None:
        self._status, self._link, self._health = status, link, health
        self._metrics, self._access = metrics, access

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes(
            [
                web.get(LINK_PATH, self._link),
                web.get("/metrics", self._get_metrics),
                web.get("/healthz", self._get_healthz),
                web.get("/readyz", self._get_readyz),
                *routes(status=self._get_status),
            ]
        )

    async def _get_metrics(self, request: web.Request) -> web.Response:
        self._access.operate(request, Right.METRICS)
        return web.Response(body=await self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _get_healthz(self, request: web.Request) -> web.Response:
        return web.Response(**health_answer("healthy", self._health.unhealthy(), request.headers))

    async def _get_readyz(self, request: web.Request) -> web.Response:
        return web.Response(**health_answer("ready", await self._health.unready(), request.headers))

    async def _get_status(self, request: web.Request) -> web.Response:
        self._access.operate(request, Right.STATUS)
        return answered(self._status())


MAKING_TOKENS = frozenset({"add_token", "pair_token", "import_tokens"})
"""Operations that may declare the first token of a store."""


class AdministrationRequests:
    """Handlers of the requests."""

    def __init__(self, administration: Administration, orders: Orders) -> None:
        self._administration, self._orders = administration, orders

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes(
            routes(**{each.name: self._handler(each) for each in OPERATIONS if each.right is not None})
        )

    def _handler(self, operation: Operation) -> Handler:
        right = operation.right
        assert right is not None, f"{operation.name} is not an operation on the hub as a whole"

        async def handle(request: web.Request) -> web.StreamResponse:
            self._orders.access.operate(request, right)
            body = None
            if operation.body is not None:
                body = await self._orders.body(request, right, operation.body_bytes_max)
            if operation.name in MAKING_TOKENS and self._orders.access.reader(request) is None:
                # The first one would end the links of all edges without a token; the command says which, and asks.
                error = "a hub without tokens makes the first one by its command"
                raise ApiError(403, error, f"use `{operation.command}`")
            answer = await self._administration.perform(
                operation,
                {**request.query, **request.match_info},
                body,
                lambda reason: self._orders.author(request, right, reason, instead=operation.command),
            )
            return answered(answer, headers={"Cache-Control": "no-store"})  # it may have a secret

        return handle


ANONYMOUS = "anonymous"
"""Scope of everyone at a hub without tokens."""


class SelfDescription:
    """Handlers of the two requests. A token of any scope opens them."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._document: bytes | None = None

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes(routes(openapi=self._get_document, whoami=self._get_whoami))

    async def _get_document(self, request: web.Request) -> web.Response:
        self._access.reader(request)
        if self._document is None:
            self._document = await asyncio.to_thread(_encoded)
        return web.Response(body=self._document, content_type="application/json")

    async def _get_whoami(self, request: web.Request) -> web.Response:
        identity = self._access.reader(request)
        if identity is None:
            answer = WhoAmI(
                token=None,
                scope=ANONYMOUS,
                tenant="default",
                edge=None,
                until=None,
                certificate=None,
                rights=[],
                software=SOFTWARE,
                link_protocol=PROTOCOL_VERSION,
            )
        else:
            certificate = identity.common_name if isinstance(identity, ReaderCertificate) else None
            answer = WhoAmI(
                token=identity.name if certificate is None else None,
                scope=identity.scope.value,
                tenant=identity.tenant,
                edge=identity.edge,
                until=moment(self._access.until(identity)),
                certificate=certificate,
                rights=identity.rights.texts,
                software=SOFTWARE,
                link_protocol=PROTOCOL_VERSION,
            )
        return web.Response(body=msgspec.json.encode(answer) + b"\n", content_type="application/json")


def _encoded() -> bytes:
    return msgspec.json.encode(document()) + b"\n"


_Usage = Callable[[web.Request], Awaitable[LongAnswer]]


class UsageRequests:
    """Handler of ``GET /v1/usage``, an account of what a tenant uses of the hub (docs/reference/api.md).

    Args:
        response_bytes_max: longest list of streams.
    """

    def __init__(
        self,
        access: Access,
        clock: HubClock,
        account: Tenants,
        summaries: ShardSummaries,
        *,
        quotas: DeclaredQuotas,
        tables: HubTables,
        response_bytes_max: int,
    ) -> None:
        self._access, self._account, self._summaries = access, account, summaries
        self._quotas, self._tables, self._response_bytes_max = quotas, tables, response_bytes_max
        self._since = clock.now()

    def add_to(self, application: web.Application, bounded: Callable[[_Usage], Handler]) -> None:
        """Add the requests to the application of the API.

        Args:
            bounded: bounds the answers in progress of a reader.
        """
        application.add_routes(routes(usage=bounded(self.get_usage)))

    async def get_usage(self, request: web.Request) -> LongAnswer:
        """Return what a tenant uses: numbers of all shards, and what came to this process."""
        tenant, is_readable = self._access.streams(request)
        query = asked(request, PageQuery)
        shards = await self._summaries.every()
        every = await shards.streams(tenant)
        use = self._account.known(tenant)
        listed = (name for name in every if name > (query.after or ""))
        names = await readable(listed, is_readable, query.limit + 1)

        def stream(name: str) -> StreamUseAnswer:
            records = sum(part.end or 0 for part in every[name])
            came = use.streams.get(name, StreamUse()) if use is not None else StreamUse()
            size = self._tables.stream_bytes(tenant, name)
            return StreamUseAnswer(stream=name, records=records, received=_received(came), table_bytes=size)

        page = await encoded(names[: query.limit], stream, self._response_bytes_max)
        taken = len(page.views)
        answer = UsageAnswer(
            tenant=tenant,
            quotas=quotas_answer(self._quotas.of(tenant)),
            since=moment_of(self._since),
            share=1.0 if use is None else use.share,
            links=self._account.links(tenant),
            lanes=sum(part.lanes for parts in every.values() for part in parts),
            streams_count=len(every),
            table_bytes=self._tables.bytes_of(tenant),
            received=_received(StreamUse() if use is None else use.total()),
            throttled_seconds=0.0 if use is None else use.waited_ns / 1e9,
            refused=0 if use is None else use.refused,
            streams=page.views,
            next_after=names[taken - 1] if taken < len(names) else None,
            as_of=shards.as_of,
            missing_shards=shards.missing_shards,
        )
        return LongAnswer([msgspec.json.encode(answer) + b"\n"], headers={"Cache-Control": "no-store"})


def _received(came: StreamUse) -> ReceivedAnswer:
    return ReceivedAnswer(bytes=came.bytes, records=came.records)
