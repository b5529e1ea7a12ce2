"""``/v1/tenants`` and ``/v1/usage``: quotas of tenants, and an account of their use (docs/reference/api.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Protocol

import msgspec
from aiohttp import web
from msgspec import Meta

from weft.cloud_hub.api.access import Access, ApiError
from weft.cloud_hub.api.answers import integer
from weft.cloud_hub.api.identity.rights import Right
from weft.cloud_hub.api.pages import PAGE_DEFAULT, PAGE_MAX
from weft.cloud_hub.api.summaries.summaries import ShardSummaries
from weft.cloud_hub.api.views import View, moment
from weft.cloud_hub.declared.changes import ALWAYS_THERE, CannotDeclare
from weft.cloud_hub.declared.documents import TENANT, Quotas, TenantDocument, UnreadableDocument, decode
from weft.cloud_hub.declared.tenants.changes import set_tenant
from weft.cloud_hub.declared.tenants.use import StreamUse, TenantUse
from weft.protocols.errors import CodecError
from weft.protocols.lane import NAME_RULE, valid_name
from weft.storage.cluster_log.entry import REASON_CHARACTERS_MAX
from weft.storage.cluster_log.log import Author, Change, ChangeRefused, ClusterLog, Contended
from weft.storage.cluster_log.state import ClusterState
from weft.storage.object_store import StoreError

USAGE, TENANTS = "/v1/usage", "/v1/tenants/{tenant}"
BODY_BYTES_MAX = 4 << 10
_Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None
_Rate = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] | None


class TenantQuotas(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: all quotas of a tenant. One that is left out is no bound."""

    edges: _Number = None
    streams: _Number = None
    bytes_per_second: _Rate = None
    stored_bytes: _Number = None
    records_per_second: _Rate = None
    lanes: _Number = None
    links: _Number = None
    table_bytes: _Number = None
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)] = ""
    """For the record of administrative acts."""


class Account(Protocol):
    """The account of a process (``use.Tenants``)."""

    def known(self, tenant: str) -> TenantUse | None:
        """Return the use of a tenant that had links here; None for others."""
        ...

    def links(self, tenant: str) -> int:
        """Return the number of a tenant's linked edges."""
        ...


class TenantRequests:
    """Handlers of the requests.

    Args:
        quotas: those of a tenant, as this process knows them.
        table_bytes, stream_bytes: bytes of the tables of a tenant, and of one stream; None where this process does not
            know.
        now: nanoseconds since 1970.
        read_body: reads the body of a request with a bound.
    """

    def __init__(
        self, log: ClusterLog, account: Account, summaries: ShardSummaries, access: Access, *,
        quotas: Callable[[str], Quotas], table_bytes: Callable[[str], int | None],
        stream_bytes: Callable[[str, str], int | None], now: Callable[[], int],
        read_body: Callable[[web.Request, int, str], Awaitable[bytes]],
    ) -> None:  # fmt: skip
        self._log = log
        self._account, self._summaries, self._access = account, summaries, access
        self._quotas, self._now, self._read_body = quotas, now, read_body
        self._table_bytes, self._stream_bytes = table_bytes, stream_bytes
        self._since = now()

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes([web.get(USAGE, self.get_usage), web.get(TENANTS, self.get), web.put(TENANTS, self.put)])

    async def get(self, request: web.Request) -> web.Response:
        """Return a tenant's quotas."""
        self._access.operate(request, Right.TENANTS)
        return _json(_tenant_view(await self._load(), _name(request)))

    async def put(self, request: web.Request) -> web.Response:
        """Declare all quotas of a tenant, and the tenant if it is new. Answered when that is durable."""
        self._access.operate(request, Right.TENANTS)
        identity, name = self._access.reader(request), _name(request)
        if identity is None and "Origin" in request.headers:
            raise ApiError(403, "without tokens, this is not for browsers", "use `weft hub tenant set`")
        wanted = _decode(await self._read_body(request, BODY_BYTES_MAX, "quotas have some hundred bytes"))
        given = {each: getattr(wanted, each) for each in Quotas.__struct_fields__}
        cleared = frozenset(each for each, value in given.items() if value is None)

        def decide(state: ClusterState) -> Change | None:
            is_new = name not in state.facts(TENANT)
            return set_tenant(name, Quotas(**given), cleared, is_new=is_new)(state)

        who = "the API" if identity is None else f"token {identity.name}"
        author = Author(self._now(), who, wanted.reason, request.remote or "", f"PUT {TENANTS}")
        try:
            state = await self._log.append(decide, author, await self._load())
        except (CannotDeclare, ChangeRefused) as error:
            raise ApiError(409, str(error), "nothing was declared") from error
        except (StoreError, Contended, CodecError) as error:
            again = "nothing was declared; try again"
            raise ApiError(503, f"the cluster log cannot be written: {error}", again) from error
        return _json(_tenant_view(state, name))

    async def _load(self) -> ClusterState:
        try:
            return await self._log.load()
        except CodecError as error:
            raise ApiError(503, str(error), "ask a hub process of that release") from error

    async def get_usage(self, request: web.Request) -> web.Response:
        """Return what a tenant uses: numbers of all shards, and what came to this process."""
        tenant, is_readable = self._access.streams(request)
        limit, after = integer(request, "limit", PAGE_DEFAULT, 1, PAGE_MAX), request.query.get("after", "")
        shards = await self._summaries.every()
        every = shards.streams(tenant)
        use = self._account.known(tenant)
        names = [name for name in every if name > after and is_readable(name)]
        streams: list[View] = []
        for name in names[:limit]:
            records = sum(part.end or 0 for part in every[name])
            came = use.streams.get(name, StreamUse()) if use is not None else StreamUse()
            size = self._stream_bytes(tenant, name)
            streams.append({"stream": name, "records": records, "received": _received(came), "table_bytes": size})
        view = {
            "tenant": tenant,
            "quotas": _quotas_view(self._quotas(tenant)),
            "since": moment(self._since),
            "share": 1.0 if use is None else use.share,
            "links": self._account.links(tenant),
            "lanes": sum(part.lanes for parts in every.values() for part in parts),
            "streams_count": len(every),
            "table_bytes": self._table_bytes(tenant),
            "received": _received(StreamUse() if use is None else use.total()),
            "throttled_seconds": 0.0 if use is None else use.waited_ns / 1e9,
            "refused": 0 if use is None else use.refused,
            "streams": streams,
            "next_after": names[limit - 1] if len(names) > limit else None,
            **shards.view(),
        }
        return _json(view)


def _received(came: StreamUse) -> View:
    return {"bytes": came.bytes, "records": came.records}


def _quotas_view(quotas: Quotas) -> View:
    return {each: getattr(quotas, each) for each in Quotas.__struct_fields__}


def _tenant_view(state: ClusterState, name: str) -> View:
    fact = state.facts(TENANT).get(name)
    if fact is None and name != ALWAYS_THERE:
        raise ApiError(404, f"there is no tenant {name!r} in the cluster log", "PUT declares it with its quotas")
    try:
        quotas = Quotas() if fact is None else decode(fact.document, TenantDocument).quotas
    except UnreadableDocument as error:
        advice = "use the release that wrote it"
        raise ApiError(503, f"this release cannot read tenant {name!r}: {error}", advice) from error
    return {"tenant": name, "version": 0 if fact is None else fact.version, "quotas": _quotas_view(quotas)}


def _name(request: web.Request) -> str:
    name = request.match_info["tenant"]
    if not valid_name(name):
        raise ApiError(400, f"{name[:80]!r} is no name", f"expected {NAME_RULE}")
    return name


def _decode(body: bytes) -> TenantQuotas:
    try:
        return msgspec.json.decode(body, type=TenantQuotas)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not the quotas of a tenant: {error}", "see docs/reference/api.md") from None


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value) + b"\n", content_type="application/json")
