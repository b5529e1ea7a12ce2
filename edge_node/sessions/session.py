"""A session: the server's state of one client (MQTT 5.0 section 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from weft.bounds import LOCAL, Owner, OwnerKind
from weft.edge_node.access.identity import Identity
from weft.edge_node.sessions.records import NEVER_EXPIRES, SessionRecord
from weft.edge_node.sessions.window.client_window import ClientWindow
from weft.edge_node.subscriptions.shared_subscription import SharedSubscription
from weft.edge_node.subscriptions.subscriber import ClientSubscription
from weft.protocols.mqtt.packet_ids import PacketIds
from weft.protocols.mqtt.packets import Will


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of a session that CONNECT settles, beside its will."""

    version: int
    """Protocol level."""
    expiry_s: int = 0
    """Seconds that the session outlives its connection, or ``NEVER_EXPIRES``."""
    username: str | None = None
    """User name, as authenticated."""
    identity: Identity | None = None
    """Identity of the client; None without access rules, and after a restart until the client is back."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Time at which the client went, and how long the session waits for it."""

    disconnected_at: int | None = None
    """Wall clock time, nanoseconds; None when the node went first, and the connection with it."""
    stopped: bool = False
    """True when the node's stop ended the connection."""
    lost_at: int | None = None
    """Wall clock time, nanoseconds, at which the node started without the connection that it had before."""
    expires_at: float | None = None
    """Time at which the session ends, by the loop's clock; None for never."""


class Session:
    """One client's session, connected or not. ``Sessions`` changes it, ``SessionFilters`` its subscriptions."""

    __slots__ = (
        "_absence", "_due", "_terms", "_will", "_will_at", "awaits_journal", "client_id", "ended", "owner", "received",
        "subscriptions", "wheel_slot", "window",
    )  # fmt: skip

    def __init__(
        self, window: ClientWindow, version: int, due: Callable[[Session], float | None], owner: Owner
    ) -> None:
        """Begin without subscriptions.

        Args:
            due: publishes the will, or ends the session, at its time; returns the next time to call.
        """
        self.client_id = window.client_id
        self.window = window
        self.subscriptions: dict[str, tuple[ClientSubscription, SharedSubscription | None]] = {}
        """Filter as the client wrote it -> its subscription, and the shared subscription that it is part of."""
        window.subscribed = self.subscriptions
        self.received = PacketIds()
        """QoS 2 publishes stored and not yet released by PUBREL (section 4.3.3)."""
        self.owner = owner
        """Owner that its costs are charged to: its user, else the address from which it began."""
        self.ended = False
        """True once the session has ended."""
        self.awaits_journal = False
        """True while CONNACK waits for the journal to note the session, or the end of the session before it."""
        self.wheel_slot = -1
        self._terms = Terms(version)
        self._absence: Absence | None = None
        self._will: Will | None = None
        self._will_at: float | None = None
        self._due = due

    # --- state for other objects

    @property
    def terms(self) -> Terms:
        """Return the terms that CONNECT settled."""
        return self._terms

    @property
    def version(self) -> int:
        """Protocol level of the client's last CONNECT."""
        return self._terms.version

    @property
    def expiry_s(self) -> int:
        """Return the seconds that the session outlives its connection, or ``NEVER_EXPIRES``."""
        return self._terms.expiry_s

    @property
    def username(self) -> str | None:
        """Return the user name, as authenticated."""
        return self._terms.username

    @property
    def identity(self) -> Identity | None:
        """Return the client's identity; None without access rules, and after a restart until the client is back."""
        return self._terms.identity

    @property
    def rules(self) -> Identity | None:
        """Return the identity whose rules limit the client; None for a client with all rights."""
        identity = self._terms.identity
        return None if identity is None or identity.unrestricted else identity

    @property
    def persistent(self) -> bool:
        """Return whether the session outlives its connection."""
        return bool(self._terms.expiry_s)

    @property
    def connected(self) -> bool:
        """Return whether the client is connected."""
        return self.window.connected

    @property
    def will(self) -> Will | None:
        """Return the will, until it is published, which may be after the session has ended."""
        return self._will

    @property
    def will_at(self) -> float | None:
        """Return the time at which the will is due, by the loop's clock; None while connected."""
        return self._will_at

    @property
    def absence(self) -> Absence | None:
        """Return the client's absence; None while it is connected."""
        return self._absence

    def due(self, _now: float) -> float | None:
        """Do the work that is due; return the next time to call."""
        return self._due(self)

    def has_expired(self, now: float) -> bool:
        """Tell whether the client has been away for longer than the session waits."""
        expires_at = self._absence.expires_at if self._absence is not None else None
        return expires_at is not None and expires_at <= now

    def next_due(self) -> float | None:
        """Return the next time at which work is due, by the loop's clock."""
        expires_at = self._absence.expires_at if self._absence is not None else None
        return min((at for at in (self._will_at, expires_at) if at is not None), default=None)

    # --- the life of a session

    def agree(self, terms: Terms) -> None:
        """Set the terms from CONNECT, DISCONNECT or a restart."""
        self._terms = terms
        self.window.introduce(self.rules, persistent=self.persistent)

    def be_absent(self, absence: Absence | None) -> None:
        """Set the absence of the client; None when it is connected."""
        self._absence = absence

    def keep_will(self, will: Will | None, will_at: float | None = None) -> None:
        """Replace the will. ``Wills`` counts its memory.

        Args:
            will_at: time at which it is due, by the loop's clock; None for not yet.
        """
        self._will, self._will_at = will, will_at

    def end(self) -> None:
        """Mark the session as ended; its will may still have to be published."""
        self.ended = True
        self._absence = None

    def forget(self, packet_ids: Iterable[int]) -> None:
        """Forget QoS 2 publishes that were released, or could not be stored: sent again, these identifiers are new."""
        for packet_id in packet_ids:
            self.received.discard(packet_id)

    # --- across a restart

    def record(
        self, positions: dict[int, int], done: set[tuple[int, int]], began: dict[str, dict[int, int]]
    ) -> SessionRecord:
        """Return the record that survives a restart: for a session that ends with its connection, only its will.

        Args:
            positions: stream -> the first seq that was not sent.
            done: (stream, seq) of completed deliveries that are not before their stream's position.
            began: filter -> stream -> the first seq that is the filter's.
        """
        if not self.persistent:
            return SessionRecord(
                self.client_id, self.version, 0, self.username, will=self._will, address=self._address()
            )
        own, absence = {text: each for text, (each, _) in self.subscriptions.items()}, self._absence or Absence()
        return SessionRecord(
            client_id=self.client_id,
            version=self.version,
            expiry_interval=self.expiry_s,
            username=self.username,
            disconnected_at=absence.disconnected_at,
            stopped=absence.stopped,
            lost_at=absence.lost_at,
            subscriptions={text: each.options for text, each in own.items()},
            identifiers={text: each.identifier for text, each in own.items() if each.identifier},
            began=began,
            positions=positions,
            inflight=self.window.in_flight.sent(),
            done=done,
            received=set(self.received),
            will=self._will,
            address=self._address(),
        )

    def _address(self) -> str | None:
        owner = self.owner
        return owner.name if owner.kind is OwnerKind.ADDRESS and owner.name != LOCAL else None

    def restore(self, record: SessionRecord) -> None:
        """Restore a record, except for its subscriptions and its will."""
        self.agree(Terms(record.version, record.expiry_interval, record.username))
        self._absence = Absence(record.disconnected_at, record.stopped, record.lost_at)
        for packet_id in record.received:
            self.received.add(packet_id)
        self.window.in_flight.restore(record.inflight, self.window)


def seconds_left(expiry_s: int, gone_s: float) -> float | None:
    """Return the seconds that a session has left; None when it never expires."""
    return None if expiry_s == NEVER_EXPIRES else max(0.0, expiry_s - gone_s)
