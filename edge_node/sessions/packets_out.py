"""Packets on their way to one client: gathered while a read is handled, journaled, and written at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from weft.edge_node.counters import Counters
from weft.edge_node.sessions.journal import DeliveryJournal
from weft.edge_node.sessions.records import Sent
from weft.edge_node.subscriptions.limits import QueueBudget
from weft.edge_node.subscriptions.message import Message, Outbox
from weft.edge_node.subscriptions.subscriptions import DeliveryOptions
from weft.protocols.mqtt.connection import PACKET_BYTES_MAX
from weft.protocols.mqtt.encoder import PUBREL, encode, encode_length, publish_head, publish_parts
from weft.protocols.mqtt.fields import property_body
from weft.protocols.mqtt.packets import NO_PROPERTIES, PubRel, ReasonCode, Version

# PUBLISH packets for subscribers in as few bytes objects as possible: a broker spends its time in fan-out.

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
        head = publish_head(topic, qos, packet_id, retain=retain, dup=dup, tail_bytes=len(tail), properties=properties)
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


# Objects that the windows of all clients of a node use.


@dataclass(frozen=True, slots=True)
class WindowContext:
    """Parts created once, before the first session."""

    counters: Counters
    budget: QueueBudget
    outbox: Outbox
    journal: DeliveryJournal
    wall_clock: Callable[[], int]
    """Nanoseconds since 1970."""
    inflight_max: int
    """Deliveries at QoS 1 and 2 sent to one client and not completed."""
    bytes_max: int
    """Bytes of messages in flight and waiting for one client."""


LONG_BYTES = 32 << 10
"""Length above which payloads are never copied: readers of the log have a message of their own each."""


class ClientConnection(Protocol):
    """The connection of a session's client."""

    def send(self, data: bytes) -> None:
        """Write whole packets."""

    def send_all(self, parts: Sequence[bytes]) -> None:
        """Write whole packets, each in one part or two."""

    def displace(self, code: ReasonCode) -> None:
        """Detach from the session, then close: it belongs to another connection now [MQTT-3.1.4-3], or cannot be
        kept."""


class PacketWriter:
    """Writer to the connection of one client, if it has one. Packets that need a journal entry wait for it."""

    __slots__ = (
        "_connection",
        "_counters",
        "_held",
        "_journal",
        "_kind",
        "_out",
        "_outbox",
        "_shares",
        "_split",
        "_unjournaled",
        "_waits",
        "_wall_clock",
        "_wire",
        "client_id",
        "persistent",
    )

    def __init__(self, client_id: str, wire: Wire, context: WindowContext) -> None:
        self.client_id = client_id
        self.persistent = False
        """True when the session outlives its connection, so that its deliveries are journaled."""
        self._outbox = context.outbox
        self._journal = context.journal
        self._counters = context.counters
        self._wall_clock = context.wall_clock
        self._wire = wire
        self._kind = wire.kind
        self._connection: ClientConnection | None = None
        self._out: list[bytes] = []
        """Packets to be written together by ``flush``, some in two parts."""
        self._split = 0
        """Number of packets in two parts, which must not be copied."""
        self._unjournaled: dict[int, Sent] | None = None
        """Deliveries among them that the journal does not have."""
        self._waits = False
        """True when the packets may be written only once the journal has those deliveries."""
        self._shares: set[str] | None = None
        """Shared subscriptions whose positions the journal must have before that, too."""
        self._held = 0
        """Writes that wait for the journal; later ones wait behind them, so that order is kept."""

    # --- the connection

    @property
    def held(self) -> bool:
        """Return whether writes wait for the journal: packets added now wait behind them in memory."""
        return bool(self._held)

    @property
    def version(self) -> int:
        """Protocol level of the client."""
        return self._wire.version

    def is_to(self, connection: ClientConnection) -> bool:
        """Return whether packets go to this connection."""
        return self._connection is connection

    def open(self, connection: ClientConnection) -> None:
        """Write to a connection from now on."""
        self._connection = connection
        self._held = 0

    def use(self, wire: Wire) -> None:
        """Encode packets in this form from now on."""
        self._wire, self._kind = wire, wire.kind

    def close(self) -> None:
        """Forget the connection, and the packets gathered for it."""
        self._connection = None
        self._out, self._split = [], 0
        self._unjournaled, self._waits, self._shares = None, False, None

    def displace(self, code: ReasonCode) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.displace(code)

    # --- packets

    def add_at_most_once(self, message: Message, options: DeliveryOptions) -> None:
        """Add a message at QoS 0 to the next ``flush``."""
        packets = message.packets  # looked up here, because this is the innermost call of fan-out
        packet = packets.get(self._kind) if packets is not None and not options.identifiers else None
        if packet is None:
            parts = self._encode(message, options, 0, 0)
            if parts is not None:
                self._put(*parts)
            return
        out = self._out
        if not out:
            self._outbox.add(self.flush)
        out.append(packet)

    def add_again(self, packet_id: int, message: Message, options: DeliveryOptions, qos: int) -> bool:
        """Add a delivery of an earlier connection to the next ``flush``. Return False when its packet exceeds the
        client's maximum."""
        parts = self._encode(message, options, qos, packet_id, dup=True)
        if parts is not None:
            self._put(*parts)
        return parts is not None

    def add(self, packet: bytes) -> None:
        """Add a packet to the next ``flush``."""
        if not self._out:
            self._outbox.add(self.flush)
        self._out.append(packet)

    def add_delivery(  # noqa: PLR0917
        self, packet_id: int, message: Message, options: DeliveryOptions, qos: int, dup: bool, noted: bool
    ) -> bool:
        """Add a new delivery at QoS 1 or 2 to the next ``flush``, with its journal entry.

        Args:
            noted: the journal must have the share's position behind the message before the client receives it.

        Returns:
            False when its packet exceeds the client's maximum.
        """
        parts = message.parts
        key = qos << 2 | self._kind
        found = parts.get(key) if parts is not None and not (dup or options.identifiers) else None
        if found is not None:
            head, tail = found[0] + packet_id.to_bytes(2, "big"), found[1]
        else:
            encoded = self._encode(message, options, qos, packet_id, dup=dup)
            if encoded is None:
                return False
            head, tail = encoded
        if self.persistent:
            if self._unjournaled is None:
                self._unjournaled = {}
            self._unjournaled[packet_id] = Sent(message.stream, message.seq, qos)
            # The journal must know a QoS 2 identifier before the client can: after a crash it is not used for another.
            self._waits |= qos == 2
        if noted and options.share is not None:
            self._waits = True
            self._shares = self._shares or set()
            self._shares.add(options.share)
        out = self._out
        if len(tail) > SPLIT_BYTES:
            self._put(head, tail)
            return True
        if not out:  # as ``_put``, without the call: fan-out at QoS 1 spends its time here
            self._outbox.add(self.flush)
        out.append(head + tail)
        return True

    def _encode(
        self, message: Message, options: DeliveryOptions, qos: int, packet_id: int, *, dup: bool = False
    ) -> tuple[bytes, bytes] | None:
        """Return the packet of a delivery in two parts; None when it exceeds the client's maximum."""
        payload = message.payload
        is_own = dup or self._kind == OWN or options.identifiers or not message.plain
        if not is_own and len(payload) <= LONG_BYTES:
            if not qos:
                return b"", shared_packet(message, self._kind)
            head, tail = shared_parts(message, qos, self._kind)
            return head + packet_id.to_bytes(2, "big"), tail
        now = self._wall_clock() if message.expires_ns else 0
        retain = message.retain and options.retain_as_published
        parts = self._wire.publish(message, qos, packet_id, retain, dup, options.identifiers, now)
        if parts is None:
            self._counters.deliveries_too_large += 1
        return parts

    def _put(self, head: bytes, tail: bytes) -> None:
        if not self._out:
            self._outbox.add(self.flush)
        if len(tail) <= SPLIT_BYTES:
            self._out.append(head + tail)
        else:
            self._out += (head, tail)
            self._split += 1

    def flush(self) -> None:
        """Write the gathered packets at once."""
        packets, self._out = self._out, []
        connection = self._connection
        if connection is None or not packets:
            return
        self._counters.deliveries_sent += len(packets)
        deliveries, self._unjournaled = self._unjournaled, None
        if self._waits or self._held:
            self._write_after_journal(connection, packets, deliveries)
            return
        if deliveries:
            self._journal.sending(self.client_id, deliveries)
        if self._split:
            self._sent_split()
            connection.send_all(packets)
        else:
            connection.send(packets[0] if len(packets) == 1 else b"".join(packets))

    def _sent_split(self) -> None:
        self._counters.deliveries_sent -= self._split
        self._split = 0

    def _write_after_journal(
        self, connection: ClientConnection, packets: list[bytes], deliveries: dict[int, Sent] | None
    ) -> None:
        self._sent_split()
        shares, self._shares = self._shares or (), None
        self._waits = False
        self._held += 1

        def write() -> None:
            if self._connection is connection:
                self._held -= 1
                connection.send_all(packets)

        if not self._journal.before_sending(self.client_id, deliveries or {}, shares, write):
            connection.displace(ReasonCode.QUOTA_EXCEEDED)

    # --- answers

    def send_pubrel(self, packet_id: int) -> None:
        """Answer PUBREC, once the journal has it."""
        connection, pubrel = self._connection, PUBREL + packet_id.to_bytes(2, "big")
        if not self.persistent:
            self._send(pubrel)
            return

        def send() -> None:
            if connection is not None and self._connection is connection:
                connection.send(pubrel)

        if not self._journal.before_pubrel(self.client_id, packet_id, send):
            self.displace(ReasonCode.QUOTA_EXCEEDED)

    def send_pubrel_of_unknown(self, packet_id: int) -> None:
        """Answer a PUBREC for an unknown packet identifier."""
        self._send(encode(PubRel(packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND), self._wire.version))

    def completed(self, packet_ids: Sequence[int]) -> None:
        """Journal that deliveries are complete."""
        if self.persistent:
            self._journal.completed(self.client_id, packet_ids)

    def is_unjournaled(self, packet_id: int) -> bool:
        """Return whether a delivery is among the packets that ``flush`` must still journal and write."""
        return self._unjournaled is not None and packet_id in self._unjournaled

    def _send(self, packet: bytes) -> None:
        if self._connection is not None:
            self._connection.send(packet)
