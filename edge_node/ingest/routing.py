"""Routes of topics: looked up once, and remembered until subscriptions, queues or patterns change."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nlargest
from typing import Any, Final, Literal

from weft.config.log_lines import Repeats, left_out
from weft.config.metrics.exposition import Sample
from weft.config.models import EdgeConfig
from weft.config.streams import CheckedSchema
from weft.edge_node.access.identity import Identity
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.record import (
    CHECK_COST,
    FIELD_COST,
    BeforeLog,
    Destination,
    Misfits,
    Parted,
    Queueing,
    QueueTargets,
    Remembering,
    Route,
)
from weft.edge_node.part import Part, Undo
from weft.edge_node.streams import UNROUTED_STREAM, errors_stream
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.protocols.payloads import PAYLOAD_BYTES_MAX
from weft.protocols.topics import TopicPattern, compile_pattern
from weft.storage.segment_log import SegmentLog

# Messages whose topic no stream matches: their treatment, counts and log lines.

TOPICS_NAMED_MAX = 1_000
"""Topics that get a line in the node's log; the next line reports that no more will be named."""
TOPICS_SHOWN = 10
"""Busiest topics in the node's status."""
TOPIC_SHOWN_BYTES_MAX = 128

log = logging.getLogger(__name__)

UnroutedPolicy = Literal["keep", "live", "refuse"]


class Unrouted:
    """Policy, counts and log lines for messages that no stream matches. Belongs to the event loop's thread."""

    def __init__(self, policy: UnroutedPolicy, streams: SegmentLog, counters: Counters) -> None:
        """Declare the stream if the policy keeps messages."""
        self.policy = policy
        self.streams = (streams.stream(UNROUTED_STREAM),) if policy == "keep" else ()
        """SegmentLog that keep the messages: one or none."""
        self._counters = counters
        self._busiest = BusiestTopics()
        self._named: set[int] = set()
        self._is_first = True

    @property
    def refuses(self) -> bool:
        """Return whether such messages are refused."""
        return self.policy == "refuse"

    def met(self, topic: bytes) -> None:
        """Log a warning for a topic not named before, unless the policy keeps its messages.

        Called when a client publishes to it for the first time, or for the first time since it was last forgotten.
        """
        key = hash(topic)
        # Devices choose topics, so the log names each once and only so many of them.
        if self.policy == "keep" or key in self._named or len(self._named) > TOPICS_NAMED_MAX:
            return
        self._named.add(key)
        if len(self._named) > TOPICS_NAMED_MAX:
            log.warning(
                "no stream matches more than %d topics: further ones are not named here. `weft edge status` shows the "
                "busiest",
                TOPICS_NAMED_MAX,
            )
        elif self.refuses:
            log.warning("no stream matches topic %r: messages to it are refused (`unrouted: refuse`)", _shown(topic))
        else:
            log.warning(
                "no stream matches topic %r: messages to it go to subscribers and are not kept (`unrouted: live`)",
                _shown(topic),
            )

    def count(self, topics: list[bytes]) -> None:
        """Count such messages, taken or refused; ``topics`` has one topic for each of them."""
        self._counters.publishes_unrouted += len(topics)
        self._busiest.add(topics)
        if self._is_first and self.policy == "keep":
            self._is_first = False
            log.info(
                "no stream matches topic %r: such messages are kept in the stream %s for a while and go to "
                "no hub. Add its topics to a stream's `from` if they are wanted; `weft edge status` shows the busiest",
                _shown(topics[0]),
                UNROUTED_STREAM,
            )

    def facts(self) -> dict[str, Any]:
        """Return the section of the status: counts since the start; the counts of topics are lower bounds."""
        return {
            "policy": self.policy,
            "messages": self._counters.publishes_unrouted,
            "busiest": [
                {"topic": topic.decode(errors="replace"), "messages": count}
                for topic, count in self._busiest.top(TOPICS_SHOWN)
            ],
        }


def _shown(topic: bytes) -> str:
    return topic[:TOPIC_SHOWN_BYTES_MAX].decode(errors="replace")


TOPICS_KEPT = 64
"""Number of counters kept when too many have gathered. A topic with more than one in 65 of all messages is among
them."""
TOPIC_BYTES_MAX = 256
"""Longer topics are counted by their beginning, so that the counters take less than 100 KB."""


class BusiestTopics:
    """Counts by the method of Misra and Gries, many messages at a time.

    A count is never too high. It is too low by at most one in ``TOPICS_KEPT`` + 1 of all messages counted.
    """

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()

    def add(self, topics: list[bytes]) -> None:
        """Count one message for each of these topics; there must be one."""
        first = topics[0]
        if topics.count(first) == len(topics):  # most runs are of one device
            self._counts[first[:TOPIC_BYTES_MAX]] += len(topics)
        else:
            for topic, count in Counter(topics).items():
                self._counts[topic[:TOPIC_BYTES_MAX]] += count
        # Only when as many again have gathered: so one pass over all counters serves at least TOPICS_KEPT new topics.
        if len(self._counts) > 2 * TOPICS_KEPT:
            self._reduce()

    def top(self, count: int) -> list[tuple[bytes, int]]:
        """Return the topics with most messages, busiest first, each with a lower bound of its count."""
        return self._counts.most_common(count)

    def _reduce(self) -> None:
        # Subtracting the highest dropped count from all others keeps the bound, as one-by-one removal would (Agarwal
        # and others, "Mergeable summaries", 2012).
        floor = nlargest(TOPICS_KEPT + 1, self._counts.values())[-1]
        self._counts = Counter({topic: count - floor for topic, count in self._counts.items() if count > floor})


# Checks of payloads against the schemas of streams, before the records are in the log.

CheckPolicy = Literal["accept", "dead_letter", "refuse"]
Check = Callable[[bytes], Sequence[tuple[str, str]]]
"""Function of a payload that returns the fields that do not fit, each with the reason."""
REASON_CHARACTERS_MAX: Final = 500
"""Longest reason in a record's header, and in an answer."""


@dataclass(slots=True)
class CheckFigures:
    """Figures of one stream since the node started. Messages that the log has no room for, and that come again, count
    each time."""

    checked: int = 0
    unchecked: int = 0
    """Messages that were too long for a check, and were stored."""
    accepted: int = 0
    """Misfits that were stored in the stream."""
    dead_lettered: int = 0
    """Misfits that were stored in the stream of errors."""
    refused: int = 0
    fields: str = ""
    """Names of the fields of the last misfit, without its values; empty before the first."""


class StreamCheck:
    """The check of one stream. Event loop's thread only."""

    __slots__ = ("_beside", "_check", "_letters", "_unchecked", "cost", "figures", "name", "policy", "stream", "watch")

    def __init__(  # noqa: PLR0917
        self,
        name: str,
        stream: int,
        errors: int,
        policy: CheckPolicy,
        check: Check,
        unchecked: range,
        figures: CheckFigures,
        watch: Callable[[], None],
        *,
        fields: int,
    ) -> None:
        """Describe the check.

        Args:
            stream: number of the stream.
            errors: number of its stream of errors; anything for ``accept``.
            unchecked: lengths of payloads that would take too long. Longer ones than these do not fit, at once.
            watch: called after each misfit.
            fields: number of the fields of the schema.
        """
        self.name, self.stream, self.policy = name, stream, policy
        self._check, self._unchecked = check, unchecked
        self.figures, self.watch = figures, watch
        self.cost = CHECK_COST + FIELD_COST * fields
        self._letters = _route_to(errors)
        self._beside = _route_to(errors, is_beside=True)

    def look(self, payload: bytes) -> str:
        """Return why a payload does not fit; empty if it does, or is too long for a check."""
        figures = self.figures
        # Payloads between the two bounds cost more to check than to store; they are counted as unchecked.
        if len(payload) in self._unchecked:
            figures.unchecked += 1
            return ""
        figures.checked += 1
        found = self._check(payload)
        if not found:
            return ""
        figures.fields = ", ".join(name for name, _ in found)
        return "; ".join(f"{name}: {reason}" for name, reason in found)[:REASON_CHARACTERS_MAX]

    def letters(self, *, beside: bool) -> Route:
        """Return the route of a dead letter.

        Args:
            beside: whether the message goes elsewhere, too, so that it is counted there.
        """
        # The copy of a record that is stored elsewhere too is not counted as a message of its own.
        return self._beside if beside else self._letters


def _route_to(stream: int, *, is_beside: bool = False) -> Route:
    destination = Destination((stream,), kept_for_sessions=False, unrouted=False, is_beside=is_beside)
    return Route(destination, live=0, marked=False)


class Checks:
    """Checks of the messages of one route. Event loop's thread only."""

    __slots__ = ("_all", "_destination", "cost", "refuses")

    def __init__(self, checks: Sequence[StreamCheck], destination: Destination) -> None:
        """Join the checks of a destination's streams."""
        self._all = checks
        self._destination = destination
        self.cost = sum(check.cost for check in checks)
        self.refuses = any(check.policy == "refuse" for check in checks)

    def look(self, payload: bytes) -> Misfits:
        """Check a payload. Pass the answer on to ``refusal`` and ``place``: each of the two counts misfits."""
        found = [(each, why) for each in self._all if (why := each.look(payload))]
        return found or ()

    def hides(self, misfits: Misfits) -> bool:
        """Return whether neither subscribers nor queues get a message. They get what the first stream of its topic has:
        sessions read that one later, and would get the messages of a topic in another order with those of another."""
        first = self._destination.streams[0]
        return is_refused(misfits) or any(check.stream == first and check.policy != "accept" for check, _ in misfits)

    def place(self, misfits: Misfits) -> Parted | None:
        """Return where a message goes that is stored although it may not fit; None for where its route says.

        A message that should be refused, and whose sender gets no answer, goes to the errors alone.
        """
        letters: list[tuple[StreamCheck, str]] = []
        for check, why in misfits:
            if check.policy == "accept":
                check.figures.accepted += 1
            else:
                check.figures.dead_lettered += 1
                letters.append((check, why))
            check.watch()
        if not letters:
            return None
        destination, left = self._destination, frozenset(check.stream for check, _ in letters)
        is_elsewhere = bool(destination.before_log) or not left.issuperset(destination.streams)
        # One stream's schema says nothing of the others that take the topic: they get the record as it came.
        continues = is_elsewhere and not is_refused(misfits)
        routes = [(check.letters(beside=continues or at > 0), why) for at, (check, why) in enumerate(letters)]
        return Parted(routes, left, continues, self.hides(misfits))


def is_refused(misfits: Misfits) -> bool:
    """Return whether a stream refuses a message with these misfits."""
    return any(check.policy == "refuse" for check, _ in misfits)


def refusal(route: Route, misfits: Misfits) -> str:
    """Count a message that is refused, and return the reason for its sender; empty if no stream refuses it.

    Call it only where the protocol has such an answer. The message must not be stored then.
    """
    for check, why in misfits:
        if check.policy == "refuse":
            check.figures.refused += 1
            check.watch()
            if route.queues is not None:
                # The places that the queues had reserved for the message are free again.
                route.queues.withdraw()
            return f"it does not fit the schema of stream {check.name}: {why}"
    return ""


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
        # Clients without rules share one memory of routes. Topics would otherwise be matched again for each of
        # thousands of devices.
        if identity is None or identity.unrestricted:
            return self.everybody
        return RouteCache(self, identity)

    def leave(self, routes: RouteCache) -> None:
        """Forget the routes of a client that has gone."""
        if routes is not self.everybody:
            self.remembering.discard(routes)

    def forget(self) -> None:
        """Forget all routes: destinations or rights have changed."""
        # Whatever remembers a route compares this number, so that no message follows a route of former subscriptions.
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
        # A queue that takes the message keeps it, so it is not one that would be lost.
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
        # Bounded by number and length: topics come from devices, and a device with a counter in its topics would fill
        # the memory.
        if len(topic) <= TOPIC_BYTES_REMEMBERED_MAX and not found.is_wide:
            # All at once: finding the least used topic would cost more than matching the next few again.
            if len(self.plain) >= TOPICS_MAX:
                self.clear()
            routing.remembering.add(self)
            self.plain[topic] = found
            if found.taken and (found.checks is None or not found.checks.refuses):
                self.matched[topic] = found
        return found

    def permits(self, topic: bytes) -> bool:
        """Return whether limits and access rules let the client publish to a topic."""
        # The node alone states facts under $SYS, and each level costs a step for every filter.
        if topic.startswith(b"$SYS/") or topic.count(b"/") >= self._routing.topic_levels_max:
            return False
        return self._identity is None or self._identity.may_publish(topic)

    def clear(self) -> None:
        """Forget all routes."""
        self.plain.clear()
        self.matched.clear()


# Checks of payloads as a part of the node: from the schemas of a configuration to the checks of its routes.

logger = logging.getLogger(__name__)

_BECOMES = {
    "accept": "it is stored all the same (`on_misfit: accept`)",
    "dead_letter": "it is in {errors}, with the reason",
    "refuse": "it is refused, or in {errors} if its sender gets no answer",
}


class PayloadChecks(Part):
    """The checks of all streams with a schema. The code of checks is loaded once a node has some."""

    name = "payload checks"

    def __init__(self, config: EdgeConfig, log: SegmentLog, routing: Routing, clock: Callable[[], float]) -> None:
        """Begin to check.

        Args:
            clock: monotonic seconds.
        """
        self._log = log
        self._routing = routing
        self._clock = clock
        self._made: dict[str, tuple[CheckedSchema, Check]] = {}
        """Checks of the schemas in use: a change of other settings makes none of them again."""
        self._checks: dict[str, StreamCheck] = {}
        self._lines = Repeats()
        self._put(config)

    def _put(self, config: EdgeConfig) -> None:
        """Check payloads by the schemas of a configuration from now on. The figures of each stream continue."""
        schemas = {name: each.schema for name, each in config.streams.items() if each.schema is not None}
        if not schemas and not self._checks:
            return
        # Imported here: few nodes have a schema.
        from weft.storage.payloads.check import CHECKED_BYTES_MAX

        made = {name: self._check_of(name, schema) for name, schema in schemas.items()}
        unchecked = range(CHECKED_BYTES_MAX + 1, PAYLOAD_BYTES_MAX + 1)
        checks = {}
        for name, (_, check) in made.items():
            policy, number = config.streams[name].on_misfit, self._log.stream(name)
            errors = number if policy == "accept" else self._log.stream(errors_stream(name))
            figures = self._checks[name].figures if name in self._checks else CheckFigures()
            watch = partial(self._warn, name, policy, figures)
            checks[name] = StreamCheck(
                name, number, errors, policy, check, unchecked, figures, watch, fields=len(schemas[name].fields)
            )
        self._made, self._checks = made, checks
        self._routing.check_payloads({check.stream: check for check in checks.values()})

    def _check_of(self, name: str, schema: CheckedSchema) -> tuple[CheckedSchema, Check]:
        known = self._made.get(name)
        return known if known is not None and known[0] == schema else (schema, _Later(schema))

    def _warn(self, name: str, policy: str, figures: CheckFigures) -> None:
        """Write a line about a misfit, the first time and then seldom. It has no values: logs go far."""
        repeated = self._lines.due(name, self._clock())
        if repeated is not None:
            becomes = _BECOMES[policy].format(errors=errors_stream(name))
            logger.warning(
                "stream %s: a message does not fit the schema (%s): %s%s",
                name,
                figures.fields,
                becomes,
                left_out(repeated),
            )

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Undo:
        """Check payloads by the schemas of ``now``."""
        self._put(now)
        return lambda: self._put(before)

    def facts(self) -> Mapping[str, Any]:
        """Return the section of the status."""
        return {"schemas": {name: _facts(check) for name, check in self._checks.items()}}

    def samples(self) -> Iterator[Sample]:
        """Yield the values of the metrics."""
        for name, check in self._checks.items():
            figures = check.figures
            yield Sample("weft_edge_schema_checked_total", figures.checked, (name,))
            yield Sample("weft_edge_schema_unchecked_total", figures.unchecked, (name,))
            for outcome in ("accepted", "dead_lettered", "refused"):
                yield Sample("weft_edge_schema_misfits_total", getattr(figures, outcome), (name, outcome))


class _Later:
    """A check that is made when the first payload comes: 1,000 of them at once would be a long step."""

    def __init__(self, schema: CheckedSchema) -> None:
        self._schema = schema
        self._check: Check | None = None

    def __call__(self, payload: bytes) -> Sequence[tuple[str, str]]:
        if self._check is None:
            from weft.storage.payloads.check import PayloadCheck

            self._check = PayloadCheck(self._schema).misfits
        return self._check(payload)


def _facts(check: StreamCheck) -> dict[str, Any]:
    figures = check.figures
    return {
        "on_misfit": check.policy,
        "checked": figures.checked,
        "unchecked": figures.unchecked,
        "accepted": figures.accepted,
        "dead_lettered": figures.dead_lettered,
        "refused": figures.refused,
        "last_misfit": figures.fields,
    }
