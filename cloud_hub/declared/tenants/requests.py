"""``/v1/tenants`` and ``/v1/usage``: quotas of tenants, and an account of their use (docs/reference/api.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Protocol

import msgspec
from aiohttp import web
from msgspec import Meta

from weft.cloud_hub.api.access import ApiError
from weft.cloud_hub.api.answers import integer
from weft.cloud_hub.api.identity.rights import Right
from weft.cloud_hub.api.pages import PAGE_DEFAULT, PAGE_MAX
from weft.cloud_hub.api.summaries.summaries import ShardSummaries
from weft.cloud_hub.api.views import View, moment
from weft.cloud_hub.declared.changes import ALWAYS_THERE, CannotDeclare
from weft.cloud_hub.declared.documents import TENANT, Quotas, TenantDocument, UnreadableDocument, decode
from weft.cloud_hub.declared.requested import Reason, RequestedChanges, json_answer
from weft.cloud_hub.declared.tenants.changes import set_tenant
from weft.cloud_hub.declared.tenants.use import StreamUse, TenantUse
from weft.protocols.lane import NAME_RULE, valid_name
from weft.storage.cluster_log.log import Change
from weft.storage.cluster_log.state import ClusterState
from weft.storage.object_store import StoreError

USAGE, TENANTS, TENANT_WAY = "/v1/usage", "/v1/tenants", "/v1/tenants/{tenant}"
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
    reason: Reason = ""
    """For the record of administrative acts."""
    version: Annotated[int, Meta(ge=0)] | None = None
    """Version of the tenant that was changed, 0 for a new one. It is refused after another change of the tenant."""


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
    """

    def __init__(
        self, changes: RequestedChanges, account: Account, summaries: ShardSummaries, *,
        quotas: Callable[[str], Quotas], table_bytes: Callable[[str], int | None],
        stream_bytes: Callable[[str, str], int | None],
    ) -> None:  # fmt: skip
        self._changes, self._access = changes, changes.access
        self._account, self._summaries = account, summaries
        self._quotas, self._table_bytes, self._stream_bytes = quotas, table_bytes, stream_bytes
        self._since = changes.clock.now()

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes([
            web.get(USAGE, self.get_usage), web.get(TENANTS, self.get_list), web.get(TENANT_WAY, self.get),
            web.put(TENANT_WAY, self.put),
        ])  # fmt: skip

    async def get_list(self, request: web.Request) -> web.Response:
        """Return the declared tenants, and the one that need not be declared, by name."""
        self._access.operate(request, Right.TENANTS)
        after, limit = request.query.get("after", ""), integer(request, "limit", PAGE_DEFAULT, 1, PAGE_MAX)
        state = await self._load()
        names = [name for name in sorted({ALWAYS_THERE, *state.facts(TENANT)}) if name > after]
        return json_answer({
            "tenants": [_tenant_view(state, name) for name in names[:limit]],
            "next_after": names[limit - 1] if len(names) > limit else None,
        })  # fmt: skip

    async def get(self, request: web.Request) -> web.Response:
        """Return a tenant's quotas."""
        self._access.operate(request, Right.TENANTS)
        return json_answer(_tenant_view(await self._load(), _name(request)))

    async def put(self, request: web.Request) -> web.Response:
        """Declare all quotas of a tenant, and the tenant if it is new. Answered when that is durable."""
        wanted = await self._changes.body(request, Right.TENANTS, TenantQuotas, "the quotas of a tenant")
        author = self._changes.author(request, Right.TENANTS, wanted.reason, instead="weft hub tenant set")
        name = _name(request)
        given = {each: getattr(wanted, each) for each in Quotas.__struct_fields__}
        cleared = frozenset(each for each, value in given.items() if value is None)

        def decide(state: ClusterState) -> Change | None:
            fact = state.facts(TENANT).get(name)
            if wanted.version not in (None, 0 if fact is None else fact.version):
                raise CannotDeclare(f"tenant {name} is declared already, or was changed meanwhile")
            return set_tenant(name, Quotas(**given), cleared, is_new=fact is None)(state)

        return json_answer(_tenant_view(await self._changes.declare(decide, author), name))

    async def _load(self) -> ClusterState:
        try:
            return await self._changes.load()
        except StoreError as error:
            raise ApiError(503, f"the cluster log cannot be read: {error}", "try again") from error

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
        return json_answer(view)


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
