"""The hub's HTTP API: ``GET /v1/...`` for readers, ``/v1/link`` for edges, ``/metrics``, ``/healthz`` and ``/readyz``.

Errors are problem documents (RFC 9457) with advice. ``?tenant=`` chooses the tenant if the token allows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import UNSET

from weft.bounds import Refusals
from weft.cloud_hub.auth.access import Access, headers_of, readable
from weft.cloud_hub.http.exchange import JSON, Answers, LongAnswer, PageQuery, answered, asked, routes
from weft.cloud_hub.reads import views
from weft.cloud_hub.reads.metrics import StreamRates
from weft.cloud_hub.reads.records import (
    SOON,
    RecordsQuery,
    RecordsReading,
    ShardsView,
    ShardViews,
    TraceQuery,
    trace_answer,
    unavailable,
)
from weft.cloud_hub.reads.series import SeriesQuery, SeriesReading, SeriesRequest
from weft.cloud_hub.reads.summaries import (
    EdgeViews,
    LinksElsewhere,
    ShardSummaries,
    StreamCompleteness,
    edge_of,
    edges_after,
    losses_view,
)
from weft.cloud_hub.reads.views import LaneOf, StreamPart, ViewT, encoded, lanes_after, position, renamed_lanes
from weft.cloud_hub.shard.sequencer import public_reason
from weft.cloud_hub.tables.hub_tables import HubTables
from weft.config.log_lines import Repeats, left_out
from weft.hub_api.answers import ApiError, moment
from weft.hub_api.edges import OWN_SHARDS, EdgesAnswer, LossesAnswer
from weft.hub_api.records import ARROW, JSON_FORMAT, TYPED_COLUMNS, SeriesAnswer
from weft.hub_api.streams import CompletenessAnswer, LaneName, LanesAnswer, StreamAnswer, StreamOf, StreamsAnswer
from weft.network.http_server import Handler
from weft.network.problem import PROBLEM_JSON, problem
from weft.protocols.chunk_index import StreamKey
from weft.protocols.errors import CodecError
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.lane_state import LaneState
from weft.storage.chunk_log import CollectedPast, missing_halves
from weft.storage.object_store import NotFound, StoreError
from weft.storage.table.actions import TableError
from weft.storage.table.schemas import Schemas

logger = logging.getLogger(__name__)
UNKNOWN_PATH = "GET /v1/streams lists what can be read, /v1/openapi.json what can be asked"
NEXT_OFFSET, NEXT_CHUNK, END_OFFSET = "Weft-Next-Offset", "Weft-Next-Chunk", "Weft-End-Offset"
"""Headers of an answer with rows."""
# By status, and not a type for each refusal, of which there are 200. Relative to the hub, so that it leads somewhere in
# a plant without the internet, too.
PROBLEM_TYPE = "/v1/openapi.json#/components/responses/{status}"
"""Type of a problem: the URI, relative to the hub, of the description of its status in the API's document."""


def _problem(status: int, detail: str, advice: str, headers: Mapping[str, str] | None = None) -> web.Response:
    body = problem(status, detail, advice, type_=PROBLEM_TYPE.format(status=status))
    return web.Response(body=body, status=status, headers=headers, content_type=PROBLEM_JSON)


class EdgesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the request for edges."""

    shards: str
    after: str | None
    limit: int


class RowsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the request for rows."""

    shard: int
    offset: int | None
    chunk: int | None
    format: str
    columns: str
    limit: int


class Api:
    """Routes and handlers.

    Args:
        tables: the tables as this process knows them.
        response_bytes_max: longest answer, in payload bytes.
        summaries: summaries of all shards, for lists.
        schemas: the declared schemas.
        edges: makes the views of edges for one request, with the links of other processes.
        elsewhere: returns the links of other processes.
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
        """Return the aiohttp application. ``outer`` middlewares run before the application's own, ``inner`` ones
        after."""
        application = web.Application(middlewares=[*outer, self._errors, *inner])
        application.add_routes(
            routes(
                edges=self.bounded(self._get_edges),
                edge=self.bounded(self._get_edge),
                losses=self.bounded(self._get_losses),
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
        """Return the handler with a bound on the answers that its readers have in progress."""

        async def bounded(request: web.Request) -> web.StreamResponse:
            reader = self._access.charged(request)
            async with self.answers.room(reader) as room:
                return await self.answers.send(request, await handler(request), room)

        return bounded

    async def _get_edges(self, request: web.Request) -> web.Response:
        tenant = self._access.tenants(request)
        query = asked(request, EdgesQuery)
        own = query.shards == OWN_SHARDS
        shards = await self._summaries.own() if own else await self._summaries.every()
        rows = [each.edges for each in shards.summaries]
        edges, more = edges_after(rows, tenant, query.after, query.limit)
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

    async def _get_losses(self, request: web.Request) -> web.Response:
        tenant, query = self._access.tenants(request), asked(request, PageQuery)
        shards = await self._summaries.every()
        rows = [[row for row in each.edges if row.gaps or row.lost] for each in shards.summaries]
        edges, more = edges_after(rows, tenant, query.after, query.limit)
        page = await encoded(edges, losses_view, self._response_bytes_max)
        last = edges[len(page.views) - 1].name if page.views and (more or not page.is_whole) else None
        return answered(
            LossesAnswer(
                edges=page.views,
                next_after=None if last is None else str(last),
                as_of=shards.as_of,
                missing_shards=shards.missing_shards,
            )
        )

    async def _get_edge(self, request: web.Request) -> web.Response:
        name = self._access.edge(request)
        shards = await self._summaries.every()
        row = edge_of([each.edges for each in shards.summaries], name)
        if row is None and shards.missing:
            raise unavailable(f"edge {name} is not known yet, and some shards cannot be read")
        if row is None:
            raise ApiError(
                404, f"the hub knows no edge {name}", "GET /v1/edges lists the edges; ?tenant= names a tenant"
            )
        elsewhere = await self._elsewhere()
        return answered(self._edges(elsewhere).answer(row, elsewhere.unknown_at))

    async def _get_streams(self, request: web.Request) -> web.Response:
        tenant, is_readable = self._access.streams(request)
        query = asked(request, PageQuery)
        shards = await self._summaries.every()
        every = await shards.streams(tenant)
        listed = (name for name in every if name > (query.after or ""))
        names = await readable(listed, is_readable, query.limit + 1)

        def view(name: str) -> StreamOf:
            made = self._view((tenant, name), every[name], None if shards.missing else shards.ages)
            return msgspec.structs.replace(made, complete_up_to=None) if shards.missing else made

        page = await encoded(names[: query.limit], view, self._response_bytes_max)
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
        """Return the payload kind of the table; before it exists, the kind that a new table would get."""
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
        query = asked(request, PageQuery)
        try:
            lanes, more = await lanes_after(shards.states, *stream, query.after, query.limit)
        except ValueError:
            raise ApiError(400, "after= does not name a lane", "use next_after of the previous answer") from None
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
        wanted = asked(request, RecordsQuery)
        payload = await self.payload_kind(shards, tenant, stream)
        answer = RecordsReading(wanted, (tenant, stream), payload, self._response_bytes_max)
        states = {state.shard: state for state in shards.states}
        for shard in wanted.shards(shards):
            if not answer.continues(shard):
                break
            try:
                await answer.read(states[shard], shards.readers[shard])
            except (StoreError, NotFound, CodecError, TableError) as error:
                if wanted.shard is not None:
                    raise
                self._log(logging.WARNING, error)
                shards.missing[shard] = public_reason(error)
        return LongAnswer(await answer.encode(shards.missing_shards, self._tables.view(tenant, stream)))

    async def _get_series(self, request: web.Request) -> web.Response:
        wanted = SeriesRequest.of(asked(request, SeriesQuery))
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
        answer = await trace_answer(asked(request, TraceQuery), shards, (tenant, stream), payload)
        return await asyncio.to_thread(answered, answer)  # its record may have megabytes

    async def _get_rows(self, request: web.Request) -> LongAnswer:
        from weft.cloud_hub.reads import rows

        shards, tenant, stream = await self.stream(request)
        query = asked(request, RowsQuery)
        shard, is_json = shards.readable(query.shard), query.format == JSON_FORMAT
        wanted = rows.RowsRequest(
            (tenant, stream),
            await self.payload_kind(shards, tenant, stream),
            query.offset,
            query.chunk,
            query.limit,
            is_json=is_json,
            schema=self._schemas.of((tenant, stream)) if query.columns == TYPED_COLUMNS else None,
        )
        page = await rows.rows_answer(shards.readers[shard], shards.states, wanted, self._response_bytes_max)
        # Only now: a chunk may have moved lanes away while the rows were made. Without their states, levels are null.
        if lost := missing_halves(shards.states, shard):
            raise ApiError(503, f"shard {lost[0]}, which has edges of shard {shard}, is not loaded", SOON)
        said = {END_OFFSET: page.end, NEXT_OFFSET: page.next_offset, NEXT_CHUNK: page.next_chunk}
        headers = {name: str(value) for name, value in said.items() if value is not None}
        return LongAnswer(page.parts, JSON if is_json else ARROW, headers)

    async def stream(self, request: web.Request) -> tuple[ShardsView, str, str]:
        """Return the shards, the tenant and the name of a request's stream.

        Raises:
            ApiError: 400, 401, 403, 404, 421, 503.
        """
        tenant, stream = self._access.stream(request)
        return await self.shards_of((tenant, stream)), tenant, stream

    async def shards_of(self, key: StreamKey) -> ShardsView:
        """Return the shards of a stream that the request may read.

        Raises:
            ApiError: 404, 503.
        """
        tenant, stream = key
        shards = await self._views.of_stream(tenant, stream)
        if not any(state.has_stream(tenant, stream) for state in shards.states):
            if shards.missing:
                shard, trouble = next(iter(shards.missing.items()))
                raise unavailable(f"stream {stream!r} is not known yet, and shard {shard} cannot be read: {trouble}")
            if (gone := views.deletion_of(shards.states, tenant, stream)) is not None:
                raise ApiError(
                    404,
                    f"stream {stream!r} of tenant {tenant} was deleted at {moment(gone.time)}: {gone.reason}",
                    "read its table, which stays; the next record of an edge begins the stream again",
                )
            raise ApiError(404, f"tenant {tenant} has no stream {stream!r}", "GET /v1/streams lists the streams")
        return shards
