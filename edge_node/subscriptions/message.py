"""A message on its way to subscribers."""

from __future__ import annotations

import msgspec

from weft.protocols.batch import HeaderPairs
from weft.protocols.mqtt.properties import NO_PROPERTIES, Properties

NOWHERE = 0
"""The stream of a message that the log does not have; the log counts its streams from 1."""
PUBLISHER = "mqtt.publisher"
"""Header with the client identifier of the publisher, where a persistent session has subscribed with No Local: its own
messages must be recognised when they are read from the log later (MQTT 5.0 section 3.8.3.1)."""
RECIPIENT = "mqtt.recipient"
"""Header with the client identifier of the only recipient of a retained message. It was sent because of a subscription,
and is in the log so that it can be sent again unchanged; no other client gets it."""
_SECOND_NS = 1_000_000_000


class Message(msgspec.Struct):
    """A message, shared by all its deliveries."""

    topic: bytes
    payload: bytes
    qos: int = 0
    """QoS of the publish."""
    retain: bool = False
    """RETAIN flag of the publish."""
    properties: Properties = NO_PROPERTIES
    """Without topic alias and message expiry: those belong to the publisher's connection, and to ``expires_ns``."""
    expires_ns: int = 0
    """Wall clock time, in nanoseconds, after which the message is not delivered; 0 for never (section 3.3.2.3.3)."""
    stream: int = NOWHERE
    seq: int = 0
    headers: HeaderPairs = ()
    """Headers of the record, with values of any type, for subscribers of protocols other than MQTT."""
    packets: dict[int, bytes] | None = None
    """Kind of client -> the packet at QoS 0, encoded once for all of them (``sessions.window.packets_out``)."""
    parts: dict[int, tuple[bytes, bytes]] | None = None
    """QoS << 2 | kind of client -> the bytes before and after the packet identifier, also encoded once."""
    tail: tuple[bytes, int] | None = None
    """Properties and payload of its packets in MQTT 5, also encoded once, and the length of those properties."""

    @property
    def plain(self) -> bool:
        """Return whether the message's packets have nothing but topic and payload."""
        return self.properties is NO_PROPERTIES and not self.expires_ns and not self.retain

    def expired(self, now_ns: int) -> bool:
        """Return whether the message must no longer be sent [MQTT-3.3.2-5]."""
        return bool(self.expires_ns) and now_ns >= self.expires_ns

    def seconds_left(self, now_ns: int) -> int | None:
        """Return the remaining time of the message, at least a second; None if it does not expire."""
        return max(1, -(-(self.expires_ns - now_ns) // _SECOND_NS)) if self.expires_ns else None

    @property
    def header_bytes(self) -> int:
        """Return the approximate length of names and values of its headers."""
        return sum(len(name) + (len(value) if isinstance(value, str | bytes) else 8) for name, value in self.headers)


def split_expiry(properties: Properties, now_ns: int) -> tuple[Properties, int]:
    """Split a publish's properties into those of ``Message`` and the time of its expiry."""
    interval = properties.message_expiry_interval
    if interval is None and properties.topic_alias is None:
        return properties, 0
    kept = msgspec.structs.replace(properties, message_expiry_interval=None, topic_alias=None)
    expires_ns = 0 if interval is None else now_ns + max(interval * _SECOND_NS, 1)
    return (NO_PROPERTIES if kept == NO_PROPERTIES else kept), expires_ns
