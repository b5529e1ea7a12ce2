"""Requests about a process and the hub as a whole: health, metrics, status, links, pairing, troubles, administration,
the API's own document, and the use of tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from aiohttp import web
from msgspec import UNSET

from weft.bounds import Owner, OwnerKind, address_owner
from weft.bounds.bound import Rates
from weft.cloud_hub.administration import Administration, quotas_answer
from weft.cloud_hub.auth.access import Access, readable
from weft.cloud_hub.auth.certificates import ReaderCertificate
from weft.cloud_hub.auth.tokens import hash_token
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.cluster import Membership
from weft.cloud_hub.facts.fact import TOKEN, CannotDeclare, decode
from weft.cloud_hub.facts.tenants import DeclaredQuotas
from weft.cloud_hub.facts.tokens import Credentials, NotPaired, TokenDocument, redeem
from weft.cloud_hub.http.exchange import LongAnswer, Orders, PageQuery, answered, asked, read_body, routes
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
from weft.hub_api.answers import ApiError, moment, moment_of
from weft.hub_api.operation import Operation
from weft.hub_api.operations import OPERATIONS, document
from weft.hub_api.rights import CONCERNS, Right
from weft.hub_api.status import StatusAnswer, TroublesAnswer
from weft.hub_api.tenants import ReceivedAnswer, StreamUseAnswer, UsageAnswer
from weft.hub_api.tokens import WhoAmI
from weft.network.http_server import Handler
from weft.protocols.errors import CodecError
from weft.protocols.health import health_answer
from weft.protocols.link import PAIR_BODY_BYTES_MAX, PAIR_PATH, PROTOCOL_VERSION, PairAnswer, PairRequest, spoken
from weft.protocols.shard.completeness import OPEN_GAPS_MAX
from weft.replication.runner import LINK_PATH
from weft.storage.cluster_log import Author, ChangeRefused, ClusterLog, Contended
from weft.storage.fenced_store import FencedStore
from weft.storage.object_store import StoreError

# ``GET /v1/troubles``: what an operator asks any process about the hub as a whole.


class TroubleRequests:
    """Handler of the request.

    Args:
        summaries: of all shards.
        own: returns the process's own shards.
        elsewhere: returns the links that other processes report.
        tenants: those with links to this process.
    """

    def __init__(
        self,
        access: Access,
        *,
        summaries: ShardSummaries,
        own: Callable[[], Sequence[Sequencer]],
        elsewhere: Callable[[], Awaitable[LinksElsewhere]],
        tenants: Tenants,
    ) -> None:
        self._access, self._summaries, self._own, self._elsewhere = access, summaries, own, elsewhere
        self._tenants = tenants

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes(routes(troubles=self._get_troubles))

    async def _get_troubles(self, request: web.Request) -> web.Response:
        """Return conflicts, open gaps and lost records of all shards, and tenants at a quota."""
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
                at_quota=await self._tenants.at_quota(),
                as_of=shards.as_of,
                missing_shards=shards.missing_shards,
            )
        )


STORE_SILENCE_S = 15.0
"""Time without an answer of the store to a shard after which the node is not ready. It is longer than a slow response
or a retry, and short enough that a load balancer reacts before edges fill their windows."""
LOOK_AGE_S, LOOK_S_MAX = 1.0, 2.0
"""Maximum age of the result of a store check that a probe uses, so that probes cost at most one request a second; and
the longest wait of a probe for a check."""


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
        """Check the store, and return the reasons why the node accepts no links and answers no readers; empty if it
        does.

        One working shard suffices: a failing shard affects only its own edges, and fails on every node.
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
        doubted, leaves = self._clock.doubted(), self._membership.why_leaving
        if self._store.trouble is not None:
            return [self._store.trouble]
        if (silent_s := self._store.silent_s) > STORE_SILENCE_S:
            return [f"the store has not answered for {approximate_duration(silent_s)}"]
        general = [*self.unhealthy(), *filter(None, (doubted, leaves))]
        return general + (reasons if len(reasons) == len(own) else [])


class ProcessRequests:
    """Requests about the process itself, and the way in for links.

    Args:
        status: returns the answer of ``GET /v1/status``.
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


# ``/v1/pair``: an edge gives its token a secret, by a code that ends soon and works once (docs/reference/api.md).

WRONG_BURST = 10
"""Burst of wrong codes of one address."""
WRONG_PER_S = 0.1
ALL_WRONG_BURST, ALL_WRONG_PER_S = 1000, 10.0
"""Burst and rate of wrong codes of all addresses together: an attacker may have many."""
FLOOD_S = 60.0
"""Time after a wrong code during which the common bound applies to its address. It applies to no others, so that an
edge with the right code can pair while strangers guess."""
_EVERYBODY = Owner(OwnerKind.ADDRESS, "")
_WRONG = "this code is not valid here"
_ADVICE = (
    "it is wrong, was used, has ended, is for another edge, or is younger than two seconds. "
    "`weft hub token pair` makes another one"
)


class PairRequests:
    """Handler of the requests. Who asks has no token yet, so that an answer to a wrong code tells nothing.

    Args:
        credentials: the tokens that this process knows. A code that none of them has costs no read of the store.
        now: nanoseconds since 1970.
        monotonic: seconds.
    """

    def __init__(
        self, log: ClusterLog, credentials: Credentials, now: Callable[[], int], monotonic: Callable[[], float]
    ) -> None:
        self._log, self._credentials, self._now = log, credentials, now
        self._wrong: Rates[Owner] = Rates(WRONG_PER_S, WRONG_BURST, monotonic)
        self._all_wrong: Rates[Owner] = Rates(ALL_WRONG_PER_S, ALL_WRONG_BURST, monotonic)
        self._recent: Rates[Owner] = Rates(1 / FLOOD_S, 0.0, monotonic)
        """Addresses with a wrong code in the last ``FLOOD_S``."""

    def add_to(self, application: web.Application) -> None:
        """Add the request to the application of the API."""
        application.router.add_post(PAIR_PATH, self.post)

    async def post(self, request: web.Request) -> web.Response:
        """Set the secret of a token. The answer is sent when it is durable."""
        if "Origin" in request.headers:
            # Only browsers send it, and no page has a reason to try codes with the addresses of its readers.
            raise ApiError(403, "pairing is not for browsers", "use `weft edge pair`")
        owner = address_owner(request.remote or "")
        self._check(owner)
        asked = _decode(await read_body(request, PAIR_BODY_BYTES_MAX, "a pairing request has some hundred bytes"))
        self._check(owner)  # other connections of the address may have had wrong codes while this one held its back
        code = hash_token(spoken(asked.code))
        try:
            answer = await self._redeem(asked, code, request.remote or "")
        except NotPaired:
            self._wrong.charge(owner, 1)
            self._all_wrong.charge(_EVERYBODY, 1)
            self._recent.charge(owner, 1 - self._recent.debt_s(owner) / FLOOD_S)
            raise ApiError(403, _WRONG, _ADVICE) from None
        return web.Response(body=msgspec.json.encode(answer) + b"\n", content_type="application/json")

    def _check(self, owner: Owner) -> None:
        """Refuse an address that sent too many wrong codes, or one of too many that all sent.

        Raises:
            ApiError: 429.
        """
        flood_s = min(self._all_wrong.debt_s(_EVERYBODY), self._recent.debt_s(owner))
        if wait_s := max(self._wrong.debt_s(owner), flood_s):
            raise ApiError(429, "too many wrong codes", "wait a minute, and request a new code", retry_s=wait_s)

    async def _redeem(self, asked: PairRequest, code: str, origin: str) -> PairAnswer:
        name = self._credentials.paired_by(code)
        if name is None:
            raise NotPaired
        now = self._now()
        author = Author(now, f"edge with a code of {name}", "", origin, f"POST {PAIR_PATH}")
        decision = redeem(name, code, asked.sha256, (asked.tenant, asked.edge), now)
        try:
            state = await self._log.append(decision, author, await self._log.load())
        except (CannotDeclare, ChangeRefused) as error:
            raise ApiError(409, str(error), "nothing was declared") from error
        except (StoreError, Contended, CodecError) as error:
            again = "ask again with the same code"
            raise ApiError(503, f"the cluster log cannot be written: {error}", again) from error
        document = decode(state.facts(TOKEN)[name].document, TokenDocument)
        ends = [each.until for each in document.secrets if each.sha256 == asked.sha256]
        until = None if not ends or ends[0] is None else moment(ends[0])
        return PairAnswer(tenant=document.tenant, edge=document.edge or "", token=name, until=until)


def _decode(body: bytes) -> PairRequest:
    try:
        return msgspec.json.decode(body, type=PairRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ApiError(400, "the body is not a pairing request", "use `weft edge pair`") from None


# The administration of the hub.

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
        assert right is not None, f"{operation.name} is not an operation of the administration"

        async def handle(request: web.Request) -> web.StreamResponse:
            texts = {**request.query, **request.match_info}
            if right in CONCERNS:
                texts["tenant"], _ = self._orders.access.stream(request, right)
            else:
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
                texts,
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
        """Return the use of a tenant: numbers of all shards, and what this process has received."""
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
