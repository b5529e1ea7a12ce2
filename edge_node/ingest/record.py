"""An incoming record of any protocol, and runs of records on their way to the log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from weft.bounds import Owner
from weft.edge_node.subscriptions.message import NOWHERE
from weft.protocols.batch import Flag, HeaderPairs, HeaderValue
from weft.protocols.message_headers import DELIVERY_MODE, PERSISTENT, REASON, SENDER
from weft.protocols.ranges import PackedHeaders

# Contract of functions that process messages before they are in the log (``raw: discard``).


class StreamRecords(NamedTuple):
    """Records for one stream, made of messages."""

    stream: int
    keys: list[bytes]
    payloads: list[bytes]
    headers: dict[int, HeaderPairs]
    origin: int
    """Number of their origin in the log."""


class BeforeLog(Protocol):
    """Receiver of messages in place of a stream. The messages themselves are not stored for it."""

    def runs(
        self, keys: list[bytes], payloads: list[bytes], headers: dict[int, HeaderPairs], now: int
    ) -> list[StreamRecords]:
        """Return what is to be stored of some messages, the same for the same messages. Raises nothing.

        Args:
            headers: index -> headers, for messages with headers.
            now: time of the messages, ns since 1970.
        """
        ...

    def stored(self, payloads: list[bytes], runs: Sequence[StreamRecords]) -> None:
        """Count the runs made of some messages, which were appended."""
        ...


# Contract between routes and the queues that take their messages.


class Admitted(Protocol):
    """Queues that take a message."""

    @property
    def header(self) -> tuple[str, HeaderValue]:
        """Return the header of the message's record with the queues' names."""
        ...


WIDE = 5
"""Number of queues from which on a route's messages are handled one by one: each costs as much as so many."""


class QueueTargets(Protocol):
    """Queues that the messages of a route are for. Compared by identity."""

    width: int
    """Number of the queues: the cost of a message of the route."""
    is_of_topic: bool
    """True if publishers without an exchange reach them by a topic, with other protocols than AMQP 0-9-1."""

    def admit(self, headers: HeaderPairs, size: int) -> Admitted | None:
        """Return the queues that take a message; None when none does.

        Args:
            headers: of the message.
            size: of its payload.
        """
        ...

    def admit_all(self, size: int) -> Admitted | None:
        """Return the queues if each of them takes all messages of up to ``size`` bytes now, whatever their headers;
        None where each message has to be asked for."""
        ...

    def withdraw(self) -> None:
        """Give back the room that was reserved for a message, which is not stored after all."""
        ...


# Destinations of records: streams, queues, and functions before the log.

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
        self,
        streams: tuple[int, ...],
        kept_for_sessions: bool,
        unrouted: bool,
        before_log: tuple[BeforeLog, ...] = (),
        *,
        is_beside: bool = False,
    ) -> None:
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
"""Checks that a payload does not pass (``routing.StreamCheck``), each with the reason. Empty for one that fits."""


class Parted(NamedTuple):
    """Places of a message that does not fit all of its streams."""

    letters: list[tuple[Route, str]]
    """Routes of its dead letters, each with the reason."""
    left: frozenset[int]
    """Streams of its route that do not get it."""
    continues: bool
    """False if its dead letters are all that is stored of it."""
    is_hidden: bool
    """True if neither subscribers nor queues get it."""


class RouteChecks(Protocol):
    """Checks of the messages of one route (``routing.Checks``)."""

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


SENDER_CHARACTERS_MAX = 256
_NONE_LEFT: dict[int, frozenset[int]] = {}
"""Shared by all runs whose records go to all of their streams. It stays empty."""


class NodeRecord(NamedTuple):
    """One record that the node stores of its own accord, such as a will."""

    key: bytes
    payload: bytes
    flags: int = 0
    """``protocols.batch.Flag`` bits."""
    headers: HeaderPairs = ()
    """With ``weft.expires`` among them for a record that expires."""
    publisher: str | None = None
    """Client identifier."""


class Source(Protocol):
    """Sender of records; it is answered once they are durable. Compared by identity."""

    publisher: str | None
    """Client identifier, for subscriptions that do not want their own messages."""

    @property
    def owner(self) -> Owner | None:
        """Return the owner in whose turns it is answered if a commit has many answers; None for the node itself."""

    def acknowledge(self, answers: bytes) -> None:
        """Send answers: everything before them is durable."""

    def refuse(self, error: BaseException) -> None:
        """End the connection: some of its records could not be stored, so they must not be acknowledged."""


class NodeSource:
    """The source of a record that the node stores of its own accord: it needs no answer."""

    __slots__ = ("publisher",)
    owner: Owner | None = None

    def __init__(self, publisher: str | None) -> None:
        self.publisher = publisher

    def acknowledge(self, answers: bytes) -> None:
        """Do nothing."""

    def refuse(self, error: BaseException) -> None:
        """Do nothing: the caller of ``Ingest.publish`` gets the error."""


class Records:
    """A run of records for one destination, in order of receipt."""

    __slots__ = (
        "_payload_bytes",
        "by_stream",
        "copied_in",
        "flags",
        "headers",
        "keys",
        "left",
        "marked",
        "payloads",
        "seqs",
        "sources",
    )

    def __init__(self, copied_in: int = NOWHERE) -> None:
        self.copied_in = copied_in
        """``Destination.copied_in``."""
        self.keys: list[bytes] = []
        self.payloads: list[bytes] = []
        self.sources: list[Source] = []
        """Source of each record."""
        self.flags: dict[int, int] = {}
        """Index in this run -> flag bits, for records with flags."""
        self.headers: dict[int, HeaderPairs] = {}
        """Likewise."""
        self.marked: list[int] = []
        """Indexes of the records that name their publisher."""
        self.left = _NONE_LEFT
        """Index in this run -> streams that do not get the record, for those that do not fit all streams."""
        self.seqs: Sequence[int | None] = ()
        """Once it is stored: the seq of each record in the first of its streams; None for one that is not there."""
        self.by_stream: dict[int, Sequence[int | None]] = {}
        """Once it is stored: the same for each of its streams."""
        self._payload_bytes = -1

    @property
    def payload_bytes(self) -> int:
        """Return the bytes of all payloads. They are counted once: ask when the run is whole."""
        if self._payload_bytes < 0:
            self._payload_bytes = sum(map(len, self.payloads))
        return self._payload_bytes

    def add(self, key: bytes, payload: bytes, source: Source, flags: int, headers: HeaderPairs) -> None:
        """Add one record."""
        if flags:
            self.flags[len(self.keys)] = flags
        if headers:
            self.headers[len(self.keys)] = headers
        self.keys.append(key)
        self.payloads.append(payload)
        self.sources.append(source)

    def extend(
        self, keys: Sequence[bytes], payloads: Sequence[bytes], headers: Sequence[HeaderPairs], source: Source
    ) -> None:
        """Add records of one source, without flags."""
        at = len(self.keys)
        self.headers.update({index: pairs for index, pairs in enumerate(headers, at) if pairs})
        self.keys += keys
        self.payloads += payloads
        self.sources += [source] * len(keys)

    def leave(self, streams: frozenset[int]) -> None:
        """Leave the last record out of some streams."""
        if not self.left:
            self.left = {}  # of its own
        self.left[len(self.keys) - 1] = streams

    def kept_in(self, stream: int) -> list[int] | None:
        """Return the indexes of the records that a stream gets; None for all."""
        if not self.left:
            return None
        return [index for index in range(len(self.keys)) if stream not in self.left.get(index, ())]

    def cut(self, first: int) -> list[tuple[bytes, bytes, Source, int, HeaderPairs]]:
        """Take out the records from ``first`` on; return them as arguments of ``add``."""
        taken = [
            (
                self.keys[index],
                self.payloads[index],
                self.sources[index],
                self.flags.pop(index, 0),
                self.headers.pop(index, ()),
            )
            for index in range(first, len(self.keys))
        ]
        del self.keys[first:], self.payloads[first:], self.sources[first:]
        return taken

    def where(self, indexes: Sequence[int]) -> Records:
        """Return a run of some of the records."""
        part = Records(self.copied_in)
        for at, index in enumerate(indexes):
            part.add(
                self.keys[index],
                self.payloads[index],
                self.sources[index],
                self.flags.get(index, 0),
                self.headers.get(index, ()),
            )
            if _holds(self.marked, index):
                part.marked.append(at)
        return part

    def by_source(self, indexes: Sequence[int]) -> Iterator[list[int]]:
        """Return the indexes in stretches of one source each, in order."""
        for _, stretch in groupby(indexes, lambda index: id(self.sources[index])):
            yield list(stretch)


def letter_headers(headers: HeaderPairs, why: str, sender: str | None) -> HeaderPairs:
    """Return the headers of a dead letter.

    Args:
        sender: client identifier of its publisher.
    """
    own = ((REASON, why),) if sender is None else ((REASON, why), (SENDER, sender[:SENDER_CHARACTERS_MAX]))
    return (*headers, *own)


def _holds(ascending: list[int], index: int) -> bool:
    at = bisect_left(ascending, index)
    return at < len(ascending) and ascending[at] == index


class Groups(dict[Destination, Records]):
    """Runs by destination. A destination without a run gets one at the first access."""

    def __missing__(self, destination: Destination) -> Records:
        """Begin a run."""
        records = self[destination] = Records(destination.copied_in)
        return records


class Gathering:
    """Records that are not stored yet, and their pending answers, in order of receipt."""

    __slots__ = ("answers", "clients", "cost", "groups", "live", "more_acks", "queued")

    def __init__(self) -> None:
        self.groups = Groups()
        self.live: list[tuple[Records, int]] = []
        """Records of topics that a client is subscribed to now, as run and index."""
        self.queued: list[tuple[Records, int, QueueTargets]] = []
        """Records for queues, as run and index, in order of receipt: a queue keeps that order across runs."""
        self.clients: list[Source] = []
        self.answers: list[bytes] = []
        """Answers to the clients at the same places of ``clients``, sent once everything gathered is durable. Two lists
        instead of pairs: objects that the garbage collector tracks cost more than the rest of a message."""
        self.cost = 0
        """Cost of storing ``live`` and ``queued``, in deliveries to clients."""
        self.more_acks = 0
        """Number of acknowledged records beyond one for each of ``answers``."""

    def __bool__(self) -> bool:
        return bool(self.groups or self.clients)

    def add(  # noqa: PLR0917
        self,
        route: Route,
        key: bytes,
        payload: bytes,
        source: Source,
        flags: int = 0,
        headers: HeaderPairs = (),
        misfits: Misfits | None = None,
    ) -> Records | None:
        """Add one record, and its dead letters.

        Args:
            misfits: what ``route.checks`` has found; None where it was not asked yet.

        Returns:
            The run whose last record it is; None for one that is a dead letter and nothing else.
        """
        parted = None
        if route.checks is not None:
            parted = route.checks.place(route.checks.look(payload) if misfits is None else misfits)
        if parted is not None:
            for letter, why in parted.letters:
                self.add(letter, key, payload, source, flags, letter_headers(headers, why, source.publisher))
            if parted.is_hidden and route.queues is not None:
                route.queues.withdraw()
            if not parted.continues:
                return None
        run = self.groups[route.destination]
        run.add(key, payload, source, flags, headers)
        if parted is not None:
            run.leave(parted.left)
        if route.noted and (parted is None or not parted.is_hidden):
            self.note_fitting(route, run, len(run.keys) - 1)
        return run

    def note(self, route: Route, run: Records, first: int) -> None:
        """Note that the records of ``run`` from ``first`` on are of a route that is ``noted``. Those that do not fit
        are taken out of it: whatever becomes of them, their publisher gets the answer of records that are stored."""
        if route.checks is not None:
            found = list(map(route.checks.look, run.payloads[first:]))
            self.checked()
            if any(found):
                for (key, payload, source, flags, headers), misfits in zip(run.cut(first), found, strict=True):
                    self.add(route, key, payload, source, flags, headers, misfits)
                return
        self.note_fitting(route, run, first)

    def checked(self) -> None:
        """Note that payloads were checked, which takes time."""

    def note_fitting(self, route: Route, run: Records, first: int) -> None:
        """Do what ``note`` does, for records whose payloads were checked."""
        indexes = range(first, len(run.keys))
        if route.marked:
            run.marked += indexes
        if route.live:
            self.live += [(run, index) for index in indexes]
        if (queues := route.queues) is not None:
            if len(indexes) == 1:
                self.queued.append((run, first, queues))
            else:
                self.queued += [(run, index, queues) for index in indexes]
        self.cost += len(indexes) * route.cost

    def answer(self, client: Source, data: bytes) -> None:
        """Queue data for a client, behind its earlier answers."""
        self.clients.append(client)
        self.answers.append(data)

    def hand_over(self) -> Gathering:
        """Return the gathered records and answers, and begin again."""
        taken = Gathering()
        taken.groups, self.groups = self.groups, taken.groups
        taken.live, self.live = self.live, taken.live
        taken.queued, self.queued = self.queued, taken.queued
        taken.clients, self.clients = self.clients, taken.clients
        taken.answers, self.answers = self.answers, taken.answers
        taken.more_acks, taken.cost = self.more_acks, self.cost
        self.more_acks = self.cost = 0
        return taken


# Contract of the queues that messages go to beside their streams; ``edge_node/queues`` implements it.


class Queueing(Protocol):
    """The queues of the node. Event loop's thread only."""

    stream: int
    """Stream with the messages of all queues."""

    def of_topic(self, topic: bytes) -> QueueTargets | None:
        """Return the queues of a topic that clients publish to without naming an exchange; None for none."""
        ...

    def before_store(self, first_seq: int, admitted: Sequence[Admitted]) -> None:
        """Note that messages are about to be appended to ``stream``, in the same commit as the changes that this call
        records.

        Args:
            first_seq: number of the first of them, if they are not refused.
        """

    def stored(self, records: Records, admitted: Sequence[Admitted], now: int) -> None:
        """Add messages to their queues, and deliver them. Messages whose seq is None were refused.

        Args:
            admitted: the queues of each message.
            now: time of the messages, ns since 1970.
        """


class QueuedRun(Records):
    """The records of a turn for queues, in order of receipt."""

    __slots__ = ("admitted",)

    def __init__(self) -> None:
        super().__init__()
        self.admitted: list[Admitted] = []
        """Queues of each record."""


def persistent(headers: HeaderPairs) -> HeaderPairs:
    """Return headers that mark a message as persistent, because its publisher is answered once it is on disk."""
    if any(name == DELIVERY_MODE for name, _ in headers):
        return headers
    return headers.plus(PERSISTENT) if type(headers) is PackedHeaders else (*headers, PERSISTENT)


def queued_run(gathered: Gathering, refused: Mapping[Source, object]) -> QueuedRun:
    """Return the run of records to store for queues.

    Args:
        refused: sources whose records are not stored.
    """
    run = QueuedRun()
    for queues, stretch in groupby(gathered.queued, _QUEUES):
        parts = list(stretch)
        if refused:
            parts = [each for each in parts if each[0].sources[each[1]] not in refused]
        # Nearly always: whatever the messages say, all queues take all of them.
        every = queues.admit_all(max([len(records.payloads[index]) for records, index, _ in parts], default=0))
        latest: tuple[object, object, int] | None = None
        named: HeaderPairs = ()
        for records, index, _ in parts:
            headers = records.headers.get(index, ())
            payload = records.payloads[index]
            admitted = every or queues.admit(headers, len(payload))
            if admitted is None:
                continue
            flags = records.flags.get(index, 0)
            if latest is None or latest[0] is not headers or latest[1] is not admitted or latest[2] != flags:
                latest = headers, admitted, flags
                named = _named(headers, admitted, is_persistent=queues.is_of_topic and not flags & _PUBLISHED_QOS0)
            run.add(records.keys[index], payload, records.sources[index], flags, named)
            run.admitted.append(admitted)
    return run


_QUEUES: Callable[[tuple[Records, int, QueueTargets]], QueueTargets] = itemgetter(2)
_PUBLISHED_QOS0 = int(Flag.PUBLISHED_QOS0)


def _named(headers: HeaderPairs, admitted: Admitted, *, is_persistent: bool) -> HeaderPairs:
    """Return the headers of a record for queues."""
    if is_persistent:
        headers = persistent(headers)
    return headers.plus(admitted.header) if type(headers) is PackedHeaders else (*headers, admitted.header)
