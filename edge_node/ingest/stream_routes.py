"""Routes of what is sent to a stream by its name, whatever its topic."""

from __future__ import annotations

from typing import Protocol

from weft.edge_node.ingest.routes import Remembering, Route
from weft.edge_node.ingest.unrouted import Unrouted


class StreamRoutes(Protocol):
    """Part of ``Ingest`` that this needs."""

    unrouted: Unrouted
    topic_levels_max: int
    remembering: set[Remembering]

    def route(self, topic: bytes, into: int | None = None) -> Route:
        """Return where a topic's records go, if they go into a stream that their sender names."""
        ...


class StreamRouting:
    """The ``Routing`` of a ``RouteCache`` for one stream. Subscribers of the topic get the messages too."""

    __slots__ = ("_into", "_routes", "topic_levels_max", "unrouted")

    def __init__(self, routes: StreamRoutes, into: int) -> None:
        self._routes = routes
        self._into = into
        self.unrouted = routes.unrouted
        self.topic_levels_max = routes.topic_levels_max

    @property
    def remembering(self) -> set[Remembering]:
        """Return the caches that are cleared when who gets what has changed."""
        return self._routes.remembering

    def route(self, topic: bytes) -> Route:
        """Return where a topic's records go."""
        return self._routes.route(topic, self._into)
