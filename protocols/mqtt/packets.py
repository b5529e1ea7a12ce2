"""The control packets of MQTT 3.1, 3.1.1 and 5.0 as values (chapter 3). Fields that a version lacks have their default
value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, IntEnum, auto

import msgspec

from weft.protocols.errors import CodecError

# Numbers that every part of the codec shares.


class Version(IntEnum):
    """The protocol level that a CONNECT names (section 3.1.2.2)."""

    V31 = 3
    V311 = 4
    V5 = 5


BRIDGE_BIT = 0x80
"""Set in the protocol level of MQTT 3.1 and 3.1.1 by bridges of Mosquitto (`try_private`, which is its default). No
standard has it. It has the effect of two subscription options of MQTT 5.0: no local and retain as published."""


class PacketType(IntEnum):
    """Upper four bits of a packet's first byte (table 2.1)."""

    WILL = 0
    """A property set of its own inside CONNECT, which is not a packet (MQTT 5.0 section 3.1.3.2)."""
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


# The reason codes of MQTT 5.0 (section 2.4), the packets that may carry each, and their translation for older
# versions.


class ReasonCode(IntEnum):
    """Reason codes. A code from 0x80 on is a failure."""

    SUCCESS = 0x00
    """Code 0: also the normal disconnection, and QoS 0 granted."""
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


class ConnectCode(IntEnum):
    """Return codes of CONNACK in MQTT 3.1 and 3.1.1 (table 3.1)."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORISED = 5


FAILED = 0x80
"""The lowest code of a failure. In MQTT 3.1.1 it is the only one that SUBACK has (section 3.9.3)."""


def _codes(*values: int) -> frozenset[int]:
    return frozenset(values)


CONNACK_CODES = _codes(0, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F)
"""Table 3-1 of MQTT 5.0; the others follow the tables of their packets."""
PUBLISH_ANSWER_CODES = _codes(0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)
"""PUBACK (table 3-4) and PUBREC (table 3-5)."""
RELEASE_CODES = _codes(0, 0x92)
"""PUBREL (table 3-6) and PUBCOMP (table 3-7)."""
SUBACK_CODES = _codes(0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)
UNSUBACK_CODES = _codes(0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)
DISCONNECT_CODES = _codes(0, 4, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3))
DISCONNECT_CODES_OF_CLIENTS = _codes(0, 4, *range(0x80, 0x84), 0x90, *range(0x93, 0x9A))
"""Codes that a client may send by table 3-13."""
AUTH_CODES = _codes(0, 0x18, 0x19)

_CONNECT_CODES = {
    ReasonCode.SUCCESS: ConnectCode.ACCEPTED,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: ConnectCode.UNACCEPTABLE_PROTOCOL_VERSION,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: ConnectCode.IDENTIFIER_REJECTED,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: ConnectCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED: ConnectCode.NOT_AUTHORISED,
    ReasonCode.TOPIC_NAME_INVALID: ConnectCode.NOT_AUTHORISED,  # of a will; another try would not help
    ReasonCode.BANNED: ConnectCode.NOT_AUTHORISED,
    ReasonCode.BAD_AUTHENTICATION_METHOD: ConnectCode.NOT_AUTHORISED,
}


def connect_code(code: int) -> int:
    """Return the CONNACK return code of MQTT 3.1 and 3.1.1 for a reason code; return codes pass unchanged."""
    if 0 < code < FAILED:
        return code
    return _CONNECT_CODES.get(ReasonCode(code), ConnectCode.SERVER_UNAVAILABLE)


# Errors of a peer. Every error closes that peer's connection and no other [MQTT-4.8.0-1].

__all__ = ["ConnectCode", "ConnectRefused", "MalformedPacket", "MqttError", "ProtocolViolation", "ReasonCode"]


class MqttError(CodecError):
    """A breach of the protocol by the peer. The message ends with the clause, such as ``[MQTT-3.1.0-2]``, if one
    applies.

    ``code`` is the reason code for DISCONNECT or CONNACK of MQTT 5.0.
    """

    def __init__(self, reason: str, clause: str = "", code: ReasonCode = ReasonCode.UNSPECIFIED_ERROR) -> None:
        super().__init__(f"{reason} [MQTT-{clause}]" if clause else reason)
        self.clause = clause
        self.code = code


class MalformedPacket(MqttError):
    """Bytes that are not an MQTT packet, and cannot become one."""

    def __init__(self, reason: str, clause: str = "", code: ReasonCode = ReasonCode.MALFORMED_PACKET) -> None:
        super().__init__(reason, clause, code)


class ProtocolViolation(MqttError):
    """A readable packet that is not allowed now, or has content that is not allowed."""

    def __init__(self, reason: str, clause: str = "", code: ReasonCode = ReasonCode.PROTOCOL_ERROR) -> None:
        super().__init__(reason, clause, code)


class ConnectRefused(MqttError):
    """A CONNECT that the server answers with a CONNACK before it closes the connection."""

    def __init__(self, code: ReasonCode, reason: str, clause: str = "", version: int = Version.V311) -> None:
        super().__init__(reason, clause, code)
        self.version = version
        """Version of the answer to the client."""


# The properties of MQTT 5.0 (section 2.2.2): one value type for all packets, and the table of allowed packets.


class Properties(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """The properties of one packet or will. None, or an empty tuple, means a missing property."""

    payload_format_indicator: int | None = None
    """1 when the payload is UTF-8, 0 when its format is not declared."""
    message_expiry_interval: int | None = None
    """Seconds."""
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    """1 to 268,435,455 each. SUBSCRIBE has at most one."""
    session_expiry_interval: int | None = None
    """Seconds; 0xFFFFFFFF means that the session never expires."""
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    """Seconds."""
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: bool | None = None
    will_delay_interval: int | None = None
    """Seconds."""
    request_response_information: bool | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    """Number of unanswered publishes at QoS 1 and 2 that the sender of this property accepts; not 0."""
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    """Any number but 0."""
    maximum_qos: int | None = None
    """0 or 1."""
    retain_available: bool | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    """In order; names may come more than once."""
    maximum_packet_size: int | None = None
    """Bytes, the fixed header included; not 0."""
    wildcard_subscription_available: bool | None = None
    subscription_identifier_available: bool | None = None
    shared_subscription_available: bool | None = None


NO_PROPERTIES = Properties()
"""Properties of a packet without any, also of MQTT 3.1 and 3.1.1; compare with ``is``."""


class Kind(Enum):
    """Encodings of a property's value."""

    FLAG = auto()
    BYTE = auto()
    TWO_BYTES = auto()
    FOUR_BYTES = auto()
    VARIABLE = auto()
    TEXT = auto()
    BINARY = auto()
    PAIR = auto()


_CONNECT, _CONNACK, _PUBLISH = PacketType.CONNECT, PacketType.CONNACK, PacketType.PUBLISH
_DISCONNECT, _AUTH = PacketType.DISCONNECT, PacketType.AUTH
_WILL = PacketType.WILL
_ANSWERS = (
    PacketType.PUBACK,
    PacketType.PUBREC,
    PacketType.PUBREL,
    PacketType.PUBCOMP,
    PacketType.SUBACK,
    PacketType.UNSUBACK,
)
_ALL = (
    _CONNECT,
    _CONNACK,
    _PUBLISH,
    _WILL,
    _DISCONNECT,
    _AUTH,
    PacketType.SUBSCRIBE,
    PacketType.UNSUBSCRIBE,
    *_ANSWERS,
)

TABLE: dict[int, tuple[str, Kind, tuple[PacketType, ...]]] = {
    0x01: ("payload_format_indicator", Kind.BYTE, (_PUBLISH, _WILL)),
    0x02: ("message_expiry_interval", Kind.FOUR_BYTES, (_PUBLISH, _WILL)),
    0x03: ("content_type", Kind.TEXT, (_PUBLISH, _WILL)),
    0x08: ("response_topic", Kind.TEXT, (_PUBLISH, _WILL)),
    0x09: ("correlation_data", Kind.BINARY, (_PUBLISH, _WILL)),
    0x0B: ("subscription_identifiers", Kind.VARIABLE, (_PUBLISH, PacketType.SUBSCRIBE)),
    0x11: ("session_expiry_interval", Kind.FOUR_BYTES, (_CONNECT, _CONNACK, _DISCONNECT)),
    0x12: ("assigned_client_identifier", Kind.TEXT, (_CONNACK,)),
    0x13: ("server_keep_alive", Kind.TWO_BYTES, (_CONNACK,)),
    0x15: ("authentication_method", Kind.TEXT, (_CONNECT, _CONNACK, _AUTH)),
    0x16: ("authentication_data", Kind.BINARY, (_CONNECT, _CONNACK, _AUTH)),
    0x17: ("request_problem_information", Kind.FLAG, (_CONNECT,)),
    0x18: ("will_delay_interval", Kind.FOUR_BYTES, (_WILL,)),
    0x19: ("request_response_information", Kind.FLAG, (_CONNECT,)),
    0x1A: ("response_information", Kind.TEXT, (_CONNACK,)),
    0x1C: ("server_reference", Kind.TEXT, (_CONNACK, _DISCONNECT)),
    0x1F: ("reason_string", Kind.TEXT, (_CONNACK, _DISCONNECT, _AUTH, *_ANSWERS)),
    0x21: ("receive_maximum", Kind.TWO_BYTES, (_CONNECT, _CONNACK)),
    0x22: ("topic_alias_maximum", Kind.TWO_BYTES, (_CONNECT, _CONNACK)),
    0x23: ("topic_alias", Kind.TWO_BYTES, (_PUBLISH,)),
    0x24: ("maximum_qos", Kind.BYTE, (_CONNACK,)),
    0x25: ("retain_available", Kind.FLAG, (_CONNACK,)),
    0x26: ("user_properties", Kind.PAIR, _ALL),
    0x27: ("maximum_packet_size", Kind.FOUR_BYTES, (_CONNECT, _CONNACK)),
    0x28: ("wildcard_subscription_available", Kind.FLAG, (_CONNACK,)),
    0x29: ("subscription_identifier_available", Kind.FLAG, (_CONNACK,)),
    0x2A: ("shared_subscription_available", Kind.FLAG, (_CONNACK,)),
}
"""Identifier -> (field of ``Properties``, its encoding, the packets that may have it). Table 2-4."""


__all__ = [
    "Auth",
    "ConnAck",
    "Connect",
    "Disconnect",
    "Packet",
    "PacketType",
    "PingReq",
    "PingResp",
    "PubAck",
    "PubComp",
    "PubRec",
    "PubRel",
    "Publish",
    "SubAck",
    "Subscribe",
    "Subscription",
    "UnsubAck",
    "Unsubscribe",
    "Version",
    "Will",
]


class Packet(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Base of all packets."""


class Will(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A message that the server publishes for a client that leaves without DISCONNECT (section 3.1.2.5)."""

    topic: bytes
    """UTF-8, checked: not empty, no wildcard."""
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES
    """``will_delay_interval`` among them."""


class Connect(Packet, frozen=True):
    """Section 3.1."""

    client_id: str
    """May be empty."""
    clean_start: bool = True
    """Clean session, as the versions before 5.0 call it."""
    keep_alive_s: int = 0
    """0 turns the mechanism off."""
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None
    version: int = Version.V311
    properties: Properties = NO_PROPERTIES
    bridge: bool = False
    """True for a bridge before MQTT 5.0: another broker, which must not get its own messages back
    (``BRIDGE_BIT``)."""


class ConnAck(Packet, frozen=True):
    """Section 3.2."""

    session_present: bool
    code: int
    """A ``ReasonCode``, which the encoder translates for older versions, or an older version's ``ConnectCode``."""
    properties: Properties = NO_PROPERTIES


class Publish(Packet, frozen=True):
    """Section 3.3."""

    topic: bytes
    """UTF-8, checked: no wildcard, and empty only with a topic alias instead. Bytes, because the server routes, stores
    and sends bytes."""
    payload: bytes
    qos: int = 0
    packet_id: int = 0
    """1 to 65,535 at QoS 1 and 2, 0 at QoS 0."""
    retain: bool = False
    dup: bool = False
    properties: Properties = NO_PROPERTIES


class PubAck(Packet, frozen=True):
    """Section 3.4."""

    packet_id: int
    code: int = 0
    properties: Properties = NO_PROPERTIES


class PubRec(Packet, frozen=True):
    """Section 3.5."""

    packet_id: int
    code: int = 0
    properties: Properties = NO_PROPERTIES


class PubRel(Packet, frozen=True):
    """Section 3.6."""

    packet_id: int
    code: int = 0
    properties: Properties = NO_PROPERTIES


class PubComp(Packet, frozen=True):
    """Section 3.7."""

    packet_id: int
    code: int = 0
    properties: Properties = NO_PROPERTIES


class Subscription(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """One line of a SUBSCRIBE (section 3.8.3)."""

    filter: str
    """Valid; ``protocols.topics.split_share`` splits that of a shared subscription."""
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    """Retained messages are sent: 0 always, 1 if the subscription is new, 2 never."""


class Subscribe(Packet, frozen=True):
    """Section 3.8."""

    packet_id: int
    filters: tuple[Subscription, ...]
    """At least one."""
    properties: Properties = NO_PROPERTIES


class SubAck(Packet, frozen=True):
    """Section 3.9."""

    packet_id: int
    codes: tuple[int, ...]
    """Granted QoS, or a ``ReasonCode`` from 0x80 on, in the order of the SUBSCRIBE's filters."""
    properties: Properties = NO_PROPERTIES


class Unsubscribe(Packet, frozen=True):
    """Section 3.10."""

    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


class UnsubAck(Packet, frozen=True):
    """Section 3.11."""

    packet_id: int
    codes: tuple[int, ...] = ()
    """One for each filter in MQTT 5.0; older versions have none, and the encoder leaves them out."""
    properties: Properties = NO_PROPERTIES


class PingReq(Packet, frozen=True):
    """Section 3.12."""


class PingResp(Packet, frozen=True):
    """Section 3.13."""


class Disconnect(Packet, frozen=True):
    """Section 3.14. Servers send it in MQTT 5.0 only."""

    code: int = 0
    properties: Properties = NO_PROPERTIES


class Auth(Packet, frozen=True):
    """Section 3.15 of MQTT 5.0; no other version has it."""

    code: int = 0
    properties: Properties = NO_PROPERTIES


SUBSCRIBE_FAILED = FAILED
"""SUBACK's return code for a filter that was not accepted (section 3.9.3)."""


# A set of packet identifiers in at most 8 KiB, so that all 65,535 of them may be open and memory stays bounded.

PACKET_IDS_MAX = 65_535
_NOT_EMPTY = re.compile(rb"[^\0]")


class PacketIds:
    """A set of numbers 0 to 65,535; empty sets take no room."""

    __slots__ = ("_bits", "_count")

    def __init__(self) -> None:
        self._bits = bytearray()
        self._count = 0

    def add(self, packet_id: int) -> bool:
        """Add a number. Return False when it was there already."""
        if not self._bits:
            self._bits = bytearray((PACKET_IDS_MAX + 1) // 8)
        mask = 1 << (packet_id & 7)
        if self._bits[packet_id >> 3] & mask:
            return False
        self._bits[packet_id >> 3] |= mask
        self._count += 1
        return True

    def discard(self, packet_id: int) -> None:
        """Remove a number; do nothing when it is not there."""
        if packet_id in self:
            self._bits[packet_id >> 3] &= ~(1 << (packet_id & 7))
            self._count -= 1

    def __contains__(self, packet_id: int) -> bool:
        return bool(self._bits) and bool(self._bits[packet_id >> 3] & 1 << (packet_id & 7))

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers, ascending. The cost depends only on their count: when clients reconnect, thousands of
        sessions with one number each are walked at a time."""
        for found in _NOT_EMPTY.finditer(self._bits):
            first, byte = found.start() << 3, found[0][0]
            yield from (first | bit for bit in range(8) if byte >> bit & 1)

    def __len__(self) -> int:
        return self._count
