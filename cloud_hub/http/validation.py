"""Parameters and bodies of requests, by what the operations say of them; the administration of the hub; and what the
API says of itself, and of what a tenant uses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware
from weft.cloud_hub.reads.answers import LongAnswer, answered, encoded, routes

from weft.cloud_hub.administration import Administration, quotas_answer
from weft.cloud_hub.auth.access import Access, Orders, readable
from weft.cloud_hub.auth.certificates import ReaderCertificate
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.facts.tenants import DeclaredQuotas
from weft.cloud_hub.quotas import StreamUse, Tenants
from weft.cloud_hub.reads.summaries import ShardSummaries
from weft.cloud_hub.tables.hub_tables import HubTables
from weft.config.release import SOFTWARE
from weft.hub_api.answers import ApiError, ReceivedAnswer, StreamUseAnswer, UsageAnswer, WhoAmI, moment, moment_of
from weft.hub_api.document import document
from weft.hub_api.operations import OPERATIONS, SHOWN_CHARACTERS, TENANT, Operation, Reader, reader_of
from weft.network.http_server import Handler
from weft.protocols.link import PROTOCOL_VERSION

# Parameters of requests are what the document says of them, also those that the handler of a request never reads.

LOOKED_AT_MAX = 16
"""Maximum number of unknown parameters of a request that are compared with the known ones."""
NEAR = 0.75
"""Likeness of two names from which one is taken for a mistyped other."""
T = TypeVar("T", bound=msgspec.Struct)


class _Asked(NamedTuple):
    operation: Operation
    values: dict[str, Any]
    """Values of the parameters of the query, without the tenant, which is the business of ``Access``."""


_ASKED = web.RequestKey("asked", _Asked)


def asked(request: web.Request, of: type[T]) -> T:
    """Return the parameters in the query of a request.

    Args:
        of: their struct, which has a field for each that the operation declares, but the tenant.

    Raises:
        ApiError: 400: a required one is missing.
    """
    operation, values = request[_ASKED]
    for each in operation.parameters:
        if each.required and each.place == "query" and values[each.name] is None:
            raise ApiError(400, f"{each.name}= is missing", each.advice)
    return msgspec.convert(values, of)


class Asked:
    """Reads the parameters of requests before their handlers run. A parameter that the operation does not have is left
    alone, since a client of a later release may send it, unless its name is nearly that of one that it has: a
    mistyped filter must not give an answer without it."""

    def __init__(self, access: Access, operations: Iterable[Operation] = OPERATIONS) -> None:
        self._access = access
        self._operations = {
            each.key: (each, {named.name: reader_of(named) for named in each.parameters}) for each in operations
        }

    @property
    def middleware(self) -> Middleware:
        """Return the middleware, for which ``ApiError`` must be caught outside."""

        @web.middleware
        async def asked(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            resource = request.match_info.route.resource
            method = "GET" if request.method == "HEAD" else request.method
            if resource is not None and (found := self._operations.get((method, resource.canonical))) is not None:
                try:
                    request[_ASKED] = _Asked(found[0], _values(request, *found))
                except ApiError:
                    self._access.reader(request)  # a stranger gets 401, and learns nothing else
                    raise
            return await handler(request)

        return asked


def _values(request: web.Request, operation: Operation, readers: Mapping[str, Reader]) -> dict[str, Any]:
    values = dict[str, Any]()
    for each in operation.parameters:
        if each.place == "path":
            continue
        texts = (request.query if each.place == "query" else request.headers).getall(each.name, ())
        if len(texts) > 1:
            raise ApiError(400, f"{each.written.strip()} is given {len(texts)} times", "give it once")
        for other in each.beside if texts else ():
            if other in request.query:
                error, advice = f"{each.name}= has no meaning beside {other}=", f"leave out {each.name}= or {other}="
                raise ApiError(400, error, advice)
        if each.place == "query":
            values[each.name] = readers[each.name](texts[0]) if texts else each.default
    unknown = (name for name in dict.fromkeys(request.query) if name not in values)
    for name in islice(unknown, LOOKED_AT_MAX):
        if len(name) <= SHOWN_CHARACTERS and (near := get_close_matches(name, values, 1, NEAR)):
            raise ApiError(400, f"{name}= is not a parameter of this operation", f"did you mean {near[0]}=?")
    values.pop(TENANT.name, None)
    return values


# ``/v1/openapi.json`` and ``/v1/whoami``: the API tells what it offers, and what a token opens.

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


NOTHING_STORED = "nothing was stored; send it again"
BODY_S = 10.0
"""Longest time that a request's body may take."""
PLAIN = "identity"
"""Content-Encoding of a body that is not packed (RFC 9110, section 8.4.1), the only one that the hub takes."""
CODING_SHOWN_MAX = 40
"""Longest part of another one in an answer."""


async def read_body(request: web.Request, bytes_max: int, advice: str) -> bytes:
    """Return the body of a request.

    Args:
        advice: what to do when it is too long.

    Raises:
        ApiError: 408, 413, 415.
    """
    if (coding := request.headers.get(hdrs.CONTENT_ENCODING, PLAIN)).lower() != PLAIN:
        raise ApiError(415, f"a body with the coding {coding[:CODING_SHOWN_MAX]!r}", "send it without Content-Encoding")
    if (request.content_length or 0) > bytes_max:
        raise ApiError(413, f"a body of {request.content_length} bytes", f"at most {bytes_max} are possible")
    try:
        async with asyncio.timeout(BODY_S):
            body = await request.content.read(bytes_max + 1)
            while len(body) <= bytes_max and (more := await request.content.read(bytes_max + 1 - len(body))):
                body += more
                await asyncio.sleep(0)  # of tiny chunks, some thousand are parsed at each read
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_S:g} s", NOTHING_STORED) from None
    if len(body) > bytes_max:
        raise ApiError(413, f"a body of more than {bytes_max} bytes", advice)
    return body


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a request for a page of a list."""

    after: str | None
    """``next_after`` of the page before; None for the first page."""
    limit: int


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
