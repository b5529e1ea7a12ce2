"""Destinations of records: streams, queues, and functions before the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from weft.edge_node.ingest.before_log import BeforeLog
from weft.edge_node.ingest.queue_targets import WIDE, QueueTargets
from weft.edge_node.subscriptions.message import NOWHERE

COPY_COST = 16
"""Cost of an entry in a queue, in deliveries to clients: 5 µs beside 0.3 to 0.6."""
WRITE_COST = 16
"""The same for a message that is delivered to clients: each client may get a different one, and so a write of its own,
of 15 µs."""
CHECK_COST = 32
"""The same for the check of a payload: one that does not fit takes 10 to 25 µs, with its dead letter."""
FIELD_COST = 8
"""The same for each field of its schema: a few bytes for each may be the wrong object, which takes 3.4 µs."""


class Destination:
    """Streams that take the records of some topics. Compared by identity: equal destinations are one object."""

    __slots__ = ("before_log", "copied_in", "is_beside", "kept_for_sessions", "streams", "unrouted")

    def __init__(
        self, streams: tuple[int, ...], kept_for_sessions: bool, unrouted: bool,
        before_log: tuple[BeforeLog, ...] = (), *, is_beside: bool = False,
    ) -> None:  # fmt: skip
        self.streams = streams
        """The stream from which sessions read the records is first. Empty only with `unrouted: live`, for topics that
        no stream matches: their messages are counted, delivered and acknowledged."""
        self.kept_for_sessions = kept_for_sessions
        """True if no stream of the configuration stores the original messages, and persistent sessions subscribe to
        them: then a copy is stored for these, in the first of ``streams``."""
        self.unrouted = unrouted
        """True if no stream of the configuration matches the topics."""
        self.before_log = before_log
        """Functions that process the records before the log, in place of streams."""
        self.is_beside = is_beside
        """True for dead letters of messages that have another destination, too, and are counted there."""
        self.copied_in = streams[-1] if unrouted and kept_for_sessions and len(streams) > 1 else NOWHERE
        """The stream `unrouted`, if its records have a copy for persistent sessions in another stream."""


class Route:
    """Destination of a topic's records, and their further needs. Compared by identity: equal routes are one object."""

    __slots__ = ("check_cost", "checks", "cost", "destination", "is_wide", "live", "marked", "noted", "queues")

    def __init__(
        self, destination: Destination, *, live: int, marked: bool, queues: QueueTargets | None = None
    ) -> None:
        self.destination = destination
        self.live = live
        """Approximate number of clients that are subscribed to the topic now; 0 for none."""
        self.marked = marked
        """True if its records name their publisher."""
        self.queues = queues
        """Queues that get the records; None for none."""
        self.checks: RouteChecks | None = None
        """Checks that the payloads have to pass; None for none, as for most routes."""
        self.check_cost = 0
        """Part of ``cost`` that is for the checks."""
        self.is_wide = queues is not None and queues.width >= WIDE
        """True if each record is for many queues."""
        self.noted = bool(live) or marked or queues is not None
        """True if its records need more than a place in the run of their destination."""
        self.cost = (live + WRITE_COST if live else 0) + (COPY_COST * queues.width if queues is not None else 0)
        """Cost of storing each record, in deliveries to clients."""

    def check_by(self, checks: RouteChecks) -> None:
        """Have the payloads of the route checked."""
        self.checks = checks
        self.noted = True
        self.check_cost = checks.cost
        self.cost += checks.cost

    @property
    def streams(self) -> tuple[int, ...]:
        """Return the streams of the destination."""
        return self.destination.streams

    @property
    def taken(self) -> bool:
        """Return whether a stream, a subscriber or a queue takes the records."""
        destination = self.destination
        return bool(destination.streams or self.live or destination.before_log or self.queues is not None)

    @property
    def kept_for_sessions(self) -> bool:
        """Return the destination's ``kept_for_sessions``."""
        return self.destination.kept_for_sessions

    @property
    def unrouted(self) -> bool:
        """Return the destination's ``unrouted``."""
        return self.destination.unrouted


Misfits = Sequence[tuple[Any, str]]
"""Checks that a payload does not pass (``checks.StreamCheck``), each with the reason. Empty for one that fits."""


class Parted(NamedTuple):
    """Places of a message that does not fit all of its streams."""

    letters: list[tuple[Route, str]]
    """Routes of its dead letters, each with the reason."""
    left: frozenset[int]
    """Streams of its route that do not get it."""
    goes_on: bool
    """False if its dead letters are all that is stored of it."""
    is_hidden: bool
    """True if neither subscribers nor queues get it."""


class RouteChecks(Protocol):
    """Checks of the messages of one route (``checks.Checks``)."""

    cost: int
    """Cost of the checks of a payload, as of ``Route.cost``."""
    refuses: bool
    """True if a stream refuses what does not fit it, so that publishers may get other answers."""

    def look(self, payload: bytes) -> Misfits:
        """Check a payload. The caller passes the answer on to ``place``, or refuses the message."""
        ...

    def hides(self, misfits: Misfits) -> bool:
        """Return whether subscribers do not get a message."""
        ...

    def place(self, misfits: Misfits) -> Parted | None:
        """Return where a message goes that is stored although it may not fit; None for where its route says."""
        ...


class Remembering(Protocol):
    """Holder of remembered routes."""

    def clear(self) -> None:
        """Forget all routes."""
