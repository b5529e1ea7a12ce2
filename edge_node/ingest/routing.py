"""Routes of topics: looked up once, and remembered until subscriptions, queues or patterns change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from weft.edge_node.access.identity import Identity
from weft.edge_node.ingest.before_log import BeforeLog
from weft.edge_node.ingest.checks import Checks, StreamCheck
from weft.edge_node.ingest.queue_targets import QueueTargets
from weft.edge_node.ingest.queueing import Queueing
from weft.edge_node.ingest.routes import Destination, Remembering, Route
from weft.edge_node.ingest.unrouted import Unrouted
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.protocols.topics import TopicPattern, compile_pattern

TOPICS_MAX = 100_000
"""Maximum number of topics whose streams are remembered; beyond it, all are forgotten and looked up again."""
TOPIC_BYTES_REMEMBERED_MAX = 512
"""Longer topics are looked up every time, so that the memory of topics stays below 100 MB for any input."""
TOPIC_LEVELS_MAX = 128
"""Deeper topics are refused. EMQX has the same default."""


class Router:
    """Lookup of the streams of a topic. A topic goes into every stream that has a matching pattern.

    Called once per distinct topic (``Routing`` remembers the answers), so a plain walk over the patterns is enough.
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

    @property
    def taking(self) -> tuple[int, ...]:
        """Return the numbers of the streams with patterns."""
        return tuple(number for number, patterns in self._streams if patterns)

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
        """Every stream that a session may have to read. The stream `unrouted` is not among them: it drops its oldest
        records, so persistent sessions have copies of their own. Other sessions read their messages there."""
        self.everybody = RouteCache(self, None)
        self.remembering: set[Remembering] = set()
        """Caches that have topics. Caches of thousands of silent clients have none to forget, and are not listed."""
        self.as_of = 0
        """Number of times that routes were forgotten."""
        self.queueing: Queueing | None = None
        """Queues that messages go to beside their streams."""
        self._before_log: Mapping[int, BeforeLog] = {}
        self._checks: Mapping[int, StreamCheck] = {}
        self._destinations: dict[tuple[tuple[int, ...], bool, tuple[BeforeLog, ...]], Destination] = {}
        self._routes: dict[tuple[Destination, int, bool], Route] = {}
        subscriptions.watch(self.forget)

    def routes_of(self, identity: Identity | None) -> RouteCache:
        """Return the routes of a client. Pass them to ``leave`` in the end."""
        if identity is None or identity.unrestricted:
            return self.everybody
        return RouteCache(self, identity)

    def leave(self, routes: RouteCache) -> None:
        """Forget the routes of a client that has gone."""
        if routes is not self.everybody:
            self.remembering.discard(routes)

    def forget(self) -> None:
        """Forget all routes: destinations or rights have changed."""
        self.as_of += 1
        remembering, self.remembering = self.remembering, set()
        for routes in remembering:
            routes.clear()

    def reroute(self, router: Router) -> tuple[int, ...]:
        """Use other patterns from now on. Records gathered before keep their destinations.

        Returns:
            Streams that are new as destinations: readers of the log must read them as well.
        """
        added = tuple(stream for stream in router.numbers if stream not in self.streams)
        self._router = router
        # A stream without topics stays: sessions may have to read its earlier records.
        self.streams = (*self.streams, *added)
        self._destinations.clear()
        self._routes.clear()
        self.forget()
        return added

    def work_before_log(self, before_log: Mapping[int, BeforeLog]) -> None:
        """Set the functions that process messages in place of some streams, which then get none themselves."""
        self._before_log = before_log
        self._destinations.clear()
        self._routes.clear()
        self.forget()

    def check_payloads(self, checks: Mapping[int, StreamCheck]) -> None:
        """Set the checks of payloads, by the number of their stream."""
        self._checks = checks
        self._routes.clear()
        self.forget()

    @property
    def has_checks(self) -> bool:
        """Return whether the payloads of some stream are checked."""
        return bool(self._checks)

    def matches(self, topic: bytes, stream: int) -> bool:
        """Return whether a stream's patterns match a topic."""
        return stream in self._router.streams(topic.decode())

    def queue_in(self, queueing: Queueing) -> None:
        """Route messages to queues, too."""
        self.queueing = queueing
        self.forget()

    @property
    def taking(self) -> Collection[int]:
        """Return the streams that take messages of clients."""
        return self._router.taking

    def route(self, topic: bytes, into: int | None = None) -> Route:
        """Return the route of a topic's records. It is the same for every publisher.

        Args:
            into: the stream that the sender names, in place of the matching ones.
        """
        return self.route_to(topic, None if self.queueing is None else self.queueing.of_topic(topic), into)

    def route_to(self, topic: bytes, queues: QueueTargets | None, into: int | None = None) -> Route:
        """Return the route of records with a topic for some queues; ``into`` as for ``route``."""
        recipients = self._subscriptions.recipients(topic)
        matching = self._router.streams(topic.decode()) if into is None else (into,)
        before_log = tuple(self._before_log[stream] for stream in matching if stream in self._before_log)
        streams = tuple(stream for stream in matching if stream not in self._before_log) if before_log else matching
        # Messages processed before the log are not stored, so sessions could not read them later.
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
        checks = [self._checks[stream] for stream in matching if stream in self._checks] if self._checks else ()
        # Routes with queues are not remembered here, as these come and go.
        key = (destination, recipients.live, recipients.marked)
        found = self._routes.get(key) if queues is None else None
        if found is None:
            found = Route(destination, live=recipients.live, marked=recipients.marked, queues=queues)
            if checks:
                found.check_by(Checks(checks, destination))
            if queues is None:
                self._routes[key] = found
        return found

    def hides(self, topic: bytes, payload: bytes) -> bool:
        """Return whether subscribers do not get a payload, because it does not fit: it must not be retained either. An
        empty one retains nothing."""
        checks = self.route(topic).checks if self._checks and payload else None
        return checks is not None and checks.hides(checks.look(payload))

    def refuses(self, topic: bytes) -> bool:
        """Return whether no stream matches a topic, and such messages are refused."""
        return self.unrouted.refuses and self.route(topic).unrouted


class RouteCache:
    """The routes that one kind of client may publish to. The cache makes permission checks free in the hot loop.

    Args:
        identity: the publisher's identity; None for one that may publish to all topics.
        into: the stream that the sender names, in place of the matching ones.
    """

    __slots__ = ("_identity", "_into", "_routing", "matched", "plain")

    def __init__(self, routing: Routing, identity: Identity | None, into: int | None = None) -> None:
        self._routing = routing
        self._identity = identity
        self._into = into
        self.plain: dict[bytes, Route] = {}
        """Known topics; call ``route`` for others."""
        self.matched: dict[bytes, Route] = {}
        """The same without topics that no stream and no subscriber takes, and those of a stream that refuses what does
        not fit it: MQTT 5.0 has reason codes for both."""

    def route(self, topic: bytes) -> Route | None:
        """Return the route of a valid topic's records; None when the client may not publish to it, or when no stream
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
            if found.taken and (found.checks is None or not found.checks.refuses):
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
