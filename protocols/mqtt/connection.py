"""The server's rules of a connection: the packets that a client may send in each state, and the longest silence."""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import (
    DISCONNECT_CODES_OF_CLIENTS,
    NO_PROPERTIES,
    PACKET_IDS_MAX,
    Auth,
    ConnAck,
    Connect,
    ConnectRefused,
    Disconnect,
    MqttError,
    Packet,
    PingReq,
    Properties,
    ProtocolViolation,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    Subscribe,
    Unsubscribe,
    Version,
)
from weft.protocols.topics import SHARE_PREFIX

# Limits that a server announces in CONNACK, and the checks of clients against them.

CLIENT_ID_BYTES_MAX = 1024
"""Longest client identifier: the server stores one for every session. The specification requires only 23
[MQTT-3.1.3-5]."""

PACKET_BYTES_MAX = 268_435_460
"""The largest possible packet of MQTT."""
CONNACK_OVERHEAD_BYTES = 5
"""A CONNACK of MQTT 5.0 without properties."""
ASSIGNED_IDENTIFIER_BYTES = 32
"""Bytes that an identifier assigned by the server adds to a CONNACK: 29 characters."""
SUBACK_OVERHEAD_BYTES_MAX = 8
"""Longest SUBACK or UNSUBACK without its codes: each filter adds a byte."""


class ServerLimits(msgspec.Struct, frozen=True):
    """Limits that the server announces in CONNACK of MQTT 5.0 (section 3.2.2.3) and enforces."""

    receive_maximum: int = 65_535
    """Maximum number of unanswered publishes at QoS 1 and 2 from a client."""
    topic_alias_maximum: int = 0
    maximum_qos: int = 2
    maximum_packet_size: int = PACKET_BYTES_MAX
    """Only announced here; ``decode`` enforces it."""
    keep_alive_s_max: int = 0
    """Longest keep alive that a client of MQTT 5.0 may have; 0 for any, including none."""
    retain_available: bool = True
    wildcard_subscription_available: bool = True
    subscription_identifier_available: bool = True
    shared_subscription_available: bool = True


DEFAULT_LIMITS = ServerLimits()


def connect_refusal(packet: Connect, limits: ServerLimits) -> ConnectRefused | None:
    """Return the reason to refuse a well-formed CONNECT; None to accept it."""
    version, will = packet.version, packet.will
    if version == Version.V31 and not packet.client_id:
        code, reason = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "MQTT 3.1 has no empty client identifier; give one"
        return ConnectRefused(code, reason, version=version)
    if version == Version.V311 and not packet.client_id and not packet.clean_start:
        reason = "an empty client identifier needs clean session; give the client an identifier"
        return ConnectRefused(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, reason, "3.1.3-8", version)
    if len(packet.client_id.encode()) > CLIENT_ID_BYTES_MAX:
        reason = f"the client identifier is over {CLIENT_ID_BYTES_MAX} bytes; give the client a shorter one"
        clause = "3.1.3-8" if version == Version.V5 else "3.1.3-9"
        return ConnectRefused(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, reason, clause, version)
    room = packet.properties.maximum_packet_size
    if room is not None and room < (needed := connack_bytes_max(packet, limits)):
        reason = f"a maximum packet size of {room} bytes; CONNACK may need {needed}"
        return ConnectRefused(ReasonCode.PACKET_TOO_LARGE, reason, "3.1.2-24", version)
    if packet.properties.authentication_method is not None:
        reason = f"authentication method {packet.properties.authentication_method!r}; this server has none"
        return ConnectRefused(ReasonCode.BAD_AUTHENTICATION_METHOD, reason, "4.12.0-1", version)
    if version == Version.V5 and will is not None and will.qos > limits.maximum_qos:
        return ConnectRefused(ReasonCode.QOS_NOT_SUPPORTED, "a will above the maximum QoS", "3.2.2-12", version)
    if version == Version.V5 and will is not None and will.retain and not limits.retain_available:
        return ConnectRefused(ReasonCode.RETAIN_NOT_SUPPORTED, "a will with retain", "3.2.2-13", version)
    return None


def connack_bytes_max(packet: Connect, limits: ServerLimits) -> int:
    """Return the length of the longest CONNACK that accepts this CONNECT of MQTT 5.0: the limits in it cannot be left
    out."""
    keeps_alive = not limits.keep_alive_s_max or 0 < packet.keep_alive_s <= limits.keep_alive_s_max
    bytes_of = (
        (0 if packet.client_id else ASSIGNED_IDENTIFIER_BYTES),
        5 * bool(packet.properties.session_expiry_interval),
        5 * (limits.maximum_packet_size < PACKET_BYTES_MAX),
        3 * (not keeps_alive),
        3 * (limits.receive_maximum < 65_535),
        3 * bool(limits.topic_alias_maximum),
        2 * (limits.maximum_qos < 2),
        2 * (not limits.retain_available),
        2 * (not limits.wildcard_subscription_available),
        2 * (not limits.subscription_identifier_available),
        2 * (not limits.shared_subscription_available),
    )
    return CONNACK_OVERHEAD_BYTES + sum(bytes_of)


def check_publish(packet: Publish, limits: ServerLimits) -> None:
    """Check that a client's PUBLISH of MQTT 5.0 is within the limits.

    Raises:
        ProtocolViolation: with the reason code of the limit.
    """
    if packet.qos > limits.maximum_qos:
        raise ProtocolViolation("PUBLISH above the maximum QoS", "3.2.2-11", ReasonCode.QOS_NOT_SUPPORTED)
    if packet.retain and not limits.retain_available:
        raise ProtocolViolation("PUBLISH with retain", "3.2.2-14", ReasonCode.RETAIN_NOT_SUPPORTED)
    if packet.properties.subscription_identifiers:
        raise ProtocolViolation("PUBLISH of a client with a subscription identifier", "3.3.4-6")


def check_subscribe(packet: Subscribe | Unsubscribe, limits: ServerLimits, room: int = PACKET_BYTES_MAX) -> None:
    """Check that a SUBSCRIBE or UNSUBSCRIBE of MQTT 5.0 is within the limits, and can be answered.

    Args:
        room: longest packet that the client accepts. The answer cannot be made shorter [MQTT-3.1.2-24].

    Raises:
        ProtocolViolation: with the reason code of the limit.
    """
    needed = SUBACK_OVERHEAD_BYTES_MAX + len(packet.filters)
    if needed > room:
        reason = f"{len(packet.filters)} filters, whose answer is over the client's maximum packet size of {room} bytes"
        raise ProtocolViolation(reason, "3.1.2-24", ReasonCode.PACKET_TOO_LARGE)
    if isinstance(packet, Unsubscribe):
        return
    if packet.properties.subscription_identifiers and not limits.subscription_identifier_available:
        code = ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED
        raise ProtocolViolation("SUBSCRIBE with a subscription identifier", code=code)
    for each in packet.filters:
        if not limits.shared_subscription_available and each.filter.startswith(SHARE_PREFIX):
            code = ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
            raise ProtocolViolation(f"SUBSCRIBE to {each.filter!r}", code=code)
        if not limits.wildcard_subscription_available and ("+" in each.filter or "#" in each.filter):
            code = ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
            raise ProtocolViolation(f"SUBSCRIBE to {each.filter!r}", code=code)


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
        "_aliases",
        "_bridge",
        "_expiring",
        "_limits",
        "client_packet_bytes_max",
        "client_receive_maximum",
        "client_topic_alias_maximum",
        "problem_information",
        "server_keep_alive",
        "silence_s_max",
        "state",
        "version",
    )

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
                "3.3.2-9",
                ReasonCode.TOPIC_ALIAS_INVALID,
            )
        if self._aliases is None:
            self._aliases = {}
        if topic:
            self._aliases[alias] = topic
        elif not (topic := self._aliases.get(alias, b"")):
            raise ProtocolViolation(f"topic alias {alias} is not assigned on this connection", "3.3.2-7")
        return topic

    def _check_disconnect(self, packet: Disconnect) -> None:
        if packet.code not in DISCONNECT_CODES_OF_CLIENTS:
            raise ProtocolViolation(f"DISCONNECT of a client with reason code {packet.code:#04x}", "3.14.2-1")
        if packet.properties.session_expiry_interval and not self._expiring:
            raise ProtocolViolation("DISCONNECT sets a session expiry, but CONNECT set it to 0", "3.14.2-2")

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
