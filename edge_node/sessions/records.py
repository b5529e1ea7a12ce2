"""Records of the state that survives a restart of the node. Streams are named by their number in the log."""

from __future__ import annotations

import msgspec

from weft.protocols.mqtt.packets import Subscription, Will

NEVER_EXPIRES = 0xFFFFFFFF
"""Session expiry interval, in seconds, of a session that never expires (MQTT 5.0 section 3.1.2.11.2)."""


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """A delivery that was sent and not completed. The message itself is in the log."""

    stream: int
    seq: int
    qos: int
    released: bool = False
    """QoS 2: PUBREC came, so PUBREL is sent again."""


class SessionRecord(msgspec.Struct):
    """State of a persistent session that survives a restart."""

    client_id: str
    version: int
    """Protocol level of the client's last CONNECT: 3, 4 or 5."""
    expiry_interval: int
    """Seconds after the client has gone, or ``NEVER_EXPIRES``. 0: the session ends with its connection, and is
    kept for its will alone."""
    username: str | None = None
    disconnected_at: int | None = None
    """None while connected: then the expiry and the delay of the will count from ``lost_at``."""
    stopped: bool = False
    """The connection ended because the node stopped: the delay of the will counts from ``lost_at``."""
    lost_at: int | None = None
    """Time at which a node started without the connection."""
    subscriptions: dict[str, Subscription] = {}
    """Filter as the client wrote it -> its options (``Subscription.filter`` is the same filter)."""
    identifiers: dict[str, int] = {}
    """Filter -> subscription identifier, for filters that have one."""
    began: dict[str, dict[int, int]] = {}
    """Filter -> stream -> seq, where that is beyond the stream's position: the messages before it are older than the
    subscription, and not for it."""
    positions: dict[int, int] = {}
    """Stream -> seq: every message before it is done or in ``inflight``; later ones are sent from the log, except those
    in ``inflight`` and ``done``. A missing stream counts from seq 0."""
    inflight: dict[int, Sent] = {}
    """Packet identifier -> delivery, in the order of sending."""
    done: set[tuple[int, int]] = set()
    """(stream, seq) of deliveries at or after their stream's position that the client has completed."""
    received: set[int] = set()
    """Packet identifiers of QoS 2 publishes stored and not yet released by PUBREL."""
    will: Will | None = None
    """The will, until it is published or taken back by DISCONNECT; due ``will_delay_interval`` after
    ``disconnected_at``."""
    address: str | None = None
    """Address of the client that began it, where it has no user name: the owner for costs. None: this machine."""


class SharedRecord(msgspec.Struct):
    """State of a shared subscription that survives a restart; its members are in their sessions' records."""

    name: str
    """The filter as clients write it, ``$share/`` included."""
    positions: dict[int, int] = {}
    """Stream -> seq: every message before it was delivered to a member, or is in ``owed``."""
    owed: list[tuple[int, int]] = []
    """(stream, seq) before their stream's position of messages that no member keeps: they are delivered again."""
