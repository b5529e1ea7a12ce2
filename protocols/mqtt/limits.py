"""Limits that a server announces in CONNACK, and the checks of clients against them."""

from __future__ import annotations

import msgspec

from weft.protocols.mqtt.errors import ConnectRefused, ProtocolViolation, ReasonCode
from weft.protocols.mqtt.packet_types import Version
from weft.protocols.mqtt.packets import Connect, Publish, Subscribe, Unsubscribe
from weft.protocols.topics import SHARE_PREFIX

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
