"""``GET /v1/streams/{stream}/tail``: new records of a stream as they are committed, until the reader leaves.

Every event has the position after it. A reader that continues from the position gets each record once, whatever ended
the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from msgspec import UNSET

from weft.bounds import Owner, Rates, Refusals
from weft.cloud_hub.auth.access import Access, Charged
from weft.cloud_hub.http.exchange import AnswerRoom, ReaderPlaces, asked, routes
from weft.cloud_hub.reads.records import SOON, ShardsView
from weft.cloud_hub.reads.views import FoundRecord, Part, Search
from weft.cloud_hub.shard.sequencer import public_reason
from weft.hub_api.answers import ApiError
from weft.hub_api.operation import NUMBER_MAX
from weft.protocols.chunk_index import StreamKey
from weft.protocols.errors import CodecError
from weft.protocols.shard.placement import SHARDS_MAX
from weft.protocols.shard.shard_state import ShardState
from weft.protocols.topics import InvalidTopic, check_filter, matches
from weft.replication.runner.serve import SocketReader
from weft.storage.chunk_log import CollectedPast
from weft.storage.object_store import NotFound, StoreError
from weft.storage.table.actions import TableError

if TYPE_CHECKING:
    from weft.cloud_hub.http.application import Api

# The two forms of events of a tail: server-sent events, and messages of a WebSocket.

WRITE_S = 10.0
"""Longest time that a reader may take to read an event without records: slower ones are disconnected, and continue
from their position. Events with records are timed by piece (``exchange.PIECE_S``)."""
CLIENT_BYTES_MAX = 1024
"""Longest message of a client. Clients have nothing to send."""
HEARTBEAT_S = 30.0


class TailWriter(Protocol):
    """Events to one reader."""

    @property
    def is_open(self) -> bool:
        """Return whether the reader is connected."""
        ...

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Answer the request."""
        ...

    def framed(self, event: list[Part], position: str) -> list[Part]:
        """Return the bytes of an event."""
        ...

    async def write(self, piece: bytes) -> None:
        """Write a piece of an event."""

    async def finish(self) -> None:
        """End an event of which pieces were written."""

    async def idle(self) -> None:
        """Send a sign of life to the reader and to proxies in between."""

    async def end(self, event: dict[str, Any] | None) -> None:
        """End, with the reason as the last event."""
        ...


class SentEvents:
    """Server-sent events: the position is the identifier at which a browser continues."""

    def __init__(self) -> None:
        self._stream = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        self.write = self._stream.write
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

    def framed(self, event: list[Part], position: str) -> list[Part]:
        """Return the event as a field of data behind its identifier."""
        return [f"id: {position}\ndata: ".encode(), *event, b"\n\n"]

    async def finish(self) -> None:
        """Do nothing: an event ends with an empty line."""

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
    """Messages of a WebSocket (RFC 6455): each event is one, as text, in as many fragments as it has pieces."""

    def __init__(self) -> None:
        self._socket = web.WebSocketResponse(
            heartbeat=HEARTBEAT_S, max_msg_size=CLIENT_BYTES_MAX, compress=False, timeout=WRITE_S, autoping=False
        )
        self._reading: asyncio.Task[None] | None = None
        self._is_ending = False
        self._raw: AbstractStreamWriter | None = None
        self._piece, self._opcode = b"", aiohttp.WSMsgType.TEXT
        """Piece that is not sent yet, and the code of its fragment."""

    @property
    def is_open(self) -> bool:
        """Return whether the connection is open. A client that sends anything but a close is disconnected."""
        is_read = self._reading is not None and not self._reading.done()
        return is_read and not self._socket.closed and not self._is_ending

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Answer the handshake."""
        async with asyncio.timeout(WRITE_S):
            self._raw = await self._socket.prepare(request)
        self._reading = asyncio.create_task(self._read(), name="tail-socket")
        return self._socket

    async def _read(self) -> None:
        messages = SocketReader(self._socket)
        message = await messages.next()  # returns when the client leaves, or says something
        if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            self._is_ending = True
            await messages.close(aiohttp.WSCloseCode.UNSUPPORTED_DATA, b"a tail takes no messages", WRITE_S)

    def framed(self, event: list[Part], position: str) -> list[Part]:  # noqa: ARG002 - it is in the event
        """Return the event: fragments have their heads as they are written."""
        return event

    async def write(self, piece: bytes) -> None:
        """Send the piece before, as a fragment (section 5.4) that is not the last: pings may come between two."""
        before, self._piece = self._piece, piece
        if before:
            # Not by the library's socket, which can send whole messages only.
            assert self._raw is not None, "after begin"
            if self._socket.closed:
                raise ConnectionResetError("the reader has closed")
            await self._raw.write(bytes([self._opcode, 127]) + len(before).to_bytes(8, "big") + before)
            self._opcode = aiohttp.WSMsgType.CONTINUATION

    async def finish(self) -> None:
        """Send the last piece."""
        (piece, opcode), self._piece, self._opcode = (self._piece, self._opcode), b"", aiohttp.WSMsgType.TEXT
        await self._socket.send_frame(piece, opcode)

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
                    await self._socket.send_str(msgspec.json.encode(event).decode())
                code = aiohttp.WSCloseCode.GOING_AWAY if event is None else aiohttp.WSCloseCode.POLICY_VIOLATION
                await self._socket.close(code=code)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])


# Looks and reads that the tails of a process share: however many follow a stream, it is looked at, read and encoded
# once.

RECORDS_AT_ONCE = 200
BYTES_AT_ONCE = 1 << 20
"""Maximum bytes of payload of one event. One record may exceed it."""
BYTES_OF_ALL = 64 << 20
"""Maximum bytes of payload in the events of all tails together. With many tails, an event has fewer."""
BYTES_AT_ONCE_MIN = 32 << 10
LOOK_AGE_S = 0.1
"""Maximum age of a look at a stream that another tail made."""
READ_AGE_S = 2.0
"""Time for which a read is cached for tails that reach the same place."""
READS_MAX = 16
"""Maximum number of cached reads; the oldest is dropped first."""
READS_BYTES_MAX = 32 << 20
"""Maximum bytes of cached reads in addition to the newest."""
SEARCH_S = 0.2
"""Processor time a second for the reads of a token's tails that no other tail shares, such as those from an old
position."""
SEARCH_AT_ONCE_S = 1.0
"""Burst of the same, after a pause."""
SEARCH_OF_TENANT = 2
"""Shares of a token that one tenant has."""
CHUNK_S = 0.0005
"""Processor time of the loop for each chunk of a read, and for the read itself."""
READS_AT_ONCE = 4
"""Maximum number of reads of one token that wait for processor time at once."""
SEARCH_BOUND = "reads of tails"
TEXT_SLICE = 32 << 10
"""Characters of a text that are encoded in one step: the encoder leaves no time to other threads meanwhile."""

T = TypeVar("T")


class TailRecord(NamedTuple):
    """A record, encoded once for all tails that send it."""

    edge: str
    key: str
    parts: list[Part]

    @classmethod
    def of(cls, found: FoundRecord) -> TailRecord:
        """Encode a record."""
        record = found.record
        payloads = {"payload": record.payload, "payload_base64": record.payload_base64}
        texts = {name: text for name, text in payloads.items() if isinstance(text, str) and len(text) > TEXT_SLICE}
        short = msgspec.structs.replace(record, **dict.fromkeys(texts, UNSET)) if texts else record
        parts: list[Part] = [*found._replace(record=short).parts()]
        for name, text in texts.items():
            parts += (parts.pop()[:-1], b',"' + name.encode() + b'":"')
            parts += (msgspec.json.encode(text[at : at + TEXT_SLICE])[1:-1] for at in range(0, len(text), TEXT_SLICE))
            parts.append(b'"}')
        return cls(record.edge, record.key, parts)


class SharedRead(NamedTuple):
    """Records of one shard from an offset on."""

    records: list[TailRecord]
    bytes: int
    next_offset: int
    next_chunk: int | None
    """Place to continue from, as in ``Helping``."""
    end: int
    """The stream's next offset in the shard when they were read."""


class Place(NamedTuple):
    """A place from which a tail continues.

    A read depends on its place alone: every tail there gets the same records and continues at the same place, so tails
    soon share reads. Each tail filters the records.
    """

    stream: StreamKey
    shard: int
    offset: int
    chunk: int
    """Number of a chunk; the offset is not in an earlier one."""


class _Shared(Generic[T]):
    def __init__(self, task: asyncio.Task[T], at: float) -> None:
        self.task, self.at = task, at


class TailReads:
    """Shared looks and reads. Event loop's thread only.

    Args:
        tails: returns the number of tails that are open.
        refusals: counter of reads that had to wait.
        monotonic: seconds.
    """

    def __init__(self, api: Api, tails: Callable[[], int], refusals: Refusals, monotonic: Callable[[], float]) -> None:
        self._api, self._tails, self._refusals, self._monotonic = api, tails, refusals, monotonic
        self.answers = api.answers
        self._looks: dict[Hashable, _Shared[ShardsView]] = {}
        self._reads: dict[Hashable, _Shared[SharedRead]] = {}
        self._of_token: Rates[Owner] = Rates(SEARCH_S, SEARCH_AT_ONCE_S, monotonic)
        self._of_tenant: Rates[Owner] = Rates(
            SEARCH_OF_TENANT * SEARCH_S, SEARCH_OF_TENANT * SEARCH_AT_ONCE_S, monotonic
        )
        self._turns: WeakValueDictionary[Owner, asyncio.Semaphore] = WeakValueDictionary()

    async def look(self, key: StreamKey) -> ShardsView:
        """Return the shards of a stream. Raises as a request for it does."""
        return await self._share(self._looks, key, lambda: self._api.shards_of(key), LOOK_AGE_S)

    def turn(self, owner: Owner) -> asyncio.Semaphore:
        """Return the turns of an owner's reads."""
        return self._turns.setdefault(owner, asyncio.Semaphore(READS_AT_ONCE))

    def has(self, place: Place) -> bool:
        """Return whether another tail has read from a place, or does so."""
        found = self._reads.get(place)
        return found is not None and not self._is_old(found, READ_AGE_S)

    def debt_s(self, place: Place, reader: Charged) -> float:
        """Return the time until a reader may read from a place; 0.0 also where another tail has."""
        if self.has(place):
            return 0.0
        return max(self._of_token.debt_s(reader.owner), self._of_tenant.debt_s(reader.tenant))

    async def pay(self, place: Place, reader: Charged) -> None:
        """Wait until a reader has time for a read of its own, or another tail reads from the place."""
        is_noted = False
        while wait_s := self.debt_s(place, reader):
            if not is_noted:
                advice = "its tails receive records later. Start fewer of them at different positions"
                self._refusals.note(SEARCH_BOUND, reader.owner, advice)
                is_noted = True
            await asyncio.sleep(min(wait_s, LOOK_INTERVAL_S))

    async def read(self, shards: ShardsView, state: ShardState, place: Place, reader: Charged) -> SharedRead:
        """Return the records from a place on, at least one unless the search for it met its bound or they are gone.
        Raises as ``RecordReader.read``.

        Args:
            reader: the owner charged for the read if no other tail has made it.
        """

        async def read() -> SharedRead:
            end = state.next_offset.get(place.stream, 0)
            share = max(BYTES_AT_ONCE_MIN, min(BYTES_AT_ONCE, BYTES_OF_ALL // max(1, self._tails())))
            search = Search(records_bytes=share)
            try:
                kind = await self._api.payload_kind(shards, *place.stream)
                helping = await shards.readers[place.shard].read(
                    place.stream, place.offset, end, RECORDS_AT_ONCE, payload=kind, chunk=place.chunk, search=search
                )
                made = await asyncio.to_thread(search.timed(_encoded), helping.records)
            finally:
                cost_s = search.worked_s + CHUNK_S * (1 + search.passed)
                self._of_token.charge(reader.owner, cost_s)
                self._of_tenant.charge(reader.tenant, cost_s)
            size = sum(len(part) for each in made for part in each.parts)
            return SharedRead(made, size, helping.next_offset, helping.next_chunk, end)

        found = await self._share(self._reads, place, read, READ_AGE_S)
        self._let_go()
        return found

    def _let_go(self) -> None:
        """Keep no more bytes of reads than tails may soon come to."""
        kept = 0
        for place, shared in reversed(list(self._reads.items())):
            if shared.task.done() and not shared.task.cancelled() and shared.task.exception() is None:
                if kept > READS_BYTES_MAX:
                    del self._reads[place]  # its readers still get it
                kept += shared.task.result().bytes

    def _is_old(self, shared: _Shared[Any], age_s: float) -> bool:
        return shared.task.done() and self._monotonic() - shared.at >= age_s

    def _forget_old(self, held: dict[Hashable, _Shared[T]], age_s: float) -> None:
        for each in [each for each, shared in held.items() if self._is_old(shared, age_s)]:
            del held[each]

    async def _share(
        self, held: dict[Hashable, _Shared[T]], name: Hashable, make: Callable[[], Awaitable[T]], age_s: float
    ) -> T:
        self._forget_old(held, age_s)
        if (found := held.get(name)) is None:
            while len(held) >= READS_MAX:
                del held[next(iter(held))]  # its readers still get it
            found = held[name] = _Shared(asyncio.create_task(_made(make), name="tail-read"), self._monotonic())
            asyncio.get_running_loop().call_later(age_s, self._forget_old, held, age_s)
        try:
            # A reader that leaves takes nothing from the others.
            return await asyncio.shield(found.task)
        except Exception:
            if held.get(name) is found:
                del held[name]
            raise


async def _made(make: Callable[[], Awaitable[T]]) -> T:
    return await make()


def _encoded(records: list[FoundRecord]) -> list[TailRecord]:
    return [TailRecord.of(each) for each in records]


LOOK_INTERVAL_S = 0.5
LOOK_SHARE = 0.002
"""Maximum share of the process's time for the looks of one reader. With many shards, looks are less frequent."""
BEAT_S = 15.0
"""Longest time without an event to the reader, which gets the position if it has moved."""
TAILS_MAX = 2048


class TailQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the request."""

    position: str | None
    edge: str | None
    key: str
    """Filter of MQTT."""


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
        query = asked(request, TailQuery)
        text = request.headers.get("Last-Event-ID") or query.position
        try:
            check_filter(query.key)
        except InvalidTopic as error:
            raise ApiError(400, str(error), "write key= as a filter of MQTT: plant/+/temperature") from None
        return cls(None if text is None else parse_position(text), query.edge, query.key)

    def takes(self, record: TailRecord) -> bool:
        """Return whether a record is wanted."""
        is_edge = self.edge is None or record.edge == self.edge
        return is_edge and (self.key_filter == "#" or matches(self.key_filter, record.key))


class Ending:
    """The stop of the process, which ends all waits of tails."""

    def __init__(self) -> None:
        self.is_set = False
        self._limits: set[asyncio.Timeout] = set()

    def set(self) -> None:
        """End the waits."""
        self.is_set = True
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(0)

    @contextlib.asynccontextmanager
    async def limit(self, seconds: float) -> AsyncIterator[None]:
        """Raise ``TimeoutError`` in the block after some seconds, or at the end."""
        async with asyncio.timeout(0 if self.is_set else seconds) as limit:
            self._limits.add(limit)
            try:
                yield
            finally:
                self._limits.discard(limit)

    async def sleep(self, seconds: float) -> None:
        """Wait some seconds, or until the end."""
        with contextlib.suppress(TimeoutError):
            async with self.limit(seconds):
                await asyncio.get_running_loop().create_future()


class StreamTails:
    """Handler of the request. ``close`` ends the tails that are open.

    Args:
        refusals: counter of refused readers.
    """

    def __init__(self, api: Api, access: Access, refusals: Refusals) -> None:
        self._access = access
        self._places = ReaderPlaces(refusals, TAILS_MAX, "follow streams")
        self._reads = TailReads(api, self._count, refusals, asyncio.get_running_loop().time)
        self._ending = Ending()

    def add_to(self, application: web.Application) -> None:
        """Add the request to the application of the API."""
        application.add_routes(routes(tail=self.get))

    def _count(self) -> int:
        return self._places.owners.total()

    def close(self) -> None:
        """End all tails: readers continue at another process."""
        self._ending.set()

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Send events until the reader disconnects, its token ends, or the process stops."""
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
        reader = self._access.charged(request)
        with self._places.taken(reader.owner, tenant):
            writer: TailWriter = SocketMessages() if is_socket else SentEvents()
            try:
                response = await writer.begin(request)
                tail = Tail(self._reads, self._access, request, wanted, position)
                why = await tail.follow(writer, self._ending)
            except TimeoutError:
                self._reads.answers.note_slow(request, reader.owner)
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
        self._reads, self._access, self._request = reads, access, request
        self._reader = access.charged(request)
        self._turn = reads.turn(self._reader.owner)
        self._wanted, self._position = wanted, position
        self._chunks: dict[int, int] = {}
        """Shard -> chunk to search from, where a read met its bound."""
        self._last = -1
        """Shard of the last records: the next one has its turn first."""
        self._now = asyncio.get_running_loop().time
        self._said, self._said_at = "", 0.0
        """Position in the last event, and its time."""

    async def follow(self, writer: TailWriter, ending: Ending) -> dict[str, Any] | None:
        """Send events. Return the reason of the end; None when the process stops or the reader has left."""
        await self._say(writer)
        while writer.is_open and not ending.is_set:
            looked_at = self._now()
            try:
                is_behind = await self._go_on(writer, ending)
            except ApiError as error:
                return {"error": error.error, "advice": error.advice, "position": self._text}
            except CollectedPast as error:
                return {"error": str(error), "advice": SOON, "position": self._text}
            except (StoreError, NotFound, CodecError, TableError) as error:
                return {"error": public_reason(error), "advice": SOON, "position": self._text}
            if self._now() - self._said_at >= BEAT_S:
                if self._said != self._text:
                    await self._say(writer)
                else:
                    self._said_at = self._now()
                    await writer.idle()
            if not is_behind:
                await ending.sleep(max(LOOK_INTERVAL_S, (self._now() - looked_at) / LOOK_SHARE))
        return None

    @property
    def _text(self) -> str:
        return position_text(self._position)

    async def _say(
        self, writer: TailWriter, records: Sequence[TailRecord] = (), room: AnswerRoom | None = None
    ) -> None:
        """Send an event with the position.

        Args:
            room: what the reader holds until it has read it; None for an event without records.
        """
        self._said, self._said_at = self._text, self._now()
        event: list[Part] = [b'{"records":[']
        for each in records:
            event += (*each.parts, b",")
        if records:
            event.pop()  # the last comma
        event.append(f'],"position":"{self._said}"}}'.encode())
        framed = writer.framed(event, self._said)
        if room is not None:
            await room.send(framed, writer.write)
        async with asyncio.timeout(WRITE_S):
            if framed:
                await writer.write(b"".join(framed))
            await writer.finish()

    async def _go_on(self, writer: TailWriter, ending: Ending) -> bool:
        """Send what is wanted of the next records of one shard. Return whether there were any. The request's rights are
        looked at each time."""
        key = self._access.stream(self._request)
        shards = await self._reads.look(key)
        for state in sorted(shards.states, key=lambda state: (state.shard <= self._last, state.shard)):
            offset = self._position.setdefault(state.shard, 0)  # a shard that a split made begins there
            if offset >= state.next_offset.get(key, 0):
                continue
            place = Place(key, state.shard, offset, self._chunks.get(state.shard, 0))
            async with contextlib.AsyncExitStack() as holding:
                async with contextlib.AsyncExitStack() as turn:
                    try:
                        async with ending.limit(BEAT_S):
                            if not self._reads.has(place):
                                await turn.enter_async_context(self._turn)
                                await self._reads.pay(place, self._reader)
                            room = await holding.enter_async_context(self._reads.answers.turn(self._reader))
                    except TimeoutError:
                        return True
                    if not writer.is_open or self._reads.debt_s(place, self._reader):
                        return True  # it has left, or others of its tenant were before it
                    read = await self._reads.read(shards, state, place, self._reader)
                self._advance(place, read)
                if taken := [each for each in read.records if self._wanted.takes(each)]:
                    await self._say(writer, taken, room)
            return True
        return False

    def _advance(self, place: Place, read: SharedRead) -> None:
        self._last = place.shard
        self._chunks.pop(place.shard, None)
        if read.next_chunk is not None:
            self._chunks[place.shard] = read.next_chunk
        # Without a chunk to continue from, retention or an erasure has removed what was there.
        is_gone = read.next_chunk is None and read.next_offset == place.offset
        self._position[place.shard] = read.end if is_gone else read.next_offset


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
            error = f"position={text[:80]!r} is not a position"
            raise ApiError(400, error, "take it from an event, or from next_offset of records: 0:12,1:45")
        found[int(shard)] = int(offset)
    return found


def _check_origin(request: web.Request) -> None:
    """Refuse a WebSocket that a page of another server opens: browsers do not hold it against the server's answer."""
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("Host"):
        raise ApiError(403, "a page of another server asked", "use the server-sent events, or a page of the hub's own")
