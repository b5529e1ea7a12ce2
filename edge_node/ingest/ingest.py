"""Where all listeners end: from topics and payloads to records of streams, and to subscribers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from weft.edge_node.broker_ports import Identity
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.back_pressure import BackPressure, PendingLog
from weft.edge_node.ingest.router import Router
from weft.edge_node.ingest.unrouted import Unrouted
from weft.edge_node.subscriptions.fan_out import FanOut
from weft.edge_node.subscriptions.message import NOWHERE, PUBLISHER
from weft.edge_node.subscriptions.message_headers import to_headers
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.protocols.batch import Flag, HeaderPairs
from weft.protocols.mqtt.packets import Publish
from weft.protocols.mqtt.publish_run import PublishRun, Records

TOPIC_LEVELS_MAX = 128
"""Deeper topics are refused. EMQX has the same default."""
TOPICS_MAX = 100_000
"""Topics whose streams are remembered; when there are more, all are forgotten and found anew."""
TOPIC_BYTES_REMEMBERED_MAX = 512
"""Longer topics are looked up every time, so that the memory of topics stays below 100 MB whatever clients send."""

PacketsOf = Mapping["Target", Mapping[int, Publish]]
"""Target -> index in its records -> the packet, for publishes with properties."""


class Log(PendingLog, Protocol):
    """What ingest needs of the segment log. Every call belongs to the event loop's thread."""

    def append(  # noqa: PLR0917
        self,
        stream: int,
        time: int,
        keys: list[bytes],
        payloads: list[bytes],
        headers: dict[int, HeaderPairs] | None = None,
        flags: dict[int, int] | None = None,
        payload_bytes: int | None = None,
    ) -> int:
        """Take a run of records, which is not durable yet; the lists are the log's from then on.

        Raises:
            LogFull, LogFailed: nothing of the run was taken.
        """
        ...

    def next_seq(self, stream: int) -> int:
        """The number that the next record will get."""
        ...

    def together(self, reserve_bytes: int) -> AbstractContextManager[None]:
        """A context in which all appends go into one commit."""
        ...

    def appended_together(self) -> object | None:
        """None outside of that context."""
        ...

    def ask_room(
        self, runs: Iterable[tuple[int, list[bytes], list[bytes], dict[int, HeaderPairs] | None]], time: int
    ) -> None:
        """Make sure, within that context, that full streams take the runs. Raises LogFull: append none of them."""


class Target:
    """Where the records of a topic go. Compared by identity: equal targets are one object."""

    __slots__ = ("kept_for_sessions", "live", "marked", "streams", "unrouted")

    def __init__(
        self, streams: tuple[int, ...], live: bool, kept_for_sessions: bool, marked: bool, unrouted: bool
    ) -> None:
        self.streams = streams
        """The streams that take the records; the one from which sessions read them comes first. Empty only with
        `unrouted: live`, for a topic that no stream matches: its messages are counted, delivered and acknowledged."""
        self.live = live
        """Whether somebody is subscribed to the topic now."""
        self.kept_for_sessions = kept_for_sessions
        """Whether no stream of the configuration matches it and persistent sessions want it: then a copy is stored
        for them, first in ``streams``."""
        self.marked = marked
        """Whether its records name their publisher."""
        self.unrouted = unrouted
        """Whether no stream of the configuration matches it."""


class Topics:
    """The targets that one kind of client may publish to, so that permission costs nothing in the hot loop."""

    __slots__ = ("_identity", "_ingest", "matched", "plain")

    def __init__(self, ingest: Ingest, identity: Identity | None) -> None:
        self._ingest = ingest
        self._identity = identity
        self.plain: dict[bytes, Target] = {}
        """The topics known; others are to be asked for with ``target``."""
        self.matched: dict[bytes, Target] = {}
        """The same without those that nobody takes: MQTT 5.0 has a reason code for them."""

    def target(self, topic: bytes) -> Target | None:
        """Where a valid topic's records go; None when the client may not publish to it, or when no stream matches it
        and such messages are refused."""
        found = self.plain.get(topic)
        if found is not None:
            return found
        if not self.permits(topic):
            return None
        found = self._ingest.target(topic)
        if found.unrouted:
            self._ingest.unrouted.met(topic)
            if self._ingest.unrouted.refuses:
                return None
        if len(topic) <= TOPIC_BYTES_REMEMBERED_MAX:
            if len(self.plain) >= TOPICS_MAX:
                self.clear()
            self._ingest.remembering.add(self)
            self.plain[topic] = found
            if found.streams or found.live:
                self.matched[topic] = found
        return found

    def permits(self, topic: bytes) -> bool:
        """Return whether limits and access rules let the client publish to a topic."""
        if topic.startswith(b"$SYS/") or topic.count(b"/") >= self._ingest.topic_levels_max:
            return False
        return self._identity is None or self._identity.may_publish(topic)

    def clear(self) -> None:
        """Ask anew."""
        self.plain.clear()
        self.matched.clear()


class Ingest:
    """Appends what listeners receive, and fans it out to local subscribers.

    Records get the time at which their read was handled, in nanoseconds since 1970 by ``wall_clock``. Belongs to the
    event loop's thread.
    """

    def __init__(  # noqa: PLR0917
        self,
        log: Log,
        router: Router,
        subscriptions: Subscriptions,
        fan_out: FanOut,
        wall_clock: Callable[[], int],
        counters: Counters,
        unrouted: Unrouted,
        *,
        session_topics: int,
        pending_bytes_max: int,
        topic_levels_max: int = TOPIC_LEVELS_MAX,
    ) -> None:
        """Join log, routes and subscriptions.

        Args:
            wall_clock: nanoseconds since 1970.
            session_topics: the stream of messages that no other stream takes and persistent sessions want.
            pending_bytes_max: bytes that may wait for the disk before publishers are held.
        """
        self.log = log
        self._router = router
        self._subscriptions = subscriptions
        self._fan_out = fan_out
        self._wall_clock = wall_clock
        self._counters = counters
        self.unrouted = unrouted
        self._session_topics = session_topics
        self.topic_levels_max = topic_levels_max
        self.streams = (*router.numbers, session_topics)
        """Every stream that a session may have to read. The stream `unrouted` is none of them: it drops its oldest
        records, so sessions have copies of their own."""
        self.back_pressure = BackPressure(log, pending_bytes_max)
        self.everybody = Topics(self, None)
        self.remembering: set[Topics] = set()
        """Those that know topics: the others, of thousands of clients that are silent, have nothing to forget."""
        self._interned: dict[tuple[tuple[int, ...], bool, bool, bool, bool], Target] = {}
        self._undelivered: dict[int, int] = {}
        """Stream -> seq of the first record appended and not yet delivered live; empty outside ``store``."""
        subscriptions.watch(self.forget)

    # --- topics

    def topics_of(self, identity: Identity | None) -> Topics:
        """The targets of a client; to be given back to ``leave``."""
        if identity is None or identity.unrestricted:
            return self.everybody
        return Topics(self, identity)

    def leave(self, topics: Topics) -> None:
        """A client has gone."""
        if topics is not self.everybody:
            self.remembering.discard(topics)

    def forget(self) -> None:
        """Who gets what, or who may what, has changed."""
        remembering, self.remembering = self.remembering, set()
        for topics in remembering:
            topics.clear()

    def target(self, topic: bytes) -> Target:
        """Where a topic's records go, whoever publishes them."""
        plan = self._subscriptions.plan(topic)
        streams = self._router.streams(topic.decode())
        unrouted = not streams
        kept_for_sessions = unrouted and plan.wanted
        if unrouted:
            streams = (self._session_topics, *self.unrouted.streams) if kept_for_sessions else self.unrouted.streams
        key = (streams, plan.live, kept_for_sessions, plan.marked, unrouted)
        found = self._interned.get(key)
        if found is None:
            found = self._interned[key] = Target(*key)
        return found

    def refuses(self, topic: bytes) -> bool:
        """Return whether no stream matches a topic, and such messages are refused."""
        return self.unrouted.refuses and not self._router.streams(topic.decode())

    def ends(self) -> dict[int, int]:
        """Stream -> seq of the first record that has not been delivered live."""
        return {stream: self._undelivered.get(stream, self.log.next_seq(stream)) for stream in self.streams}

    # --- records

    def store(
        self, run: PublishRun[Target], packets: PacketsOf, publisher: str | None = None, *, by_node: bool = False
    ) -> list[tuple[int, int, int]]:
        """Append the records of one read, in order of receipt within each stream, and deliver them. They are not
        durable yet: see ``on_durable``.

        Args:
            by_node: within ``together``, a stream that is full takes it all the same: nobody would send a will again.

        Returns:
            (stream, first seq, count) of what was appended, one for each target.

        Raises:
            LogFull, LogFailed: not everything was appended, within ``together`` nothing was; none of the run may be
                acknowledged. Nothing was delivered.
        """
        now = self._wall_clock()
        taken = [
            (target, records, _headers(target, records, packets.get(target), publisher, now))
            for target, records in run.groups.items()
        ]
        if not by_node and self.log.appended_together() is not None:
            self.log.ask_room(
                (
                    (stream, records.keys, records.payloads, headers)
                    for target, records, headers in taken
                    for stream in _streams(target, records)
                ),
                now,
            )
        stored: list[tuple[int, int, int]] = []
        live: list[tuple[Target, Records, int, int]] = []
        for target, records, headers in taken:
            self._counters.publishes_received += len(records.keys)
            self._counters.publish_bytes_received += records.payload_bytes
            stream, seq = self._append(target, records, headers, now)
            if stream != NOWHERE:
                stored.append((stream, seq, len(records.keys)))
            if target.unrouted:
                self.unrouted.count(records.keys)
            if target.live:
                if target.unrouted and stream != self._session_topics:
                    stream, seq = NOWHERE, 0  # nothing that a session could read again
                live.append((target, records, stream, seq))
        if stored:
            self.back_pressure.appended()
        if live:
            self._deliver(live, packets, publisher)
        return stored

    def on_durable(self, callback: Callable[[BaseException | None], None]) -> None:
        """Call back, in order of registration, once everything stored so far is durable, or with the error."""
        self.log.on_durable(callback)

    def publish(self, packet: Publish, publisher: str | None = None) -> None:
        """Store one message of the node's own accord, such as a will, and deliver it.

        Raises:
            LogFull, LogFailed: not stored, and not delivered.
        """
        run: PublishRun[Target] = PublishRun()
        target = self.target(packet.topic)
        run.add(target, packet.topic, packet.payload, flags_of(packet))
        self.store(run, {target: {0: packet}}, publisher, by_node=True)

    def _append(
        self, target: Target, records: Records, headers: dict[int, HeaderPairs] | None, now: int
    ) -> tuple[int, int]:
        """(the first of the streams that took the records, the first one's seq)."""
        keys, payloads, flags = records.keys, records.payloads, records.flags or None
        streams = _streams(target, records)
        if not streams:
            return NOWHERE, 0
        size = records.payload_bytes
        for stream in streams[1:]:  # the log keeps the lists it gets, so every other stream needs its own
            self.log.append(
                stream, now, keys.copy(), payloads.copy(), headers and headers.copy(), flags and flags.copy(), size
            )
        return streams[0], self.log.append(streams[0], now, keys, payloads, headers, flags, size)

    def _deliver(self, live: list[tuple[Target, Records, int, int]], packets: PacketsOf, publisher: str | None) -> None:
        for _, _, stream, seq in reversed(live):
            self._undelivered[stream] = seq
        try:
            for target, records, stream, seq in live:
                self._fan_out.run(
                    records.keys, records.payloads, records.flags, packets.get(target, {}), stream, seq, publisher
                )
                self._undelivered[stream] = seq + len(records.keys)
        finally:
            self._undelivered.clear()


def flags_of(packet: Publish) -> int:
    """What a record's flags say of its publish."""
    flags = Flag.PUBLISHED_QOS0 if not packet.qos else Flag.PUBLISHED_QOS2 if packet.qos == 2 else Flag(0)
    if packet.retain:
        flags |= Flag.RETAINED
    if packet.dup:
        flags |= Flag.DUPLICATE_SUSPECTED
    return int(flags)


def _headers(
    target: Target, records: Records, packets: Mapping[int, Publish] | None, publisher: str | None, now: int
) -> dict[int, HeaderPairs] | None:
    """Index in the records -> headers, of those that have any."""
    headers: dict[int, HeaderPairs] | None = None
    if packets:
        found = {index: to_headers(packet.properties, now) for index, packet in packets.items()}
        headers = {index: pairs for index, pairs in found.items() if pairs} or None
    if target.marked and publisher is not None:
        found = headers or {}
        headers = {index: (*found.get(index, ()), (PUBLISHER, publisher)) for index in range(len(records.keys))}
    return headers


def _streams(target: Target, records: Records) -> tuple[int, ...]:
    """Return the streams that take the records. No session gets messages at QoS 0 later: it needs no copy of them."""
    return target.streams[1:] if target.kept_for_sessions and _all_qos0(records) else target.streams


def _all_qos0(records: Records) -> bool:
    flags = records.flags
    return len(flags) >= len(records.keys) and all(bits & Flag.PUBLISHED_QOS0 for bits in flags.values())
