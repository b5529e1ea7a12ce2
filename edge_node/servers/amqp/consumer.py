"""One consumer of a channel: messages of a queue as basic.deliver."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from weft.edge_node.queues.errors import QueueError
from weft.edge_node.queues.message import Delivery
from weft.edge_node.queues.queue.queue import Consumption
from weft.edge_node.queues.topics import origin_of
from weft.edge_node.servers.amqp.client import AmqpClient
from weft.edge_node.servers.amqp.names import Names
from weft.edge_node.subscriptions.log_records import LogRecord
from weft.protocols.amqp.content import content_parts
from weft.protocols.amqp.field_table import write_text
from weft.protocols.amqp.frames import METHOD, frame
from weft.protocols.amqp.methods import commands
from weft.protocols.amqp.properties import write_properties

_DELIVER = commands.Basic.Deliver.index.to_bytes(4, "big")
_GET_OK = commands.Basic.GetOk.index.to_bytes(4, "big")
_TAG = struct.Struct(">QB")
_COUNT = struct.Struct(">I")
_COUNT_MAX = (1 << 32) - 1


class ChannelDeliveries(Protocol):
    """Deliveries of the channel."""

    def next_tag(self, delivery: Delivery | None) -> int:
        """Return the next delivery tag; None for a delivery that needs no acknowledgement."""
        ...

    def ended(self, tag: str) -> None:
        """Handle the end of a consumer."""


class ChannelConsumer:
    """A consumer with its tag."""

    __slots__ = ("_before", "_channel", "_client", "_head", "_no_ack", "_number", "_wall_clock", "consumption", "tag")

    def __init__(
        self,
        client: AmqpClient,
        channel: ChannelDeliveries,
        number: int,
        tag: str,
        wall_clock: Callable[[], int],
        *,
        no_ack: bool,
    ) -> None:
        self._client = client
        self._channel = channel
        self._number = number
        self._no_ack = no_ack
        self._wall_clock = wall_clock
        self._head = _DELIVER + write_text(tag)
        self._before: list[bytes | memoryview] | None = []
        """Deliveries from before basic.consume-ok was sent; None after it."""
        self.tag = tag
        self.consumption: Consumption | None = None

    def start(self) -> None:
        """Send deliveries from now on: basic.consume-ok was sent."""
        before, self._before = self._before, None
        if before:
            self._client.send_all(before)

    def deliver(self, batch: list[tuple[Delivery, LogRecord]]) -> None:
        """Send messages."""
        channel, head, number = self._channel, self._head, self._number
        names, frame_bytes_max, now = self._client.peer.names, self._client.frame_bytes_max, self._wall_clock()
        parts: list[bytes | memoryview] = []
        # The common part of messages is encoded once: mostly the headers of a batch of the log are one object.
        properties: dict[int, bytes] = {}
        origins: dict[tuple[int, bytes], bytes] = {}
        for delivery, message in batch:
            headers, tag = message.headers, channel.next_tag(None if self._no_ack else delivery)
            own = properties.get(id(headers))
            if own is None:
                own = properties[id(headers)] = write_properties(headers, now)
            place = id(headers), message.topic
            origin = origins.get(place)
            if origin is None:
                origin = origins[place] = _origin(message, names)
            parts.append(frame(METHOD, number, head + _TAG.pack(tag, delivery.redelivered) + origin))
            parts += content_parts(number, own, message.payload, frame_bytes_max)
        if self._before is not None:
            self._before += parts
        else:
            self._client.send_all(parts)

    def cancelled(self, error: QueueError) -> None:  # noqa: ARG002
        """Notify the client that the queue was deleted, or that it may no longer read it."""
        self.consumption = None
        self._channel.ended(self.tag)


def write_get_ok(  # noqa: PLR0917
    client: AmqpClient, number: int, tag: int, delivery: Delivery, message: LogRecord, left: int, now: int
) -> list[bytes | memoryview]:
    """Return basic.get-ok with its content, in parts.

    Args:
        left: number of messages left in the queue.
        now: nanoseconds since 1970.
    """
    fields = (
        _TAG.pack(tag, delivery.redelivered) + _origin(message, client.peer.names) + _COUNT.pack(min(left, _COUNT_MAX))
    )
    content = content_parts(number, write_properties(message.headers, now), message.payload, client.frame_bytes_max)
    return [frame(METHOD, number, _GET_OK + fields), *content]


def _origin(message: LogRecord, names: Names) -> bytes:
    """Return exchange and routing key, as far as they fit: a topic of MQTT may be longer than a short string."""
    exchange, key = map(names.own, origin_of(message.topic, message.headers))
    data = key.encode()
    if len(data) > 255:
        key = data[:255].decode(errors="ignore")
    return write_text(exchange) + write_text(key)
