"""``GET /v1/streams/{stream}/tail``: new records of a stream as they are committed, until the reader leaves.

Every event has the position behind it. A reader that begins again with it gets each record once, whatever ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp import web

from weft.bounds import Refusals
from weft.cloud_hub.api.access import Access, ApiError
from weft.cloud_hub.api.answers import ReaderPlaces
from weft.cloud_hub.api.records import NUMBER_MAX, SOON, Helping, ShardsView
from weft.cloud_hub.api.views import Search, View
from weft.cloud_hub.shard.sequencer import public_reason
from weft.protocols.chunk_index import StreamKey
from weft.protocols.errors import CodecError
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.placement import SHARDS_MAX
from weft.protocols.shard.shard_state import ShardState
from weft.protocols.topics import InvalidTopic, check_filter, matches
from weft.replication.runner.serve import SocketReader
from weft.storage.chunk_log import CollectedPast
from weft.storage.object_store import NotFound, StoreError
from weft.storage.table.actions import TableError

# The two forms of events of a tail: server-sent events, and messages of a WebSocket.

WRITE_S = 10.0
"""Longest time that a reader may take to read an event: slower ones are disconnected, and continue from their
position."""
CLIENT_BYTES_MAX = 1024
"""Longest message of a client, which has nothing to say."""
HEARTBEAT_S = 30.0


class TailWriter(Protocol):
    """Events to one reader."""

    @property
    def is_open(self) -> bool:
        """Return whether the reader is there."""
        ...

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Answer the request."""
        ...

    async def send(self, event: dict[str, Any]) -> None:
        """Send an event, with its ``position``. Raise ``TimeoutError`` if the reader does not read."""
        ...

    async def idle(self) -> None:
        """Show the reader, and proxies between, that the connection is alive."""

    async def end(self, event: dict[str, Any] | None) -> None:
        """End, with the reason as the last event."""
        ...


class SentEvents:
    """Server-sent events: the position is the identifier at which a browser continues."""

    def __init__(self) -> None:
        self._stream = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        self._request: web.Request | None = None

    @property
    def is_open(self) -> bool:
        """Return whether the connection is open."""
        transport = self._request.transport if self._request is not None else None
        return transport is not None and not transport.is_closing()

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Send the head, and a comment that shows it to readers that wait for a line."""
        self._request = request
        async with asyncio.timeout(WRITE_S):
            await self._stream.prepare(request)
            await self._stream.write(b":\n\n")
        return self._stream

    async def send(self, event: dict[str, Any]) -> None:
        """Send an event."""
        head = f"id: {event['position']}\n".encode()
        async with asyncio.timeout(WRITE_S):
            await self._stream.write(head + b"data: " + msgspec.json.encode(event) + b"\n\n")

    async def idle(self) -> None:
        """Send a comment."""
        async with asyncio.timeout(WRITE_S):
            await self._stream.write(b":\n\n")

    async def end(self, event: dict[str, Any] | None) -> None:
        """End the answer."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(WRITE_S):
                if event is not None:
                    await self._stream.write(b"event: end\ndata: " + msgspec.json.encode(event) + b"\n\n")
                await self._stream.write_eof()


class SocketMessages:
    """Messages of a WebSocket (RFC 6455): each event is one, as text."""

    def __init__(self) -> None:
        self._socket = web.WebSocketResponse(
            heartbeat=HEARTBEAT_S, max_msg_size=CLIENT_BYTES_MAX, compress=False, timeout=WRITE_S, autoping=False
        )
        self._reading: asyncio.Task[None] | None = None
        self._is_ending = False

    @property
    def is_open(self) -> bool:
        """Return whether the connection is open: a client that says something other than that it leaves is ended."""
        is_read = self._reading is not None and not self._reading.done()
        return is_read and not self._socket.closed and not self._is_ending

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Answer the handshake."""
        async with asyncio.timeout(WRITE_S):
            await self._socket.prepare(request)
        self._reading = asyncio.create_task(self._read(), name="tail-socket")
        return self._socket

    async def _read(self) -> None:
        messages = SocketReader(self._socket)
        message = await messages.next()  # returns when the client leaves, or says something
        if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            self._is_ending = True
            await messages.close(aiohttp.WSCloseCode.UNSUPPORTED_DATA, b"a tail takes no messages", WRITE_S)

    async def send(self, event: dict[str, Any]) -> None:
        """Send an event."""
        async with asyncio.timeout(WRITE_S):
            await self._socket.send_str(msgspec.json.encode(event).decode())

    async def idle(self) -> None:
        """Do nothing: pings of the protocol show it."""

    async def end(self, event: dict[str, Any] | None) -> None:
        """Close: as going away, or for the reason of the last event."""
        if self._is_ending and self._reading is not None:
            await asyncio.wait([self._reading])
            return
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(2 * WRITE_S):
                if event is not None and not self._socket.closed:
                    await self.send(event)
                code = aiohttp.WSCloseCode.GOING_AWAY if event is None else aiohttp.WSCloseCode.POLICY_VIOLATION
                await self._socket.close(code=code)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])


# Looks and reads that the tails of a process share: however many follow a stream, it is looked at and read once.

RECORDS_AT_ONCE = 200
BYTES_AT_ONCE = 1 << 20
"""Records and bytes of payload of one event; one record more may go beyond."""
BYTES_OF_ALL = 64 << 20
"""Bytes of payload of an event for each tail together: with many, an event has fewer."""
BYTES_AT_ONCE_MIN = 32 << 10
LOOK_AGE_S = 0.1
"""Maximum age of a look at a stream that another tail made."""
READ_AGE_S = 2.0
"""Time for which a read is kept for tails that come to the same place."""
READS_MAX = 16
"""Maximum number of reads that are kept; the oldest goes first."""

ShardsOf = Callable[[StreamKey], Awaitable[ShardsView]]
"""Function that returns the shards of a stream, or raises ``ApiError``."""
KindOf = Callable[[ShardsView, str, str], Awaitable[PayloadKind]]
"""Function that returns the payload kind of a stream."""
T = TypeVar("T")


class SharedRead(NamedTuple):
    """Records of one shard from an offset on."""

    helping: Helping
    end: int
    """The stream's next offset in the shard when they were read."""


class _Shared(Generic[T]):
    def __init__(self, task: asyncio.Task[T], at: float) -> None:
        self.task, self.at = task, at


class TailReads:
    """Shared looks and reads. Event loop's thread only.

    Args:
        tails: returns the number of tails that are open.
        monotonic: seconds.
    """

    def __init__(
        self, shards_of: ShardsOf, kind_of: KindOf, tails: Callable[[], int], monotonic: Callable[[], float]
    ) -> None:
        self._shards_of, self._kind_of, self._tails, self._monotonic = shards_of, kind_of, tails, monotonic
        self._looks: dict[Hashable, _Shared[ShardsView]] = {}
        self._reads: dict[Hashable, _Shared[SharedRead]] = {}

    async def look(self, key: StreamKey) -> ShardsView:
        """Return the shards of a stream. Raises as a request for it does."""
        return await self._share(self._looks, key, lambda: self._shards_of(key), LOOK_AGE_S)

    async def read(self, shards: ShardsView, state: ShardState, key: StreamKey, at: int, chunk: int) -> SharedRead:
        """Return the records of a shard from an offset on, at least one unless the search for it met its bound or they
        are gone. Raises as ``RecordReader.read``.

        Args:
            chunk: number of a chunk; the offset is not in an earlier one.
        """

        async def read() -> SharedRead:
            end = state.next_offset.get(key, 0)
            share = max(BYTES_AT_ONCE_MIN, min(BYTES_AT_ONCE, BYTES_OF_ALL // max(1, self._tails())))
            helping = await shards.readers[state.shard].read(
                key, at, end, RECORDS_AT_ONCE, payload=await self._kind_of(shards, *key), chunk=chunk,
                search=Search(records_bytes=share),
            )  # fmt: skip
            return SharedRead(helping, end)

        # Named by its place alone: who comes to it gets the same records and continues at the same place, so readers
        # that begin anywhere soon share one entry. Each filters what was read.
        return await self._share(self._reads, (key, state.shard, at, chunk), read, READ_AGE_S)

    async def _share(
        self, held: dict[Hashable, _Shared[T]], name: Hashable, make: Callable[[], Awaitable[T]], age_s: float
    ) -> T:
        now = self._monotonic()
        for each in [each for each, shared in held.items() if shared.task.done() and now - shared.at >= age_s]:
            del held[each]
        if (found := held.get(name)) is None:
            while len(held) >= READS_MAX:
                del held[next(iter(held))]  # its readers still get it
            found = held[name] = _Shared(asyncio.create_task(_made(make), name="tail-read"), now)
        try:
            # A reader that leaves takes nothing from the others.
            return await asyncio.shield(found.task)
        except Exception:
            if held.get(name) is found:
                del held[name]
            raise


async def _made(make: Callable[[], Awaitable[T]]) -> T:
    return await make()


WAY = "/v1/streams/{stream}/tail"
LOOK_INTERVAL_S = 0.5
LOOK_SHARE = 0.002
"""Most of the process's time that looks for one reader take: a hub with many shards is looked at less often."""
BEAT_S = 15.0
"""Longest time without a word to the reader: the position, if it has moved."""
TAILS_MAX = 2048


class TailRequest(NamedTuple):
    """The choice of a request."""

    position: dict[int, int] | None
    """Shard -> offset of the first wanted record; None: from the end on."""
    edge: str | None
    key_filter: str

    @classmethod
    def of(cls, request: web.Request) -> TailRequest:
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
        """End all tails: readers continue at another process."""
        self._ending.set()

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Send events until the reader leaves, its token ends, or the process stops."""
        tenant, stream = key = self._access.stream(request)
        wanted = TailRequest.of(request)
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
        self, reads: TailReads, access: Access, request: web.Request, wanted: TailRequest, position: dict[int, int]
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
                return {"error": public_reason(error), "advice": SOON, "position": self._text}
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
            # Without a chunk to continue from, retention or an erasure has removed what was there.
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
