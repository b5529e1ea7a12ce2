"""Destinations of basic.publish that a connection has used: what the hot path finds frames in."""

from __future__ import annotations

from typing import Protocol

from weft.edge_node.ingest.routes import Route
from weft.protocols.amqp.properties import Content
from weft.protocols.columns import HeaderPairs

TARGETS_MAX = 256
"""Method frames that a connection's publishes are recognised by; when there are more, all are forgotten."""
PROPERTIES_MAX = 64
"""Properties that the publishes of one of them are recognised by, likewise."""
BYTES_MAX = 1024
"""Longest properties that are remembered."""


class Publishing(Protocol):
    """Publishes of one channel."""

    number: int
    """Number of the channel."""


class Target:
    """Exchange and routing key on one channel, where its messages go, and what a record has beside its payload."""

    __slots__ = ("channel", "headers", "known", "publisher", "route", "topic")

    def __init__(self, publisher: Publishing, topic: bytes, headers: HeaderPairs, route: Route) -> None:
        self.publisher = publisher
        self.channel = publisher.number.to_bytes(2, "big")
        self.topic = topic
        self.route = route
        self.headers = headers
        """Headers that say exchange and routing key."""
        self.known: dict[bytes, HeaderPairs] = {}
        """Properties -> headers of a record, of messages that do not expire."""

    def headers_of(self, properties: bytes, content: Content, now_ns: int) -> HeaderPairs:
        """Return the headers of a record, and remember them where others can have the same."""
        pairs = (*content.at(now_ns), *self.headers)
        if content.expires_ms is None and content.user_id is None and len(properties) <= BYTES_MAX:
            if len(self.known) >= PROPERTIES_MAX:
                self.known.clear()
            self.known[properties] = pairs
        return pairs


class Targets(dict[bytes, Target]):
    """Method frame -> target, of one connection. Cleared when messages may go elsewhere, or may not be published any
    more. Compared by identity."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def remember(self, frame: bytes, target: Target) -> None:
        """Have the hot path take further publishes with this method frame."""
        if len(self) >= TARGETS_MAX:
            self.clear()
        self[frame] = target

    def forget(self, publisher: Publishing) -> None:
        """Forget those of one channel."""
        for frame in [frame for frame, target in self.items() if target.publisher is publisher]:
            del self[frame]
