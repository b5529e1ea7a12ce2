"""Packets -> bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocols.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)

REMAINING_LENGTH_MAX = 268_435_455
"""Largest remaining length: four bytes of seven bits (section 2.2.3)."""

PUBACK = bytes([PacketType.PUBACK << 4, 2])
"""What precedes the two bytes of the packet id; so ``PUBACK + PUBACK.join(ids)`` is a run of PUBACKs."""
PUBREC = bytes([PacketType.PUBREC << 4, 2])
PUBREL = bytes([PacketType.PUBREL << 4 | 2, 2])
PUBCOMP = bytes([PacketType.PUBCOMP << 4, 2])
PINGRESP = bytes([PacketType.PINGRESP << 4, 0])


def encode_length(length: int) -> bytes:
    """The remaining length in one to four bytes (section 2.2.3).

    Raises:
        ValueError: over ``REMAINING_LENGTH_MAX``.
    """
    if length > REMAINING_LENGTH_MAX:
        raise ValueError(f"a packet of {length} bytes; MQTT has room for {REMAINING_LENGTH_MAX}")
    encoded = bytearray()
    while length > 127:
        encoded.append(length & 127 | 128)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


def _packet(first_byte: int, *parts: bytes) -> bytes:
    return b"".join((bytes([first_byte]), encode_length(sum(map(len, parts))), *parts))


def _u16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def _text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _u16(len(data)) + data


def encode_publish(
    topic: bytes, payload: bytes, qos: int = 0, packet_id: int = 0, *, retain: bool = False, dup: bool = False
) -> bytes:
    """A PUBLISH packet without a ``Publish`` value: the fan-out to subscribers makes many."""
    first_byte = PacketType.PUBLISH << 4 | dup << 3 | qos << 1 | retain
    return _packet(first_byte, _u16(len(topic)), topic, _u16(packet_id) if qos else b"", payload)


def _connect(packet: Connect) -> bytes:
    will = packet.will
    flags = packet.clean_session << 1 | (packet.password is not None) << 6 | (packet.username is not None) << 7
    payload = [_text(packet.client_id)]
    if will is not None:
        flags |= 1 << 2 | will.qos << 3 | will.retain << 5
        payload += [_text(will.topic), _text(will.payload)]
    payload += [_text(value) for value in (packet.username, packet.password) if value is not None]
    return _packet(PacketType.CONNECT << 4, _text("MQTT"), bytes([4, flags]), _u16(packet.keep_alive_s), *payload)


def _publish(packet: Publish) -> bytes:
    return encode_publish(
        packet.topic, packet.payload, packet.qos, packet.packet_id, retain=packet.retain, dup=packet.dup
    )


def _subscribe(packet: Subscribe) -> bytes:
    filters = [_text(topic_filter) + bytes([qos]) for topic_filter, qos in packet.filters]
    return _packet(PacketType.SUBSCRIBE << 4 | 2, _u16(packet.packet_id), *filters)


def _unsubscribe(packet: Unsubscribe) -> bytes:
    return _packet(PacketType.UNSUBSCRIBE << 4 | 2, _u16(packet.packet_id), *map(_text, packet.filters))


_ENCODERS: dict[type[Packet], Callable[[Any], bytes]] = {
    Connect: _connect,
    ConnAck: lambda packet: _packet(PacketType.CONNACK << 4, bytes([packet.session_present, packet.code])),
    Publish: _publish,
    PubAck: lambda packet: PUBACK + _u16(packet.packet_id),
    PubRec: lambda packet: PUBREC + _u16(packet.packet_id),
    PubRel: lambda packet: PUBREL + _u16(packet.packet_id),
    PubComp: lambda packet: PUBCOMP + _u16(packet.packet_id),
    Subscribe: _subscribe,
    SubAck: lambda packet: _packet(PacketType.SUBACK << 4, _u16(packet.packet_id), bytes(packet.codes)),
    Unsubscribe: _unsubscribe,
    UnsubAck: lambda packet: _packet(PacketType.UNSUBACK << 4, _u16(packet.packet_id)),
    PingReq: lambda _: _packet(PacketType.PINGREQ << 4),
    PingResp: lambda _: PINGRESP,
    Disconnect: lambda _: _packet(PacketType.DISCONNECT << 4),
}


def encode(packet: Packet) -> bytes:
    """Encode any packet. The values are the caller's own: they are not checked again."""
    return _ENCODERS[type(packet)](packet)
