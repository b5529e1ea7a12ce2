"""``GET /v1/changes``: server-sent events that name what changed, for readers that then request it.

While there are listeners, the process compares its own state every ``LOOK_INTERVAL_S``; it reads neither log nor store.
An event names streams and edges, without their content.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from weft.bounds import Refusals
from weft.cloud_hub import console
from weft.cloud_hub.auth.access import Access, readable
from weft.cloud_hub.http.exchange import ReaderPlaces, routes
from weft.cloud_hub.part import Part
from weft.cloud_hub.reads.metrics import ShardPositions
from weft.hub_api.acts import ChangeEvent
from weft.hub_api.answers import ApiError
from weft.hub_api.rights import Right
from weft.network.pages.assets import Assets
from weft.protocols.chunk_index import StreamKey
from weft.protocols.lane import NodeName

Positions = Callable[[], Iterable[ShardPositions]]
LinkedEdges = Callable[[], Mapping[NodeName, Any]]
LOOK_INTERVAL_S = 2.0
BEAT_S = 15.0
"""Longest time without an event or comment to a listener, so that proxies keep the connection."""
WRITE_S = 10.0
"""Longest time for a listener to read an event. Slower ones are disconnected."""
LISTENERS_MAX = 64
NAMED_MAX = 200
"""Maximum number of streams, and of edges, that an event names."""
REMEMBERED_MAX = 20_000
"""Maximum number of changed streams, and of changed edges, that a process remembers, for listeners that lag."""


class ChangesSeen:
    """Changed streams and edges, each with the number of the look that found the change.

    Args:
        positions: returns the positions of the shards that the process follows.
        linked: returns the edges with a link to the process, each with a value that differs for each link.
    """

    def __init__(self, positions: Positions, linked: LinkedEdges) -> None:
        self._positions, self._linked_now = positions, linked
        self._ends: dict[int, dict[StreamKey, int]] = {}
        self._linked: Mapping[NodeName, Any] = {}
        self.look_number = 0
        self.streams: dict[StreamKey, int] = {}
        self.edges: dict[NodeName, int] = {}
        """Edges in the order of their last change."""

    async def look(self) -> None:
        """Compare the state of the process with the previous look. The first look finds nothing."""
        number = self.look_number + 1
        for each in list(self._positions()):
            before, now = self._ends.get(each.shard), dict(each.ends)
            if before is not None and before != now:
                for key, end in now.items():
                    if before.get(key) != end:
                        _note(self.streams, key, number)
            self._ends[each.shard] = now
            await asyncio.sleep(0)
        linked = self._linked_now()
        if number > 1:
            for edge in self._linked.keys() | linked.keys():
                if self._linked.get(edge) != linked.get(edge):
                    _note(self.edges, edge, number)
        self._linked, self.look_number = linked, number

    async def since(self, number: int, tenant: str, is_readable: Callable[[str], bool]) -> ChangeEvent:
        """Return the changes of a tenant after a look, up to the last look before the call."""
        changed = [key[1] for key in _after(self.streams, number) if key[0] == tenant]
        edges = [edge.edge for edge in _after(self.edges, number) if edge.tenant == tenant]
        streams = await readable(changed, is_readable)
        return ChangeEvent(
            streams=sorted(streams)[:NAMED_MAX],
            streams_more=max(0, len(streams) - NAMED_MAX),
            edges=sorted(edges)[:NAMED_MAX],
            edges_more=max(0, len(edges) - NAMED_MAX),
        )


def _note(noted: dict[Any, int], key: Any, number: int) -> None:
    noted.pop(key, None)
    noted[key] = number
    if len(noted) > REMEMBERED_MAX:
        del noted[next(iter(noted))]


def _after(noted: Mapping[Any, int], number: int) -> Iterator[Any]:
    for key in reversed(noted):
        if noted[key] <= number:
            return
        yield key


class ChangeStreams(Part):
    """Handler of the request. ``close`` ends the streams that are open.

    Args:
        positions, linked: what ``ChangesSeen`` compares.
        acts: returns the number of the last administrative act that the process knows.
        refusals: counter of refused listeners.
    """

    def __init__(
        self, positions: Positions, linked: LinkedEdges, acts: Callable[[], int], access: Access, refusals: Refusals
    ) -> None:
        self._seen_of = partial(ChangesSeen, positions, linked)
        self._acts = acts
        self._access = access
        self._places = ReaderPlaces(refusals, LISTENERS_MAX, "listen to changes")
        self._news = asyncio.Condition()
        self._seen = self._seen_of()
        self._looking: asyncio.Task[None] | None = None
        self._count = 0
        """Number of listeners."""
        self._is_closed = False

    def add_to(self, application: web.Application) -> None:
        """Add the request to the application of the API."""
        application.add_routes(routes(changes=self.get))

    async def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        async with self._news:
            self._news.notify_all()

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Send events until the listener disconnects, its token ends, or the process stops."""
        tenant, _ = self._access.streams(request)
        with self._places.taken(self._access.charged(request).owner, tenant), self._looks():
            return await self._send(request)

    @contextlib.contextmanager
    def _looks(self) -> Iterator[None]:
        if self._looking is None:
            self._seen = self._seen_of()
            self._looking = asyncio.create_task(self._look(), name="changes")
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._looking.cancel()
                self._looking = None

    async def _look(self) -> None:
        while True:
            await self._seen.look()
            async with self._news:
                self._news.notify_all()
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _send(self, request: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        stream = web.StreamResponse(headers=headers)
        now = asyncio.get_running_loop().time
        number, said_at = self._seen.look_number, 0.0
        acts: int | UnsetType = UNSET
        try:
            async with asyncio.timeout(WRITE_S):
                await stream.prepare(request)
            while not self._is_closed:
                look = self._seen.look_number  # others may come while this event is made and written
                event = await self._event(request, number)
                if event is None:
                    break  # the token has ended
                is_news = bool(event.streams or event.edges) or event.acts != acts or not said_at
                if is_news or now() - said_at >= BEAT_S:
                    async with asyncio.timeout(WRITE_S):
                        await stream.write(b"data: " + msgspec.json.encode(event) + b"\n\n" if is_news else b":\n\n")
                    said_at = now()
                number, acts = look, event.acts
                await self._until_look(number)
            await stream.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        return stream

    async def _event(self, request: web.Request, number: int) -> ChangeEvent | None:
        """Return what changed after a look; None if the request is not permitted any more."""
        try:
            tenant, is_readable = self._access.streams(request)
            identity = self._access.reader(request)
        except ApiError:
            return None
        event = await self._seen.since(number, tenant, is_readable)
        if identity is not None and Right.EDGES not in identity.rights:
            event = msgspec.structs.replace(event, edges=[], edges_more=0)
        if identity is None or Right.ACTS in identity.rights:
            event = msgspec.structs.replace(event, acts=self._acts())
        return event

    async def _until_look(self, number: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEAT_S), self._news:
                await self._news.wait_for(lambda: self._is_closed or self._seen.look_number > number)


# ``/console``: the console's page, scripts and styles. They hold no data, so they need no token; the page asks the
# API with the token that a person gives it.

CONSOLE = "/console"
PAGE = "console.html"


class ConsolePages:
    """Handlers of the console's files."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._assets = Assets(console.__name__)

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes(
            [
                web.get("/", self._lead_here),
                web.get(CONSOLE, self._get_page),
                web.get(f"{CONSOLE}/{{asset}}", self._get_asset),
            ]
        )

    async def _lead_here(self, request: web.Request) -> web.Response:
        """Lead a person who typed the hub's address to the page."""
        self._access.check_name(request)
        return web.Response(status=302, headers={"Location": CONSOLE})

    async def _get_page(self, request: web.Request) -> web.Response:
        return await self._answer(request, PAGE)

    async def _get_asset(self, request: web.Request) -> web.Response:
        return await self._answer(request, request.match_info["asset"])

    async def _answer(self, request: web.Request, name: str) -> web.Response:
        self._access.check_name(request)
        answer = await self._assets.answer(request, name)
        if answer is None:
            raise ApiError(404, "the console has no such file", f"open {CONSOLE}")
        return answer
