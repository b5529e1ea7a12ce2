"""The operations of the hub's API (docs/reference/openapi.json) whose answer has an end, as methods of both clients.

Each is written once: it says what to ask, and ``Client`` gives its answer, ``AsyncClient`` an awaitable of it.
"""

from __future__ import annotations

import base64
import errno
import functools
import http.client
import importlib
import ssl
import time
import urllib.error
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, overload
from urllib.parse import quote, urlencode

import msgspec
from msgspec import UnsetType

from weft.config.payload_schema.model import Compatibility, PayloadSchema
from weft.hub_api.acts import ActsAnswer
from weft.hub_api.edges import EdgeAnswer, EdgesAnswer, LossesAnswer
from weft.hub_api.messages import MessagesAnswer, PublishedAnswer
from weft.hub_api.pipelines import PipelinesAnswer, ReportedAnswer
from weft.hub_api.pulls import PullAnswer, PullsAnswer
from weft.hub_api.records import RecordsAnswer, SeriesAnswer, SqlAnswer, TailEvent, TraceAnswer
from weft.hub_api.regions import RegionOrderAnswer, RegionsAnswer
from weft.hub_api.schemas import DeclaredSchema, RemovedSchemaAnswer, SchemaAnswer, SchemasAnswer
from weft.hub_api.shards import DrainAnswer, DrainsAnswer, SplitAnswer, SplitLook
from weft.hub_api.status import NodesAnswer, StatusAnswer, TroublesAnswer
from weft.hub_api.streams import CompletenessAnswer, LanesAnswer, StreamAnswer, StreamsAnswer
from weft.hub_api.tenants import RemovedTenantAnswer, TenantAnswer, TenantsAnswer, UsageAnswer
from weft.hub_api.tokens import (
    HashedToken,
    ImportedTokensAnswer,
    PairingAnswer,
    RemovedTokenAnswer,
    SecretAnswer,
    TokensAnswer,
    TokensToImport,
    WhoAmI,
)

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


# Errors of requests to a hub.

ERROR_BYTES_MAX = 64 << 10
RETRY_DIGITS_MAX = 5


class _ProblemText(msgspec.Struct, frozen=True):
    """The words of a problem document for people."""

    detail: str = ""
    advice: str = ""


class HubError(Exception):
    """Base of the errors of a request."""


class HubRefusal(HubError):
    """An answer of status 400 or above, or a redirect.

    Args:
        detail, advice: error and remedy from the hub; empty if another program answers at the address.
        retry_after_s: seconds after which to repeat the request; None if the hub gives none.
    """

    def __init__(self, status: int, reason: str, detail: str, advice: str, retry_after_s: int | None = None) -> None:
        super().__init__(f"{status} {reason}" + (f": {detail}; {advice}" if detail else ""))
        self.status, self.reason, self.detail, self.advice = status, reason, detail, advice
        self.retry_after_s = retry_after_s


class HubUnreachable(HubError):
    """No complete answer, or one that is not of the API. Whether the request took effect is unknown.

    Args:
        is_known: whether the message says what to do.
    """

    def __init__(self, message: str, *, is_known: bool = False) -> None:
        super().__init__(message)
        self.is_known = is_known


_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
"""Reasons of OpenSSL for an answer that is not TLS."""
_WANTS_CERTIFICATE = "CERTIFICATE_REQUIRED"


def unreachable(asked: str, error: BaseException) -> HubUnreachable:
    """Return the error of a request that had no answer. A fault of TLS gets the remedy, in place of OpenSSL's words.

    Args:
        asked: URL without its query.
        error: of the connection.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        from weft.network.tls import why_distrusted

        why = why_distrusted(error, authority="ca_file (`--ca-file` of commands)", name="the URL")
        return HubUnreachable(f"{asked}: {why}", is_known=True)
    reason = error.reason or "" if isinstance(error, ssl.SSLError) else ""
    if reason in _NO_TLS:
        return HubUnreachable(f"{asked}: the port does not speak TLS. Write http:// if the hub has none", is_known=True)
    if reason.endswith(_WANTS_CERTIFICATE):
        advice = "`weft login NAME URL --certificate FILE --key FILE` saves one for commands"
        return HubUnreachable(f"{asked}: the hub requires a client certificate. {advice}", is_known=True)
    said = getattr(error, "strerror", None) or error or "timed out"
    if asked.startswith("http:") and (
        isinstance(error, http.client.BadStatusLine) or getattr(error, "errno", None) == errno.ECONNRESET
    ):
        message = f"{asked} does not answer ({said}). Write https:// if it speaks TLS, or check the port"
        return HubUnreachable(message, is_known=True)
    return HubUnreachable(f"{asked} does not answer ({said})")


def refusal(error: urllib.error.HTTPError) -> HubRefusal:
    """Return the refusal in an answer."""
    try:
        with error:
            body = error.read(ERROR_BYTES_MAX)
    except (OSError, ValueError, http.client.HTTPException):
        body = b""
    return refusal_of(error.code, error.reason, error.headers.get("Retry-After", ""), body)


def refusal_of(status: int, reason: str, wait: str, body: bytes) -> HubRefusal:
    """Return the refusal in the parts of an answer.

    Args:
        wait: its header ``Retry-After``.
    """
    retry_after_s = int(wait) if wait.isascii() and wait.isdecimal() and len(wait) <= RETRY_DIGITS_MAX else None
    try:
        problem = msgspec.json.decode(body, type=_ProblemText)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        problem = _ProblemText()
    return HubRefusal(status, reason, problem.detail, problem.advice, retry_after_s)


# Parts of requests, which both clients share.

TIMEOUT_S = 30.0
ANSWER_BYTES_MAX = 256 << 20
"""Maximum size of an answer: the hub's bound, which a setting may raise, and a record of the largest size."""


class Listed(Protocol):
    """An answer that may have a next page."""

    @property
    def next_after(self) -> str | UnsetType | None:
        """Argument ``after`` of the next request."""


def path_of(stream: str, below: str = "") -> str:
    """Return the path of a stream, or of something below it."""
    return f"/v1/streams/{quote(stream, safe='')}{below}"


def with_query(path: str, query: Mapping[str, str | int | None]) -> str:
    """Return a path with those values of a query that are not None."""
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def json_of(body: Mapping[str, Any]) -> bytes:
    """Return a body with those fields that are not None."""
    return msgspec.json.encode({name: value for name, value in body.items() if value is not None})


def checked(url: str, token: str | None, token_file: str | None) -> str:
    """Return a hub's URL without a slash at its end. ``ValueError`` says what is wrong with what a client is given."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is not an address of a hub: write https://hub.example.com")
    if token is not None and token_file is not None:
        raise ValueError("token and token_file are both set: set only one")
    if token is not None and not (token.isascii() and token.isprintable() and token.split() == [token]):
        raise ValueError("the token is empty, or has spaces or control characters: pass the token alone")
    return url.rstrip("/")


def trusting(ca_file: str) -> ssl.SSLContext:
    """Return the context of a client that trusts the authorities of a PEM file. ``OSError`` and ``ValueError`` say what
    is wrong with it."""
    from weft.network.tls import ClientTlsFiles, client_context

    return client_context(ClientTlsFiles(ca_file=ca_file))


def after_page(page: Listed, after: str | None) -> str | None:
    """Return ``after`` of the next page; None behind the last one.

    Args:
        after: that of this page.

    Raises:
        HubUnreachable: the page names itself as the next one.
    """
    if not isinstance(page.next_after, str):
        return None
    if page.next_after == after:
        raise HubUnreachable(f"the list does not continue after {after!r}; is a hub at that address?")
    return page.next_after


Args = ParamSpec("Args")
T = TypeVar("T")


class Fetched(NamedTuple):
    """An answer of status 200 or 202."""

    body: bytes
    headers: Mapping[str, str]


class Rows(NamedTuple):
    """Rows of one shard. The conversions import their packages when called; ``ModuleNotFoundError`` names those to
    install."""

    data: bytes
    """A stream of Arrow."""
    next_offset: int | None
    """Offset to continue with; None while the search for the first row continues."""
    next_chunk: int | None
    end: int
    """End of the shard when the request arrived."""

    def arrow(self) -> pyarrow.Table:
        """Return the rows as an Arrow table, which shares the memory of ``data``."""
        return _imported("pyarrow.ipc", "pyarrow").open_stream(self.data).read_all()

    def pandas(self) -> pandas.DataFrame:
        """Return the rows as a data frame of pandas. Integers in a column with nulls become floating-point numbers, as
        usual in pandas."""
        _imported("pandas", "pyarrow pandas")
        return self.arrow().to_pandas()

    def polars(self) -> polars.DataFrame:
        """Return the rows as a data frame of polars, which needs no pyarrow."""
        return _imported("polars", "polars").read_ipc_stream(self.data)


def _imported(module: str, packages: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        text = f"{error}: install it with `python -m pip install {packages}`"
        raise ModuleNotFoundError(text, name=error.name) from None


@dataclass(frozen=True)
class Request(Generic[T]):
    """A request and the type of its answer. ``method`` defaults to GET, with a body to POST."""

    answer: type[T]
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] | None = None
    method: str | None = None

    def read(self, fetched: Fetched, url: str) -> T:
        """Return the answer of the hub at a URL.

        Raises:
            HubUnreachable: it is not an answer of the API.
        """
        try:
            if self.answer is Rows:
                of = {
                    name: int(fetched.headers[f"Weft-{name}"])
                    for name in ("Next-Offset", "Next-Chunk", "End-Offset")
                    if f"Weft-{name}" in fetched.headers
                }
                rows: Any = Rows(fetched.body, of.get("Next-Offset"), of.get("Next-Chunk"), of["End-Offset"])
                return rows  # type: ignore[no-any-return]  # mypy does not narrow by a class
            return msgspec.json.decode(fetched.body, type=self.answer)
        except (KeyError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise HubUnreachable(f"{url} does not answer like a hub ({error}); check the address") from None


class _Waits(Protocol):
    def _answer(self, request: Request[T], /) -> T: ...


class _Awaits(Protocol):
    def _answer(self, request: Request[T], /) -> Coroutine[Any, Any, T]: ...


class operation(Generic[Args, T]):  # noqa: N801  (a decorator, as ``property``)
    """A method that says what to ask, and gives what the client makes of it."""

    # Written once for both clients: a second class with 40 methods of the same names and paths would drift.

    def __init__(self, make: Callable[Concatenate[Any, Args], Request[T]]) -> None:
        self._make = make

    @overload
    def __get__(self, client: None, owner: type, /) -> Callable[Concatenate[Any, Args], Request[T]]: ...
    @overload
    def __get__(self, client: _Waits, owner: type, /) -> Callable[Args, T]: ...
    @overload
    def __get__(self, client: _Awaits, owner: type, /) -> Callable[Args, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: type, /) -> Any:
        if client is None:
            return self._make
        make = self._make

        def ask(*args: Args.args, **named: Args.kwargs) -> Any:
            return client._answer(make(client, *args, **named))

        return functools.update_wrapper(ask, make.__get__(client))


class Operations:
    """The methods that both clients have."""

    @operation
    def openapi(self) -> Request[dict[str, Any]]:
        """Return the document of the hub's API."""
        return _get("/v1/openapi.json", dict[str, Any])

    @operation
    def whoami(self) -> Request[WhoAmI]:
        """Return the rights of the client's token."""
        return _get("/v1/whoami", WhoAmI)

    @operation
    def status(self) -> Request[StatusAnswer]:
        """Return the state of the process that answers."""
        return _get("/v1/status", StatusAnswer)

    @operation
    def nodes(self) -> Request[NodesAnswer]:
        """Return the processes of the hub on all machines, by their entries in the store."""
        return _get("/v1/nodes", NodesAnswer)

    @operation
    def regions(self) -> Request[RegionsAnswer]:
        """Return the links of all shards to other regions."""
        return _get("/v1/regions", RegionsAnswer)

    @operation
    def troubles(self) -> Request[TroublesAnswer]:
        """Return conflicts, open gaps and lost records of the shards of all processes."""
        return _get("/v1/troubles", TroublesAnswer)

    @operation
    def acts(self, *, after: str | None = None, limit: int | None = None) -> Request[ActsAnswer]:
        """Return a page of the record of administrative acts: the lines after one in their order, or the newest."""
        return _get("/v1/acts", ActsAnswer, after=after, limit=limit)

    @operation
    def edges(
        self,
        *,
        tenant: str | None = None,
        shards: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> Request[EdgesAnswer]:
        """Return a page of the edges that the hub knows, by tenant and name."""
        return _get("/v1/edges", EdgesAnswer, tenant=tenant, shards=shards, after=after, limit=limit)

    @operation
    def losses(
        self, *, tenant: str | None = None, after: str | None = None, limit: int | None = None
    ) -> Request[LossesAnswer]:
        """Return a page of the edges with gaps that no record fills, by tenant and name."""
        return _get("/v1/losses", LossesAnswer, tenant=tenant, after=after, limit=limit)

    @operation
    def edge(self, edge: str, *, tenant: str | None = None) -> Request[EdgeAnswer]:
        """Return one edge, with its functions."""
        return _get(f"/v1/edges/{quote(edge, safe='')}", EdgeAnswer, tenant=tenant)

    @operation
    def streams(
        self, *, tenant: str | None = None, after: str | None = None, limit: int | None = None
    ) -> Request[StreamsAnswer]:
        """Return a page of the tenant's streams, by name."""
        return _get("/v1/streams", StreamsAnswer, tenant=tenant, after=after, limit=limit)

    @operation
    def stream(self, stream: str, *, tenant: str | None = None) -> Request[StreamAnswer]:
        """Return one stream."""
        return _get(path_of(stream), StreamAnswer, tenant=tenant)

    @operation
    def lanes(
        self, stream: str, *, tenant: str | None = None, after: str | None = None, limit: int | None = None
    ) -> Request[LanesAnswer]:
        """Return a page of a stream's lanes, by edge and log."""
        return _get(path_of(stream, "/lanes"), LanesAnswer, tenant=tenant, after=after, limit=limit)

    @operation
    def completeness(
        self, stream: str, *, tenant: str | None = None, after: str | None = None, limit: int | None = None
    ) -> Request[CompletenessAnswer]:
        """Return the moment up to which a stream is complete, what holds it back, and a page of its lanes."""
        path = path_of(stream, "/completeness")
        return _get(path, CompletenessAnswer, tenant=tenant, after=after, limit=limit)

    @operation
    def records(
        self,
        stream: str,
        *,
        tenant: str | None = None,
        shard: int | None = None,
        offset: int | None = None,
        since: str | int | None = None,
        chunk: int | None = None,
        from_shard: int | None = None,
        edge: str | None = None,
        limit: int | None = None,
    ) -> Request[RecordsAnswer]:
        """Return records of log and table, shard by shard, in the order of their offsets."""
        return _get(
            path_of(stream, "/records"),
            RecordsAnswer,
            tenant=tenant,
            shard=shard,
            offset=offset,
            since=since,
            chunk=chunk,
            from_shard=from_shard,
            edge=edge,
            limit=limit,
        )

    @operation
    def series(
        self,
        stream: str,
        *,
        since: str | int,
        until: str | int | None = None,
        late: str | None = None,
        fields: str | None = None,
        edge: str | None = None,
        key: str | None = None,
        step: str | None = None,
        value: str | None = None,
        limit: int | None = None,
        tenant: str | None = None,
    ) -> Request[SeriesAnswer]:
        """Return numbers of payloads over time, as rows for charts; a row without a value is a gap."""
        return _get(
            path_of(stream, "/series"),
            SeriesAnswer,
            since=since,
            until=until,
            late=late,
            fields=fields,
            edge=edge,
            key=key,
            step=step,
            value=value,
            limit=limit,
            tenant=tenant,
        )

    @operation
    def trace(
        self,
        stream: str,
        *,
        tenant: str | None = None,
        edge: str | None = None,
        log: str | None = None,
        seq: int | None = None,
        shard: int | None = None,
        offset: int | None = None,
        chunk: int | None = None,
        from_shard: int | None = None,
    ) -> Request[TraceAnswer]:
        """Return the path of one record, named by edge, log and seq, or by shard and offset."""
        return _get(
            path_of(stream, "/trace"),
            TraceAnswer,
            tenant=tenant,
            edge=edge,
            log=log,
            seq=seq,
            shard=shard,
            offset=offset,
            chunk=chunk,
            from_shard=from_shard,
        )

    @operation
    def rows(
        self,
        stream: str,
        *,
        shard: int,
        tenant: str | None = None,
        offset: int | None = None,
        chunk: int | None = None,
        limit: int | None = None,
        columns: str | None = "typed",
    ) -> Request[Rows]:
        """Return rows of one shard in the order of their offsets, as a stream of Arrow, with the columns of the
        stream's declared schema. ``columns`` None leaves these out."""
        asked = {"shard": shard, "tenant": tenant, "offset": offset, "chunk": chunk, "limit": limit, "columns": columns}
        return Request(Rows, with_query(path_of(stream, "/rows"), asked))

    @operation
    def messages(self, edge: str, *, tenant: str | None = None, redirect: str | None = None) -> Request[MessagesAnswer]:
        """Return an edge's waiting messages, and the outcomes of others, the newest first."""
        return _get("/v1/messages", MessagesAnswer, edge=edge, tenant=tenant, redirect=redirect)

    @operation
    def sql(self, query: str, *, limit: int | None = None, tenant: str | None = None) -> Request[SqlAnswer]:
        """Return the rows of a query in SQL over the tables of streams, ``limit`` of them at most."""
        data = json_of({"query": query, "limit": limit})
        return Request(SqlAnswer, with_query("/v1/sql", {"tenant": tenant}), data)

    @operation
    def publish(
        self,
        topic: str,
        payload: str | bytes = "",
        *,
        edge: str | None = None,
        edges: Sequence[str] | None = None,
        group: str | None = None,
        after: str | None = None,
        expires_s: float | None = None,
        qos: int | None = None,
        redirect: bool | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Request[PublishedAnswer]:
        """Publish a message to edges. When this returns, the message is durable for each edge whose entry has a number.

        Args:
            edge, edges, group: one of them.
            after: with a group, ``next_after`` of the answer before.
            idempotency_key: name of the request. A repetition with the same name stores nothing.
        """
        content = (
            {"payload": payload} if isinstance(payload, str) else {"payload_base64": base64.b64encode(payload).decode()}
        )
        data = json_of(
            {
                "topic": topic,
                **content,
                "edge": edge,
                "edges": edges,
                "group": group,
                "after": after,
                "expires_s": expires_s,
                "qos": qos,
                "redirect": redirect,
            }
        )
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        return Request(PublishedAnswer, with_query("/v1/messages", {"tenant": tenant}), data, headers)

    @operation
    def pulls(
        self,
        *,
        tenant: str | None = None,
        edge: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> Request[PullsAnswer]:
        """Return pulls of the tenant, the latest first."""
        return _get("/v1/pulls", PullsAnswer, tenant=tenant, edge=edge, id=id)

    @operation
    def pull(
        self,
        edge: str,
        stream: str,
        first: str | int,
        end: str | int,
        *,
        bytes_max: int | None = None,
        expires_s: float | None = None,
        tenant: str | None = None,
    ) -> Request[PullAnswer]:
        """Request the records of a window from an edge. The request is durable when this returns.

        Args:
            first, end: the window: times (RFC 3339), or nanoseconds since 1970, by the edge's clock.
        """
        data = json_of(
            {
                "edge": edge,
                "stream": stream,
                "from": str(first),
                "to": str(end),
                "bytes_max": bytes_max,
                "expires_s": expires_s,
            }
        )
        return Request(PullAnswer, with_query("/v1/pulls", {"tenant": tenant}), data)

    @operation
    def cancel_pull(self, id: str, *, tenant: str | None = None) -> Request[PullAnswer]:  # noqa: A002
        """Cancel a pull. Records that have arrived stay."""
        path = with_query(f"/v1/pulls/{quote(id, safe='')}", {"tenant": tenant})
        return Request(PullAnswer, path, method="DELETE")

    @operation
    def usage(
        self, *, tenant: str | None = None, after: str | None = None, limit: int | None = None
    ) -> Request[UsageAnswer]:
        """Return the tenant's use of the hub, with a page of its streams by name."""
        return _get("/v1/usage", UsageAnswer, tenant=tenant, after=after, limit=limit)

    @operation
    def tenant(self, tenant: str) -> Request[TenantAnswer]:
        """Return a tenant's quotas."""
        return _get(f"/v1/tenants/{quote(tenant, safe='')}", TenantAnswer)

    @operation
    def set_tenant(
        self,
        tenant: str,
        *,
        edges: int | None = None,
        streams: int | None = None,
        bytes_per_second: int | None = None,
        stored_bytes: int | None = None,
        records_per_second: int | None = None,
        lanes: int | None = None,
        links: int | None = None,
        table_bytes: int | None = None,
        reason: str | None = None,
        version: int | None = None,
    ) -> Request[TenantAnswer]:
        """Declare all quotas of a tenant. One that is left out bounds nothing.

        Args:
            version: version of the answer on which the change is based. After another change, the request is refused
                (409).
        """
        data = json_of(
            {
                "edges": edges,
                "streams": streams,
                "bytes_per_second": bytes_per_second,
                "stored_bytes": stored_bytes,
                "records_per_second": records_per_second,
                "lanes": lanes,
                "links": links,
                "table_bytes": table_bytes,
                "reason": reason,
                "version": version,
            }
        )
        path = f"/v1/tenants/{quote(tenant, safe='')}"
        return Request(TenantAnswer, path, data, method="PUT")

    @operation
    def remove_tenant(self, tenant: str, *, reason: str | None = None) -> Request[RemovedTenantAnswer]:
        """Withdraw a tenant for which nothing is declared any more. Its records, streams and tables stay."""
        path = with_query(f"/v1/tenants/{quote(tenant, safe='')}", {"reason": reason})
        return Request(RemovedTenantAnswer, path, method="DELETE")

    @operation
    def tenants(self, *, after: str | None = None, limit: int | None = None) -> Request[TenantsAnswer]:
        """Return a page of the declared tenants with their quotas, by name."""
        return _get("/v1/tenants", TenantsAnswer, after=after, limit=limit)

    @operation
    def schema(self, stream: str, *, version: int | None = None, tenant: str | None = None) -> Request[SchemaAnswer]:
        """Return a version of the declared schema of a stream's payloads: the newest, or one that rows name in
        ``_schema``."""
        return _get(f"/v1/streams/{quote(stream, safe='')}/schema", SchemaAnswer, version=version, tenant=tenant)

    @operation
    def set_schema(
        self,
        stream: str,
        *,
        schema: PayloadSchema,
        compatibility: Compatibility | None = None,
        reason: str = "",
        tenant: str | None = None,
    ) -> Request[SchemaAnswer]:
        """Declare the schema of a stream's payloads, or another version of it.

        Args:
            compatibility: rule between this version and the one before, and the next; None for the rule in force.
        """
        path = with_query(f"/v1/streams/{quote(stream, safe='')}/schema", {"tenant": tenant})
        data = msgspec.json.encode(DeclaredSchema(schema, compatibility, reason))
        return Request(SchemaAnswer, path, data, method="PUT")

    @operation
    def remove_schema(
        self, stream: str, *, reason: str | None = None, tenant: str | None = None
    ) -> Request[RemovedSchemaAnswer]:
        """Withdraw the schema of a stream. Its table keeps its columns; they are null in later rows."""
        path = with_query(f"/v1/streams/{quote(stream, safe='')}/schema", {"reason": reason, "tenant": tenant})
        return Request(RemovedSchemaAnswer, path, method="DELETE")

    @operation
    def schemas(self, *, after: str | None = None, limit: int | None = None) -> Request[SchemasAnswer]:
        """Return the declared schemas after one, of all tenants, without their fields."""
        return _get("/v1/schemas", SchemasAnswer, after=after, limit=limit)

    @operation
    def tokens(self, *, after: str | None = None, limit: int | None = None) -> Request[TokensAnswer]:
        """Return a page of the declared tokens without their secrets, by name."""
        return _get("/v1/tokens", TokensAnswer, after=after, limit=limit)

    @operation
    def add_token(
        self,
        name: str,
        *,
        scope: str | None = None,
        tenant: str = "default",
        edge: str | None = None,
        grants: Sequence[str] = (),
        expires: str | None = None,
        reason: str = "",
    ) -> Request[SecretAnswer]:
        """Declare a token, with a scope or with grants. The answer has the only copy of its secret.

        Args:
            expires: its end: a duration such as ``90d``, or a date; None for none.
        """
        data = json_of(
            {
                "name": name,
                "scope": scope,
                "tenant": tenant,
                "edge": edge,
                "grants": list(grants),
                "expires": expires,
                "reason": reason,
            }
        )
        return Request(SecretAnswer, "/v1/tokens", data)

    @operation
    def rotate_token(
        self,
        name: str,
        *,
        expires: str | None = None,
        overlap: str | None = None,
        end_oldest: bool = False,
        reason: str = "",
    ) -> Request[SecretAnswer]:
        """Give a token another secret, which is in the answer. The previous one stays in force for ``overlap``.

        Args:
            expires: end of the new secret: a duration, a date, or ``never``; None for that of the one before.
            overlap: duration for which the secret before stays in force; None for a week.
        """
        data = json_of({"expires": expires, "overlap": overlap, "end_oldest": end_oldest, "reason": reason})
        return Request(SecretAnswer, f"/v1/tokens/{quote(name, safe='')}/rotate", data)

    @operation
    def pair_token(
        self,
        name: str,
        *,
        edge: str,
        tenant: str = "default",
        within: str | None = None,
        expires: str | None = None,
        reason: str = "",
    ) -> Request[PairingAnswer]:
        """Make a code by which an edge gets the token called ``name``. The answer has the only copy of the code.

        Args:
            within: validity of the code, ``24h`` at most; None for 15 minutes.
            expires: end of the token: a duration such as ``90d``, or a date; None for none.
        """
        wanted = {"edge": edge, "tenant": tenant, "within": within, "expires": expires, "reason": reason}
        return Request(PairingAnswer, f"/v1/tokens/{quote(name, safe='')}/pair", json_of(wanted))

    @operation
    def import_tokens(self, tokens: Sequence[HashedToken], *, reason: str = "") -> Request[ImportedTokensAnswer]:
        """Declare at most 1,000 tokens by the hashes of their secrets. Each entry of the cluster log declares all of
        its tokens or none. Tokens that are declared already stay unchanged, so the request may be repeated."""
        data = msgspec.json.encode(TokensToImport(list(tokens), reason))
        return Request(ImportedTokensAnswer, "/v1/tokens:import", data)

    @operation
    def remove_token(self, name: str, *, reason: str | None = None) -> Request[RemovedTokenAnswer]:
        """Withdraw a token, durably. Its links end within seconds."""
        path = with_query(f"/v1/tokens/{quote(name, safe='')}", {"reason": reason})
        return Request(RemovedTokenAnswer, path, method="DELETE")

    @operation
    def pipelines(self, *, tenant: str | None = None) -> Request[PipelinesAnswer]:
        """Return the last report of each pipeline of Spark."""
        return _get("/v1/pipelines", PipelinesAnswer, tenant=tenant)

    @operation
    def report_pipeline(
        self,
        pipeline: str,
        *,
        stream: str,
        state: str,
        error: str | None = None,
        batch: int | None = None,
        records: int | None = None,
        seconds: float | None = None,
        rate: float | None = None,
        lag: int | None = None,
        complete_until: str | None = None,
        idle_seconds: float | None = None,
        every_seconds: float = 10.0,
        tenant: str | None = None,
    ) -> Request[ReportedAnswer]:
        """Report the state of a pipeline.

        Args:
            stream: the stream that it reads; ``*`` for several.
            state: ``running``, ``ended`` or ``failed``.
            every_seconds: longest time until the next report.
        """
        path = with_query(f"/v1/pipelines/{quote(pipeline, safe='')}", {"tenant": tenant})
        data = json_of(
            {
                "stream": stream,
                "state": state,
                "error": error,
                "batch": batch,
                "records": records,
                "seconds": seconds,
                "rate": rate,
                "lag": lag,
                "complete_until": complete_until,
                "idle_seconds": idle_seconds,
                "every_seconds": every_seconds,
            }
        )
        return Request(ReportedAnswer, path, data, method="PUT")

    @operation
    def forget_pipeline(self, pipeline: str, *, tenant: str | None = None) -> Request[ReportedAnswer]:
        """Forget a pipeline, until it reports again."""
        path = with_query(f"/v1/pipelines/{quote(pipeline, safe='')}", {"tenant": tenant})
        return Request(ReportedAnswer, path, method="DELETE")

    @operation
    def drains(self) -> Request[DrainsAnswer]:
        """Return the processes and machines that are drained."""
        return _get("/v1/drains", DrainsAnswer)

    @operation
    def drain(self, node: str, *, reason: str = "") -> Request[DrainAnswer]:
        """Drain a process, or all of a machine: others take over its shards and edges after this returns."""
        return Request(DrainAnswer, "/v1/drains", json_of({"node": node, "reason": reason}))

    @operation
    def undo_drain(self, node: str, *, reason: str | None = None) -> Request[DrainAnswer]:
        """End the drain of a process or machine: it accepts shards and edges again."""
        path = with_query("/v1/drains", {"node": node, "reason": reason})
        return Request(DrainAnswer, path, method="DELETE")

    @operation
    def pause_region(self, region: str, *, paused: bool, reason: str = "") -> Request[RegionOrderAnswer]:
        """Pause the records for a region, or let them continue. The order is durable when this returns."""
        path = f"/v1/regions/{quote(region, safe='')}"
        data = json_of({"paused": paused, "reason": reason})
        return Request(RegionOrderAnswer, path, data, method="PUT")

    @operation
    def look_at_split(self, shard: int) -> Request[SplitLook]:
        """Return how many edges a split of a shard would move."""
        return _get("/v1/splits", SplitLook, shard=shard)

    @operation
    def split(self, shard: int, *, force: bool = False, reason: str = "") -> Request[SplitAnswer]:
        """Split a shard: about half of its edges move to a new one, permanently. The new shard exists when this
        returns.

        Args:
            force: split even if all edges would be in one of the two.
        """
        data = json_of({"shard": shard, "force": force, "reason": reason})
        return Request(SplitAnswer, "/v1/splits", data)


def _get(path: str, answer: type[T], **query: str | int | None) -> Request[T]:
    return Request(answer, with_query(path, query))


# Events of a tail, over every end of a connection.

WAIT_S = 1.0
PASSING = (429, 500, 502, 503, 504)
"""Statuses of refusals that end by themselves."""
_DATA = b"data: "

Open = Callable[[dict[str, str]], AbstractContextManager[Any]]
"""Function that sends the request with more headers, and returns the answer to read."""


def event_of(line: bytes) -> TailEvent | None:
    """Return the event in a line of a tail; None if the line has none."""
    return msgspec.json.decode(line[len(_DATA) :], type=TailEvent) if line.startswith(_DATA) else None


def follow(opened: Open, position: str | None, wait_s: float) -> Iterator[TailEvent]:
    """Yield events with records, and continue after the last one after each end.

    Raises:
        HubRefusal: the hub refuses with a status that is not in ``PASSING``.
    """
    while True:
        try:
            with opened({} if position is None else {"Last-Event-ID": position}) as answer:
                for line in answer:
                    if (event := event_of(line)) is None:
                        continue
                    position = event.position
                    if event.records:
                        yield event
        except HubUnreachable:
            pass
        except HubRefusal as refused:
            if refused.status not in PASSING:
                raise
        time.sleep(wait_s)
