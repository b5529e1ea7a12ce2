"""The administration by HTTP: a request of each of its operations is checked, decoded, performed and answered alike.
Beside it stands the account of a tenant's use, which a process can give of itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from weft.cloud_hub.administration import Administration, quotas_answer
from weft.cloud_hub.auth.access import Access, Orders
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.facts.tenants import DeclaredQuotas
from weft.cloud_hub.quotas import StreamUse, Tenants
from weft.cloud_hub.reads.answers import LongAnswer, answered, encoded, integer, routes
from weft.cloud_hub.reads.summaries import ShardSummaries
from weft.cloud_hub.tables.hub_tables import HubTables
from weft.hub_api.answers import ApiError, ReceivedAnswer, StreamUseAnswer, UsageAnswer, moment_of
from weft.hub_api.operations import OPERATIONS, PAGE_DEFAULT, PAGE_MAX, Operation
from weft.network.http_server import Handler


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
            body = None if operation.body is None else await self._orders.body(request, right)
            if operation.name == "add_token" and self._orders.access.reader(request) is None:
                # It would end the links of all edges without a token; the command says which, and asks.
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
        limit, after = integer(request, "limit", PAGE_DEFAULT, 1, PAGE_MAX), request.query.get("after", "")
        shards = await self._summaries.every()
        every = await shards.streams(tenant)
        use = self._account.known(tenant)
        names = [name for name in every if name > after and is_readable(name)]

        def stream(name: str) -> StreamUseAnswer:
            records = sum(part.end or 0 for part in every[name])
            came = use.streams.get(name, StreamUse()) if use is not None else StreamUse()
            size = self._tables.stream_bytes(tenant, name)
            return StreamUseAnswer(stream=name, records=records, received=_received(came), table_bytes=size)

        page = await encoded(names[:limit], stream, self._response_bytes_max)
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
