"""The reason codes of MQTT 5.0 (section 2.4), the packets that may carry each, and their translation for older
versions."""

from __future__ import annotations

from enum import IntEnum


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
DISCONNECT_CODES = _codes(
    0, 4, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3)
)  # fmt: skip
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
