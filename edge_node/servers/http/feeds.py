"""``GET /v1/streams/STREAM/events`` and ``GET /v1/topics?filter=``: permissions, limits and the start."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from weft.bounds import Bound, Owner, Quota, Refusals, RoundRobin
from weft.edge_node.access.identity import Identity
from weft.edge_node.servers.clients.context import ProtocolContext
from weft.edge_node.servers.http.request import (
    Answers,
    FeedTransport,
    HttpExchange,
    Problem,
    Request,
    quoted,
    try_later,
)
from weft.edge_node.servers.http.settings import HttpCounters, HttpSettings
from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.subscriptions import ClientSubscription, DeliveryOptions, Subscriptions
from weft.protocols.batch import HeaderPairs, Record, records
from weft.protocols.message_headers import EXPIRES
from weft.protocols.mqtt.packets import Subscription
from weft.protocols.topics import InvalidTopic, check_filter, matches
from weft.storage.segment_log import LogError, SegmentLog
from weft.storage.segment_log.index import reason_name
from weft.storage.segment_log.reader import LogPage, PageReader

if TYPE_CHECKING:
    from weft.edge_node.servers.http.websocket import WebSocketWrapping


# Records and live messages as JSON objects for browsers, in either of two wrappings.

LONG_BYTES = 64 << 10
"""Length from which on an object is kept for at most ``KEPT_S``."""
KEPT_S = 1.0
_encode = msgspec.json.encode


class Wrapping(Protocol):
    """A form of events: server-sent events, or messages of a WebSocket."""

    def event(self, kind: str, data: bytes, number: int | None = None) -> list[bytes]:
        """Return one event in parts, one of which is ``data`` itself.

        Args:
            kind: ``record``, ``gap``, ``lane``, ``message`` or ``dropped``.
            data: JSON object, without line breaks.
            number: number at which a client resumes after it; None to resume at the earlier one.
        """
        ...

    def idle(self) -> bytes:
        """Return the bytes that show the client, and proxies, that the connection is alive."""
        ...

    def end(self) -> bytes:
        """Return the bytes that end the events."""
        ...


class ServerSent:
    """Server-sent events (HTML, section 9.2).

    Each is a chunk of its own (RFC 9112, 7.1): a client that reads in blocks shows an event when its chunk is there,
    and without chunks only after later events have filled its block.
    """

    def __init__(self, *, is_chunked: bool) -> None:
        """Choose the form; a client of HTTP/1.0 gets no chunks."""
        self._is_chunked = is_chunked

    def greeting(self, retry_ms: int) -> bytes:
        """Return the first bytes: the time that a client waits before it reconnects."""
        return self._piece(b"retry: %d\n\n" % retry_ms)

    def event(self, kind: str, data: bytes, number: int | None = None) -> list[bytes]:
        """Return one event in parts; a ``record`` has the default type of events in a browser."""
        head = b"" if number is None else b"id: %d\n" % number
        if kind not in ("record", "message"):
            head += f"event: {kind}\n".encode()
        head += b"data: "
        if not self._is_chunked:
            return [head, data, b"\n\n"]
        return [b"%x\r\n%b" % (len(head) + len(data) + 2, head), data, b"\n\n\r\n"]

    def idle(self) -> bytes:
        """Return a comment."""
        return self._piece(b": alive\n\n")

    def end(self) -> bytes:
        """Return the last chunk."""
        return b"0\r\n\r\n" if self._is_chunked else b""

    def _piece(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data


class EventObjects:
    """Encoder of the objects; consecutive clients share an object."""

    def __init__(self) -> None:
        self._record: tuple[int, int] | None = None
        """Stream and number of the latest object's record."""
        self._message: Message | None = None
        self._object = b""
        self._timer: asyncio.TimerHandle | None = None

    def of_record(self, stream: int, record: Record) -> bytes:
        """Return the object of a stream's record."""
        if self._record != (stream, record.seq):
            self._keep(record_event(record), (stream, record.seq), None)
        return self._object

    def of_message(self, message: Message) -> bytes:
        """Return the object of a live message."""
        if self._message is not message:
            self._keep(message_event(message), None, message)
        return self._object

    def _keep(self, made: bytes, record: tuple[int, int] | None, message: Message | None) -> None:
        self._object, self._record, self._message = made, record, message
        if len(made) > LONG_BYTES and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEPT_S, self._forget)

    def _forget(self) -> None:
        self._timer = None
        self._object, self._record, self._message = b"", None, None


def record_event(record: Record) -> bytes:
    """Return the object of a record."""
    fields: dict[str, Any] = {"seq": record.seq, "time": rfc3339(record.time), "key": record.key.decode()}
    return _with_content(fields, record.payload, record.headers)


def message_event(message: Message) -> bytes:
    """Return the object of a live message."""
    fields: dict[str, Any] = {"topic": message.topic.decode()}
    if message.retain:
        fields["retain"] = True
    return _with_content(fields, message.payload, message.headers)


def rfc3339(time_ns: int) -> str:
    """Return a time in UTC, to the nanosecond."""
    second, rest = divmod(time_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def _with_content(fields: dict[str, Any], payload: bytes, headers: HeaderPairs) -> bytes:
    try:
        fields["payload"] = payload.decode()
    except UnicodeDecodeError:
        fields["payload_base64"] = payload
    if headers:
        fields["headers"] = _headers(headers)
    return _encode(fields)


def _headers(headers: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return headers by name; repeated headers as lists."""
    found: dict[str, list[Any]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


# Feeds, which send to one client until it leaves: the common part of streams and topics.

KEYS_MAX = 10_000
"""Maximum number of keys for which a feed remembers its client's permission."""


class Feed:
    """A ``FeedHandler``. Belongs to the event loop's thread.

    Args:
        head: head of the answer, which is sent first.
        socket: the wrapping of a WebSocket, if it is one.
        ended: called once when it has ended.
    """

    def __init__(  # noqa: PLR0917
        self,
        head: bytes,
        wrapping: Wrapping,
        socket: WebSocketWrapping | None,
        identity: Identity,
        owner: Owner,
        ended: Callable[[Feed], None],
    ) -> None:
        self.owner = owner
        self._head = head
        self._wrapping = wrapping
        self._socket = socket
        self._identity = identity
        self._ended = ended
        self._transport: FeedTransport | None = None
        self._may: dict[bytes, bool] = {}
        self.is_over = False
        self.is_paused = False

    def begin(self, transport: FeedTransport) -> None:
        """Send the head; subclasses send the rest."""
        self._transport = transport
        transport.send(self._head)

    def received(self, data: bytes) -> None:
        """Handle the client's input: pings and the end of a WebSocket; other input is ignored."""
        if self._socket is None or self.is_over:
            return
        answer, is_over = self._socket.received(data)
        if answer and not self.is_paused:
            self._write([answer])
        if is_over:
            self.stop()

    def pause(self) -> None:
        """Stop sending until ``resume``."""
        self.is_paused = True

    def resume(self) -> None:
        """Resume sending."""
        self.is_paused = False

    def recheck(self) -> None:
        """Check again what the client may read."""
        self._may.clear()
        if not self._identity.admitted:
            self.stop()
            self._close()

    def stop(self) -> None:
        """End the feed. Further calls do nothing."""
        if self.is_over:
            return
        self.is_over = True
        if (closing := self._wrapping.end()) and not self.is_paused:
            self._write([closing])
        if self._socket is not None:
            self._socket.forget()
        self._close()
        self._ended(self)

    def _write(self, parts: Sequence[bytes]) -> None:
        if self._transport is not None:
            self._transport.send_all(parts)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def may_read(self, key: bytes) -> bool:
        """Return whether access rules let the client read messages of a topic."""
        if self._identity.unrestricted:
            return True
        found = self._may.get(key)
        if found is None:
            if len(self._may) >= KEYS_MAX:
                self._may.clear()
            found = self._may[key] = self._identity.may_read(key)
        return found


# Durable records of one stream, in the order of the log, each with its number.
#
# A slow client costs no memory: its position in the log waits, not messages.

PAGE_BYTES = 64 << 10
SLICE = 64
"""Number of records handled before others have their turn."""
IDLE_S = 15.0
"""Silence after which the client gets a heartbeat."""

log = logging.getLogger(__name__)


class StreamFeed(Feed):
    """A feed of one stream.

    Args:
        start: number of the first record.
        topic_filter: filter of keys; None for all.
    """

    def __init__(  # noqa: PLR0917
        self,
        base: tuple[Any, ...],
        pages: PageReader,
        round_robin: RoundRobin,
        stream: int,
        lane: str,
        start: int,
        topic_filter: str | None,
        objects: EventObjects,
        counters: HttpCounters,
        wall_clock: Callable[[], int],
    ) -> None:
        super().__init__(*base)
        self._pages = pages
        self._round_robin = round_robin
        self._stream = stream
        self._lane = lane
        self._seq = start
        self._filter = topic_filter
        self._objects = objects
        self._counters = counters
        self._wall_clock = wall_clock
        self._room = asyncio.Event()
        self._room.set()
        self._task: asyncio.Task[None] | None = None
        self._wanted: dict[bytes, bool] = {}

    def begin(self, transport: FeedTransport) -> None:
        """Send the head and the client's position, then records."""
        super().begin(transport)
        where = msgspec.json.encode({"lane": self._lane, "next_seq": self._seq})
        transport.send_all(self._wrapping.event("lane", where))
        self._task = asyncio.get_running_loop().create_task(self._run())

    def pause(self) -> None:
        """Stop reading."""
        super().pause()
        self._room.clear()

    def resume(self) -> None:
        """Resume reading."""
        super().resume()
        self._room.set()

    def recheck(self) -> None:
        """Check again what the client may read."""
        self._wanted.clear()
        super().recheck()

    def stop(self) -> None:
        """End."""
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        super().stop()

    # --- inside

    async def _run(self) -> None:
        try:
            while not self.is_over:
                await self._room.wait()  # before a page is held in memory
                page = await self._pages.read(self._stream, self._seq, PAGE_BYTES)
                if page.next_seq == self._seq:
                    await self._wait_for_more()
                    continue
                await self._send(page)
                self._seq = page.next_seq
        except (OSError, LogError) as error:
            log.warning("a reader of %s cannot continue: %s", self._lane, error)
            self.stop()

    async def _wait_for_more(self) -> None:
        try:
            async with asyncio.timeout(IDLE_S):
                await self._pages.more(self._stream, self._seq)
        except TimeoutError:
            if not self.is_paused:
                self._write([self._wrapping.idle()])

    async def _send(self, page: LogPage) -> None:
        for gone in page.gone:
            reason = "released" if gone.reason is None else reason_name(gone.reason)
            gap = msgspec.json.encode({"first_seq": gone.first, "count": gone.end - gone.first, "reason": reason})
            self._write(self._wrapping.event("gap", gap, gone.end - 1))
        for data in page.batches:
            left = iter(records(data))
            while await self._slice(left):
                await self._round_robin.turn(self.owner)

    async def _slice(self, left: Iterable[Record]) -> bool:
        """Send some records; return whether there may be more."""
        await self._room.wait()
        now, found, count, sent = self._wall_clock(), list[bytes](), 0, 0
        for record in left:
            count += 1
            if record.seq >= self._seq and self._wants(record, now):
                found += self._wrapping.event("record", self._objects.of_record(self._stream, record), record.seq)
                sent += 1
            if count == SLICE:
                break
        if found:
            self._counters.http_events += sent
            self._write(found)
        return count == SLICE

    def _wants(self, record: Record, now: int) -> bool:
        key = record.key
        wanted = self._wanted.get(key)
        if wanted is None:
            if len(self._wanted) >= 10_000:
                self._wanted.clear()
            wanted = (self._filter is None or matches(self._filter, key.decode())) and self.may_read(key)
            self._wanted[key] = wanted
        if not wanted or not record.headers:
            return wanted
        return not any(name == EXPIRES and type(value) is int and value <= now for name, value in record.headers)


# Live messages of the topics that match a filter, kept or not. Messages that a client is too slow for are dropped,
# and it gets their number.

GATHERED_MAX = 1_000
"""Maximum number of messages of one turn of the loop, which are sent together; further ones are dropped."""


class TopicFeed(Feed):
    """A feed of live messages; a ``Subscriber`` at QoS 0."""

    client_id = ""
    persistent = False

    def __init__(
        self,
        base: tuple[Any, ...],
        subscriptions: Subscriptions,
        topic_filter: str,
        objects: EventObjects,
        counters: HttpCounters,
    ) -> None:
        super().__init__(*base)
        self._subscriptions = subscriptions
        self._subscription = ClientSubscription(self, topic_filter, Subscription(topic_filter, 0), None)
        self._objects = objects
        self._counters = counters
        self._gathered: list[bytes] = []
        """Parts of the gathered events."""
        self._count = 0
        self._dropped = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, transport: FeedTransport) -> None:
        """Send the head, then messages published from now on."""
        super().begin(transport)
        transport.send(self._wrapping.idle())
        self._subscriptions.add(self._subscription)
        self._timer = self._loop.call_later(IDLE_S, self._tick)

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()
            self._subscriptions.remove(self._subscription)
            self._timer = None
        super().stop()

    def resume(self) -> None:
        """Resume sending, and report the messages dropped meanwhile."""
        super().resume()
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._write(self._wrapping.event("dropped", b'{"messages":%d}' % dropped))

    # --- ``Subscriber``

    def offer(self, message: Message, options: DeliveryOptions, qos: int) -> None:  # noqa: ARG002
        """Send or drop a message."""
        self.send_at_most_once(message, options)

    def send_at_most_once(self, message: Message, options: DeliveryOptions) -> None:  # noqa: ARG002
        """Send or drop a message."""
        if self.is_over:
            return
        if self.is_paused or self._count >= GATHERED_MAX:
            self._dropped += 1
            self._counters.http_events_dropped += 1
            return
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered += self._wrapping.event("message", self._objects.of_message(message))
        self._count += 1

    # --- inside

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        count, self._count = self._count, 0
        if gathered and not self.is_over:
            self._counters.http_events += count
            self._write(gathered)

    def _tick(self) -> None:
        if not self.is_paused:
            self._write([self._wrapping.idle()])
        self._timer = self._loop.call_later(IDLE_S, self._tick)


LEVELS_MAX = 16
PLUSES_MAX = 2
"""Maximum number of ``+`` in a filter: with more, or with more levels, each publish would cost too many steps."""
READS = 2
"""Concurrent reads of the disk for all readers."""
RETRY_MS = 2_000
_FIELDS = (("Content-Type", "text/event-stream"), ("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))
_SEQ = re.compile("[0-9]{1,18}")


class Readers:
    """All open readers of events. Belongs to the event loop's thread."""

    def __init__(  # noqa: PLR0917
        self,
        log: SegmentLog,
        context: ProtocolContext,
        settings: HttpSettings,
        counters: HttpCounters,
        refusals: Refusals,
        answers: Answers,
    ) -> None:
        self._log = log
        self._context = context
        self._counters = counters
        self._answers = answers
        self._pages = log.page_reader(READS)
        self._objects = EventObjects()
        limits, what = settings.limits, "readers of events"
        self._bound = Bound(Quota.of("limits.http_readers", limits.http_readers, limits.user_share, what), refusals)

    def read_stream(self, exchange: HttpExchange, lane: str, stream: int) -> None:
        """Send a stream's records from now on, or from the client's position.

        Raises:
            Problem: the client may not read it, or the request is not valid.
        """
        query = exchange.request.query
        topic_filter = query.get("filter")
        if topic_filter is not None:
            _check(exchange, topic_filter)
        start = self._start(exchange.request, stream)
        base = self._open(exchange)
        if base is not None:
            feed = StreamFeed(
                base,
                self._pages,
                self._context.round_robin,
                stream,
                lane,
                start,
                topic_filter,
                self._objects,
                self._counters,
                self._context.wall_clock,
            )
            exchange.stream_to(feed)

    def read_topics(self, exchange: HttpExchange) -> None:
        """Send messages published from now on.

        Raises:
            Problem: as ``read_stream``.
        """
        topic_filter = exchange.request.query.get("filter")
        if topic_filter is None:
            raise Problem(400, "the query names no filter; send ?filter=plant/%2B/temperature, or ?filter=%23 for all")
        _check(exchange, topic_filter)
        if topic_filter.count("/") >= LEVELS_MAX or topic_filter.count("+") > PLUSES_MAX:
            raise Problem(400, f"a filter may have {LEVELS_MAX} levels and {PLUSES_MAX} `+` here; send a simpler one")
        base = self._open(exchange)
        if base is not None:
            exchange.stream_to(
                TopicFeed(base, self._context.subscriptions, topic_filter, self._objects, self._counters)
            )

    # --- inside

    def _start(self, request: Request, stream: int) -> int:
        """Return the first number to send: after Last-Event-ID, ``from``, or the next one."""
        end = self._log.durable_end(stream)
        last = request.header(b"last-event-id") or request.query.get("last_event_id", "")
        asked = request.query.get("from", "")
        if last:
            if not _SEQ.fullmatch(last):
                raise Problem(400, f"Last-Event-ID is {quoted(last)}; send the id of the last event that was received")
            start = int(last) + 1
        elif asked == "earliest":
            ranges = self._log.ranges(stream)
            start = next(iter(ranges), (end, end))[0]
        elif asked in ("", "latest"):
            start = end
        elif _SEQ.fullmatch(asked):
            start = int(asked)
        else:
            raise Problem(400, f"from is {quoted(asked)}; send a seq, earliest or latest")
        return min(start, self._log.next_seq(stream))  # higher numbers belong to a former log

    def _open(self, exchange: HttpExchange) -> tuple[Any, ...] | None:
        """Return the common arguments of feeds; None where the answer is only a head."""
        request, identity = exchange.request, exchange.identity
        assert identity is not None
        if not exchange.is_first:
            raise Problem(400, "events cannot be asked for behind other requests; use a connection of their own")
        if request.method == "HEAD":
            exchange.answer(200, content_type="text/event-stream")
            return None
        wrapping: Wrapping
        socket: WebSocketWrapping | None = None
        if request.upgrades:
            # Imported here, so that a node without such clients does not load the library.
            from weft.edge_node.servers.http.websocket import WebSocketWrapping, upgrade

            head = upgrade(request)
            wrapping = socket = WebSocketWrapping()
        else:
            events = wrapping = ServerSent(is_chunked=not request.is_http10)
            coding = () if request.is_http10 else (("Transfer-Encoding", "chunked"),)
            fields = (*exchange.answer_fields, *_FIELDS, *coding)
            head = self._answers.head(200, fields, keeps_alive=False) + b"\r\n" + events.greeting(RETRY_MS)
        if not self._bound.take(exchange.owner):
            self._bound.refuse(exchange.owner)
            raise try_later(429, "too many readers of events (limits.http_readers); close some", 10)
        self._counters.http_readers += 1
        return (head, wrapping, socket, identity, exchange.owner, self._has_ended)

    def _has_ended(self, feed: Feed) -> None:
        self._bound.free(feed.owner)
        self._counters.http_readers -= 1


def _check(exchange: HttpExchange, topic_filter: str) -> None:
    identity = exchange.identity
    assert identity is not None
    try:
        check_filter(topic_filter)
    except InvalidTopic as error:
        raise Problem(400, f"{quoted(topic_filter)} is not a filter: {error}") from None
    if topic_filter.startswith("$share/"):
        raise Problem(400, "shared subscriptions are for MQTT; send the filter alone")
    if not identity.unrestricted and not identity.may_subscribe(topic_filter):
        raise Problem(403, f"the user may not read {quoted(topic_filter)}; ask for the right to")
