"""Packets -> bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.protocols.mqtt.fields import VARIABLE_MAX, encode_properties, text, u16, variable
from weft.protocols.mqtt.packets import (
    BRIDGE_BIT,
    FAILED,
    NO_PROPERTIES,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Version,
    connect_code,
)

REMAINING_LENGTH_MAX = VARIABLE_MAX
"""Largest remaining length (section 2.2.3)."""

PUBACK = bytes([PacketType.PUBACK << 4, 2])
"""Bytes before the packet id, so ``PUBACK + PUBACK.join(ids)`` is a run of PUBACKs. MQTT 5.0 reads it as success
(section 3.4.2.1)."""
PUBREC = bytes([PacketType.PUBREC << 4, 2])
PUBREL = bytes([PacketType.PUBREL << 4 | 2, 2])
PUBCOMP = bytes([PacketType.PUBCOMP << 4, 2])
PINGRESP = bytes([PacketType.PINGRESP << 4, 0])

encode_length = variable
"""Remaining length in one to four bytes (section 2.2.3)."""

_PUBLISH = PacketType.PUBLISH << 4


def _packet(first_byte: int, *parts: bytes) -> bytes:
    return b"".join((bytes([first_byte]), variable(sum(map(len, parts))), *parts))


def encode_publish(
    topic: bytes,
    payload: bytes,
    qos: int = 0,
    packet_id: int = 0,
    *,
    retain: bool = False,
    dup: bool = False,
    version: int = Version.V311,
    properties: Properties = NO_PROPERTIES,
) -> bytes:
    """Encode a PUBLISH packet without a ``Publish`` value: the fan-out to subscribers encodes many."""
    head, tail = publish_parts(topic, payload, qos, retain=retain, dup=dup, version=version, properties=properties)
    return b"".join((head, packet_id.to_bytes(2, "big"), tail)) if qos else head + tail


def publish_head(
    topic: bytes, qos: int, packet_id: int, *, retain: bool, dup: bool, tail_bytes: int, properties: bytes = b""
) -> bytes:
    """Return the first part of a PUBLISH, before the part that many packets share.

    Args:
        tail_bytes: length of the shared part.
        properties: length of all properties, and those of this packet alone; nothing before MQTT 5.
    """
    rest = (u16(len(topic)), topic, packet_id.to_bytes(2, "big") if qos else b"", properties)
    length = sum(map(len, rest)) + tail_bytes
    return b"".join((bytes((_PUBLISH | dup << 3 | qos << 1 | retain,)), variable(length), *rest))


def publish_parts(
    topic: bytes,
    payload: bytes,
    qos: int,
    *,
    retain: bool = False,
    dup: bool = False,
    version: int = Version.V311,
    properties: Properties = NO_PROPERTIES,
) -> tuple[bytes, bytes]:
    """Return the bytes before and after the packet identifier of a PUBLISH (at QoS 0 there is none between them).

    They are computed once for many subscribers: ``head + packet_id.to_bytes(2, "big") + tail`` is each one's packet.
    """
    if version != Version.V5:
        tail = payload
    elif properties is NO_PROPERTIES:
        tail = b"\0" + payload
    else:
        tail = encode_properties(properties) + payload
    size = len(topic)
    length = 2 + size + (2 if qos else 0) + len(tail)
    first = _PUBLISH | dup << 3 | qos << 1 | retain
    if length < 128 and size < 256:
        return bytes((first, length, 0, size)) + topic, tail
    return b"".join((bytes((first,)), variable(length), u16(size), topic)), tail


def _connect(packet: Connect, version: int) -> bytes:
    version = packet.version
    will, in_5 = packet.will, version == Version.V5
    flags = packet.clean_start << 1 | (packet.password is not None) << 6 | (packet.username is not None) << 7
    payload = [text(packet.client_id)]
    if will is not None:
        flags |= 1 << 2 | will.qos << 3 | will.retain << 5
        payload += [_properties(will.properties, version), text(will.topic), text(will.payload)]
    payload += [text(value) for value in (packet.username, packet.password) if value is not None]
    name = text("MQIsdp" if version == Version.V31 else "MQTT")
    properties = encode_properties(packet.properties) if in_5 else b""
    level = version | BRIDGE_BIT if packet.bridge else version
    return _packet(PacketType.CONNECT << 4, name, bytes([level, flags]), u16(packet.keep_alive_s), properties, *payload)


def _properties(properties: Properties, version: int) -> bytes:
    return encode_properties(properties) if version == Version.V5 else b""


def _connack(packet: ConnAck, version: int) -> bytes:
    first = PacketType.CONNACK << 4
    if version == Version.V5:
        return _packet(first, bytes([packet.session_present, packet.code]), encode_properties(packet.properties))
    present = packet.session_present and version != Version.V31  # a reserved bit in MQTT 3.1
    return _packet(first, bytes([present, connect_code(packet.code)]))


def _publish(packet: Publish, version: int) -> bytes:
    return encode_publish(
        packet.topic,
        packet.payload,
        packet.qos,
        packet.packet_id,
        retain=packet.retain,
        dup=packet.dup,
        version=version,
        properties=packet.properties,
    )


def _answer(start: bytes) -> Callable[[Any, int], bytes]:
    def encode_answer(packet: PubAck | PubRec | PubRel | PubComp, version: int) -> bytes:
        if version != Version.V5 or (not packet.code and packet.properties is NO_PROPERTIES):
            return start + u16(packet.packet_id)
        return _packet(start[0], u16(packet.packet_id), _reason(packet.code, packet.properties))

    return encode_answer


def _reason(code: int, properties: Properties) -> bytes:
    """Encode a reason code and properties; defaults at the end are left out."""
    if properties is NO_PROPERTIES:
        return bytes([code])
    return bytes([code]) + encode_properties(properties)


def _subscribe(packet: Subscribe, version: int) -> bytes:
    filters = [
        text(each.filter)
        + bytes([each.qos | each.no_local << 2 | each.retain_as_published << 3 | each.retain_handling << 4])
        for each in packet.filters
    ]
    properties = _properties(packet.properties, version)
    return _packet(PacketType.SUBSCRIBE << 4 | 2, u16(packet.packet_id), properties, *filters)


def _suback(packet: SubAck, version: int) -> bytes:
    codes = bytes(packet.codes if version == Version.V5 else (min(code, FAILED) for code in packet.codes))
    return _packet(PacketType.SUBACK << 4, u16(packet.packet_id), _properties(packet.properties, version), codes)


def _unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    properties = _properties(packet.properties, version)
    return _packet(PacketType.UNSUBSCRIBE << 4 | 2, u16(packet.packet_id), properties, *map(text, packet.filters))


def _unsuback(packet: UnsubAck, version: int) -> bytes:
    codes = bytes(packet.codes) if version == Version.V5 else b""
    return _packet(PacketType.UNSUBACK << 4, u16(packet.packet_id), _properties(packet.properties, version), codes)


def _disconnect(packet: Disconnect, version: int) -> bytes:
    first = PacketType.DISCONNECT << 4
    if version != Version.V5 or (not packet.code and packet.properties is NO_PROPERTIES):
        return _packet(first)
    return _packet(first, _reason(packet.code, packet.properties))


def _auth(packet: Auth, _version: int) -> bytes:
    if not packet.code and packet.properties is NO_PROPERTIES:
        return _packet(PacketType.AUTH << 4)
    return _packet(PacketType.AUTH << 4, bytes([packet.code]), encode_properties(packet.properties))


_ENCODERS: dict[type[Packet], Callable[[Any, int], bytes]] = {
    Connect: _connect,
    ConnAck: _connack,
    Publish: _publish,
    PubAck: _answer(PUBACK),
    PubRec: _answer(PUBREC),
    PubRel: _answer(PUBREL),
    PubComp: _answer(PUBCOMP),
    Subscribe: _subscribe,
    SubAck: _suback,
    Unsubscribe: _unsubscribe,
    UnsubAck: _unsuback,
    PingReq: lambda *_: _packet(PacketType.PINGREQ << 4),
    PingResp: lambda *_: PINGRESP,
    Disconnect: _disconnect,
    Auth: _auth,
}


def encode(packet: Packet, version: int = Version.V311) -> bytes:
    """Encode any packet. The values come from this server and are not checked again.

    Fields that the version lacks (properties, most reason codes) are left out. CONNECT is encoded in its own version.
    """
    return _ENCODERS[type(packet)](packet, version)
