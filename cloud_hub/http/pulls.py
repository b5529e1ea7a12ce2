"""``/v1/pulls``: request windows of records from edges, and read the outcomes (docs/reference/api.md)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Iterable

import msgspec
from aiohttp import web

from weft.cloud_hub.auth.access import Access
from weft.cloud_hub.clock import ADVICE, HubClock
from weft.cloud_hub.facts.fact import CannotDeclare
from weft.cloud_hub.facts.pulls import NoPull, PullCache, PullDocument, PullsFull, end
from weft.cloud_hub.http.exchange import answered, asked, read_body, routes
from weft.cloud_hub.pulls import HubPulls
from weft.cloud_hub.shard.shards import Shards
from weft.hub_api.answers import ApiError, SeqRange, moment_of, parse_moment
from weft.hub_api.pulls import PullAnswer, PullsAnswer, PullWindow
from weft.hub_api.rights import Right
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.lane import NAME_RULE, NodeName, valid_name
from weft.protocols.ranges import RangeSet
from weft.storage.cluster_log import Author, ChangeRefused, Contended
from weft.storage.object_store import StoreError

BODY_BYTES_MAX = 16 << 10
_NS = 1_000_000_000
WINDOW_S_MAX = 31 * 86_400
SHOWN_MAX = 200
_NOTHING = "nothing was requested; try again"


class PullsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the request for pulls."""

    edge: str | None
    id: str | None


class PullRequests:
    """Handlers of the requests."""

    def __init__(self, pulls: HubPulls, known: PullCache, shards: Shards, access: Access, clock: HubClock) -> None:
        self._pulls, self._known, self._shards = pulls, known, shards
        self._access, self._clock = access, clock

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes(routes(pull=self.post, pulls=self.get, cancel_pull=self.delete))

    async def post(self, request: web.Request) -> web.Response:
        """Request a window of records from an edge. The answer is sent when the request is durable."""
        tenant, identity = self._access.puller(request)
        wanted = await _read(request)
        self._access.check(identity, Right.PULL, wanted.stream)
        now = self._now()
        first, end = _time("from", wanted.first), _time("to", wanted.end)
        if not 0 <= first < end:
            raise ApiError(400, f"the window from {wanted.first} to {wanted.end} is empty", "give a later `to`")
        if end - first > WINDOW_S_MAX * _NS:
            raise ApiError(400, "the window is longer than 31 days", "ask for shorter ones, one after the other")
        if end > now:
            raise ApiError(400, f"the window ends at {wanted.end}, which is in the future", "give an earlier `to`")
        edge = NodeName(tenant, wanted.edge)
        await self._check_edge(edge)
        name, by = f"{tenant}/{secrets.token_hex(6)}", "" if identity is None else identity.name
        document = PullDocument(
            wanted.edge, wanted.stream, first, end, wanted.bytes_max, now, now + int(wanted.expires_s * _NS), by
        )
        made = await _written(self._pulls.ask(name, document, self._author(by, request)))
        return answered(await self._view(name, made), 202)

    async def get(self, request: web.Request) -> web.Response:
        """Return pulls, the latest first: all, those of one edge, or one by its id."""
        tenant, identity = self._access.puller(request)
        query = asked(request, PullsQuery)
        id_, edge = query.id, query.edge
        found = [
            (name, document)
            for name, document in self._known.documents.items()
            if name.startswith(f"{tenant}/")
            and id_ in (None, name.partition("/")[2])
            and edge in (None, document.edge)
            and (identity is None or identity.rights.allow(Right.PULL, document.stream))
        ]
        if id_ is not None and not found:
            raise ApiError(
                404, f"there is no pull {id_[:40]!r}", "GET /v1/pulls lists them; ended ones are kept for a week"
            )
        found.sort(key=lambda each: -each[1].asked)
        # At once: each may wait for a store that hangs.
        views = await asyncio.gather(*(self._view(*each) for each in found[:SHOWN_MAX]))
        return answered(PullsAnswer(tenant=tenant, pulls=views, more=max(0, len(found) - SHOWN_MAX)))

    async def delete(self, request: web.Request) -> web.Response:
        """Cancel a pull. Records that have arrived stay."""
        tenant, identity = self._access.puller(request)
        name = f"{tenant}/{request.match_info['id'][:64]}"
        if (known := self._known.documents.get(name)) is not None:
            self._access.check(identity, Right.PULL, known.stream)
        by = "" if identity is None else identity.name
        held = await self._pulls.held(name)
        reason = f"by token {by}" if by else ""
        decision = end(name, "cancelled", self._now(), reason, held)
        made = await _written(self._pulls.declare(name, decision, self._author(by, request)))
        return answered(await self._view(name, made))

    def _author(self, by: str, request: web.Request) -> Author:
        who = f"token {by}" if by else "the API"
        return Author(self._now(), who, "", request.remote or "", f"{request.method} {request.path}")

    async def _check_edge(self, edge: NodeName) -> None:
        sequencer = await self._shards.get(self._shards.place(edge))
        if not sequencer.loaded:
            raise ApiError(503, f"the shard of edge {edge.edge} cannot be loaded: {sequencer.public_trouble}", _NOTHING)
        if not sequencer.state.lane_count(*edge) and not self._pulls.is_linked(edge):
            advice = "check the name and the tenant: GET /v1/edges lists the edges"
            raise ApiError(404, f"no edge {edge.edge} of tenant {edge.tenant} has linked to the hub", advice)

    async def _view(self, name: str, document: PullDocument) -> PullAnswer:
        tenant, _, id_ = name.partition("/")
        received = document.received
        if not document.is_over:
            received = _count(document.ranges, await self._pulls.held(name))
        share = received / document.records if document.records else 0.0
        passed = (self._now() - document.started) / _NS
        rest = passed * (1 - share) / share if share and not document.is_over else None
        linked = self._pulls.is_linked(NodeName(tenant, document.edge))
        return PullAnswer(
            id=id_,
            tenant=tenant,
            edge=document.edge,
            stream=document.stream,
            from_=moment_of(document.first),
            to=moment_of(document.end),
            state=document.state,
            reason=document.reason or self._pulls.waits.get(name) or None,
            linked_here=linked,
            records=document.records,
            bytes=document.bytes,
            records_received=received,
            bytes_received=int(document.bytes * share),
            rest_seconds=rest,
            kept_from=moment_of(document.kept_from) if document.kept_from else None,
            lost=[SeqRange(first, end) for first, end in document.lost if document.state == "done"],
            log=f"{document.log_id:016x}" if document.log_id else None,
            asked=moment_of(document.asked),
            expires=moment_of(document.expires),
            ended=moment_of(document.ended) if document.ended else None,
            by=document.by or None,
        )

    def _now(self) -> int:
        if (wrong := self._clock.wrong()) is not None:
            raise ApiError(503, wrong, ADVICE)
        return self._clock.now()


async def _written(writing: Awaitable[PullDocument]) -> PullDocument:
    try:
        return await writing
    except NoPull as error:
        raise ApiError(404, str(error), "GET /v1/pulls lists them") from error
    except PullsFull as error:
        raise ApiError(429, str(error), "GET /v1/pulls lists them") from error
    except (CannotDeclare, ChangeRefused) as error:
        raise ApiError(409, str(error), _NOTHING) from error
    except (StoreError, Contended, UnsupportedVersion) as error:
        raise ApiError(503, f"the cluster log cannot be written: {error}", _NOTHING) from error


def _count(ranges: Iterable[tuple[int, int]], held: RangeSet | None) -> int:
    if held is None:
        return 0
    return sum(end - first - sum(e - f for f, e in held.missing(first, end)) for first, end in ranges)


def _time(name: str, text: str) -> int:
    try:
        return parse_moment(text)
    except ValueError as error:
        raise ApiError(400, f"{name}: {error}", "give a time such as 2026-11-25T10:00:00Z") from None


async def _read(request: web.Request) -> PullWindow:
    body = await read_body(request, BODY_BYTES_MAX, "a pull request has some hundred bytes")
    try:
        wanted = msgspec.json.decode(body, type=PullWindow)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not a pull request: {error}", "see docs/reference/api.md") from None
    for name in (wanted.edge, wanted.stream):
        _check_name(name)
    return wanted


def _check_name(name: str) -> None:
    if not valid_name(name):
        raise ApiError(400, f"{name[:80]!r} is not a name", f"expected {NAME_RULE}")
