"""The properties of MQTT 5.0 (section 2.2.2): one value type for all packets, and the table of allowed packets."""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from weft.protocols.mqtt.packet_types import PacketType


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
_ANSWERS = (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP, PacketType.SUBACK,
            PacketType.UNSUBACK)  # fmt: skip
_ALL = (_CONNECT, _CONNACK, _PUBLISH, _WILL, _DISCONNECT, _AUTH, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE,
        *_ANSWERS)  # fmt: skip

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
