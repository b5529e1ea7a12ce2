"""A session: what the server remembers of one client (MQTT 5.0 section 4.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from weft.edge_node.access.identity import Identity
from weft.edge_node.sessions.client_window import Outbound
from weft.edge_node.sessions.records import NEVER_EXPIRES, Sent, SessionRecord
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.shared_subscription import Group
from weft.edge_node.subscriptions.subscriptions import Entry, Grant
from weft.protocols.mqtt.packet_ids import PacketIds
from weft.protocols.mqtt.packets import Subscription, Will


class Timer(Protocol):
    """Who is told when a session's time has come."""

    def session_due(self, session: Session) -> float | None:
        """Publish its will, or end it; when to ask again."""
        ...


class Session:
    """One client's session, connected or not."""

    __slots__ = (
        "_timer", "awaits_journal", "client_id", "disconnected_at", "ended", "entries", "expires_at", "expiry_s",
        "identity", "journaled", "lost_at", "outbound", "received", "stopped", "username", "version", "wheel_slot",
        "will", "will_at",
    )  # fmt: skip

    def __init__(self, outbound: Outbound, version: int, timer: Timer) -> None:
        self.client_id = outbound.client_id
        self.outbound = outbound
        self.version = version
        self.expiry_s = 0
        """Seconds that the session outlives its connection; ``NEVER_EXPIRES`` for ever."""
        self.username: str | None = None
        """As authenticated."""
        self.identity: Identity | None = None
        """Who the client is; None when nobody is asked, and after a restart until it is back."""
        self.entries: dict[str, tuple[Entry, Group | None]] = {}
        """Filter as the client wrote it -> its subscription, and the group if it is shared."""
        self.received = PacketIds()
        """QoS 2 publishes stored and not yet released by PUBREL (section 4.3.3)."""
        self.will: Will | None = None
        """Until it is published, which may be after the session has ended: ``Wills`` sets it."""
        self.will_at: float | None = None
        """When the will is due, by the loop's clock; None while connected."""
        self.expires_at: float | None = None
        self.disconnected_at: int | None = None
        """By the wall clock, nanoseconds."""
        self.lost_at: int | None = None
        """When the node started without the connection that it had before, by the wall clock."""
        self.stopped = False
        """Whether the node's stop ended the connection."""
        self.ended = False
        """Whether it is no more."""
        self.journaled = False
        """Whether the journal knows it: it outlives its connection, or has a will that does."""
        self.awaits_journal = False
        """Whether CONNACK waits for the journal: it notes the session, or the end of the one before it."""
        self.wheel_slot = -1
        self._timer = timer

    @property
    def connected(self) -> bool:
        """Whether its client is there."""
        return self.outbound.link is not None

    @property
    def persistent(self) -> bool:
        """Whether it outlives its connection."""
        return bool(self.expiry_s)

    def due(self, _now: float) -> float | None:
        """For the timer wheel."""
        return self._timer.session_due(self)

    def next_due(self) -> float | None:
        """When something is to be done about it, by the loop's clock."""
        times = [at for at in (self.will_at, self.expires_at) if at is not None]
        return min(times, default=None)

    def forget(self, packet_ids: Iterable[int]) -> None:
        """QoS 2 publishes that were released, or could not be stored: sent again, these identifiers are new."""
        for packet_id in packet_ids:
            self.received.discard(packet_id)

    def record(
        self, positions: dict[int, int], done: set[tuple[int, int]], began: dict[str, dict[int, int]]
    ) -> SessionRecord:
        """The session as it survives a restart: one that ends with its connection as nothing but its will.

        Args:
            positions: stream -> the first seq that was not sent.
            done: (stream, seq) of what was completed although it is not before its stream's position.
            began: filter -> stream -> the first seq that is the filter's.
        """
        if not self.persistent:
            return SessionRecord(self.client_id, self.version, 0, self.username, will=self.will)
        released = self.outbound.released or set()
        inflight = {
            packet_id: Sent(message.stream, message.seq, qos, packet_id in released)
            for packet_id, (message, _, qos) in self.outbound.inflight.items()
            if message.stream != NOWHERE
        }
        return SessionRecord(
            client_id=self.client_id,
            version=self.version,
            expiry_interval=self.expiry_s,
            username=self.username,
            disconnected_at=self.disconnected_at,
            stopped=self.stopped,
            lost_at=self.lost_at,
            subscriptions={text: entry.options for text, (entry, _) in self.entries.items()},
            identifiers={text: entry.identifier for text, (entry, _) in self.entries.items() if entry.identifier},
            began=began,
            positions=positions,
            inflight=inflight,
            done=done,
            received=set(self.received),
            will=self.will,
        )


def unread(sent: Sent, outbound: Outbound) -> tuple[Message, Grant, int]:
    """A delivery that a restart left in flight; its topic and payload are still in the log alone."""
    options = Subscription("#", qos=sent.qos, retain_as_published=True)  # ``InFlight`` knows which were sent so
    grant = Grant([Entry(outbound, "#", options, None)])
    return Message(b"", b"", sent.qos, stream=sent.stream, seq=sent.seq), grant, sent.qos


def restored(record: SessionRecord, outbound: Outbound, timer: Timer) -> Session:
    """A session from its record, without its subscriptions and its will."""
    session = Session(outbound, record.version, timer)
    session.expiry_s = record.expiry_interval
    session.username = record.username
    session.disconnected_at = record.disconnected_at
    session.stopped, session.lost_at = record.stopped, record.lost_at
    session.journaled = True
    outbound.persistent = session.persistent
    for packet_id in record.received:
        session.received.add(packet_id)
    for packet_id, sent in record.inflight.items():
        outbound.restore(packet_id, unread(sent, outbound), released=sent.released)
    return session


def seconds_left(expiry_s: int, gone_s: float) -> float | None:
    """How long a session has left; None for ever."""
    return None if expiry_s == NEVER_EXPIRES else max(0.0, expiry_s - gone_s)
