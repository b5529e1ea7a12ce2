"""Bytes -> packets, with three outcomes: a packet, None for "need more", or ``MqttError``.

When all bytes of a packet are there, no field can ask for more: a field that runs past the packet's end is an error.
Sizes are checked on the fixed header, before a byte of the body is stored.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.protocols.mqtt import reason_codes
from weft.protocols.mqtt.connect_decoder import decode_connect
from weft.protocols.mqtt.errors import MalformedPacket, ProtocolViolation, ReasonCode
from weft.protocols.mqtt.packet_types import Version
from weft.protocols.mqtt.packets import (
    SUBSCRIBE_FAILED,
    Auth,
    ConnAck,
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
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from weft.protocols.mqtt.properties import NO_PROPERTIES, Properties
from weft.protocols.mqtt.property_codec import read_properties
from weft.protocols.mqtt.reader import Reader
from weft.protocols.topics import SHARE_PREFIX, InvalidTopic, split_share

FIXED_HEADER_BYTES_MAX = 5
_LENGTH_BYTES_MAX = 4
FILTERS_MAX = 4096
"""Maximum number of topic filters in one SUBSCRIBE or UNSUBSCRIBE. A packet of 1 MiB has room for 262,144, whose
decoding alone would keep all other clients waiting for a second."""


def packet_end(data: bytes, at: int, packet_bytes_max: int) -> tuple[int, int] | None:
    """Return the offsets of the body and of the end of the packet at ``at`` (the end may lie past the end of ``data``).

    Returns:
        (offset of the body, offset one past the packet), or None if the fixed header is incomplete.

    Raises:
        MalformedPacket: a remaining length of more than four bytes, or a packet over ``packet_bytes_max``.
    """
    length = 0
    for index in range(_LENGTH_BYTES_MAX):
        position = at + 1 + index
        if position >= len(data):
            return None
        byte = data[position]
        length |= (byte & 127) << 7 * index
        if byte < 128:
            end = position + 1 + length
            if end - at > packet_bytes_max:
                reason = f"a packet of {end - at} bytes; the limit is {packet_bytes_max}"
                raise MalformedPacket(reason, code=ReasonCode.PACKET_TOO_LARGE)
            return position + 1, end
    raise MalformedPacket("a remaining length of more than four bytes (section 2.2.3)")


def decode(data: bytes, at: int, packet_bytes_max: int, version: int = Version.V311) -> tuple[Packet, int] | None:
    """Decode the packet at ``at``.

    Args:
        version: the version in the connection's CONNECT. CONNECT itself is read by its own.

    Returns:
        The packet and the offset after it, or None if its bytes are incomplete.

    Raises:
        MalformedPacket: the bytes can never become a packet.
        ProtocolViolation: a packet with contents that are not allowed.
        ConnectRefused: a CONNECT that must be answered before the connection is closed: of an unknown version, or one
            of MQTT 5.0 with any fault.
    """
    size = len(data)
    if at >= size:
        return None
    # The first byte is checked before waiting for the rest: "GET / HTTP/1.1" is not a PUBACK of 69 bytes.
    first = data[at]
    name, required, decode_body = _BY_TYPE[version][first >> 4]
    if required != first & 15 and required is not None:
        _check_flags(first >> 4, first & 15, required, version)
    body = at + 2
    if body <= size and (length := data[at + 1]) < 128 and body - at + length <= packet_bytes_max:
        end = body + length
    else:
        place = packet_end(data, at, packet_bytes_max)
        if place is None:
            return None
        body, end = place
    if end > size:
        return None
    reader = Reader(data, body, end, name, version)
    packet = decode_body(reader, first & 15)
    if reader.at != end:
        reader.finish()
    return packet, end


def _check_flags(kind: int, flags: int, required: int, version: int) -> None:
    if required == _RESERVED[0]:
        raise MalformedPacket(f"packet type {kind} is reserved (table 2.1)")
    if version == Version.V31 and kind in _DUP_IN_31 and flags & ~8 == required:
        return
    clause = "2.1.3-1" if version == Version.V5 else "2.2.2-2"
    raise MalformedPacket(f"{PacketType(kind).name} with flags {flags:04b}, expected {required:04b}", clause)


def _properties(reader: Reader, packet: PacketType) -> Properties:
    return read_properties(reader, packet) if reader.version == Version.V5 else NO_PROPERTIES


def _connack(reader: Reader, _flags: int) -> Packet:
    flags, code = reader.u8("acknowledge flags"), reader.u8("return code")
    if reader.version == Version.V31:
        flags = 0  # a reserved byte there
    if flags > 1 or (flags and code):
        clause = reader.clause("3.2.2-4", "3.2.2-6" if code else "3.2.2-1")
        raise MalformedPacket(f"CONNACK with acknowledge flags {flags:#04x} and return code {code}", clause)
    if code not in (reason_codes.CONNACK_CODES if reader.version == Version.V5 else _CONNECT_CODES):
        raise ProtocolViolation(
            f"CONNACK with reason code {code:#04x}, which it cannot have", reader.clause("", "3.2.2-8")
        )
    return ConnAck(bool(flags), code, _properties(reader, PacketType.CONNACK))


def _publish(reader: Reader, flags: int) -> Packet:
    qos = flags >> 1 & 3
    if qos == 3:
        raise MalformedPacket("PUBLISH with QoS 3", "3.3.1-4")
    if flags & 8 and not qos:
        raise MalformedPacket("PUBLISH with DUP at QoS 0", "3.3.1-2")
    in_5 = reader.version == Version.V5
    topic = reader.topic("topic name", may_be_empty=in_5)
    packet_id = reader.packet_id() if qos else 0
    properties = read_properties(reader, PacketType.PUBLISH) if in_5 else NO_PROPERTIES
    if not topic and properties.topic_alias is None:
        raise ProtocolViolation("PUBLISH with neither a topic name nor a topic alias (section 3.3.2.1)")
    return Publish(topic, reader.rest(), qos, packet_id, bool(flags & 1), bool(flags & 8), properties)


def _subscribe(reader: Reader, _flags: int) -> Packet:
    packet_id = reader.packet_id()
    properties = _properties(reader, PacketType.SUBSCRIBE)
    read = _subscription_5 if reader.version == Version.V5 else _subscription
    filters: list[Subscription] = []
    while reader.at < reader.end:
        filters.append(read(reader))
        _check_count(reader, len(filters))
    if not filters:
        clause = reader.clause("3.8.3-3", "3.8.3-2")
        raise MalformedPacket("SUBSCRIBE without a topic filter", clause, ReasonCode.PROTOCOL_ERROR)
    return Subscribe(packet_id, tuple(filters), properties)


def _check_count(reader: Reader, filters: int) -> None:
    if filters > FILTERS_MAX:
        reason = f"{reader.name} with more than {FILTERS_MAX} topic filters; spread them over several packets"
        raise ProtocolViolation(reason, code=ReasonCode.QUOTA_EXCEEDED)


def _subscription(reader: Reader) -> Subscription:
    topic_filter, qos = reader.filter(), reader.u8("requested QoS")
    if qos > 2:
        raise MalformedPacket(f"SUBSCRIBE with requested QoS byte {qos:#04x}", "3.8.3-4")
    return Subscription(topic_filter, qos)


def _subscription_5(reader: Reader) -> Subscription:
    topic_filter, options = reader.filter(), reader.u8("subscription options")
    if options & 0xC0:
        raise MalformedPacket(f"SUBSCRIBE with reserved bits in its options {options:#04x}", "3.8.3-5")
    qos, retain_handling, no_local = options & 3, options >> 4, bool(options & 4)
    if qos == 3 or retain_handling == 3:
        raise ProtocolViolation(f"SUBSCRIBE with options {options:#04x}: no QoS or retain handling is 3")
    try:
        split_share(topic_filter)
    except InvalidTopic as error:
        raise MalformedPacket(str(error), code=ReasonCode.TOPIC_FILTER_INVALID) from None
    if no_local and topic_filter.startswith(SHARE_PREFIX):
        raise ProtocolViolation(f"SUBSCRIBE to {topic_filter!r} with no local", "3.8.3-4")
    return Subscription(topic_filter, qos, no_local, bool(options & 8), retain_handling)


def _suback(reader: Reader, _flags: int) -> Packet:
    packet_id, properties = reader.packet_id(), _properties(reader, PacketType.SUBACK)
    codes = reader.rest()
    allowed = reason_codes.SUBACK_CODES if reader.version == Version.V5 else (0, 1, 2, SUBSCRIBE_FAILED)
    if not codes or any(code not in allowed for code in codes):
        raise MalformedPacket(f"SUBACK with return codes {codes[:16].hex()}", reader.clause("3.9.3-2", "3.9.3-1"))
    return SubAck(packet_id, tuple(codes), properties)


def _unsubscribe(reader: Reader, _flags: int) -> Packet:
    packet_id, properties = reader.packet_id(), _properties(reader, PacketType.UNSUBSCRIBE)
    filters: list[str] = []
    while reader.at < reader.end:
        filters.append(reader.filter())
        _check_count(reader, len(filters))
    if not filters:
        raise MalformedPacket("UNSUBSCRIBE without a topic filter", "3.10.3-2", ReasonCode.PROTOCOL_ERROR)
    return Unsubscribe(packet_id, tuple(filters), properties)


def _unsuback(reader: Reader, _flags: int) -> Packet:
    packet_id = reader.packet_id()
    if reader.version != Version.V5:
        return UnsubAck(packet_id)
    properties, codes = read_properties(reader, PacketType.UNSUBACK), reader.rest()
    if not codes or any(code not in reason_codes.UNSUBACK_CODES for code in codes):
        raise MalformedPacket(f"UNSUBACK with reason codes {codes[:16].hex()}", "3.11.3-1")
    return UnsubAck(packet_id, tuple(codes), properties)


def _answer(
    packet: type[PubAck] | type[PubRec] | type[PubRel] | type[PubComp], kind: PacketType, allowed: frozenset[int]
) -> Callable[[Reader, int], Packet]:
    """Return the decoder of an acknowledgement: reason code and properties may be left out (section 3.4.2.1)."""

    def decode_answer(reader: Reader, _flags: int) -> Packet:
        packet_id = reader.packet_id()
        if reader.version != Version.V5 or reader.at == reader.end:
            return packet(packet_id)
        code = reader.code(allowed)
        return packet(packet_id, code, read_properties(reader, kind) if reader.at < reader.end else NO_PROPERTIES)

    return decode_answer


def _disconnect(reader: Reader, _flags: int) -> Packet:
    if reader.version != Version.V5 or reader.at == reader.end:
        return Disconnect()
    code = reader.code(reason_codes.DISCONNECT_CODES)
    properties = read_properties(reader, PacketType.DISCONNECT) if reader.at < reader.end else NO_PROPERTIES
    return Disconnect(code, properties)


def _auth(reader: Reader, _flags: int) -> Packet:
    if reader.at == reader.end:
        return Auth()
    code = reader.code(reason_codes.AUTH_CODES)
    return Auth(code, read_properties(reader, PacketType.AUTH))


_DECODERS: dict[int, tuple[int | None, Callable[[Reader, int], Packet]]] = {
    PacketType.CONNECT: (None, decode_connect),  # its flags are checked when its version is known
    PacketType.CONNACK: (0, _connack),
    PacketType.PUBLISH: (None, _publish),
    PacketType.PUBACK: (0, _answer(PubAck, PacketType.PUBACK, reason_codes.PUBLISH_ANSWER_CODES)),
    PacketType.PUBREC: (0, _answer(PubRec, PacketType.PUBREC, reason_codes.PUBLISH_ANSWER_CODES)),
    PacketType.PUBREL: (2, _answer(PubRel, PacketType.PUBREL, reason_codes.RELEASE_CODES)),
    PacketType.PUBCOMP: (0, _answer(PubComp, PacketType.PUBCOMP, reason_codes.RELEASE_CODES)),
    PacketType.SUBSCRIBE: (2, _subscribe),
    PacketType.SUBACK: (0, _suback),
    PacketType.UNSUBSCRIBE: (2, _unsubscribe),
    PacketType.UNSUBACK: (0, _unsuback),
    PacketType.PINGREQ: (0, lambda *_: PingReq()),
    PacketType.PINGRESP: (0, lambda *_: PingResp()),
    PacketType.DISCONNECT: (0, _disconnect),
    PacketType.AUTH: (0, _auth),
}
"""Packet type -> (required flags or None, decoder of the body). Table 2.2 and section 2.2.2."""


def _reserved(reader: Reader, _flags: int) -> Packet:
    raise AssertionError(f"no flags of {reader.name} are right")


def _by_type(version: Version) -> tuple[tuple[str, int | None, Callable[[Reader, int], Packet]], ...]:
    kinds = set(_DECODERS) if version is Version.V5 else set(_DECODERS) - {PacketType.AUTH}
    return tuple((kind.name, *(_DECODERS[kind] if kind in kinds else _RESERVED)) for kind in PacketType)


_RESERVED = (-1, _reserved)
_BY_TYPE: dict[int, tuple[tuple[str, int | None, Callable[[Reader, int], Packet]], ...]] = {
    version: _by_type(version) for version in Version
}
"""Version -> the same by packet type, with the packet's name. Reserved types require flags that no byte has."""

_CONNECT_CODES = frozenset(reason_codes.ConnectCode)

_DUP_IN_31 = (PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE)
"""Packets that clients of MQTT 3.1 may send again with DUP."""
