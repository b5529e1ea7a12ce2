"""Routing keys of AMQP as topics, and back.

A key ``a.b.c`` is the topic ``a/b/c``, so that streams, access rules and subscribers of other protocols match it. A key
that cannot be a topic is replaced, and a header has the key as sent.
"""

from __future__ import annotations

from typing import Final

from weft.protocols.batch import HeaderPairs

EXCHANGE: Final = "amqp.exchange"
"""Header with the name of the exchange; messages without it came by ``TOPIC_EXCHANGE``."""
ROUTING_KEY: Final = "amqp.routing-key"
"""Header with the routing key as sent, where it does not follow from the topic."""
QUEUES: Final = "weft.queues"
"""Header of records in the stream of queued messages: the numbers of the queues that they are for. Not delivered."""
DEATHS: Final = "amqp.deaths"
"""Header with the dead-letter history of the message (``deaths``)."""
TOPIC_EXCHANGE: Final = "amq.topic"
"""Exchange to which every publish of other protocols goes."""
_REPLACED = str.maketrans({".": "/", "+": "_", "#": "_", "\0": "_"})


def topic_of(exchange: str, routing_key: str) -> str:
    """Return the topic of a message. An empty routing key stands for the name of the exchange."""
    topic = (routing_key or exchange).translate(_REPLACED)
    # Topics that begin with `$` are not for wildcards, and `$SYS` is the node's own.
    return topic if topic and topic[0] != "$" else "_" + topic[1:]


def routing_key_of(topic: str) -> str:
    """Return the routing key of a message that another protocol published."""
    return topic.replace("/", ".")


def headers_of_route(exchange: str, routing_key: str, topic: str) -> HeaderPairs:
    """Return the headers that a publish to an exchange needs beside its topic."""
    found: HeaderPairs = ()
    if exchange != TOPIC_EXCHANGE:
        found = ((EXCHANGE, exchange),)
    if routing_key_of(topic) != routing_key:
        found = (*found, (ROUTING_KEY, routing_key))
    return found


def origin_of(topic: bytes, headers: HeaderPairs) -> tuple[str, str]:
    """Return exchange and routing key of a stored message."""
    exchange, routing_key = TOPIC_EXCHANGE, None
    for name, value in headers:
        if name == EXCHANGE and isinstance(value, str):
            exchange = value
        elif name == ROUTING_KEY and isinstance(value, str):
            routing_key = value
    return exchange, routing_key_of(topic.decode(errors="replace")) if routing_key is None else routing_key


def filter_of(key: str) -> str:
    """Return a filter of topics that covers all topics that a binding key of a topic exchange matches."""
    words = key.split(".")
    if "#" in words:
        words = words[: words.index("#") + 1]
    return "/".join("+" if word == "*" else word for word in words) or "#"
