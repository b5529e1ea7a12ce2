"""What a peer can do wrong. Every error closes that peer's connection and no other [MQTT-4.8.0-1]."""

from __future__ import annotations

from enum import IntEnum

from protocols.errors import CodecError


class ConnectCode(IntEnum):
    """Return codes of CONNACK (table 3.1)."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORISED = 5


class MqttError(CodecError):
    """The peer broke the protocol. The sentence ends with the clause, such as ``[MQTT-3.1.0-2]``, where one applies."""

    def __init__(self, reason: str, clause: str = "") -> None:
        super().__init__(f"{reason} [MQTT-{clause}]" if clause else reason)
        self.clause = clause


class MalformedPacket(MqttError):
    """The bytes are no MQTT packet, and no further bytes would make them one."""


class ProtocolViolation(MqttError):
    """A well-formed packet that may not come now."""


class ConnectRefused(MqttError):
    """A CONNECT that the server answers with ``code`` before it closes the connection."""

    def __init__(self, code: ConnectCode, reason: str, clause: str = "") -> None:
        super().__init__(reason, clause)
        self.code = code
