"""A message of an external AMQP 0-9-1 broker as a record: topic and headers, as those of the node's own listener.

docs/reference/message-headers.md has the table. The properties are read by the node's own reader, so that there is one
mapping for both ways in.
"""

from __future__ import annotations

from typing import NamedTuple

from weft.edge_node.queues.topics import headers_of_route, topic_of
from weft.edge_node.sources.amqp_frames import Delivery
from weft.protocols.amqp.errors import AmqpError
from weft.protocols.amqp.properties import read_properties
from weft.protocols.batch import Flag, HeaderPairs

_SHOWN_MAX = 64


class Converted(NamedTuple):
    """Topic, flags and headers of a record."""

    topic: bytes
    flags: int
    headers: HeaderPairs


def convert(message: Delivery, queue: str, now_ns: int) -> Converted:
    """Return a message's topic, flags and headers.

    Args:
        queue: stands for the topic of a message without routing key and exchange.

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
