"""Sessions: what the server remembers of a client, across connections when it asked for that (section 3.1.2.4).

Sessions live in memory: a restart of the node forgets them. A QoS 2 publish whose PUBREC was lost in a crash may then
be stored twice; the second has the flag ``DUPLICATE_SUSPECTED``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from edge_node.counters import Counters
from edge_node.deliveries import Deliveries, QueueBudget
from edge_node.subscriptions import Subscriptions
from protocols.mqtt.packet_ids import PacketIds
from protocols.mqtt.packets import SUBSCRIBE_FAILED

QOS_GRANTED_MAX = 1
FILTER_LEVELS_MAX = 128
"""Deeper filters are refused in SUBACK. EMQX has the same default."""
FILTER_BYTES_MAX = 1024
"""So are longer ones."""
_SHARED = "$share/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Bounds on what sessions keep in memory."""

    sessions_max: int = 10_000
    """Beyond it, the session whose client has been away longest is forgotten."""
    filters_max: int = 1_000
    """Subscriptions of one session; further ones are refused in SUBACK."""
    inflight_max: int = 100
    """QoS 1 deliveries sent to one client and not acknowledged."""
    queue_bytes_max: int = 1 << 20
    """QoS 1 deliveries kept for one client, sent or waiting."""
    queue_bytes_total_max: int = 64 << 20
    """The same of all clients together."""


class Link(Protocol):
    """The connection of a session's client."""

    @property
    def writable(self) -> bool:
        """Whether the client keeps up with what it is sent."""
        ...

    def send(self, data: bytes) -> None:
        """Write whole packets."""

    def displace(self) -> None:
        """Close: the client has connected anew [MQTT-3.1.4-2]. Leaves the session before it returns."""


class Session:
    """One client's session. ``link`` is None while the client is away."""

    __slots__ = ("_counters", "clean", "client_id", "deliveries", "filters", "link", "received")

    def __init__(self, client_id: str, clean: bool, deliveries: Deliveries, counters: Counters) -> None:
        self.client_id = client_id
        self.clean = clean
        self.deliveries = deliveries
        self.received = PacketIds()
        """QoS 2 publishes stored and not yet released by PUBREL (section 4.3.3)."""
        self.filters: dict[str, int] = {}
        self.link: Link | None = None
        self._counters = counters

    def deliver_at_most_once(self, packet: bytes) -> None:
        """Send a QoS 0 PUBLISH, or drop it when the client is slow or away."""
        if self.link is None or not self.link.writable:
            self._counters.deliveries_dropped += 1
            return
        self._counters.deliveries_sent += 1
        self.link.send(packet)

    def deliver_at_least_once(self, topic: bytes, payload: bytes) -> None:
        """Send or queue a QoS 1 message, or drop it when the queue is full."""
        if not self.deliveries.offer(topic, payload):
            self._counters.deliveries_dropped += 1
            return
        self.pump()

    def pump(self) -> None:
        """Send what waits, as far as the client keeps up."""
        if self.link is not None and self.link.writable:
            self._send(self.deliveries.sendable())

    def resume(self) -> None:
        """Send again what the client did not acknowledge on its last connection, then what waits."""
        self._send(self.deliveries.unacknowledged())
        self.pump()

    def acknowledged(self, packet_id: int) -> None:
        """The client acknowledged a delivery."""
        self.deliveries.acknowledged(packet_id)
        self.pump()

    def forget(self, packet_ids: list[int]) -> None:
        """The QoS 2 publishes with these identifiers could not be stored: sent again, they are new."""
        for packet_id in packet_ids:
            self.received.discard(packet_id)

    def _send(self, packets: list[bytes]) -> None:
        if packets and self.link is not None:
            self._counters.deliveries_sent += len(packets)
            self.link.send(b"".join(packets))


class Sessions:
    """All sessions of the node, shared by its MQTT listeners."""

    def __init__(self, subscriptions: Subscriptions, limits: SessionLimits, counters: Counters) -> None:
        self._subscriptions = subscriptions
        self._limits = limits
        self._counters = counters
        self._budget = QueueBudget(limits.queue_bytes_total_max)
        self._by_id: dict[str, Session] = {}
        self._away: dict[str, Session] = {}
        """Those without a link, longest away first."""

    def open(self, client_id: str, clean: bool, link: Link) -> tuple[Session, bool]:
        """The session of a client that connects, and whether it existed (CONNACK's session present).

        A link that the client identifier has already is displaced first. Without an identifier the session is the
        connection's own and nobody can take it over.
        """
        known = self._by_id.get(client_id)
        if known is not None and known.link is not None:
            self._counters.takeovers += 1
            known.link.displace()
        known = self._by_id.get(client_id)  # displacing ended it if it was clean
        if known is not None and clean:
            self._end(known)
            known = None
        session = known or self._create(client_id, clean)
        self._away.pop(client_id, None)
        session.link = link
        return session, known is not None

    def close(self, session: Session) -> None:
        """The link is gone. A clean session ends; another waits for its client."""
        session.link = None
        if session.clean:
            self._end(session)
        else:
            self._away[session.client_id] = session

    def subscribe(self, session: Session, topic_filter: str, qos: int) -> int:
        """Add a valid filter. Returns SUBACK's code: the granted QoS, or 0x80 when a limit forbids it.

        Shared subscriptions (``$share/...``) are refused: as plain filters they would succeed and deliver nothing.
        """
        full = len(session.filters) >= self._limits.filters_max and topic_filter not in session.filters
        large = len(topic_filter.encode()) > FILTER_BYTES_MAX or topic_filter.count("/") >= FILTER_LEVELS_MAX
        if full or large or topic_filter.startswith(_SHARED):
            return SUBSCRIBE_FAILED
        granted = min(qos, QOS_GRANTED_MAX)
        session.filters[topic_filter] = granted
        self._subscriptions.add(topic_filter, session, granted)
        return granted

    def unsubscribe(self, session: Session, topic_filter: str) -> None:
        """Take a filter out; nothing happens when it is not there."""
        if session.filters.pop(topic_filter, None) is not None:
            self._subscriptions.remove(topic_filter, session)

    def _create(self, client_id: str, clean: bool) -> Session:
        limits = self._limits
        deliveries = Deliveries(limits.inflight_max, limits.queue_bytes_max, self._budget)
        session = Session(client_id, clean, deliveries, self._counters)
        self._counters.sessions += 1
        if client_id:
            self._by_id[client_id] = session
        if len(self._by_id) > limits.sessions_max and self._away:
            self._counters.sessions_evicted += 1
            self._end(next(iter(self._away.values())))
        return session

    def _end(self, session: Session) -> None:
        for topic_filter in session.filters:
            self._subscriptions.remove(topic_filter, session)
        session.filters.clear()
        session.deliveries.clear()
        self._counters.sessions -= 1
        self._by_id.pop(session.client_id, None)
        self._away.pop(session.client_id, None)
