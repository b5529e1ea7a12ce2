"""Routes of topics: found once, and remembered until who gets what has changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from weft.edge_node.access.identity import Identity
from weft.edge_node.ingest.before_log import BeforeLog
from weft.edge_node.ingest.queue_targets import QueueTargets
from weft.edge_node.ingest.queueing import Queueing
from weft.edge_node.ingest.routes import Destination, Remembering, Route
from weft.edge_node.ingest.unrouted import Unrouted
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.protocols.topics import TopicPattern, compile_pattern

TOPICS_MAX = 100_000
"""Topics whose streams are remembered; when there are more, all are forgotten and found again."""
TOPIC_BYTES_REMEMBERED_MAX = 512
"""Longer topics are looked up every time, so that the memory of topics stays below 100 MB whatever clients send."""
TOPIC_LEVELS_MAX = 128
"""Deeper topics are refused. EMQX has the same default."""


class Router:
    """Lookup of the streams of a topic. A topic goes into every stream that has a matching pattern.

    Asked once per distinct topic (``Routing`` remembers the answers), so a plain walk over the patterns is enough.
    """

    def __init__(self, patterns: Mapping[str, Sequence[str]], number: Callable[[str], int]) -> None:
        """Compile the patterns.

        Args:
            patterns: stream name -> its patterns, in the order of the configuration.
            number: stream name -> its number in the log, such as ``SegmentLog.stream``.

        Raises:
            InvalidTopic: a pattern is not valid.
        """
        self._streams: list[tuple[int, list[TopicPattern]]] = [
            (number(name), [compile_pattern(pattern) for pattern in of_stream]) for name, of_stream in patterns.items()
        ]

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of all streams, in the order of the configuration."""
        return tuple(number for number, _ in self._streams)

    def streams(self, topic: str) -> tuple[int, ...]:
        """Return the numbers of the streams that match the topic, in the order of the configuration; may be empty."""
        return tuple(
            number
            for number, patterns in self._streams
            if any(pattern.match(topic) is not None for pattern in patterns)
        )


class Routing:
    """Routes of all topics. Belongs to the event loop's thread."""

    def __init__(
        self,
        router: Router,
        subscriptions: Subscriptions,
        unrouted: Unrouted,
        *,
        session_topics: int,
        topic_levels_max: int = TOPIC_LEVELS_MAX,
    ) -> None:
        """Join streams and subscribers.

        Args:
            session_topics: the stream of messages that no other stream takes and persistent sessions want.
        """
        self._router = router
        self._subscriptions = subscriptions
        self.unrouted = unrouted
        self._session_topics = session_topics
        self.topic_levels_max = topic_levels_max
        self.streams = (*router.numbers, session_topics)
        """Every stream that a session may have to read. The stream `unrouted` is none of them: it drops its oldest
        records, so persistent sessions have copies of their own. Others read it when messages there were for them."""
        self.everybody = RouteCache(self, None)
        self.remembering: set[Remembering] = set()
        """Those that know topics: the others, of thousands of clients that are silent, have nothing to forget."""
        self.as_of = 0
        """Times that routes were forgotten."""
        self.queueing: Queueing | None = None
        """Queues that messages go to beside their streams."""
        self._before_log: Mapping[int, BeforeLog] = {}
        self._destinations: dict[tuple[tuple[int, ...], bool, tuple[BeforeLog, ...]], Destination] = {}
        self._routes: dict[tuple[Destination, int, bool], Route] = {}
        subscriptions.watch(self.forget)

    def routes_of(self, identity: Identity | None) -> RouteCache:
        """Return the routes of a client; to be given back to ``leave``."""
        if identity is None or identity.unrestricted:
            return self.everybody
        return RouteCache(self, identity)

    def leave(self, routes: RouteCache) -> None:
        """Forget the routes of a client that has gone."""
        if routes is not self.everybody:
            self.remembering.discard(routes)

    def forget(self) -> None:
        """Forget all routes: who gets what, or who may what, has changed."""
        self.as_of += 1
        remembering, self.remembering = self.remembering, set()
        for routes in remembering:
            routes.clear()

    def reroute(self, router: Router) -> tuple[int, ...]:
        """Take other patterns from now on. What was gathered before goes where it was to go.

        Returns:
            Streams to which nothing went before: those who read the log have to read them as well.
        """
        added = tuple(stream for stream in router.numbers if stream not in self.streams)
        self._router = router
        # A stream without topics stays: sessions may have to read what went there before.
        self.streams = (*self.streams, *added)
        self._destinations.clear()
        self._routes.clear()
        self.forget()
        return added

    def work_before_log(self, before_log: Mapping[int, BeforeLog]) -> None:
        """Have something work on messages in the place of some streams, which then get none themselves."""
        self._before_log = before_log
        self._destinations.clear()
        self._routes.clear()
        self.forget()

    def matches(self, topic: bytes, stream: int) -> bool:
        """Return whether a stream takes a topic's messages without being named."""
        return stream in self._router.streams(topic.decode())

    def queue_in(self, queueing: Queueing) -> None:
        """Have queues take the messages that are for them."""
        self.queueing = queueing
        self.forget()

    @property
    def taking(self) -> Collection[int]:
        """Return the streams that take messages of clients."""
        return self._router.numbers

    def route(self, topic: bytes, into: int | None = None) -> Route:
        """Return where a topic's records go. The answer is the same for every publisher.

        Args:
            into: the stream that the sender names, in place of those that match the topic.
        """
        return self.route_to(topic, None if self.queueing is None else self.queueing.of_topic(topic), into)

    def route_to(self, topic: bytes, queues: QueueTargets | None, into: int | None = None) -> Route:
        """Return where records go that have a topic and are for some queues; ``into`` as for ``route``."""
        recipients = self._subscriptions.recipients(topic)
        matching = self._router.streams(topic.decode()) if into is None else (into,)
        before_log = tuple(self._before_log[stream] for stream in matching if stream in self._before_log)
        streams = tuple(stream for stream in matching if stream not in self._before_log) if before_log else matching
        # What is worked on before the log is nothing that sessions could read later.
        kept_for_sessions = not streams and recipients.wanted
        unrouted = not matching and queues is None
        if unrouted:
            streams = self.unrouted.streams
        if kept_for_sessions:
            streams = (self._session_topics, *streams)
        place = (streams, unrouted, before_log)
        destination = self._destinations.get(place)
        if destination is None:
            destination = self._destinations[place] = Destination(streams, kept_for_sessions, unrouted, before_log)
        if queues is not None:  # not remembered here: queues come and go
            return Route(destination, live=recipients.live, marked=recipients.marked, queues=queues)
        key = (destination, recipients.live, recipients.marked)
        found = self._routes.get(key)
        if found is None:
            found = self._routes[key] = Route(destination, live=recipients.live, marked=recipients.marked)
        return found

    def refuses(self, topic: bytes) -> bool:
        """Return whether no stream matches a topic, and such messages are refused."""
        return self.unrouted.refuses and self.route(topic).unrouted


class RouteCache:
    """The routes that one kind of client may publish to, so that permission costs nothing in the hot loop.

    Args:
        identity: who publishes; None for one who may publish to all.
        into: the stream that the sender names, in place of those that match a topic.
    """

    __slots__ = ("_identity", "_into", "_routing", "matched", "plain")

    def __init__(self, routing: Routing, identity: Identity | None, into: int | None = None) -> None:
        self._routing = routing
        self._identity = identity
        self._into = into
        self.plain: dict[bytes, Route] = {}
        """The topics known; ask ``route`` for others."""
        self.matched: dict[bytes, Route] = {}
        """The same without those that no stream and no subscriber takes: MQTT 5.0 has a reason code for them."""

    def route(self, topic: bytes) -> Route | None:
        """Return where a valid topic's records go; None when the client may not publish to it, or when no stream
        matches it and such messages are refused."""
        found = self.plain.get(topic)
        if found is not None:
            return found
        if not self.permits(topic):
            return None
        routing = self._routing
        found = routing.route(topic, self._into)
        if found.unrouted:
            routing.unrouted.met(topic)
            if routing.unrouted.refuses:
                return None
        if len(topic) <= TOPIC_BYTES_REMEMBERED_MAX and not found.is_wide:
            if len(self.plain) >= TOPICS_MAX:
                self.clear()
            routing.remembering.add(self)
            self.plain[topic] = found
            if found.taken:
                self.matched[topic] = found
        return found

    def permits(self, topic: bytes) -> bool:
        """Return whether limits and access rules let the client publish to a topic."""
        if topic.startswith(b"$SYS/") or topic.count(b"/") >= self._routing.topic_levels_max:
            return False
        return self._identity is None or self._identity.may_publish(topic)

    def clear(self) -> None:
        """Forget all routes."""
        self.plain.clear()
        self.matched.clear()
