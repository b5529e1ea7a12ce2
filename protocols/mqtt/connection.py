"""The server's rules of a connection: the packets that a client may send in each state, and the longest silence."""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.errors import ConnectRefused, MqttError, ProtocolViolation, ReasonCode
from weft.protocols.mqtt.limits import (
    CLIENT_ID_BYTES_MAX,
    DEFAULT_LIMITS,
    PACKET_BYTES_MAX,
    ServerLimits,
    check_publish,
    check_subscribe,
    connect_refusal,
)
from weft.protocols.mqtt.packet_ids import PACKET_IDS_MAX
from weft.protocols.mqtt.packet_types import Version
from weft.protocols.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
)
from weft.protocols.mqtt.properties import NO_PROPERTIES, Properties
from weft.protocols.mqtt.reason_codes import DISCONNECT_CODES_OF_CLIENTS
from weft.protocols.topics import SHARE_PREFIX

__all__ = [
    "CLIENT_ID_BYTES_MAX",
    "KEEP_ALIVE_GRACE",
    "PACKET_BYTES_MAX",
    "Connection",
    "ConnectionState",
    "ServerLimits",
]


class ConnectionState(Enum):
    """States of a connection."""

    AWAITING_CONNECT = auto()
    OPEN = auto()
    CLOSED = auto()


_NEXT: dict[ConnectionState, dict[type[Packet], ConnectionState]] = {
    ConnectionState.AWAITING_CONNECT: {Connect: ConnectionState.OPEN},
    ConnectionState.OPEN: {
        Publish: ConnectionState.OPEN,
        PubAck: ConnectionState.OPEN,
        PubRec: ConnectionState.OPEN,
        PubRel: ConnectionState.OPEN,
        PubComp: ConnectionState.OPEN,
        Subscribe: ConnectionState.OPEN,
        Unsubscribe: ConnectionState.OPEN,
        PingReq: ConnectionState.OPEN,
        Disconnect: ConnectionState.CLOSED,
    },
    ConnectionState.CLOSED: {},
}
"""State -> packets a client may send -> next state. AUTH is not there: a CONNECT that asks for enhanced
authentication is refused, and without one AUTH is a protocol error (MQTT 5.0 section 4.12)."""

KEEP_ALIVE_GRACE = 1.5
"""A client may be silent for this many times its keep alive [MQTT-3.1.2-24; 5.0: MQTT-3.1.2-22]."""


class Connection:
    """The state of one client's connection. No I/O, no clock: the caller passes each packet."""

    __slots__ = (
        "_aliases", "_bridge", "_expiring", "_limits", "client_packet_bytes_max", "client_receive_maximum",
        "client_topic_alias_maximum", "problem_information", "server_keep_alive", "silence_s_max", "state",
        "version",
    )  # fmt: skip

    def __init__(self, limits: ServerLimits | None = None) -> None:
        self._limits = limits or DEFAULT_LIMITS
        self._aliases: dict[int, bytes] | None = None
        self._bridge = False
        self._expiring = False
        """True when the client's CONNECT asked for a session that outlives the connection."""
        self.state = ConnectionState.AWAITING_CONNECT
        self.version: int = Version.V311
        """Version for decoding and encoding packets; known after CONNECT."""
        self.silence_s_max: float | None = None
        """Seconds without a packet after which the client counts as gone; None for no limit."""
        self.server_keep_alive: int | None = None
        """Seconds that the client must use instead of its own keep alive, announced in CONNACK."""
        self.client_receive_maximum = 65_535
        """Maximum number of unanswered publishes at QoS 1 and 2 to the client."""
        self.client_packet_bytes_max = PACKET_BYTES_MAX
        """Longest packet that may be sent to the client [MQTT-3.1.2-24]."""
        self.client_topic_alias_maximum = 0
        """Largest topic alias that may be sent to the client."""
        self.problem_information = True
        """True when acknowledgements may carry reason strings and user properties [MQTT-3.1.2-29]."""

    def receive(self, packet: Packet) -> Packet:
        """Apply a packet from the client.

        Returns:
            The packet to act upon: the given one, a PUBLISH with its topic instead of a topic alias, or a bridge's
                SUBSCRIBE with the options that it cannot request.

        Raises:
            ProtocolViolation: the packet is not allowed in this state, or breaks a limit of CONNACK.
            ConnectRefused: an unacceptable CONNECT.
        """
        following = _NEXT[self.state].get(type(packet))
        if following is None:
            raise self._violation(packet)
        if isinstance(packet, Connect):
            self._check_connect(packet)
        elif self.version == Version.V5:
            if isinstance(packet, Publish):
                packet = self._publish(packet)
            elif isinstance(packet, Subscribe | Unsubscribe):
                check_subscribe(packet, self._limits, self.client_packet_bytes_max)
            elif isinstance(packet, Disconnect):
                self._check_disconnect(packet)
        elif self._bridge and isinstance(packet, Subscribe):
            packet = _for_bridge(packet)
        self.state = following
        return packet

    @property
    def answers_due_max(self) -> int:
        """Return the number of publishes at QoS 1 and 2 that may wait for their answer before the node stops reading
        from the client.

        MQTT 5.0 allows DISCONNECT with 0x93 past the receive maximum (section 3.3.4) and does not require it. Clients
        exist that send past it, and closing would make them send stored messages again: the caller stops reading
        instead. MQTT 3.1 and 3.1.1 have no receive maximum; there are no more than 65,535 identifiers.
        """
        return self._limits.receive_maximum if self.version == Version.V5 else PACKET_IDS_MAX

    def announcement(
        self, *, assigned_client_identifier: str | None = None, session_expiry_interval: int | None = None
    ) -> Properties:
        """Return CONNACK's properties: the limits, as far as they differ from the protocol's defaults."""
        if self.version != Version.V5:
            return NO_PROPERTIES
        limits = self._limits
        return Properties(
            session_expiry_interval=session_expiry_interval,
            assigned_client_identifier=assigned_client_identifier,
            server_keep_alive=self.server_keep_alive,
            receive_maximum=limits.receive_maximum if limits.receive_maximum < 65_535 else None,
            topic_alias_maximum=limits.topic_alias_maximum or None,
            maximum_qos=limits.maximum_qos if limits.maximum_qos < 2 else None,
            retain_available=None if limits.retain_available else False,
            maximum_packet_size=limits.maximum_packet_size if limits.maximum_packet_size < PACKET_BYTES_MAX else None,
            wildcard_subscription_available=None if limits.wildcard_subscription_available else False,
            subscription_identifier_available=None if limits.subscription_identifier_available else False,
            shared_subscription_available=None if limits.shared_subscription_available else False,
        )

    def encode(self, packet: Packet) -> bytes:
        """Encode a packet for this client: in its version, and without reason string and user properties if it did not
        request them or has no room for them [MQTT-3.4.2-2, 3.4.2-3 and their like]."""
        properties = getattr(packet, "properties", NO_PROPERTIES)
        if self.version != Version.V5 or properties is NO_PROPERTIES or isinstance(packet, Publish):
            return encode(packet, self.version)
        if self.problem_information or isinstance(packet, ConnAck | Disconnect):
            data = encode(packet, Version.V5)
            if len(data) <= self.client_packet_bytes_max:
                return data
        bare = msgspec.structs.replace(properties, reason_string=None, user_properties=())
        if bare == NO_PROPERTIES:
            bare = NO_PROPERTIES  # the encoder then omits the property section
        return encode(msgspec.structs.replace(packet, properties=bare), Version.V5)

    def last_words(self, error: MqttError) -> bytes:
        """Return the bytes for the client before the connection is closed for an error of its own; often none."""
        if self.state is ConnectionState.AWAITING_CONNECT:
            if not isinstance(error, ConnectRefused):
                return b""
            self.version = error.version
            words = self.encode(ConnAck(False, error.code, Properties(reason_string=str(error))))
            return words if len(words) <= self.client_packet_bytes_max else b""
        second = isinstance(error, ConnectRefused)  # a second CONNECT is an error, whatever its contents
        return self.farewell(ReasonCode.PROTOCOL_ERROR if second else error.code, str(error))

    def farewell(self, code: ReasonCode, reason: str | None = None) -> bytes:
        """Return the DISCONNECT with which a server ends an open connection; none before MQTT 5.0 [MQTT-3.14.0-1]."""
        if self.version != Version.V5 or self.state is not ConnectionState.OPEN:
            return b""
        packet = self.encode(Disconnect(code, Properties(reason_string=reason) if reason else NO_PROPERTIES))
        return packet if len(packet) <= self.client_packet_bytes_max else b""

    # --- allowed packets

    def _check_connect(self, packet: Connect) -> None:
        self.version, self._bridge = packet.version, packet.bridge
        asked = packet.properties
        self.client_receive_maximum = asked.receive_maximum or 65_535
        self.client_packet_bytes_max = asked.maximum_packet_size or PACKET_BYTES_MAX
        self.client_topic_alias_maximum = asked.topic_alias_maximum or 0
        self.problem_information = asked.request_problem_information is not False
        refusal = connect_refusal(packet, self._limits)
        if refusal is not None:
            raise refusal
        self._expiring = bool(asked.session_expiry_interval)
        keep_alive_s, longest = packet.keep_alive_s, self._limits.keep_alive_s_max
        if packet.version == Version.V5 and longest and not 0 < keep_alive_s <= longest:
            keep_alive_s = self.server_keep_alive = longest
        if keep_alive_s:
            self.silence_s_max = KEEP_ALIVE_GRACE * keep_alive_s

    def _publish(self, packet: Publish) -> Publish:
        check_publish(packet, self._limits)
        properties = packet.properties
        if properties is NO_PROPERTIES:
            return packet
        if properties.topic_alias is None:
            return packet
        topic = self._resolve(packet.topic, properties.topic_alias)
        rest = msgspec.structs.replace(properties, topic_alias=None)
        return msgspec.structs.replace(packet, topic=topic, properties=NO_PROPERTIES if rest == NO_PROPERTIES else rest)

    def _resolve(self, topic: bytes, alias: int) -> bytes:
        if alias > self._limits.topic_alias_maximum:
            raise ProtocolViolation(
                f"topic alias {alias}; CONNACK allowed {self._limits.topic_alias_maximum}",
                "3.3.2-9", ReasonCode.TOPIC_ALIAS_INVALID,
            )  # fmt: skip
        if self._aliases is None:
            self._aliases = {}
        if topic:
            self._aliases[alias] = topic
        elif not (topic := self._aliases.get(alias, b"")):
            raise ProtocolViolation(f"topic alias {alias} stands for no topic on this connection", "3.3.2-7")
        return topic

    def _check_disconnect(self, packet: Disconnect) -> None:
        if packet.code not in DISCONNECT_CODES_OF_CLIENTS:
            raise ProtocolViolation(f"DISCONNECT of a client with reason code {packet.code:#04x}", "3.14.2-1")
        if packet.properties.session_expiry_interval and not self._expiring:
            raise ProtocolViolation("DISCONNECT makes a session last that was to end with its connection", "3.14.2-2")

    def _violation(self, packet: Packet) -> ProtocolViolation:
        name = type(packet).__name__.upper()
        if self.state is ConnectionState.AWAITING_CONNECT:
            return ProtocolViolation(f"{name} before CONNECT", "3.1.0-1")
        if self.state is ConnectionState.CLOSED:
            return ProtocolViolation(f"{name} after DISCONNECT", "3.14.4-2")
        if isinstance(packet, Connect):
            return ProtocolViolation("a second CONNECT", "3.1.0-2")
        if isinstance(packet, Auth):
            return ProtocolViolation("AUTH, but CONNECT named no authentication method (section 4.12)")
        return ProtocolViolation(f"{name} is nothing that a client may send here")


def _for_bridge(packet: Subscribe) -> Subscribe:
    """Set the options that a bridge cannot request: no local, so that a topic bridged in both directions does not loop,
    and retain as published, so that retained messages arrive as such. Shared subscriptions have no "no local"
    [MQTT-3.8.3-4]."""
    filters = tuple(
        msgspec.structs.replace(each, no_local=not each.filter.startswith(SHARE_PREFIX), retain_as_published=True)
        for each in packet.filters
    )
    return msgspec.structs.replace(packet, filters=filters)
