"""The operations of the hub's API (docs/reference/openapi.json) whose answer has an end, as methods of both clients.

Each is written once: it says what to ask, and ``Client`` gives its answer, ``AsyncClient`` an awaitable of it.
"""

from __future__ import annotations

import base64
import functools
import importlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, overload
from urllib.parse import quote

import msgspec

from weft.client.asking import json_of as _json
from weft.client.asking import path_of as _of
from weft.client.asking import with_query as _with
from weft.client.errors import HubUnreachable
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
    RecordsAnswer,
    SeriesAnswer,
    StreamAnswer,
    StreamsAnswer,
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

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

Args = ParamSpec("Args")
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


@dataclass(frozen=True)
class Request(Generic[T]):
    """A request, and the type of its answer. ``method`` is GET unless given, or with a body POST."""

    answer: type[T]
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] | None = None
    method: str | None = None

    def read(self, fetched: Fetched, url: str) -> T:
        """Return the answer of the hub at a URL.

        Raises:
            HubUnreachable: it is none of the API.
        """
        try:
            if self.answer is Rows:
                of = {name: int(fetched.headers[f"Weft-{name}"]) for name in ("Next-Offset", "Next-Chunk", "End-Offset")
                      if f"Weft-{name}" in fetched.headers}  # fmt: skip
                rows: Any = Rows(fetched.body, of.get("Next-Offset"), of.get("Next-Chunk"), of["End-Offset"])
                return rows  # type: ignore[no-any-return]  # mypy does not narrow by a class
            return msgspec.json.decode(fetched.body, type=self.answer)
        except (KeyError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise HubUnreachable(f"{url} gives no answer of the API ({error}); is a hub at that address?") from None


class _Waits(Protocol):
    def _answer(self, request: Request[T], /) -> T: ...


class _Awaits(Protocol):
    def _answer(self, request: Request[T], /) -> Coroutine[Any, Any, T]: ...


class operation(Generic[Args, T]):  # noqa: N801  (a decorator, as ``property``)
    """A method that says what to ask, and gives what the client makes of it."""

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
        """Return the processes of the hub on all machines."""
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
        """Return a page of the record of administrative acts: lines after one, or the newest ones."""
        return _get("/v1/acts", ActsAnswer, after=after, limit=limit)

    @operation
    def edges(
        self, *, tenant: str | None = None, shards: str | None = None, after: str | None = None,
        limit: int | None = None,
    ) -> Request[EdgesAnswer]:  # fmt: skip
        """Return a page of the edges that the hub knows."""
        return _get("/v1/edges", EdgesAnswer, tenant=tenant, shards=shards, after=after, limit=limit)

    @operation
    def edge(self, edge: str, *, tenant: str | None = None) -> Request[EdgeAnswer]:
        """Return one edge, with its functions."""
        return _get(f"/v1/edges/{quote(edge, safe='')}", EdgeAnswer, tenant=tenant)

    @operation
    def streams(
        self, *, tenant: str | None = None, after: str | None = None, limit: int | None = None
    ) -> Request[StreamsAnswer]:
        """Return a page of the tenant's streams."""
        return _get("/v1/streams", StreamsAnswer, tenant=tenant, after=after, limit=limit)

    @operation
    def stream(self, stream: str, *, tenant: str | None = None) -> Request[StreamAnswer]:
        """Return one stream."""
        return _get(_of(stream), StreamAnswer, tenant=tenant)

    @operation
    def lanes(
        self, stream: str, *, tenant: str | None = None, after: str | None = None, limit: int | None = None
    ) -> Request[LanesAnswer]:
        """Return a page of a stream's lanes."""
        return _get(_of(stream, "/lanes"), LanesAnswer, tenant=tenant, after=after, limit=limit)

    @operation
    def completeness(
        self, stream: str, *, tenant: str | None = None, after: str | None = None, limit: int | None = None
    ) -> Request[CompletenessAnswer]:
        """Return up to when a stream is complete, with a page of its lanes."""
        path = _of(stream, "/completeness")
        return _get(path, CompletenessAnswer, tenant=tenant, after=after, limit=limit)

    @operation
    def records(
        self, stream: str, *, tenant: str | None = None, shard: int | None = None, offset: int | None = None,
        since: str | int | None = None, chunk: int | None = None, from_shard: int | None = None,
        limit: int | None = None,
    ) -> Request[RecordsAnswer]:  # fmt: skip
        """Return records, from log and table."""
        return _get(
            _of(stream, "/records"), RecordsAnswer, tenant=tenant, shard=shard, offset=offset, since=since,
            chunk=chunk, from_shard=from_shard, limit=limit,
        )  # fmt: skip

    @operation
    def series(
        self, stream: str, *, since: str | int, until: str | int | None = None, late: str | None = None,
        fields: str | None = None, edge: str | None = None, key: str | None = None, step: str | None = None,
        value: str | None = None, limit: int | None = None, tenant: str | None = None,
    ) -> Request[SeriesAnswer]:  # fmt: skip
        """Return numbers of payloads over time, as rows for charts; a row without a value is a gap."""
        return _get(
            _of(stream, "/series"), SeriesAnswer, since=since, until=until, late=late, fields=fields, edge=edge,
            key=key, step=step, value=value, limit=limit, tenant=tenant,
        )  # fmt: skip

    @operation
    def trace(
        self, stream: str, *, tenant: str | None = None, edge: str | None = None, log: str | None = None,
        seq: int | None = None, shard: int | None = None, offset: int | None = None, chunk: int | None = None,
        from_shard: int | None = None,
    ) -> Request[TraceAnswer]:  # fmt: skip
        """Return the way of one record, named by edge, log and seq, or by shard and offset."""
        return _get(
            _of(stream, "/trace"), TraceAnswer, tenant=tenant, edge=edge, log=log, seq=seq, shard=shard,
            offset=offset, chunk=chunk, from_shard=from_shard,
        )  # fmt: skip

    @operation
    def rows(
        self, stream: str, *, shard: int, tenant: str | None = None, offset: int | None = None,
        chunk: int | None = None, limit: int | None = None,
    ) -> Request[Rows]:  # fmt: skip
        """Return rows of one shard from the log, as a stream of Arrow."""
        asked = {"shard": shard, "tenant": tenant, "offset": offset, "chunk": chunk, "limit": limit}
        return Request(Rows, _with(_of(stream, "/rows"), asked))

    @operation
    def messages(self, edge: str, *, tenant: str | None = None, redirect: str | None = None) -> Request[MessagesAnswer]:
        """Return the messages to an edge that wait, and what became of others."""
        return _get("/v1/messages", MessagesAnswer, edge=edge, tenant=tenant, redirect=redirect)

    @operation
    def publish(
        self, topic: str, payload: str | bytes = "", *, edge: str | None = None, edges: Sequence[str] | None = None,
        group: str | None = None, after: str | None = None, expires_s: float | None = None, qos: int | None = None,
        redirect: bool | None = None, tenant: str | None = None, idempotency_key: str | None = None,
    ) -> Request[PublishedAnswer]:  # fmt: skip
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
        return Request(PublishedAnswer, _with("/v1/messages", {"tenant": tenant}), data, headers)

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
        self, edge: str, stream: str, first: str | int, end: str | int, *, bytes_max: int | None = None,
        expires_s: float | None = None, tenant: str | None = None,
    ) -> Request[PullAnswer]:  # fmt: skip
        """Ask an edge for the records of a window. The request is durable when this returns.

        Args:
            first, end: the window: times (RFC 3339), or nanoseconds since 1970, by the edge's clock.
        """
        data = _json(
            {"edge": edge, "stream": stream, "from": str(first), "to": str(end), "bytes_max": bytes_max,
             "expires_s": expires_s}
        )  # fmt: skip
        return Request(PullAnswer, _with("/v1/pulls", {"tenant": tenant}), data)

    @operation
    def cancel_pull(self, id: str, *, tenant: str | None = None) -> Request[PullAnswer]:  # noqa: A002
        """Cancel a pull. What has come stays."""
        path = _with(f"/v1/pulls/{quote(id, safe='')}", {"tenant": tenant})
        return Request(PullAnswer, path, method="DELETE")

    @operation
    def usage(
        self, *, tenant: str | None = None, after: str | None = None, limit: int | None = None
    ) -> Request[UsageAnswer]:
        """Return what a tenant uses, with streams after one."""
        return _get("/v1/usage", UsageAnswer, tenant=tenant, after=after, limit=limit)

    @operation
    def tenant(self, tenant: str) -> Request[TenantAnswer]:
        """Return a tenant's quotas."""
        return _get(f"/v1/tenants/{quote(tenant, safe='')}", TenantAnswer)

    @operation
    def set_tenant(
        self, tenant: str, *, edges: int | None = None, streams: int | None = None,
        bytes_per_second: int | None = None, stored_bytes: int | None = None, records_per_second: int | None = None,
        lanes: int | None = None, links: int | None = None, table_bytes: int | None = None,
        reason: str | None = None, version: int | None = None,
    ) -> Request[TenantAnswer]:  # fmt: skip
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
        return Request(TenantAnswer, path, data, method="PUT")

    @operation
    def tenants(self, *, after: str | None = None, limit: int | None = None) -> Request[TenantsAnswer]:
        """Return the declared tenants after one, with their quotas."""
        return _get("/v1/tenants", TenantsAnswer, after=after, limit=limit)

    @operation
    def tokens(self, *, after: str | None = None, limit: int | None = None) -> Request[TokensAnswer]:
        """Return the declared tokens after one, without their secrets."""
        return _get("/v1/tokens", TokensAnswer, after=after, limit=limit)

    @operation
    def add_token(
        self, name: str, *, scope: str | None = None, tenant: str = "default", edge: str | None = None,
        grants: Sequence[str] = (), expires: str | None = None, reason: str = "",
    ) -> Request[SecretAnswer]:  # fmt: skip
        """Declare a token, with a scope or with grants. Its secret is in the answer, and nowhere else.

        Args:
            expires: its end: a duration such as ``90d``, or a date; None for none.
        """
        data = _json({"name": name, "scope": scope, "tenant": tenant, "edge": edge, "grants": list(grants),
                      "expires": expires, "reason": reason})  # fmt: skip
        return Request(SecretAnswer, "/v1/tokens", data)

    @operation
    def rotate_token(
        self, name: str, *, expires: str | None = None, overlap: str | None = None, end_oldest: bool = False,
        reason: str = "",
    ) -> Request[SecretAnswer]:  # fmt: skip
        """Give a token another secret. The one before stays in force for a while.

        Args:
            expires: end of the new secret: a duration, a date, or ``never``; None for that of the one before.
            overlap: duration for which the secret before stays in force; None for a week.
        """
        data = _json({"expires": expires, "overlap": overlap, "end_oldest": end_oldest, "reason": reason})
        return Request(SecretAnswer, f"/v1/tokens/{quote(name, safe='')}/rotate", data)

    @operation
    def remove_token(self, name: str, *, reason: str | None = None) -> Request[RemovedTokenAnswer]:
        """Withdraw a token. Its links end within seconds."""
        path = _with(f"/v1/tokens/{quote(name, safe='')}", {"reason": reason})
        return Request(RemovedTokenAnswer, path, method="DELETE")

    @operation
    def pipelines(self, *, tenant: str | None = None) -> Request[PipelinesAnswer]:
        """Return the last report of each pipeline of Spark."""
        return _get("/v1/pipelines", PipelinesAnswer, tenant=tenant)

    @operation
    def report_pipeline(
        self, pipeline: str, *, stream: str, state: str, error: str | None = None, batch: int | None = None,
        records: int | None = None, seconds: float | None = None, rate: float | None = None, lag: int | None = None,
        complete_until: str | None = None, idle_seconds: float | None = None, every_seconds: float = 10.0,
        tenant: str | None = None,
    ) -> Request[ReportedAnswer]:  # fmt: skip
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
        return Request(ReportedAnswer, path, data, method="PUT")

    @operation
    def forget_pipeline(self, pipeline: str, *, tenant: str | None = None) -> Request[ReportedAnswer]:
        """Forget a pipeline, until it reports again."""
        path = _with(f"/v1/pipelines/{quote(pipeline, safe='')}", {"tenant": tenant})
        return Request(ReportedAnswer, path, method="DELETE")

    @operation
    def drains(self) -> Request[DrainsAnswer]:
        """Return the processes and machines that are drained."""
        return _get("/v1/drains", DrainsAnswer)

    @operation
    def drain(self, node: str, *, reason: str = "") -> Request[DrainAnswer]:
        """Have a process, or all of a machine, give its shards and edges to others."""
        return Request(DrainAnswer, "/v1/drains", _json({"node": node, "reason": reason}))

    @operation
    def undo_drain(self, node: str, *, reason: str | None = None) -> Request[DrainAnswer]:
        """Have a drained process or machine take shards and edges again."""
        path = _with("/v1/drains", {"node": node, "reason": reason})
        return Request(DrainAnswer, path, method="DELETE")

    @operation
    def pause_region(self, region: str, *, paused: bool, reason: str = "") -> Request[RegionOrderAnswer]:
        """Have the records for a region wait, or go on."""
        path = f"/v1/regions/{quote(region, safe='')}"
        data = _json({"paused": paused, "reason": reason})
        return Request(RegionOrderAnswer, path, data, method="PUT")

    @operation
    def look_at_split(self, shard: int) -> Request[SplitLook]:
        """Return how many edges a split of a shard would move."""
        return _get("/v1/splits", SplitLook, shard=shard)

    @operation
    def split(self, shard: int, *, force: bool = False, reason: str = "") -> Request[SplitAnswer]:
        """Split a shard. About half of its edges move to a new one, for good.

        Args:
            force: do it though all its edges would be in one of the two.
        """
        data = _json({"shard": shard, "force": force, "reason": reason})
        return Request(SplitAnswer, "/v1/splits", data)


def _get(path: str, answer: type[T], **query: str | int | None) -> Request[T]:
    return Request(answer, _with(path, query))
