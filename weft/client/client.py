"""A client of the hub's API: a method for each operation of its document (docs/reference/openapi.json) whose answer
has an end.

Answers are the types from which that document is made. Fields that a later hub adds are ignored. ``fetch`` is below: it
asks any path, and returns what came.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import importlib
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import UnsetType

from weft.client.asking import json_of as _json
from weft.client.asking import path_of as _of
from weft.client.asking import with_query as _with
from weft.client.errors import HubUnreachable, refusal
from weft.client.following import WAIT_S, follow
from weft.cloud_hub.openapi.acts import ActsAnswer
from weft.cloud_hub.openapi.edges import EdgeAnswer, EdgesAnswer, WhoAmI
from weft.cloud_hub.openapi.messages import MessagesAnswer, PublishedAnswer
from weft.cloud_hub.openapi.pipelines import PipelinesAnswer, ReportedAnswer
from weft.cloud_hub.openapi.pulls import PullAnswer, PullsAnswer
from weft.cloud_hub.openapi.status import (
    DrainAnswer,
    DrainsAnswer,
    NodesAnswer,
    RegionOrderAnswer,
    RegionsAnswer,
    SplitAnswer,
    SplitLook,
    StatusAnswer,
    TroublesAnswer,
)
from weft.cloud_hub.openapi.streams import (
    CompletenessAnswer,
    LanesAnswer,
    RecordOfStream,
    RecordsAnswer,
    SeriesAnswer,
    StreamAnswer,
    StreamsAnswer,
    TailEvent,
    TraceAnswer,
)
from weft.cloud_hub.openapi.tenants import (
    RemovedTokenAnswer,
    SecretAnswer,
    TenantAnswer,
    TenantsAnswer,
    TokensAnswer,
    UsageAnswer,
)
from weft.network.token_file import read_token

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

TIMEOUT_S = 30.0
ANSWER_BYTES_MAX = 256 << 20
"""Longest answer: the hub's bound, which a setting may raise, and a record of the largest size."""


class Listed(Protocol):
    """An answer that may have a next page."""

    @property
    def next_after(self) -> str | UnsetType | None:
        """Argument ``after`` of the next request."""


Args = ParamSpec("Args")
AList = TypeVar("AList", bound=Listed)
T = TypeVar("T")


class Fetched(NamedTuple):
    """An answer of status 200 or 202."""

    body: bytes
    headers: Mapping[str, str]


class Rows(NamedTuple):
    """Rows of one shard. What makes a table of them is imported when it is asked for; ``ModuleNotFoundError`` says what
    to install."""

    data: bytes
    """A stream of Arrow."""
    next_offset: int | None
    """Offset to go on with; None while the search for the first row goes on."""
    next_chunk: int | None
    end: int
    """End of the shard when the request came."""

    def arrow(self) -> pyarrow.Table:
        """Return the rows as a table of Arrow, which uses the memory of ``data``."""
        return _imported("pyarrow.ipc", "pyarrow").open_stream(self.data).read_all()

    def pandas(self) -> pandas.DataFrame:
        """Return the rows as a data frame of pandas. Whole numbers in a column with nulls become floating-point ones,
        as pandas has it."""
        _imported("pandas", "pyarrow pandas")
        return self.arrow().to_pandas()

    def polars(self) -> polars.DataFrame:
        """Return the rows as a data frame of polars, which needs no pyarrow."""
        return _imported("polars", "polars").read_ipc_stream(self.data)


def _imported(module: str, packages: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        told = f"{error}: install it with `python -m pip install {packages}`"
        raise ModuleNotFoundError(told, name=error.name) from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows none: a token is for the hub that was named."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Client:
    """A client of one hub. Threads may share it; it keeps no connection open.

    A method raises ``HubRefusal`` when the hub refuses, ``HubUnreachable`` without an answer, and ``OSError`` or
    ``ValueError`` when the token's file has none.

    Args:
        url: the hub, as ``https://hub.example.com``.
        token: one whose scope opens what is asked.
        token_file: instead, its file. It is read before each request, so that the token can change.
        ca_file: PEM file of the authorities that the hub's certificate is trusted by; None for the system's.
        tls: instead, the context for ``https``.
        timeout_s: longest wait for the hub's next bytes.
        bytes_max: longest answer.
    """

    def __init__(
        self, url: str, *, token: str | None = None, token_file: str | None = None, ca_file: str | None = None,
        tls: ssl.SSLContext | None = None, timeout_s: float = TIMEOUT_S, bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:  # fmt: skip
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is no address of a hub: write https://hub.example.com")
        if token is not None and token_file is not None:
            raise ValueError("there is a token and a token_file: give one of them")
        if token is not None and not (token.isascii() and token.isprintable() and token.split() == [token]):
            raise ValueError("the token is empty, or has characters that no token has: give the word alone")
        if ca_file is not None:
            from weft.network.tls.contexts import client_context
            from weft.network.tls.files import ClientTlsFiles

            tls = client_context(ClientTlsFiles(ca_file=ca_file))
        self._url, self._token, self._token_file = url.rstrip("/"), token, token_file
        self._timeout_s, self._bytes_max = timeout_s, bytes_max
        handlers = [] if tls is None else [urllib.request.HTTPSHandler(context=tls)]
        self._open = urllib.request.build_opener(_NoRedirects, *handlers).open

    def fetch(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, *,
        method: str | None = None,
    ) -> Fetched:  # fmt: skip
        """Return the answer to ``method``: GET unless given, or with a body POST.

        Raises:
            HubRefusal: the status is none of success.
            HubUnreachable: there is no whole answer.
            OSError, ValueError: the token's file has no token.
        """
        asked = self._url + path.partition("?")[0]
        with self.opened(path, body, headers, method=method) as answer:
            data = answer.read(self._bytes_max + 1)
            told, rest = Fetched(data, answer.headers), answer.length
        if len(data) > self._bytes_max:
            raise HubUnreachable(f"{asked} answers with more than {self._bytes_max} bytes: ask for less at once")
        if rest:  # http.client does not tell a cut answer that is read up to a length
            raise HubUnreachable(f"{asked} does not answer (the connection ended {rest} bytes before its answer's end)")
        return told

    @contextlib.contextmanager
    def opened(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, *,
        method: str | None = None,
    ) -> Iterator[Any]:  # fmt: skip
        """Yield the answer to a request, an ``http.client.HTTPResponse``, to read it as it comes. Raises as ``fetch``,
        also while it is read."""
        token = self._token if self._token_file is None else read_token(self._token_file)
        request = urllib.request.Request(self._url + path, body, dict(headers or {}), method=method)
        if body is not None:
            request.add_header("Content-Type", "application/json")
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        asked = self._url + path.partition("?")[0]
        try:
            with self._open(request, timeout=self._timeout_s) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            raise refusal(error) from None
        except (OSError, ValueError, http.client.HTTPException) as error:  # the last: the hub ended in its answer
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise HubUnreachable(f"{asked} does not answer ({getattr(reason, 'strerror', None) or reason})") from None

    def openapi(self) -> dict[str, Any]:
        """Return the document of the hub's API."""
        return self._get("/v1/openapi.json", dict[str, Any])

    def whoami(self) -> WhoAmI:
        """Return the rights of the client's token."""
        return self._get("/v1/whoami", WhoAmI)

    def status(self) -> StatusAnswer:
        """Return the state of the process that answers."""
        return self._get("/v1/status", StatusAnswer)

    def nodes(self) -> NodesAnswer:
        """Return the processes of the hub on all machines."""
        return self._get("/v1/nodes", NodesAnswer)

    def regions(self) -> RegionsAnswer:
        """Return the links of all shards to other regions."""
        return self._get("/v1/regions", RegionsAnswer)

    def troubles(self) -> TroublesAnswer:
        """Return conflicts, open gaps and lost records of the shards of all processes."""
        return self._get("/v1/troubles", TroublesAnswer)

    def acts(self, *, after: str | None = None, limit: int | None = None) -> ActsAnswer:
        """Return a page of the record of administrative acts: lines after one, or the newest ones."""
        return self._get("/v1/acts", ActsAnswer, after=after, limit=limit)

    def edges(
        self, *, tenant: str | None = None, shards: str | None = None, after: str | None = None,
        limit: int | None = None,
    ) -> EdgesAnswer:  # fmt: skip
        """Return a page of the edges that the hub knows."""
        return self._get("/v1/edges", EdgesAnswer, tenant=tenant, shards=shards, after=after, limit=limit)

    def edge(self, edge: str, *, tenant: str | None = None) -> EdgeAnswer:
        """Return one edge, with its functions."""
        return self._get(f"/v1/edges/{quote(edge, safe='')}", EdgeAnswer, tenant=tenant)

    def streams(
        self, *, tenant: str | None = None, after: str | None = None, limit: int | None = None
    ) -> StreamsAnswer:
        """Return a page of the tenant's streams."""
        return self._get("/v1/streams", StreamsAnswer, tenant=tenant, after=after, limit=limit)

    def stream(self, stream: str, *, tenant: str | None = None) -> StreamAnswer:
        """Return one stream."""
        return self._get(_of(stream), StreamAnswer, tenant=tenant)

    def lanes(
        self, stream: str, *, tenant: str | None = None, after: str | None = None, limit: int | None = None
    ) -> LanesAnswer:
        """Return a page of a stream's lanes."""
        return self._get(_of(stream, "/lanes"), LanesAnswer, tenant=tenant, after=after, limit=limit)

    def completeness(
        self, stream: str, *, tenant: str | None = None, after: str | None = None, limit: int | None = None
    ) -> CompletenessAnswer:
        """Return up to when a stream is complete, with a page of its lanes."""
        path = _of(stream, "/completeness")
        return self._get(path, CompletenessAnswer, tenant=tenant, after=after, limit=limit)

    def records(
        self, stream: str, *, tenant: str | None = None, shard: int | None = None, offset: int | None = None,
        since: str | int | None = None, chunk: int | None = None, from_shard: int | None = None,
        limit: int | None = None,
    ) -> RecordsAnswer:  # fmt: skip
        """Return records, from log and table."""
        return self._get(
            _of(stream, "/records"), RecordsAnswer, tenant=tenant, shard=shard, offset=offset, since=since,
            chunk=chunk, from_shard=from_shard, limit=limit,
        )  # fmt: skip

    def series(
        self, stream: str, *, since: str | int, until: str | int | None = None, late: str | None = None,
        fields: str | None = None, edge: str | None = None, key: str | None = None, step: str | None = None,
        value: str | None = None, limit: int | None = None, tenant: str | None = None,
    ) -> SeriesAnswer:  # fmt: skip
        """Return numbers of payloads over time, as rows for charts; a row without a value is a gap."""
        return self._get(
            _of(stream, "/series"), SeriesAnswer, since=since, until=until, late=late, fields=fields, edge=edge,
            key=key, step=step, value=value, limit=limit, tenant=tenant,
        )  # fmt: skip

    def trace(
        self, stream: str, *, tenant: str | None = None, edge: str | None = None, log: str | None = None,
        seq: int | None = None, shard: int | None = None, offset: int | None = None, chunk: int | None = None,
        from_shard: int | None = None,
    ) -> TraceAnswer:  # fmt: skip
        """Return the way of one record, named by edge, log and seq, or by shard and offset."""
        return self._get(
            _of(stream, "/trace"), TraceAnswer, tenant=tenant, edge=edge, log=log, seq=seq, shard=shard,
            offset=offset, chunk=chunk, from_shard=from_shard,
        )  # fmt: skip

    def tail(
        self, stream: str, *, position: str | None = None, tenant: str | None = None, edge: str | None = None,
        key: str | None = None, wait_s: float = WAIT_S,
    ) -> Iterator[TailEvent]:  # fmt: skip
        """Yield new records of a stream as they are committed, without an end, each once: it goes on at the position
        behind the last event when the hub ends or cannot be reached. Without ``position`` it begins at the end.

        Args:
            wait_s: time before a new attempt.

        Raises:
            HubRefusal: the hub refuses, for a reason that waiting does not mend.
        """
        path = _with(_of(stream, "/tail"), {"tenant": tenant, "edge": edge, "key": key})
        return follow(lambda headers: self.opened(path, headers=headers), position, wait_s)

    def rows(
        self, stream: str, *, shard: int, tenant: str | None = None, offset: int | None = None,
        chunk: int | None = None, limit: int | None = None,
    ) -> Rows:  # fmt: skip
        """Return rows of one shard from the log, as a stream of Arrow."""
        asked = {"shard": shard, "tenant": tenant, "offset": offset, "chunk": chunk, "limit": limit}
        answer = self.fetch(_with(_of(stream, "/rows"), asked))
        try:
            of = {name: int(answer.headers[f"Weft-{name}"]) for name in ("Next-Offset", "Next-Chunk", "End-Offset")
                  if f"Weft-{name}" in answer.headers}  # fmt: skip
            return Rows(answer.body, of.get("Next-Offset"), of.get("Next-Chunk"), of["End-Offset"])
        except (KeyError, ValueError):
            raise HubUnreachable(f"{self._url} answers with no rows; is a hub at that address?") from None

    def messages(self, edge: str, *, tenant: str | None = None, redirect: str | None = None) -> MessagesAnswer:
        """Return the messages to an edge that wait, and what became of others."""
        return self._get("/v1/messages", MessagesAnswer, edge=edge, tenant=tenant, redirect=redirect)

    def publish(
        self, topic: str, payload: str | bytes = "", *, edge: str | None = None, edges: Sequence[str] | None = None,
        group: str | None = None, after: str | None = None, expires_s: float | None = None, qos: int | None = None,
        redirect: bool | None = None, tenant: str | None = None, idempotency_key: str | None = None,
    ) -> PublishedAnswer:  # fmt: skip
        """Publish a message to edges. It is durable when this returns, for each edge that has a number.

        Args:
            edge, edges, group: one of them.
            after: with a group, ``next_after`` of the answer before.
            idempotency_key: repeated with the same one, the request stores nothing again.
        """
        content = (
            {"payload": payload} if isinstance(payload, str)
            else {"payload_base64": base64.b64encode(payload).decode()}
        )  # fmt: skip
        data = _json(
            {"topic": topic, **content, "edge": edge, "edges": edges, "group": group, "after": after,
             "expires_s": expires_s, "qos": qos, "redirect": redirect}
        )  # fmt: skip
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        return self._decoded(self.fetch(_with("/v1/messages", {"tenant": tenant}), data, headers), PublishedAnswer)

    def pulls(self, *, tenant: str | None = None, edge: str | None = None, id: str | None = None) -> PullsAnswer:  # noqa: A002
        """Return pulls of the tenant, the latest first."""
        return self._get("/v1/pulls", PullsAnswer, tenant=tenant, edge=edge, id=id)

    def pull(
        self, edge: str, stream: str, first: str | int, end: str | int, *, bytes_max: int | None = None,
        expires_s: float | None = None, tenant: str | None = None,
    ) -> PullAnswer:  # fmt: skip
        """Ask an edge for the records of a window. The request is durable when this returns.

        Args:
            first, end: the window: times (RFC 3339), or nanoseconds since 1970, by the edge's clock.
        """
        data = _json(
            {"edge": edge, "stream": stream, "from": str(first), "to": str(end), "bytes_max": bytes_max,
             "expires_s": expires_s}
        )  # fmt: skip
        return self._decoded(self.fetch(_with("/v1/pulls", {"tenant": tenant}), data), PullAnswer)

    def cancel_pull(self, id: str, *, tenant: str | None = None) -> PullAnswer:  # noqa: A002
        """Cancel a pull. What has come stays."""
        path = _with(f"/v1/pulls/{quote(id, safe='')}", {"tenant": tenant})
        return self._decoded(self.fetch(path, method="DELETE"), PullAnswer)

    def usage(self, *, tenant: str | None = None, after: str | None = None, limit: int | None = None) -> UsageAnswer:
        """Return what a tenant uses, with streams after one."""
        return self._get("/v1/usage", UsageAnswer, tenant=tenant, after=after, limit=limit)

    def tenant(self, tenant: str) -> TenantAnswer:
        """Return a tenant's quotas."""
        return self._get(f"/v1/tenants/{quote(tenant, safe='')}", TenantAnswer)

    def set_tenant(
        self, tenant: str, *, edges: int | None = None, streams: int | None = None,
        bytes_per_second: int | None = None, stored_bytes: int | None = None, records_per_second: int | None = None,
        lanes: int | None = None, links: int | None = None, table_bytes: int | None = None,
        reason: str | None = None, version: int | None = None,
    ) -> TenantAnswer:  # fmt: skip
        """Declare all quotas of a tenant. One that is left out bounds nothing.

        Args:
            version: of the answer that was changed: after another change of the tenant, it is refused (409).
        """
        data = _json({
            "edges": edges, "streams": streams, "bytes_per_second": bytes_per_second, "stored_bytes": stored_bytes,
            "records_per_second": records_per_second, "lanes": lanes, "links": links,
            "table_bytes": table_bytes, "reason": reason, "version": version,
        })  # fmt: skip
        path = f"/v1/tenants/{quote(tenant, safe='')}"
        return self._decoded(self.fetch(path, data, method="PUT"), TenantAnswer)

    def tenants(self, *, after: str | None = None, limit: int | None = None) -> TenantsAnswer:
        """Return the declared tenants after one, with their quotas."""
        return self._get("/v1/tenants", TenantsAnswer, after=after, limit=limit)

    def tokens(self, *, after: str | None = None, limit: int | None = None) -> TokensAnswer:
        """Return the declared tokens after one, without their secrets."""
        return self._get("/v1/tokens", TokensAnswer, after=after, limit=limit)

    def add_token(
        self, name: str, *, scope: str | None = None, tenant: str = "default", edge: str | None = None,
        grants: Sequence[str] = (), expires: str | None = None, reason: str = "",
    ) -> SecretAnswer:  # fmt: skip
        """Declare a token, with a scope or with grants. Its secret is in the answer, and nowhere else.

        Args:
            expires: its end: a duration such as ``90d``, or a date; None for none.
        """
        data = _json({"name": name, "scope": scope, "tenant": tenant, "edge": edge, "grants": list(grants),
                      "expires": expires, "reason": reason})  # fmt: skip
        return self._decoded(self.fetch("/v1/tokens", data), SecretAnswer)

    def rotate_token(
        self, name: str, *, expires: str | None = None, overlap: str | None = None, end_oldest: bool = False,
        reason: str = "",
    ) -> SecretAnswer:  # fmt: skip
        """Give a token another secret. The one before stays in force for a while.

        Args:
            expires: end of the new secret: a duration, a date, or ``never``; None for that of the one before.
            overlap: duration for which the secret before stays in force; None for a week.
        """
        data = _json({"expires": expires, "overlap": overlap, "end_oldest": end_oldest, "reason": reason})
        return self._decoded(self.fetch(f"/v1/tokens/{quote(name, safe='')}/rotate", data), SecretAnswer)

    def remove_token(self, name: str, *, reason: str | None = None) -> RemovedTokenAnswer:
        """Withdraw a token. Its links end within seconds."""
        path = _with(f"/v1/tokens/{quote(name, safe='')}", {"reason": reason})
        return self._decoded(self.fetch(path, method="DELETE"), RemovedTokenAnswer)

    def pipelines(self, *, tenant: str | None = None) -> PipelinesAnswer:
        """Return the last report of each pipeline of Spark."""
        return self._get("/v1/pipelines", PipelinesAnswer, tenant=tenant)

    def report_pipeline(
        self, pipeline: str, *, stream: str, state: str, error: str | None = None, batch: int | None = None,
        records: int | None = None, seconds: float | None = None, rate: float | None = None, lag: int | None = None,
        complete_until: str | None = None, idle_seconds: float | None = None, every_seconds: float = 10.0,
        tenant: str | None = None,
    ) -> ReportedAnswer:  # fmt: skip
        """Report the state of a pipeline.

        Args:
            stream: the stream that it reads; ``*`` for several.
            state: ``running``, ``ended`` or ``failed``.
            every_seconds: longest time until the next report.
        """
        path = _with(f"/v1/pipelines/{quote(pipeline, safe='')}", {"tenant": tenant})
        data = _json({
            "stream": stream, "state": state, "error": error, "batch": batch, "records": records, "seconds": seconds,
            "rate": rate, "lag": lag, "complete_until": complete_until, "idle_seconds": idle_seconds,
            "every_seconds": every_seconds,
        })  # fmt: skip
        return self._decoded(self.fetch(path, data, method="PUT"), ReportedAnswer)

    def forget_pipeline(self, pipeline: str, *, tenant: str | None = None) -> ReportedAnswer:
        """Forget a pipeline, until it reports again."""
        path = _with(f"/v1/pipelines/{quote(pipeline, safe='')}", {"tenant": tenant})
        return self._decoded(self.fetch(path, method="DELETE"), ReportedAnswer)

    def drains(self) -> DrainsAnswer:
        """Return the processes and machines that are drained."""
        return self._get("/v1/drains", DrainsAnswer)

    def drain(self, node: str, *, reason: str = "") -> DrainAnswer:
        """Have a process, or all of a machine, give its shards and edges to others."""
        return self._decoded(self.fetch("/v1/drains", _json({"node": node, "reason": reason})), DrainAnswer)

    def undo_drain(self, node: str, *, reason: str | None = None) -> DrainAnswer:
        """Have a drained process or machine take shards and edges again."""
        path = _with("/v1/drains", {"node": node, "reason": reason})
        return self._decoded(self.fetch(path, method="DELETE"), DrainAnswer)

    def pause_region(self, region: str, *, paused: bool, reason: str = "") -> RegionOrderAnswer:
        """Have the records for a region wait, or go on."""
        path = f"/v1/regions/{quote(region, safe='')}"
        data = _json({"paused": paused, "reason": reason})
        return self._decoded(self.fetch(path, data, method="PUT"), RegionOrderAnswer)

    def look_at_split(self, shard: int) -> SplitLook:
        """Return how many edges a split of a shard would move."""
        return self._get("/v1/splits", SplitLook, shard=shard)

    def split(self, shard: int, *, force: bool = False, reason: str = "") -> SplitAnswer:
        """Split a shard. About half of its edges move to a new one, for good.

        Args:
            force: do it though all its edges would be in one of the two.
        """
        data = _json({"shard": shard, "force": force, "reason": reason})
        return self._decoded(self.fetch("/v1/splits", data), SplitAnswer)

    def all_records(
        self, stream: str, shard: int, *, offset: int = 0, end: int | None = None, tenant: str | None = None
    ) -> Iterator[RecordOfStream]:
        """Yield the records of one shard in the order of their offsets, up to the end that it had at the beginning.

        Args:
            end: offset to end before; None for the shard's present end.
        """
        name = str(shard)
        stop = self.stream(stream, tenant=tenant).next_offset.get(name, 0) if end is None else end
        chunk: int | None = None
        while offset < stop:
            page = self.records(stream, shard=shard, offset=offset, chunk=chunk, tenant=tenant, limit=1000)
            yield from (record for record in page.records if record.offset < stop)
            was, (offset, chunk) = (offset, chunk), (page.next_offset.get(name, offset), page.next_chunk.get(name))
            if (offset, chunk) == was:
                raise HubUnreachable(f"{self._url} does not go on at offset {offset} of shard {shard}")

    def all_rows(
        self, stream: str, shard: int, *, offset: int | None = None, limit: int | None = None, tenant: str | None = None
    ) -> Iterator[Rows]:
        """Yield the rows of one shard in the order of their offsets, up to the end that it had at the beginning or
        somewhat behind it: ``next_offset`` of the last answer goes on. One answer is in memory at a time.

        Args:
            offset: of the first row; None for the first that the log has.
            limit: most rows of an answer.
        """
        chunk: int | None = None
        stop: int | None = None
        while True:
            page = self.rows(stream, shard=shard, offset=offset, chunk=chunk, limit=limit, tenant=tenant)
            stop = page.end if stop is None else stop
            was, (offset, chunk) = (offset, chunk), (page.next_offset, page.next_chunk)
            if offset not in (None, was[0]):
                yield page
            if (offset is None and chunk is None) or (offset is not None and offset >= stop):
                return
            if (offset, chunk) == was:
                raise HubUnreachable(f"{self._url} does not go on at offset {offset} of shard {shard}")

    def _get(self, path: str, type_: type[T], **query: str | int | None) -> T:
        return self._decoded(self.fetch(_with(path, query)), type_)

    def _decoded(self, answer: Fetched, type_: type[T]) -> T:
        try:
            return msgspec.json.decode(answer.body, type=type_)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise HubUnreachable(
                f"{self._url} gives no answer of the API ({error}); is a hub at that address?"
            ) from None


def pages(ask: Callable[Args, AList], *args: Args.args, **query: Args.kwargs) -> Iterator[AList]:
    """Yield the pages of a list: ``pages(client.lanes, "telemetry")``. Each may name shards that cannot be read.

    Args:
        ask: a method of ``Client`` that takes ``after``.
    """
    after = query.get("after")
    while True:
        page = ask(*args, **query)
        yield page
        if not isinstance(page.next_after, str):
            return
        if page.next_after == after:
            raise HubUnreachable(f"the list does not go on after {after!r}; is a hub at that address?")
        after = query["after"] = page.next_after
