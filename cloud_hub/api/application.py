"""The hub's HTTP API: ``GET /v1/...`` for readers, ``/v1/link`` for edges, ``/metrics``, ``/healthz`` and ``/readyz``.

Errors are problem documents (RFC 9457) with advice. ``?tenant=`` chooses the tenant if the token allows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import UNSET

from weft.bounds import Refusals
from weft.cloud_hub.api import views
from weft.cloud_hub.api.answers import (
    Answers,
    LongAnswer,
    ViewT,
    answered,
    choice,
    encoded,
    integer,
    lanes_after,
    position,
    routes,
)
from weft.cloud_hub.api.metrics import Metrics, StreamRates
from weft.cloud_hub.api.records import SOON, RecordsReading, ShardsView, ShardViews, trace_answer
from weft.cloud_hub.api.series import SeriesReading, SeriesRequest
from weft.cloud_hub.api.summaries import (
    CONFLICTS_MAX,
    EdgeViews,
    LinksElsewhere,
    ShardSummaries,
    StreamCompleteness,
    edge_of,
    edges_after,
)
from weft.cloud_hub.api.views import LaneOf, StreamPart, View, renamed_lanes
from weft.cloud_hub.auth.access import Access, headers_of
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.cluster import Membership
from weft.cloud_hub.part import Part
from weft.cloud_hub.shard.collector import ShardCollector
from weft.cloud_hub.shard.sequencer import Sequencer, public_reason
from weft.cloud_hub.shard.shards import LOST_LISTED_MAX, Shards, lost_views
from weft.config.log_lines import Repeats, left_out
from weft.config.metrics.exposition import CONTENT_TYPE, Sample
from weft.config.units import approximate_duration
from weft.hub_api.answers import (
    ApiError,
    CompletenessAnswer,
    EdgesAnswer,
    LaneName,
    LanesAnswer,
    SeriesAnswer,
    StreamAnswer,
    StreamOf,
    StreamsAnswer,
    TableOfStream,
    moment,
)
from weft.hub_api.operations import (
    JSON_FORMAT,
    NUMBER_MAX,
    PAGE_DEFAULT,
    PAGE_MAX,
    RECORDS_DEFAULT,
    RECORDS_MAX,
    ROW_COLUMNS,
    ROW_FORMATS,
    ROWS_MAX,
    TYPED_COLUMNS,
)
from weft.hub_api.rights import Right
from weft.hub_api.status import StatusAnswer, TroublesAnswer
from weft.network.http_server import Handler
from weft.network.problem import PROBLEM_JSON, problem
from weft.network.tracing import NO_FIGURES
from weft.protocols.chunk_index import StreamKey
from weft.protocols.errors import CodecError
from weft.protocols.health import health_answer
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.completeness import OPEN_GAPS_MAX
from weft.protocols.shard.lane_state import LaneState
from weft.replication.runner import LINK_PATH
from weft.storage.chunk_log import CollectedPast, missing_halves
from weft.storage.cluster import Cluster
from weft.storage.fenced_store import FencedStore
from weft.storage.object_store import NotFound, StoreError
from weft.storage.table.actions import TableError
from weft.storage.table.schemas import Schemas

if TYPE_CHECKING:
    from weft.storage.table_writer.service import TableService


def _json_of_view(view: View) -> web.Response:
    return web.Response(body=msgspec.json.encode(view) + b"\n", content_type="application/json")


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


# The tables as the process knows them, for its answers and its health.


class HubTables(Part):
    """The tables as one process knows them. This base is for a process that makes none: it knows nothing of them."""

    maker: TableService | None = None
    """Maker of this process's part of the tables; None where others make all."""
    service: TableService | None = None
    """The maker that knows how far all tables are; None in a process that knows its own ones alone."""
    collected: Sequence[ShardCollector] = ()
    """The shards whose old chunks this process deletes."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def grow(self, cluster: Cluster) -> None:
        """Adopt new shards."""

    def rows(self, tenant: str, stream: str) -> int | None:  # noqa: ARG002
        """Return the number of records of a stream that are table rows; None if this process does not know it."""
        return None

    def view(self, tenant: str, stream: str) -> TableOfStream | None:  # noqa: ARG002
        """Return a stream's table for readers; None when this process does not know it."""
        return None

    def payload(self, tenant: str, stream: str) -> PayloadKind | None:  # noqa: ARG002
        """Return the payload kind of a stream's table; None when this process does not know it."""
        return None

    def error_of(self, key: StreamKey) -> str | None:  # noqa: ARG002
        """Return what holds a stream's tables up, if something does."""
        return None

    def views(self) -> View:
        """Return the part of the status about tables."""
        return {"tables": [], "tables_more": 0, "tables_trouble": None, "latest_tables": [], "quality": []}

    def bytes_of(self, tenant: str) -> int | None:  # noqa: ARG002
        """Return the bytes of a tenant's tables of all rows; None without a quota of them, or while unknown."""
        return None

    def stream_bytes(self, tenant: str, stream: str) -> int | None:  # noqa: ARG002
        """Return the bytes of a stream's table of all rows, as of the last look for small files; None while unknown."""
        return None

    def samples(self) -> Iterator[Sample]:
        """Yield the figures of old chunks, and of what the tables' maker has."""
        yield from self._of_chunks()
        for name, value in NO_FIGURES.items():
            yield Sample(f"weft_hub_trace_{name}", value)

    def _of_chunks(self) -> Iterator[Sample]:
        old = {each.log.shard: (0, each.log.watermark) for each in self._shards}
        old |= {each.shard: (each.deleted, each.watermark) for each in self.collected}
        for shard, (deleted, watermark) in sorted(old.items()):
            yield Sample("weft_hub_deleted_chunks_total", deleted, (str(shard),))
            yield Sample("weft_hub_watermark", watermark, (str(shard),))


# Health of a hub process: reasons to restart it, and reasons to send it no work.

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


logger = logging.getLogger(__name__)

UNKNOWN_PATH = "GET /v1/streams lists what can be read, /v1/openapi.json what can be asked"
# By status, and not a type for each refusal, of which there are 200. Relative to the hub, so that it leads somewhere in
# a plant without the internet, too.
PROBLEM_TYPE = "/v1/openapi.json#/components/responses/{status}"
"""Type of a problem: the URI, relative to the hub, of what the document says of its status."""


def _problem(status: int, detail: str, advice: str, headers: Mapping[str, str] | None = None) -> web.Response:
    body = problem(status, detail, advice, type_=PROBLEM_TYPE.format(status=status))
    return web.Response(body=body, status=status, headers=headers, content_type=PROBLEM_JSON)


class Api:
    """Routes and handlers.

    Args:
        tables: the tables as this process knows them.
        response_bytes_max: longest answer, in payload bytes.
        summaries: of all shards, for lists.
        schemas: as they are declared.
        edges: makes the views of edges for one request, with the links of other processes.
        elsewhere: returns these.
        refusals: counter of refused requests of readers that do not read their answers.
    """

    def __init__(
        self,
        tables: HubTables,
        shards: ShardViews,
        access: Access,
        response_bytes_max: int,
        *,
        moments: StreamCompleteness,
        rates: StreamRates,
        summaries: ShardSummaries,
        schemas: Schemas,
        edges: Callable[[LinksElsewhere], EdgeViews],
        elsewhere: Callable[[], Awaitable[LinksElsewhere]],
        refusals: Refusals,
        monotonic: Callable[[], float],
    ) -> None:
        self._tables, self._schemas = tables, schemas
        self._moments = moments
        self._rates = rates
        self._summaries, self._edges, self._elsewhere = summaries, edges, elsewhere
        self._views = shards
        self._access = access
        self._monotonic = monotonic
        self._repeats = Repeats()
        self._response_bytes_max = response_bytes_max
        self.answers = Answers(response_bytes_max, refusals)

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn every failure into a problem document."""
        try:
            return await handler(request)
        except ApiError as error:
            self._access.note_refusal(request, error)
            return _problem(error.status, error.error, error.advice, headers_of(error))
        except web.HTTPException as error:
            answer = _problem(error.status, f"{request.method} {request.path}: {error.reason}", UNKNOWN_PATH)
            if "Allow" in error.headers:  # the methods that the path has
                answer.headers["Allow"] = error.headers["Allow"]
            return answer
        except CollectedPast as error:
            advice = "read its table, if that has all rows (`kind`); since= finds the first that the log still has"
            return _problem(410, str(error), advice)
        except TableError as error:
            advice = "mend the table, or read it with an engine; since= finds the first record that the log still has"
            self._log(logging.WARNING, error)
            return _problem(503, public_reason(error), advice)
        except (StoreError, NotFound) as error:
            self._log(logging.WARNING, error)
            return _problem(503, public_reason(error), SOON)
        except CodecError as error:
            self._log(logging.ERROR, error)
            said = f"the log is damaged: {public_reason(error)}"
            return _problem(500, said, "see the hub's log; keep the store")

    def _log(self, level: int, error: Exception) -> None:
        """Log what was in the way of a request, with a limit: readers request unreadable records again and again."""
        count = self._repeats.due(str(error), self._monotonic())
        if count is not None:
            what = "the log is damaged" if isinstance(error, CodecError) else "a request could not be answered"
            logger.log(level, "%s: %s%s", what, error, left_out(count))

    def application(self, *outer: Middleware, inner: Sequence[Middleware] = ()) -> web.Application:
        """Return the aiohttp application, with ``outer`` middlewares around everything, and ``inner`` ones in it."""
        application = web.Application(middlewares=[*outer, self._errors, *inner])
        application.add_routes(
            routes(
                edges=self.bounded(self._get_edges),
                edge=self.bounded(self._get_edge),
                streams=self.bounded(self._get_streams),
                stream=self.bounded(self._get_stream),
                lanes=self.bounded(self._get_lanes),
                completeness=self.bounded(self._get_completeness),
                records=self.bounded(self._get_records),
                series=self.bounded(self._get_series),
                rows=self.bounded(self._get_rows),
                trace=self.bounded(self._get_trace),
            )
        )
        return application

    def bounded(self, handler: Callable[[web.Request], Awaitable[web.Response | LongAnswer]]) -> Handler:
        """Return the handler with a bound on the answers in progress for its readers."""

        async def bounded(request: web.Request) -> web.StreamResponse:
            reader = self._access.charged(request)
            async with self.answers.room(reader) as room:
                return await self.answers.send(request, await handler(request), room)

        return bounded

    async def _get_edges(self, request: web.Request) -> web.Response:
        tenant = self._access.tenants(request)
        own = choice(request, "shards", ("all", "own")) == "own"
        limit = integer(request, "limit", PAGE_DEFAULT, 1, PAGE_MAX)
        shards = await self._summaries.own() if own else await self._summaries.every()
        rows = [each.edges for each in shards.summaries]
        edges, more = edges_after(rows, tenant, request.query.get("after"), limit)
        elsewhere = LinksElsewhere({}, []) if own else await self._elsewhere()
        page = await encoded(edges, self._edges(elsewhere).view, self._response_bytes_max)
        last = edges[len(page.views) - 1].name if page.views and (more or not page.is_whole) else None
        next_after = None if last is None else str(last)
        return answered(
            EdgesAnswer(
                edges=page.views,
                next_after=next_after,
                links_unknown_at=list(elsewhere.unknown_at) or UNSET,
                as_of=shards.as_of,
                missing_shards=shards.missing_shards,
            )
        )

    async def _get_edge(self, request: web.Request) -> web.Response:
        name = self._access.edge(request)
        shards = await self._summaries.every()
        row = edge_of([each.edges for each in shards.summaries], name)
        if row is None and shards.missing:
            raise _unavailable(f"edge {name} is not known yet, and some shards cannot be read")
        if row is None:
            raise ApiError(
                404, f"the hub knows no edge {name}", "GET /v1/edges lists the edges; ?tenant= names a tenant"
            )
        elsewhere = await self._elsewhere()
        return answered(self._edges(elsewhere).answer(row, elsewhere.unknown_at))

    async def _get_streams(self, request: web.Request) -> web.Response:
        tenant, is_readable = self._access.streams(request)
        after, limit = request.query.get("after", ""), integer(request, "limit", PAGE_DEFAULT, 1, PAGE_MAX)
        shards = await self._summaries.every()
        every = await shards.streams(tenant)
        names = [name for name in every if name > after and is_readable(name)]

        def view(name: str) -> StreamOf:
            made = self._view((tenant, name), every[name], None if shards.missing else shards.ages)
            return msgspec.structs.replace(made, complete_up_to=None) if shards.missing else made

        page = await encoded(names[:limit], view, self._response_bytes_max)
        taken = len(page.views)
        last = names[taken - 1] if taken < len(names) else None
        return answered(
            StreamsAnswer(streams=page.views, next_after=last, as_of=shards.as_of, missing_shards=shards.missing_shards)
        )

    async def _get_stream(self, request: web.Request) -> web.Response:
        shards, tenant, stream = await self.stream(request)
        parts = await self._moments.parts(shards.states, tenant, stream)
        view = shards.unclaimed(self._view((tenant, stream), parts, None if shards.missing else {}))
        return answered(StreamAnswer(**msgspec.structs.asdict(view), missing_shards=shards.missing_shards))

    def _view(self, key: StreamKey, parts: Sequence[StreamPart], ages: Mapping[int, float] | None) -> StreamOf:
        """Return a stream.

        Args:
            ages: seconds since a part was made, by shard; None for no rate.
        """
        summary = self._moments.summary(parts, key)
        payload = self._tables.payload(*key)
        return views.stream_view(
            parts,
            key,
            self._tables.rows(*key),
            payload=summary.payload if payload is None else payload,
            summary=summary,
            now=self._moments.facts.now,
            rate=None if ages is None else self._rates.rate(parts, key, ages),
            table=self._tables.view(*key),
        )

    async def payload_kind(self, shards: ShardsView, tenant: str, stream: str) -> PayloadKind:
        """Return the payload kind of the table, or before there is a table, the kind that a new one would get."""
        known = self._tables.payload(tenant, stream)
        return (await self._moments.summarise(shards.states, tenant, stream)).payload if known is None else known

    async def _get_lanes(self, request: web.Request) -> web.Response:
        shards, tenant, stream = await self.stream(request)
        _, next_after, made = await self._lanes(request, shards, (tenant, stream), views.lane_view)
        return answered(
            LanesAnswer(
                tenant=tenant, stream=stream, lanes=made, next_after=next_after, missing_shards=shards.missing_shards
            )
        )

    async def _lanes(
        self, request: web.Request, shards: ShardsView, stream: StreamKey, view: Callable[[Lane, LaneState, int], ViewT]
    ) -> tuple[list[LaneOf], str | None, list[ViewT]]:
        """Return a page of a stream's lanes, the start of the next page, and the lanes' views."""
        limit = integer(request, "limit", PAGE_DEFAULT, 1, PAGE_MAX)
        try:
            lanes, more = await lanes_after(shards.states, *stream, request.query.get("after"), limit)
        except ValueError:
            raise ApiError(400, "after= does not name a lane", "take it from next_after of the answer before") from None
        page = await encoded(lanes, lambda each: view(each[1], each[2], each[0]), self._response_bytes_max)
        shown = lanes[: len(page.views)]
        return shown, position(shown[-1]) if shown and (more or not page.is_whole) else None, page.views

    async def _get_completeness(self, request: web.Request) -> web.Response:
        shards, tenant, stream = await self.stream(request)
        as_view = partial(views.completeness_view, peers=self._moments.peers)
        lanes, next_after, made = await self._lanes(request, shards, (tenant, stream), as_view)
        answer = await self._moments.of(shards.states, tenant, stream)
        renamed = renamed_lanes(shards.states, tenant, stream, peers=self._moments.peers)
        now, table = self._moments.facts.now, self._tables.view(tenant, stream)
        view = CompletenessAnswer(
            tenant=tenant,
            stream=stream,
            complete_up_to=moment(answer.complete_up_to),
            covers=[
                LaneName(lane.edge, format_log_id(lane.log_id))
                for _, lane, held in lanes
                if held.counts and lane not in renamed
            ],
            held_back_by=[views.held_back_view(each, now) for each in answer.held_back_by],
            held_back_by_more=answer.more,
            open_gaps=[views.open_gap_view(gap) for gap in answer.open_gaps],
            open_gaps_more=answer.open_gaps_more,
            skipped=views.skipped_views(shards.states, tenant, stream),
            lanes=made,
            next_after=next_after,
            missing_shards=shards.missing_shards,
            removed_until=views.removed_until(table),
            only_latest=views.only_latest(table),
        )
        return answered(shards.unclaimed(view))

    async def _get_records(self, request: web.Request) -> LongAnswer:
        shards, tenant, stream = await self.stream(request)
        limit = integer(request, "limit", RECORDS_DEFAULT, 1, RECORDS_MAX)
        payload = await self.payload_kind(shards, tenant, stream)
        answer = RecordsReading(request, (tenant, stream), payload, limit, self._response_bytes_max)
        states = {state.shard: state for state in shards.states}
        for shard in self._wanted(request, shards):
            if not answer.continues(shard):
                break
            try:
                await answer.read(states[shard], shards.readers[shard])
            except (StoreError, NotFound, CodecError, TableError) as error:
                if "shard" in request.query:
                    raise
                self._log(logging.WARNING, error)
                shards.missing[shard] = public_reason(error)
        return await answer.encode(shards.missing_shards, self._tables.view(tenant, stream))

    async def _get_series(self, request: web.Request) -> web.Response:
        wanted = SeriesRequest.of(request)
        shards, tenant, stream = await self.stream(request)
        payload = await self.payload_kind(shards, tenant, stream)
        answer = SeriesReading((tenant, stream), payload, wanted, self._response_bytes_max)
        for state in shards.states:
            if not answer.continues():
                break
            try:
                await answer.read(state, shards.readers[state.shard])
            except (StoreError, NotFound, CodecError, TableError) as error:
                self._log(logging.WARNING, error)
                shards.missing[state.shard] = public_reason(error)
        complete = await self._moments.of(shards.states, tenant, stream)
        rows = await asyncio.to_thread(answer.rows)  # which may end before all are in it
        view = SeriesAnswer(
            tenant=tenant,
            stream=stream,
            rows=rows,
            complete_up_to=moment(complete.complete_up_to),
            is_whole=answer.is_whole and not shards.missing,
            missing_shards=shards.missing_shards,
        )
        return answered(shards.unclaimed(view))

    async def _get_trace(self, request: web.Request) -> web.Response:
        shards, tenant, stream = await self.stream(request)
        payload = await self.payload_kind(shards, tenant, stream)
        answer = await trace_answer(request, shards, (tenant, stream), payload)
        return await asyncio.to_thread(answered, answer)  # its record may have megabytes

    async def _get_rows(self, request: web.Request) -> LongAnswer:
        from weft.cloud_hub.api import rows  # imports pyarrow, as for histories

        shards, tenant, stream = await self.stream(request)
        if "shard" not in request.query:
            advice = "rows are read shard by shard: GET /v1/streams/NAME has the shards"
            raise ApiError(400, "shard= is missing", advice)
        (shard,) = self._wanted(request, shards)
        offset, chunk = (
            integer(request, name, 0, 0, NUMBER_MAX) if name in request.query else None for name in ("offset", "chunk")
        )
        limit = integer(request, "limit", ROWS_MAX, 0, ROWS_MAX)
        kind, form = await self.payload_kind(shards, tenant, stream), choice(request, "format", ROW_FORMATS)
        is_typed = choice(request, "columns", ROW_COLUMNS) == TYPED_COLUMNS
        wanted = rows.RowsRequest(
            (tenant, stream), kind, offset, chunk, limit, is_json=form == JSON_FORMAT,
            schema=self._schemas.of((tenant, stream)) if is_typed else None,
        )  # fmt: skip
        answer = await rows.rows_answer(shards.readers[shard], shards.states, wanted, self._response_bytes_max)
        # Only now: a chunk may have moved lanes away while the rows were made. Without their states, levels are null.
        if lost := missing_halves(shards.states, shard):
            raise ApiError(503, f"shard {lost[0]}, which has edges of shard {shard}, is not loaded", SOON)
        return answer

    def _wanted(self, request: web.Request, shards: ShardsView) -> list[int]:
        """Return the numbers of the requested shards, which must be readable."""
        if "shard" in request.query:
            shard = shards.number(request, "shard")
            if shard in shards.missing:
                raise _unavailable(f"shard {shard} cannot be read: {shards.missing[shard]}")
            return [shard]
        if "offset" in request.query or "chunk" in request.query:
            raise ApiError(400, "offsets and chunks count per shard", "give shard= too, or since= for all shards")
        first = shards.number(request, "from_shard")
        return [state.shard for state in shards.states if state.shard >= first]

    async def stream(self, request: web.Request) -> tuple[ShardsView, str, str]:
        """Return the shards, the tenant and the name of a request's stream.

        Raises:
            ApiError: 400, 401, 403, 404, 421, 503.
        """
        tenant, stream = self._access.stream(request)
        return await self.shards_of((tenant, stream)), tenant, stream

    async def shards_of(self, key: StreamKey) -> ShardsView:
        """Return the shards of a stream, for those who may read it.

        Raises:
            ApiError: 404, 503.
        """
        tenant, stream = key
        shards = await self._views.of_stream(tenant, stream)
        if not any(state.has_stream(tenant, stream) for state in shards.states):
            if shards.missing:
                shard, trouble = next(iter(shards.missing.items()))
                raise _unavailable(f"stream {stream!r} is not known yet, and shard {shard} cannot be read: {trouble}")
            if (gone := views.deletion_of(shards.states, tenant, stream)) is not None:
                raise ApiError(
                    404,
                    f"stream {stream!r} of tenant {tenant} was deleted at {moment(gone.time)}: {gone.reason}",
                    "read its table, which stays; the next record of an edge begins the stream again",
                )
            raise ApiError(404, f"tenant {tenant} has no stream {stream!r}", "GET /v1/streams lists the streams")
        return shards


class ProcessRequests:
    """Requests about the process itself, and the way in for links.

    Args:
        status: returns the process, its shards and its links.
        link: runs a link until it ends.
    """

    def __init__(
        self,
        status: Callable[[], StatusAnswer],
        link: Handler,
        health: Health,
        metrics: Metrics,
        access: Access,
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


def _unavailable(error: str) -> ApiError:
    return ApiError(503, error, "the hub's log and `weft hub status` say more; other shards are not affected")
