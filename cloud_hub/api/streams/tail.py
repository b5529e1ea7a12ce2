"""``GET /v1/streams/{stream}/tail``: new records of a stream as they are committed, until the reader leaves.

Every event has the position behind it. A reader that begins again with it gets each record once, whatever ended.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from aiohttp import web

from weft.bounds import Refusals
from weft.cloud_hub.api.access import Access, ApiError
from weft.cloud_hub.api.places import ReaderPlaces
from weft.cloud_hub.api.records import SOON
from weft.cloud_hub.api.records_answer import NUMBER_MAX
from weft.cloud_hub.api.streams.tail_reads import KindOf, ShardsOf, TailReads
from weft.cloud_hub.api.streams.tail_writers import SentEvents, SocketMessages, TailWriter
from weft.cloud_hub.api.views import View
from weft.cloud_hub.shard.retry import told_to_others
from weft.protocols.errors import CodecError
from weft.protocols.shard.placement import SHARDS_MAX
from weft.protocols.topics import InvalidTopic, check_filter, matches
from weft.storage.chunk_log import CollectedPast
from weft.storage.object_store import NotFound, StoreError
from weft.storage.table.errors import TableError

WAY = "/v1/streams/{stream}/tail"
LOOK_INTERVAL_S = 0.5
LOOK_SHARE = 0.002
"""Most of the process's time that looks for one reader take: a hub with many shards is looked at less often."""
BEAT_S = 15.0
"""Longest time without a word to the reader: the position, if it has moved."""
TAILS_MAX = 2048


class TailWanted(NamedTuple):
    """The choice of a request."""

    position: dict[int, int] | None
    """Shard -> offset of the first wanted record; None: from the end on."""
    edge: str | None
    key_filter: str

    @classmethod
    def of(cls, request: web.Request) -> TailWanted:
        """Read the query.

        Raises:
            ApiError: 400.
        """
        text = request.headers.get("Last-Event-ID") or request.query.get("position")
        key_filter = request.query.get("key", "#")
        try:
            check_filter(key_filter)
        except InvalidTopic as error:
            raise ApiError(400, str(error), "write key= as a filter of MQTT: plant/+/temperature") from None
        return cls(None if text is None else parse_position(text), request.query.get("edge"), key_filter)

    def takes(self, record: View) -> bool:
        """Return whether a record is wanted."""
        is_edge = self.edge is None or record["edge"] == self.edge
        return is_edge and (self.key_filter == "#" or matches(self.key_filter, record["key"]))


class StreamTails:
    """Handler of the request. ``close`` ends the tails that are open.

    Args:
        refusals: counter of refused readers.
    """

    def __init__(self, shards_of: ShardsOf, kind_of: KindOf, access: Access, refusals: Refusals) -> None:
        self._access = access
        self._places = ReaderPlaces(refusals, TAILS_MAX, "follow streams")
        now = asyncio.get_running_loop().time
        self._reads = TailReads(shards_of, kind_of, self._count, now)
        self._ending = asyncio.Event()

    def add_to(self, application: web.Application) -> None:
        """Add the request to the application of the API."""
        application.add_routes([web.get(WAY, self.get)])

    def _count(self) -> int:
        return self._places.owners.total()

    def close(self) -> None:
        """End all tails: readers go on at another process."""
        self._ending.set()

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Send events until the reader leaves, its token ends, or the process stops."""
        tenant, stream = key = self._access.stream(request)
        wanted = TailWanted.of(request)
        is_socket = request.headers.get("Upgrade", "").lower() == "websocket"
        if is_socket:
            _check_origin(request)
        shards = await self._reads.look(key)
        position = wanted.position
        if position is None:
            if shards.missing:
                raise ApiError(503, f"shard {next(iter(shards.missing))} is not loaded, so the end is not known", SOON)
            position = {state.shard: state.next_offset.get((tenant, stream), 0) for state in shards.states}
        with self._places.taken(self._access.charged(request).owner, tenant):
            writer: TailWriter = SocketMessages() if is_socket else SentEvents()
            try:
                response = await writer.begin(request)
                tail = Tail(self._reads, self._access, request, wanted, position)
                why = await tail.follow(writer, self._ending)
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
                return web.Response()
            await writer.end(why)
            return response


class Tail:
    """One reader's place in a stream.

    Args:
        position: shard -> offset of the next record.
    """

    def __init__(
        self, reads: TailReads, access: Access, request: web.Request, wanted: TailWanted, position: dict[int, int]
    ) -> None:
        self._reads, self._access, self._request, self._wanted = reads, access, request, wanted
        self._position = position
        self._chunks: dict[int, int] = {}
        """Shard -> chunk to search from, where a read met its bound."""
        self._last = -1
        """Shard of the last records: the next one has its turn first."""

    async def follow(self, writer: TailWriter, ending: asyncio.Event) -> dict[str, Any] | None:
        """Send events. Return the reason of the end; None when the process stops or the reader has left."""
        now = asyncio.get_running_loop().time
        said, said_at = self._text, now()
        await writer.send({"records": [], "position": said})
        while writer.is_open and not ending.is_set():
            looked_at = now()
            try:
                found = await self._new()
            except ApiError as error:
                return {"error": error.error, "advice": error.advice, "position": self._text}
            except CollectedPast as error:
                return {"error": str(error), "advice": SOON, "position": self._text}
            except (StoreError, NotFound, CodecError, TableError) as error:
                return {"error": told_to_others(error), "advice": SOON, "position": self._text}
            is_due = now() - said_at >= BEAT_S
            if found or (is_due and said != self._text):
                said, said_at = self._text, now()
                await writer.send({"records": found or [], "position": said})
            elif is_due:
                said_at = now()
                await writer.idle()
            if found is None:
                await _wait(ending, max(LOOK_INTERVAL_S, (now() - looked_at) / LOOK_SHARE))
        return None

    @property
    def _text(self) -> str:
        return position_text(self._position)

    async def _new(self) -> list[View] | None:
        """Return new records of one shard, which may be none that is wanted; None at the end of all. The request's
        rights are looked at each time."""
        key = self._access.stream(self._request)
        shards = await self._reads.look(key)
        for state in sorted(shards.states, key=lambda state: (state.shard <= self._last, state.shard)):
            at = self._position.setdefault(state.shard, 0)  # a shard that a split made begins there
            if at >= state.next_offset.get(key, 0):
                continue
            helping, end = await self._reads.read(shards, state, key, at, self._chunks.pop(state.shard, 0))
            self._last = state.shard
            if helping.next_chunk is not None:
                self._chunks[state.shard] = helping.next_chunk
            # Without a chunk to go on from, retention or an erasure has removed what was there.
            is_gone = helping.next_chunk is None and helping.next_offset == at
            self._position[state.shard] = end if is_gone else helping.next_offset
            return [{"shard": state.shard, **each} for each in helping.records if self._wanted.takes(each)]
        return None


def position_text(position: dict[int, int]) -> str:
    """Return a position as text: ``0:120,1:45``, offsets by shard."""
    return ",".join(f"{shard}:{offset}" for shard, offset in sorted(position.items()))


def parse_position(text: str) -> dict[int, int]:
    """Return a position from its text.

    Raises:
        ApiError: 400.
    """
    found: dict[int, int] = {}
    for each in text.split(",") if len(text) <= SHARDS_MAX * 24 else [""]:
        shard, colon, offset = each.partition(":")
        is_number = colon and all(part.isascii() and part.isdecimal() and len(part) <= 19 for part in (shard, offset))
        if not is_number or int(shard) >= SHARDS_MAX or int(offset) > NUMBER_MAX or int(shard) in found:
            raise ApiError(400, "position= is none", "take it from an event, or from next_offset of records: 0:12,1:45")
        found[int(shard)] = int(offset)
    return found


def _check_origin(request: web.Request) -> None:
    """Refuse a WebSocket that a page of another server opens: browsers do not hold it against the server's answer."""
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("Host"):
        raise ApiError(403, "a page of another server asked", "use the server-sent events, or a page of the hub's own")


async def _wait(ending: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await ending.wait()
    except TimeoutError:
        return
