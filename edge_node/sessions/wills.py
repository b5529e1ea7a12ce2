"""Wills: messages published for clients that disconnect without DISCONNECT (MQTT 5.0 sections 3.1.2.5, 3.1.3.2).

A will that CONNACK has accepted is in the session journal until its records are in the log, so neither a crash nor a
full log loses it. Both are one commit, so that a crash publishes it neither twice nor never.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from weft.bounds.scheduling import RoundRobin
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.ingest.record import NodeRecord
from weft.edge_node.sessions.journal import SessionJournal
from weft.edge_node.sessions.persistence import Persistence
from weft.edge_node.sessions.records import NEVER_EXPIRES, SessionShares
from weft.edge_node.sessions.retained import RetainedMessages
from weft.edge_node.sessions.session import Session
from weft.edge_node.subscriptions.message import USER_PROPERTIES_MAX, to_headers
from weft.protocols.batch import Flag
from weft.protocols.mqtt.packets import NO_PROPERTIES, Properties, Publish, Will
from weft.storage.segment_log import LogError

log = logging.getLogger(__name__)

WILL_OVERHEAD_BYTES = 500
"""Memory that a will takes beside its topic, payload and properties, roughly."""


class Wills:
    """Wills of all sessions. ``Sessions`` waits until they are due."""

    def __init__(  # noqa: PLR0917
        self,
        ingest: Ingest,
        retained: RetainedMessages,
        journal: SessionJournal,
        persistence: Persistence,
        counters: Counters,
        wall_clock: Callable[[], int],
        shares: SessionShares,
        round_robin: RoundRobin,
    ) -> None:
        """Start without any.

        Args:
            wall_clock: nanoseconds since 1970.
            shares: bounds on their memory.
            round_robin: queue of wills that are stored one after the other.
        """
        self._round_robin = round_robin
        self._retrying = False
        self._ingest = ingest
        self._retained = retained
        self._journal = journal
        self._persistence = persistence
        self._wall_clock = wall_clock
        self._counters = counters
        self._bytes = shares.will_bytes
        self._due: dict[str, Session] = {}
        """Client identifier -> its session, perhaps an ended one, whose will is stored as soon as possible."""
        self._retaining: set[Session] = set()
        """Those sessions whose will is not durable as a retained message yet."""
        self._warned = False

    # --- from CONNECT to DISCONNECT

    def bytes_more(self, will: Will, session: Session | None) -> int:
        """Return the bytes that a will takes beyond those of the will that it replaces.

        Args:
            session: session whose will it replaces.
        """
        return _cost(will) - (0 if session is None else _cost(session.will))

    def keep(self, session: Session, will: Will | None) -> None:
        """Replace the session's will."""
        if session.will is not None:
            self._bytes.free(session.owner, _cost(session.will))
        if will is not None:
            self._bytes.hold(session.owner, _cost(will))
        self._counters.will_bytes = self._bytes.used
        session.keep_will(will)

    def wait(self, session: Session, since: float) -> None:
        """Set the time at which the will of a disconnected client is due [MQTT-3.1.2-8]. It is published earlier if the
        session ends earlier.

        Args:
            since: time of the disconnection, by the loop's clock.
        """
        if session.will is not None:
            delay_s = session.will.properties.will_delay_interval or 0
            delay_s = delay_s if session.expiry_s == NEVER_EXPIRES else min(delay_s, session.expiry_s)
            session.keep_will(session.will, since + delay_s)

    # --- due

    def publish(self, session: Session) -> None:
        """Publish a session's will, once [MQTT-3.1.2-10], as soon as it can be stored."""
        will = session.will
        if will is None or session.client_id in self._due:
            return
        session.keep_will(will)
        denied = session.rules is not None and not session.rules.may_publish(will.topic)
        if denied or self._ingest.routing.refuses(will.topic):  # the rules, or the streams, have changed since CONNECT
            self._counters.publishes_denied += 1
            self._persistence.will_denied(session)
            self.keep(session, None)
            return
        self._due[session.client_id] = session
        self._counters.wills_waiting += 1
        if will.retain and not self._ingest.routing.hides(will.topic, will.payload):
            # Durable before the journal forgets the will, or a crash could take it from both.
            self._retaining.add(session)
            if not self._retained.retain(_packet(will), self._wall_clock(), session.owner):
                self._counters.retained_refused += 1
            # After an error the will is stored all the same: the store of retained messages retries its own write.
            self._retained.on_durable(lambda _error: self._is_retained(session))
        else:
            self._try(session)

    def settle(self, client_id: str) -> None:
        """Store the due will of a client's last connection now: the client is back.

        Raises:
            LogError: it cannot be stored; the client cannot have another will before that.
        """
        session = self._due.get(client_id)
        if session is not None:
            self._store(session)

    def stop(self) -> None:
        """Leave due wills that are not stored yet in the journal, for the next start."""
        self._due.clear()

    def retry(self) -> None:
        """Store wills that could not be stored before, one in each turn; called every second or so."""
        if not self._retrying:
            self._retry(iter(list(self._due.values())))

    # --- inside

    def _retry(self, left: Iterator[Session]) -> None:
        self._retrying = False
        for session in left:
            if self._due.get(session.client_id) is not session or session in self._retaining:
                continue
            if self._try(session):
                self._retrying = True
                self._round_robin.wait(session.owner, partial(self._retry, left))
            return

    def _is_retained(self, session: Session) -> None:
        self._retaining.discard(session)
        if self._due.get(session.client_id) is session:
            self._try(session)

    def _try(self, session: Session) -> bool:
        if self._ingest.back_pressure.holding:
            return False
        try:
            self._store(session)
        except LogError as error:
            if not self._warned:
                self._warned = True
                log.warning("the will of MQTT client %r waits for room in the log: %s", session.client_id, error)
            return False
        self._warned = False
        return True

    def _store(self, session: Session) -> None:
        assert session.will is not None
        self._ingest.batch.store()  # its client's earlier publishes come before it
        with self._journal.together():
            self._ingest.publish(_record(session.will, session.client_id, self._wall_clock()))
            self._persistence.will_published(session)
        del self._due[session.client_id]
        self._retaining.discard(session)
        self._counters.wills_waiting -= 1
        self._counters.wills_published += 1
        self.keep(session, None)


def is_storable(will: Will) -> bool:
    """Return whether a will can be stored as a record one day."""
    return len(will.properties.user_properties) <= USER_PROPERTIES_MAX


def _record(will: Will, client_id: str, now: int) -> NodeRecord:
    flags = (Flag.PUBLISHED_QOS0, Flag(0), Flag.PUBLISHED_QOS2)[will.qos]
    if will.retain:
        flags |= Flag.RETAINED
    return NodeRecord(will.topic, will.payload, int(flags), to_headers(_properties(will), now), client_id)


def _packet(will: Will) -> Publish:
    return Publish(will.topic, will.payload, will.qos, 0, will.retain, properties=_properties(will))


def _properties(will: Will) -> Properties:
    properties = msgspec.structs.replace(will.properties, will_delay_interval=None)
    return NO_PROPERTIES if properties == NO_PROPERTIES else properties


def _cost(will: Will | None) -> int:
    if will is None:
        return 0
    return len(will.topic) + len(will.payload) + _properties_cost(will.properties) + WILL_OVERHEAD_BYTES


def _properties_cost(properties: Properties) -> int:
    texts = [properties.content_type, properties.response_topic, properties.correlation_data]
    for pair in properties.user_properties:
        texts += pair
    return sum(len(text) for text in texts if text is not None)
