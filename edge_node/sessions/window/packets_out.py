"""PUBLISH packets for subscribers in as few bytes objects as possible: a broker spends its time in fan-out."""

from __future__ import annotations

from weft.edge_node.subscriptions.message import Message
from weft.protocols.mqtt.connection import PACKET_BYTES_MAX
from weft.protocols.mqtt.encoder import encode_length, publish_head, publish_parts
from weft.protocols.mqtt.packet_types import Version
from weft.protocols.mqtt.properties import NO_PROPERTIES
from weft.protocols.mqtt.property_codec import property_body

SHARED_V3, SHARED_V5, OWN = 0, 1, 2
"""Kinds of client: clients of 3.1.1 that get the same bytes, the same of 5.0, and clients with packets of their own."""

KINDS = 3
SPLIT_BYTES = 2048
"""Length above which payloads are not copied for each client."""

_EXPIRY, _IDENTIFIER, _ALIAS = b"\x02", b"\x0b", b"\x23"
"""Properties of a single delivery (MQTT 5.0, section 2.2.2.2)."""
_VERSIONS = (Version.V311, Version.V5)


def shared_packet(message: Message, kind: int) -> bytes:
    """Return the packet of a plain message at QoS 0, made once for all clients of a kind.

    ``Message.packets`` has it by kind, so that ``PacketWriter`` finds an existing one without a call. The packet of a
    long message is stored by ``kind - KINDS``: only this function finds it, because the writer must know that it is
    long.
    """
    key = kind if len(message.payload) <= SPLIT_BYTES else kind - KINDS
    packets = message.packets
    if packets is None:
        packets = message.packets = {}
    found = packets.get(key)
    if found is None:
        found = packets[key] = b"".join(publish_parts(message.topic, message.payload, 0, version=_VERSIONS[kind]))
    return found


def shared_parts(message: Message, qos: int, kind: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after the packet identifier of a plain message at QoS 1 or 2, also encoded once.

    ``Message.parts`` has them by ``qos << 2 | kind``. No message has any packet or parts for ``OWN``.
    """
    key = qos << 2 | kind
    parts = message.parts
    if parts is None:
        parts = message.parts = {}
    found = parts.get(key)
    if found is None:
        found = parts[key] = publish_parts(message.topic, message.payload, qos, version=_VERSIONS[kind])
    return found


class Wire:
    """The form of one connection's packets."""

    __slots__ = ("_aliases", "kind", "packet_bytes_max", "version")

    def __init__(self, version: int, packet_bytes_max: int = PACKET_BYTES_MAX, topic_alias_maximum: int = 0) -> None:
        self.version = version
        self.packet_bytes_max = packet_bytes_max
        self._aliases = SentAliases(topic_alias_maximum) if topic_alias_maximum else None
        special = packet_bytes_max < PACKET_BYTES_MAX or topic_alias_maximum
        self.kind = OWN if special else SHARED_V5 if version == Version.V5 else SHARED_V3

    def publish(  # noqa: PLR0917
        self,
        message: Message,
        qos: int,
        packet_id: int,
        retain: bool,
        dup: bool,
        identifiers: tuple[int, ...],
        now: int,
    ) -> tuple[bytes, bytes] | None:
        """Return a delivery in two parts, the second encoded once for all clients; None when the packet exceeds the
        client's maximum: then it counts as sent [MQTT-3.1.2-24, 3.1.2-25].

        Args:
            now: wall clock, nanoseconds; unused for messages that do not expire.
        """
        topic, alias, tail, properties = message.topic, None, message.payload, b""
        if self.version == Version.V5:
            if self._aliases is not None:
                topic, alias = self._aliases.find(topic)
            tail, common = shared_tail(message)
            own = b"".join([_IDENTIFIER + encode_length(each) for each in identifiers])
            if alias:
                own += _ALIAS + alias.to_bytes(2, "big")
            if (left := message.seconds_left(now)) is not None:
                own += _EXPIRY + left.to_bytes(4, "big")
            properties = encode_length(len(own) + common) + own
        head = publish_head(
            topic, qos, packet_id, retain=retain, dup=dup, tail_bytes=len(tail), properties=properties,
        )  # fmt: skip
        if len(head) + len(tail) > self.packet_bytes_max:
            return None
        if topic and alias and self._aliases is not None:
            self._aliases.sent(topic, alias)
        return head, tail


def shared_tail(message: Message) -> tuple[bytes, int]:
    """Return the common part of MQTT 5 packets, properties and payload, and the length of those properties."""
    found = message.tail
    if found is None:
        body = b"" if message.properties is NO_PROPERTIES else property_body(message.properties)
        found = message.tail = (body + message.payload, len(body))
    return found


class SentAliases:
    """Topic aliases that the server has assigned: the first topics sent get one, and keep it."""

    __slots__ = ("_aliases", "_maximum")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._aliases: dict[bytes, int] = {}

    def find(self, topic: bytes) -> tuple[bytes, int | None]:
        """Return the topic to write (empty when the client knows its number) and the alias.

        The alias is never over the client's maximum [MQTT-3.1.2-26].
        """
        known = self._aliases.get(topic)
        if known is not None:
            return b"", known
        if len(self._aliases) >= self._maximum:
            return topic, None
        return topic, len(self._aliases) + 1

    def sent(self, topic: bytes, alias: int) -> None:
        """Note that a packet with topic and alias is sent: later packets need only the alias."""
        self._aliases[topic] = alias
