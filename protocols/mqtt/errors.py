"""Errors of a peer. Every error closes that peer's connection and no other [MQTT-4.8.0-1]."""

from __future__ import annotations

from weft.protocols.errors import CodecError
from weft.protocols.mqtt.packet_types import Version
from weft.protocols.mqtt.reason_codes import ConnectCode, ReasonCode

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
