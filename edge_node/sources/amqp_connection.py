"""One connection to an external AMQP 0-9-1 broker: a consumer that acknowledges messages after the fsync."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from weft.edge_node.ingest.back_pressure import Pause
from weft.edge_node.queues.topics import headers_of_route, topic_of
from weft.edge_node.sources.amqp_frames import BYTES_EACH, Delivery
from weft.edge_node.sources.connection import Memory, NodeParts, SourceConnection, SourceDown
from weft.edge_node.sources.status import SourceStatus
from weft.edge_node.sources.topics import Topics
from weft.protocols.amqp.errors import AmqpError
from weft.protocols.amqp.properties import read_properties
from weft.protocols.batch import Flag, HeaderPairs

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection
    from aiormq.abc import AbstractChannel as Underlay
    from pamqp.common import FieldTable

    from weft.config.intake.sources import AmqpSource
    from weft.edge_node.sources.amqp_frames import Deliveries, Delivery

log = logging.getLogger(__name__)

WAITING_INTERVAL_S = 10.0
"""Interval of requests for the number of messages that wait at the broker."""
AT_A_TIME = 64
"""Number of messages handled in one turn, of those that arrived during a pause."""
_TAG = struct.Struct(">Q")


class AmqpConnection(SourceConnection):
    """A channel of one connection. After ``consume``, messages come until ``ended``.

    The broker sends at most ``prefetch`` messages ahead of the acknowledgements. That bounds the messages that wait
    here during a pause.
    """

    def __init__(  # noqa: PLR0917
        self,
        node: NodeParts,
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
            raise SourceDown(told(error, settings.queue)) from None
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
            self.end(f"internal fault: {error!r}")

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
        self.node.ingest.turn.gathered()

    def pause(self) -> None:
        """Pause: arriving messages wait, and ``prefetch`` bounds them."""

    def go_on(self) -> None:
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
            self.hold(Pause.TURN)
            self.node.rounds.wait(self.owner, lambda: self.release(Pause.TURN))

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
            self.end(told(error, self._settings.queue))

    async def _count(self, channel: AbstractChannel) -> None:
        """Request the number of waiting messages at intervals."""
        from aio_pika.exceptions import AMQPError

        try:
            while True:
                await asyncio.sleep(WAITING_INTERVAL_S)
                queue = await channel.declare_queue(self._settings.queue, passive=True)
                self.status.waiting = queue.declaration_result.message_count
        except (AMQPError, RuntimeError, OSError) as error:
            self.end(told(error, self._settings.queue))

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
        self.end(told(error, self._settings.queue))


async def _not_called(_: object) -> None:
    """Serve as the consumer's callback: deliveries do not reach the library."""


def told(error: BaseException | None, queue: str) -> str:
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
