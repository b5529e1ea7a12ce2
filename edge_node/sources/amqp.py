"""One connection to an external AMQP 0-9-1 broker: a consumer that acknowledges messages after the fsync."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from aio_pika import Connection
from aio_pika.exceptions import AMQPError
from aiormq import TransportFactory
from aiormq.connection import TCPTransportFactory, TLSTransportFactory
from yarl import URL

from weft.config.sources import AmqpSource
from weft.edge_node.ingest.ingest import Pause
from weft.edge_node.queues.definitions import headers_of_route, topic_of
from weft.edge_node.sources.connection import (
    CONNECT_TIMEOUT_S,
    AnyConnection,
    Memory,
    Runner,
    SourceConnection,
    SourceContext,
    SourceDown,
    Topics,
)
from weft.edge_node.sources.credentials import BrokerUrl, client_context, read_password, target_of
from weft.edge_node.sources.status import SourceStatus
from weft.protocols.amqp.content import read_properties
from weft.protocols.amqp.frames import AmqpError
from weft.protocols.batch import Flag, HeaderPairs

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection
    from aiormq.abc import AbstractChannel as Underlay
    from pamqp.common import FieldTable


# Deliveries of a broker, extracted from the frames before the client library reads them.
#
# The library handles all frames except deliveries, for two reasons. pamqp decodes the properties of each message, and
# closes the connection if it cannot: with a routing key or a content type that is not UTF-8, or a timestamp after the
# year 9999, all of which brokers accept from every client. Such a message would come again on every connection, and
# block its queue for good. And aiormq has three queues and a task for each message, which cost several times as much
# as the node's own work for it.

FRAME_BYTES_MAX = 16 << 20
"""Longest accepted frame: RabbitMQ's are 128 KiB."""
AT_A_TIME = 64
"""Number of deliveries before others have their turn."""
BYTES_EACH = 512
"""Bytes that count as one more delivery: their payloads may be checked."""
HEARD_S = 1.0
"""Interval at which aiormq gets a heartbeat: a broker sends none while it sends messages."""
_HEAD = struct.Struct(">BHI")
_TAG = struct.Struct(">Q")
_METHOD, _HEADER, _BODY = 1, 2, 3
_DELIVER = b"\x00\x3c\x00\x3c"
_SIZE_AT, _FLAGS_AT = 4, 12
"""Offsets of the length of the body, and of the flags, in a content header."""
_END = 0xCE
_HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


class Delivery(NamedTuple):
    """A received message."""

    tag: int
    redelivered: bool
    exchange: bytes
    routing_key: bytes
    properties: bytes
    """Content header, beginning at its flags."""
    size: int
    """Bytes of the body; a body beyond the bound is not kept."""
    body: bytes


Take = Callable[[Delivery], None]


class Deliveries(TransportFactory):  # type: ignore[misc]  # aiormq has no types
    """Transport of the connection that passes on its deliveries, of one channel.

    Args:
        body_bytes_max: longest body that is kept.
    """

    def __init__(self, body_bytes_max: int, *, is_tls: bool) -> None:
        self._factory = TLSTransportFactory() if is_tls else TCPTransportFactory()
        self._body_bytes_max = body_bytes_max
        self.take: Take = lambda _: None
        """Called with each delivery, in order. It must not raise."""

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection.

        Raises:
            AMQPConnectionError, OSError: it cannot be opened.
        """
        reader, writer = await self._factory.create(url, **kwargs)
        rest = FrameReader(reader, self._body_bytes_max, self._hand_over)
        return rest, writer  # type: ignore[return-value]  # it is what aiormq uses of a StreamReader

    def _hand_over(self, delivery: Delivery) -> None:
        self.take(delivery)


class FrameReader:
    """The part of a ``StreamReader`` that aiormq reads frames with: one byte, six bytes, and the rest."""

    def __init__(self, reader: asyncio.StreamReader, body_bytes_max: int, take: Take) -> None:
        self._reader = reader
        self._take = take
        self._body_bytes_max = body_bytes_max
        self._frame = b""
        self._at = 0
        self._begun: tuple[int, bool, bytes, bytes] | None = None
        """First fields of the incomplete delivery."""
        self._properties = b""
        self._size = self._left = 0
        self._parts: list[bytes] = []
        self._taken = 0
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()

    def at_eof(self) -> bool:
        """Return whether the stream has ended."""
        return self._at >= len(self._frame) and self._reader.at_eof()

    async def read(self, count: int = -1) -> bytes:
        """Return the next bytes unchanged."""
        return await self._reader.read(count)

    async def readexactly(self, count: int) -> bytes:
        """Return the next bytes of the remaining frames.

        Raises:
            IncompleteReadError, OSError: the connection has ended, or must end.
        """
        if self._at >= len(self._frame):
            self._frame, self._at = await self._next(), 0
        found = self._frame[self._at : self._at + count]
        self._at += count
        return found

    async def _next(self) -> bytes:
        """Return the next remaining frame, or the first bytes of other data."""
        read = self._reader.readexactly
        while True:
            head = await read(_HEAD.size)
            if head.startswith(b"AMQP"):
                return head  # the broker speaks another version
            kind, channel, size = _HEAD.unpack(head)
            if size > FRAME_BYTES_MAX:
                raise ConnectionError(f"the broker announced a frame of {size} bytes")
            frame = await read(size + 1)
            if not channel or frame[-1] != _END or not self._is_of_delivery(kind, frame):
                self._heard_at = self._loop.time()
                return head + frame
            if self._loop.time() - self._heard_at >= HEARD_S:
                self._heard_at = self._loop.time()
                return _HEARTBEAT
            if self._taken >= AT_A_TIME:
                self._taken = 0
                await asyncio.sleep(0)

    def _is_of_delivery(self, kind: int, frame: bytes) -> bool:
        """Return whether a frame belongs to a delivery, and handle such a frame."""
        if kind == _METHOD:
            if not frame.startswith(_DELIVER):
                return False
            self._begin(frame)
            return True
        if self._begun is None:
            return False
        if kind == _HEADER:
            if len(frame) <= _FLAGS_AT:
                raise ConnectionError("the broker sent a content header that is too short")
            (self._size,) = _TAG.unpack_from(frame, _SIZE_AT)
            self._left, self._properties = self._size, frame[_FLAGS_AT:-1]
        elif kind == _BODY:
            self._left -= len(frame) - 1
            if self._size <= self._body_bytes_max:
                self._parts.append(frame[:-1])
        else:
            return False
        if self._left <= 0:
            begun, parts, self._begun, self._parts = self._begun, self._parts, None, []
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            self._taken += 1 + self._size // BYTES_EACH
            self._take(Delivery(*begun, self._properties, self._size, body))
        return True

    def _begin(self, frame: bytes) -> None:
        try:
            at = len(_DELIVER) + 1 + frame[len(_DELIVER)]  # behind the consumer tag
            (tag,) = _TAG.unpack_from(frame, at)
            at += _TAG.size
            exchange_end = at + 2 + frame[at + 1]
            key_end = exchange_end + 1 + frame[exchange_end]
        except (IndexError, struct.error):
            raise ConnectionError("the broker sent a delivery that is too short") from None
        self._begun = (tag, bool(frame[at] & 1), frame[at + 2 : exchange_end], frame[exchange_end + 1 : key_end])


log = logging.getLogger(__name__)

WAITING_INTERVAL_S = 10.0
"""Interval of requests for the number of messages that wait at the broker."""


class AmqpConnection(SourceConnection):
    """A channel of one connection. After ``consume``, messages come until ``ended``.

    The broker sends at most ``prefetch`` messages ahead of the acknowledgements. That bounds the messages that wait
    here during a pause.
    """

    def __init__(  # noqa: PLR0917
        self,
        node: SourceContext,
        status: SourceStatus,
        topics: Topics,
        memory: Memory,
        settings: AmqpSource,
        connection: AbstractConnection,
        deliveries: Deliveries,
    ) -> None:
        super().__init__(node, status, topics, memory)
        self._settings = settings
        self._connection = connection
        self._deliveries = deliveries
        self._ahead: deque[Delivery] = deque()
        """Messages that arrived during a pause."""
        self._acknowledged_to = self._sent_to = 0
        """Delivery tags up to which messages are durable, and acknowledged."""
        self._rejected: deque[int] = deque()
        """Delivery tags of messages that cannot be stored."""
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._underlay: Underlay | None = None
        self._consumer_tag: str | None = None

    async def consume(self) -> None:
        """Make the configured declarations, and consume.

        Raises:
            SourceDown: the broker refuses.
        """
        from aio_pika.exceptions import AMQPError

        settings = self._settings
        try:
            channel = await self._connection.channel(publisher_confirms=False)
            await channel.set_qos(prefetch_count=settings.prefetch)
            await self._declare(channel)
            self._underlay = underlay = await channel.get_underlay_channel()
            self._deliveries.take = self._delivered
            underlay.on_consumer_cancel_callbacks.add(self._cancelled)
            underlay.closing.add_done_callback(self._closed)
            self.join()
            answer = await underlay.basic_consume(settings.queue, _not_called)
            self._consumer_tag = answer.consumer_tag
        except (AMQPError, RuntimeError) as error:
            raise SourceDown(failure_text(error, settings.queue)) from None
        self._tasks = [
            asyncio.create_task(self._answer(), name=f"{self.publisher} acknowledgements"),
            asyncio.create_task(self._count(channel), name=f"{self.publisher} waiting messages"),
        ]

    async def _declare(self, channel: AbstractChannel) -> None:
        settings = self._settings
        arguments: FieldTable | None = {"x-queue-type": "quorum"} if settings.declare == "quorum" else None
        queue = await channel.declare_queue(
            settings.queue, durable=True, passive=settings.declare == "passive", arguments=arguments
        )
        self.status.waiting = queue.declaration_result.message_count
        for exchange, routing_keys in settings.bind.items():
            for routing_key in routing_keys:
                await queue.bind(exchange, routing_key)

    # --- messages

    def _delivered(self, delivery: Delivery) -> None:
        if self.ended.done():
            return
        if self.is_held or self._ahead:
            self._ahead.append(delivery)
        else:
            self._try(delivery)

    def _try(self, delivery: Delivery) -> None:
        """Handle a message. A fault ends the connection: a message without an answer would occupy its place for
        good."""
        try:
            self._take(delivery)
        except Exception as error:
            log.exception("source %s failed", self.status.name)
            self.end(f"internal fault: {type(error).__name__}. The log has more")

    def _take(self, delivery: Delivery) -> None:
        settings, why = self._settings, ""
        if delivery.size > settings.message_bytes_max:
            why = self._refused("size", f"it has {delivery.size} bytes, `message` allows {settings.message_bytes_max}")
        else:
            try:
                topic, flags, headers = convert(delivery, settings.queue, self.node.wall_clock())
            except ValueError as error:
                why = self._refused("properties", str(error))
            else:
                why = self.take(topic, delivery.body, _TAG.pack(delivery.tag), flags, headers) or ""
        if why:
            self._rejected.append(delivery.tag)
            self._wake.set()
        self.node.ingest.batch.gathered()

    def pause(self) -> None:
        """Pause: arriving messages wait, and ``prefetch`` bounds them."""

    def resume(self) -> None:
        """Handle messages that arrived meanwhile, some in each turn."""
        left = AT_A_TIME
        while left > 0 and self._ahead:
            if self.is_held:
                # The log has refused one, and the acknowledgement of a later one would include it; or the connection
                # has ended.
                return
            delivery = self._ahead.popleft()
            self._try(delivery)
            left -= 1 + delivery.size // BYTES_EACH
        if self._ahead:
            self.hold(Pause.FAIRNESS)
            self.node.round_robin.wait(self.owner, lambda: self.release(Pause.FAIRNESS))

    # --- answers

    def acknowledge(self, answers: bytes) -> None:
        """Acknowledge messages: everything before them is durable. The answers are their delivery tags."""
        if self.ended.done():
            return
        count = len(answers) // _TAG.size
        self.status.acknowledged += count
        self.status.unacknowledged = max(0, self.status.unacknowledged - count)
        (self._acknowledged_to,) = _TAG.unpack_from(answers, len(answers) - _TAG.size)
        self._wake.set()

    async def _answer(self) -> None:
        """Send all pending acknowledgements and rejections at a time."""
        from aio_pika.exceptions import AMQPError

        underlay = self._underlay
        assert underlay is not None
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                # Before the acknowledgement of all up to a later one, which would include it.
                while self._rejected:
                    await underlay.basic_reject(self._rejected.popleft(), requeue=False, wait=False)
                if self._acknowledged_to > self._sent_to:
                    self._sent_to = self._acknowledged_to
                    await underlay.basic_ack(self._sent_to, multiple=True, wait=False)
        except (AMQPError, RuntimeError, OSError) as error:
            self.end(failure_text(error, self._settings.queue))

    async def _count(self, channel: AbstractChannel) -> None:
        """Request the number of waiting messages at intervals."""
        from aio_pika.exceptions import AMQPError

        try:
            while True:
                await asyncio.sleep(WAITING_INTERVAL_S)
                queue = await channel.declare_queue(self._settings.queue, passive=True)
                self.status.waiting = queue.declaration_result.message_count
        except (AMQPError, RuntimeError, OSError) as error:
            self.end(failure_text(error, self._settings.queue))

    # --- the end

    async def close(self) -> None:
        """Stop consuming, acknowledge the messages on disk, and disconnect. The rest goes back to the queue."""
        from aio_pika.exceptions import AMQPError

        if self._underlay is not None and self._consumer_tag is not None and not self.ended.done():
            with contextlib.suppress(AMQPError, RuntimeError, OSError):  # it disconnects in any case
                await self._underlay.basic_cancel(self._consumer_tag, timeout=1)
                await self.settle()
                if self._acknowledged_to > self._sent_to:
                    await self._underlay.basic_ack(self._acknowledged_to, multiple=True)
        self.end("the source stops")
        await self.disconnect()

    async def disconnect(self) -> None:
        """Close the connection, ignoring errors."""
        with contextlib.suppress(Exception):  # the connection may already be gone
            async with asyncio.timeout(2):
                await self._connection.close()

    def end(self, reason: str) -> None:
        """End the connection, once."""
        super().end(reason)
        self._ahead.clear()
        for task in self._tasks:
            task.cancel()

    async def _cancelled(self, _frame: object) -> None:
        self.end(f"the broker ended the consumer: queue {self._settings.queue} was deleted or has moved")

    def _closed(self, closing: asyncio.Future[object]) -> None:
        error = None if closing.cancelled() else closing.exception()
        self.end(failure_text(error, self._settings.queue))


async def _not_called(_: object) -> None:
    """Serve as the consumer's callback: deliveries do not reach the library."""


def failure_text(error: BaseException | None, queue: str) -> str:
    """Return the reason of a broker's refusal, or of a connection's end, as text."""
    from aiormq import exceptions

    if isinstance(error, exceptions.ChannelNotFoundEntity):
        return f"{_said(error)}. Create it at the broker, or set `declare`"
    if isinstance(error, exceptions.ChannelPreconditionFailed):
        return f"{_said(error)}. Queue {queue} exists with other arguments: set `declare: passive`"
    if isinstance(error, exceptions.ChannelAccessRefused):
        return f"{_said(error)}. Give the user access to the queue at the broker"
    if isinstance(error, exceptions.ProbableAuthenticationError | exceptions.AuthenticationError):
        return f"the broker refuses the login: {_said(error)}. Check `username` and the password"
    if error is None or isinstance(error, asyncio.CancelledError):
        return "the broker closed the connection"
    return f"the connection has ended: {_said(error)}"


def _said(error: BaseException) -> str:
    texts = [str(each) for each in error.args if each]
    return " ".join(texts) or type(error).__name__


_SHOWN_MAX = 64


class Converted(NamedTuple):
    """Topic, flags and headers of a record."""

    topic: bytes
    flags: int
    headers: HeaderPairs


def convert(message: Delivery, queue: str, now_ns: int) -> Converted:
    """Return a message's topic, flags and headers.

    Args:
        queue: topic of a message without routing key and exchange.

    Raises:
        ValueError: a record cannot have them.
    """
    try:
        exchange, routing_key = message.exchange.decode(), message.routing_key.decode()
    except UnicodeDecodeError:
        raise ValueError(f"its routing key {message.routing_key[:_SHOWN_MAX]!r} is not UTF-8") from None
    try:
        properties = read_properties(message.properties).at(now_ns)
    except AmqpError as error:
        raise ValueError(str(error)) from None
    topic = topic_of(exchange or queue, routing_key)
    flags = Flag.DUPLICATE_SUSPECTED if message.redelivered else Flag(0)
    return Converted(topic.encode(), int(flags), (*properties, *headers_of_route(exchange, routing_key, topic)))


# A source that consumes a queue of an external AMQP 0-9-1 broker, by aio-pika. Loaded only where one is configured.

for _name in ("aiormq", "aio_pika"):
    # They log at each attempt. The source logs the same once, and its status always has it.
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class AmqpRunner(Runner):
    """The connections of one AMQP source, one after the other."""

    def __init__(
        self, settings: AmqpSource, status: SourceStatus, node: SourceContext, rng: random.Random, name: str
    ) -> None:
        super().__init__(settings, settings.url, status, node, rng)
        self._amqp = settings
        self._name = f"weft {name}"
        self._leaving: set[asyncio.Task[None]] = set()

    async def connect(self, url: str) -> SourceConnection:
        """Connect, and consume.

        Raises:
            SourceDown, OSError, TimeoutError, CredentialsUnusable: there is no connection.
        """
        settings, target = self._amqp, target_of(url)
        password = await asyncio.to_thread(read_password, settings)
        tls = await asyncio.to_thread(client_context, settings) if target.is_tls else None
        opened = Connection(self._url(target, password), ssl_context=tls)
        deliveries = Deliveries(settings.message_bytes_max, is_tls=target.is_tls)
        opened.kwargs["transport_factory"] = deliveries  # aio-pika passes it on to aiormq, but has no parameter for it
        try:
            await opened.connect(timeout=CONNECT_TIMEOUT_S)
        except AMQPError as error:
            cause = _cause(error)
            if isinstance(cause, OSError) and not isinstance(cause, AMQPError):
                raise cause from None
            raise SourceDown(failure_text(error, settings.queue)) from None
        except KeyError as error:
            raise _lacks_fields(error) from None
        connection = AmqpConnection(self.node, self.status, self.topics, self.memory, settings, opened, deliveries)
        try:
            await connection.consume()
        except BaseException as error:
            connection.end(str(error))
            await connection.disconnect()
            if isinstance(error, KeyError):
                raise _lacks_fields(error) from None
            raise
        connection.ended.add_done_callback(lambda _: self._disconnect(connection))
        return connection

    async def close(self, connection: AnyConnection) -> None:
        """Stop, acknowledge the messages on disk, and disconnect."""
        assert isinstance(connection, AmqpConnection)
        await connection.close()

    def _url(self, target: BrokerUrl, password: bytes | None) -> URL:
        settings = self._amqp
        is_external = settings.username is None and settings.tls is not None and settings.tls.certificate is not None
        return URL.build(
            scheme=target.scheme,
            host=target.address.host,
            port=target.address.port,
            user=settings.username or "guest",
            password=(password or b"guest").decode(errors="replace"),
            path=f"/{target.path}" if target.path != "/" else "/",
            query={
                "heartbeat": str(max(1, round(settings.keep_alive_s))),
                "name": self._name,
                "auth": "external" if is_external else "plain",
            },
        )

    def _disconnect(self, connection: AmqpConnection) -> None:
        task = self._loop.create_task(connection.disconnect())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


def _lacks_fields(error: KeyError) -> SourceDown:
    """Return the error for a broker without a property that aiormq requires."""
    return SourceDown(
        f"the broker names no {error.args[0]} when it greets, as RabbitMQ does and the client needs. Is the "
        "address that of RabbitMQ, or of a broker that is compatible with it?"
    )


def _cause(error: BaseException) -> BaseException:
    """Return the system's error of a failed connection."""
    while error.__cause__ is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__
    return error
