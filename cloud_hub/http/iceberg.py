"""``/iceberg``: the tables by name for engines, by the protocol of Iceberg's REST catalogues, read-only
(docs/how-to/read-by-iceberg.md).

A namespace is a tenant, a table the one of all rows of a stream; the namespace ``latest`` in it has the latest tables.
An answer has the metadata as it is in the store, so engines read manifests and files from there, with rights of their
own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import web

from weft.cloud_hub.auth.access import Access, headers_of, readable
from weft.cloud_hub.facts.streams import DeclaredTables
from weft.cloud_hub.http.application import Api
from weft.cloud_hub.http.exchange import LongAnswer
from weft.cloud_hub.reads.summaries import ShardSummaries
from weft.cloud_hub.shard.sequencer import public_reason
from weft.hub_api.answers import ApiError
from weft.hub_api.rights import Right
from weft.network.http_server import Handler
from weft.protocols.chunk_index import StreamKey
from weft.protocols.lane import valid_name
from weft.storage import hub_keys
from weft.storage.object_store import NotFound, ObjectStore, StoreError
from weft.storage.table import iceberg
from weft.storage.table.actions import TableError

PREFIX = "/iceberg/v1"
LATEST, BETWEEN = "latest", "\x1f"
"""Namespace of a tenant's latest tables, and what is between the parts of a namespace in a path."""
PAGE_MAX = 1000
_NAMESPACE, _TABLE = "/namespaces/{namespace}", "/namespaces/{namespace}/tables/{table}"
ENDPOINTS = [
    f"{method} /v1/{path}"
    for path in (
        "{prefix}/namespaces",
        "{prefix}" + _NAMESPACE,
        "{prefix}" + _NAMESPACE + "/tables",
        "{prefix}" + _TABLE,
    )
    for method in ("GET", "HEAD")
    if method == "GET" or path.endswith("}")
]
"""Requests that engines may make; of others, such as a commit, they say that the catalogue has none."""
_TYPES = {400: "BadRequestException", 401: "NotAuthorizedException", 403: "ForbiddenException", 429: "TooManyRequests"}


class Catalogue:
    """Handlers of the requests.

    Args:
        default: whether streams of which nothing is declared have Iceberg metadata.
    """

    def __init__(
        self, store: ObjectStore, access: Access, declared: DeclaredTables, summaries: ShardSummaries, default: bool
    ) -> None:
        self._store, self._access, self._declared, self._summaries = store, access, declared, summaries
        self._default = default

    def add_to(self, application: web.Application, api: Api) -> None:
        """Add the requests to the application of the API, whose bounds on answers count for them."""
        for path, handler in (
            ("/config", self._get_config),
            ("/namespaces", self._get_namespaces),
            (_NAMESPACE, self._get_namespace),
            (f"{_NAMESPACE}/tables", self._get_tables),
            (_TABLE, self._get_table),
        ):
            application.router.add_get(f"{PREFIX}{path}", self._in_protocol(api.bounded(handler)))

    def _in_protocol(self, handler: Handler) -> Handler:
        """Return the handler with the protocol's form of errors."""

        async def answered(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except ApiError as error:
                self._access.note_refusal(request, error)
                kind = _TYPES.get(error.status, "ServiceUnavailableException")
                if error.status == 404:
                    kind = "NoSuchTableException" if "table" in request.match_info else "NoSuchNamespaceException"
                return _refusal(error.status, kind, f"{error.error}; {error.advice}", headers_of(error))
            except (StoreError, TableError, NotFound) as error:
                message = f"the table cannot be read at present: {public_reason(error)}; try again later"
                return _refusal(503, "ServiceUnavailableException", message)

        return answered

    async def _get_config(self, request: web.Request) -> web.Response:
        self._access.tables(request, Right.READ)
        if not self._default and not any(self._declared.is_iceberg(key, False) for key in self._declared.documents):
            raise ApiError(
                404,
                "no table has Iceberg metadata",
                "set `tables.formats`, or run `weft hub table set HUB STREAM --formats delta,iceberg`",
            )
        return _json({"defaults": {}, "overrides": {}, "endpoints": ENDPOINTS})

    async def _get_namespaces(self, request: web.Request) -> web.Response:
        tenant, _ = self._access.tables(request, Right.READ)
        parent = request.query.get("parent")
        if parent:
            has_latest = tenant in (None, parent) and any(
                key[0] == parent and each.latest for key, each in self._declared.documents.items()
            )
            return await _page(request, [LATEST] if has_latest else [], "namespaces", lambda name: [parent, name])
        names = [tenant] if tenant is not None else await self._tenants()
        return await _page(request, names, "namespaces", lambda name: [name])

    async def _tenants(self) -> list[str]:
        summaries = (await self._summaries.every()).summaries
        return sorted({part.tenant for each in summaries for part in each.streams if part.is_there})

    async def _get_namespace(self, request: web.Request) -> web.Response:
        namespace, _ = await self._streams(request)
        return _json({"namespace": namespace, "properties": {}})

    async def _get_tables(self, request: web.Request) -> web.Response:
        namespace, names = await self._streams(request)
        return await _page(request, names, "identifiers", lambda name: {"namespace": namespace, "name": name})

    async def _streams(self, request: web.Request) -> tuple[list[str], list[str]]:
        """Return the namespace of a request, and the streams whose tables there it may read.

        Raises:
            ApiError: 404: no tenant with streams has the name, or another one's token asks.
        """
        tenant, may_read = self._access.tables(request, Right.READ)
        namespace = request.match_info["namespace"].split(BETWEEN)
        of, *below = namespace
        if tenant not in (None, of) or not valid_name(of) or below not in ([], [LATEST]):
            raise _no_namespace(".".join(namespace))
        every = await (await self._summaries.every()).streams(of)
        names = [name for name in every if self._has((of, name), bool(below))]
        if not every and tenant is None:
            raise _no_namespace(of)
        return namespace, await readable(names, may_read)

    def _has(self, key: StreamKey, is_latest: bool) -> bool:
        """Return whether a stream has the one table or the other, with Iceberg metadata."""
        is_there = self._declared.has_latest(key) if is_latest else not self._declared.is_instead(key)
        return is_there and self._declared.is_iceberg(key, self._default)

    async def _get_table(self, request: web.Request) -> LongAnswer:
        tenant, may_read = self._access.tables(request, Right.READ)
        namespace, name = request.match_info["namespace"].split(BETWEEN), request.match_info["table"]
        of, *below = namespace
        found, key = None, (hub_keys.latest_key if below else hub_keys.table_key)(of, name)
        is_one = valid_name(of) and valid_name(name) and below in ([], [LATEST])
        # Another tenant's table is as unknown as one that is not there.
        if is_one and tenant in (None, of) and may_read(name) and self._has((of, name), bool(below)):
            found = await iceberg.current(self._store, key)
        if found is None:
            advice = "a table exists once it has a snapshot: at most `tables.iceberg_interval` after its first rows"
            raise ApiError(404, f"there is no table {name[:80]!r} in {'.'.join(namespace)[:80]!r}", advice)
        uri = iceberg.table_uri(self._store, iceberg.metadata_key(key, found.number))
        head = b'{"metadata-location":%b,"config":{},"metadata":' % msgspec.json.encode(uri)
        return LongAnswer([head, found.data, b"}\n"])


def _no_namespace(name: str) -> ApiError:
    advice = f"namespaces are the tenants that the token may read, and `{LATEST}` in each"
    return ApiError(404, f"there is no namespace {name[:80]!r}", advice)


async def _page(request: web.Request, names: Sequence[str], member: str, shown: Callable[[str], Any]) -> web.Response:
    """Return a page of a list of sorted names; all of it for a client that names no page, as the protocol asks."""
    try:
        most = min(int(request.query.get("pageSize", PAGE_MAX)), PAGE_MAX)
    except ValueError:
        most = 0
    if most <= 0:
        raise ApiError(400, "pageSize is not a number of results", "give one from 1 on, or leave it out")
    found = names[bisect_right(names, request.query.get("pageToken", "")) :]
    if "pageToken" in request.query or "pageSize" in request.query:
        body = {member: [*map(shown, found[:most])]}
        return _json(body | ({"next-page-token": found[most - 1]} if len(found) > most else {}))
    return _json({member: [*map(shown, names)]})


def _json(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body) + b"\n", content_type="application/json")


def _refusal(status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    body = msgspec.json.encode({"error": {"message": message, "type": kind, "code": status}})
    return web.Response(body=body + b"\n", status=status, content_type="application/json", headers=headers)
