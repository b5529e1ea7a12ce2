"""A message of an external AMQP 0-9-1 broker as a record: topic and headers, as those of the node's own listener.

docs/reference/message-headers.md has the table. The properties are encoded again and read by the node's own reader, so
that there is one mapping for both ways in.
"""

from __future__ import annotations

from typing import NamedTuple

from aiormq.abc import DeliveredMessage

from weft.edge_node.queues.topics import headers_of_route, topic_of
from weft.protocols.amqp.errors import AmqpError
from weft.protocols.amqp.properties import read_properties
from weft.protocols.batch import Flag, HeaderPairs


class Converted(NamedTuple):
    """Topic, flags and headers of a record."""

    topic: bytes
    flags: int
    headers: HeaderPairs


def convert(message: DeliveredMessage, queue: str, now_ns: int) -> Converted:
    """Return a message's topic, flags and headers.

    Args:
        queue: stands for the topic of a message without routing key and exchange.

    Raises:
        ValueError: the properties are not such as AMQP allows.
    """
    exchange, routing_key = message.exchange or "", message.routing_key or ""
    topic = topic_of(exchange or queue, routing_key)
    try:
        properties = read_properties(message.header.properties.marshal()).at(now_ns)
    except AmqpError as error:
        raise ValueError(str(error)) from None
    flags = Flag.DUPLICATE_SUSPECTED if message.redelivered else Flag(0)
    return Converted(topic.encode(), int(flags), (*properties, *headers_of_route(exchange, routing_key, topic)))
