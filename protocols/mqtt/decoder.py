"""Bytes -> packets, with three outcomes: a packet, None for "need more", or ``MqttError``.

When all bytes of a packet are there, no field can ask for more: a field that runs past the packet's end is an error.
Sizes are checked on the fixed header, before a byte of the body is stored.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.protocols.mqtt import packets
from weft.protocols.mqtt.fields import Reader, read_properties
from weft.protocols.mqtt.packets import (
    BRIDGE_BIT,
    NO_PROPERTIES,
    SUBSCRIBE_FAILED,
    Auth,
    ConnAck,
    Connect,
    ConnectRefused,
    Disconnect,
    MalformedPacket,
    MqttError,
    Packet,
    PacketType,
    PingReq,
    PingResp,
    Properties,
    ProtocolViolation,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Version,
    Will,
)
from weft.protocols.topics import SHARE_PREFIX, InvalidTopic, split_share

# CONNECT, the packet that names its own version (section 3.1).

_NAMES = {
    (b"MQIsdp", 3): (Version.V31, False),
    (b"MQIsdp", 3 | BRIDGE_BIT): (Version.V31, True),
    (b"MQTT", 4): (Version.V311, False),
    (b"MQTT", 4 | BRIDGE_BIT): (Version.V311, True),
    (b"MQTT", 5): (Version.V5, False),
}
"""Protocol name and level -> the version, and whether the client is a bridge."""


def decode_connect(reader: Reader, flags: int) -> Connect:
    """Decode the body of a CONNECT.

    Args:
        flags: the low bits of the first byte.

    Raises:
        MalformedPacket: not a CONNECT of MQTT at all, or a faulty one of MQTT 3.1 or 3.1.1.
        ConnectRefused: an unknown version, or a faulty CONNECT of MQTT 5.0, which CONNACK has codes for.
    """
    reader.version, bridge = _version(reader)
    if flags and reader.version != Version.V31:
        clause = reader.clause("2.2.2-2", "2.1.3-1")
        raise MalformedPacket(f"CONNECT with flags {flags:04b}, expected 0000", clause)
    if reader.version != Version.V5:
        return _body(reader, bridge=bridge)
    try:
        packet = _body(reader)
        reader.finish()
    except MqttError as error:
        refused = ConnectRefused(error.code, str(error), version=Version.V5)
        refused.clause = error.clause
        raise refused from None
    return packet


def _version(reader: Reader) -> tuple[Version, bool]:
    name, level = reader.binary("protocol name"), reader.u8("protocol level")
    if name not in (b"MQTT", b"MQIsdp"):
        raise MalformedPacket(f"protocol name {name[:16]!r}, expected 'MQTT'", "3.1.2-1")
    known = _NAMES.get((name, level))
    if known is None:
        raise ConnectRefused(
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
            f"protocol level {level} of {name.decode()}; this server speaks MQTT 3.1, 3.1.1 and 5.0 (levels 3 to 5)",
            "3.1.2-2",
            Version.V5 if level > Version.V5 else Version.V311,
        )
    return known


def _body(reader: Reader, *, bridge: bool = False) -> Connect:
    flags, keep_alive_s = reader.u8("connect flags"), reader.u16("keep alive")
    if reader.version == Version.V31:
        flags = _used_in_31(flags)
    _check_connect_flags(reader, flags)
    in_5 = reader.version == Version.V5
    properties = read_properties(reader, PacketType.CONNECT) if in_5 else NO_PROPERTIES
    client_id = reader.text("client identifier")
    will = None
    if flags & 0x04:
        will_properties = read_properties(reader, PacketType.WILL) if in_5 else NO_PROPERTIES
        topic, payload = reader.topic("will topic"), reader.binary("will message")
        will = Will(topic, payload, flags >> 3 & 3, bool(flags & 0x20), will_properties)
    username = reader.text("user name") if flags & 0x80 else None
    password = reader.binary("password") if flags & 0x40 else None
    return Connect(
        client_id, bool(flags & 0x02), keep_alive_s, will, username, password, reader.version, properties, bridge
    )


def _used_in_31(flags: int) -> int:
    """Return the connect flags without unused ones. MQTT 3.1 does not use the lowest bit, nor will QoS and will retain
    without a will (its section 3.1), and does not require that they are 0."""
    return flags & (0xFE if flags & 0x04 else 0xC6)


def _check_connect_flags(reader: Reader, flags: int) -> None:
    clause = reader.clause
    if flags & 0x01:
        raise MalformedPacket("CONNECT with its reserved flag set", "3.1.2-3")
    if not flags & 0x04 and flags & 0x38:
        reason = "CONNECT without a will, but with a will QoS or will retain"
        raise MalformedPacket(reason, clause("3.1.2-11", "3.1.2-11" if flags & 0x18 else "3.1.2-13"))
    if flags & 0x18 == 0x18:
        raise MalformedPacket("CONNECT with will QoS 3", clause("3.1.2-14", "3.1.2-12"))
    if flags & 0x40 and not flags & 0x80 and reader.version != Version.V5:
        raise MalformedPacket("CONNECT with a password but no user name", "3.1.2-22")


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
    if code not in (packets.CONNACK_CODES if reader.version == Version.V5 else _CONNECT_CODES):
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
    allowed = packets.SUBACK_CODES if reader.version == Version.V5 else (0, 1, 2, SUBSCRIBE_FAILED)
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
    if not codes or any(code not in packets.UNSUBACK_CODES for code in codes):
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
    code = reader.code(packets.DISCONNECT_CODES)
    properties = read_properties(reader, PacketType.DISCONNECT) if reader.at < reader.end else NO_PROPERTIES
    return Disconnect(code, properties)


def _auth(reader: Reader, _flags: int) -> Packet:
    if reader.at == reader.end:
        return Auth()
    code = reader.code(packets.AUTH_CODES)
    return Auth(code, read_properties(reader, PacketType.AUTH))


_DECODERS: dict[int, tuple[int | None, Callable[[Reader, int], Packet]]] = {
    PacketType.CONNECT: (None, decode_connect),  # its flags are checked when its version is known
    PacketType.CONNACK: (0, _connack),
    PacketType.PUBLISH: (None, _publish),
    PacketType.PUBACK: (0, _answer(PubAck, PacketType.PUBACK, packets.PUBLISH_ANSWER_CODES)),
    PacketType.PUBREC: (0, _answer(PubRec, PacketType.PUBREC, packets.PUBLISH_ANSWER_CODES)),
    PacketType.PUBREL: (2, _answer(PubRel, PacketType.PUBREL, packets.RELEASE_CODES)),
    PacketType.PUBCOMP: (0, _answer(PubComp, PacketType.PUBCOMP, packets.RELEASE_CODES)),
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

_CONNECT_CODES = frozenset(packets.ConnectCode)

_DUP_IN_31 = (PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE)
"""Packets that clients of MQTT 3.1 may send again with DUP."""


# Reassembly of a packet that is split between reads.
#
# A read is parsed in place. Only a packet that spans reads is joined, so nothing else is copied, and a large packet
# that comes in many reads is joined once.


class Reassembly:
    """The beginning of at most one packet, at most ``packet_bytes_max`` bytes."""

    __slots__ = ("_held", "_packet_bytes_max", "_parts", "_total")

    def __init__(self, packet_bytes_max: int) -> None:
        self._packet_bytes_max = packet_bytes_max
        self._parts: list[bytes] = []
        self._held = 0
        self._total: int | None = None
        """Bytes of the packet, known when its fixed header is complete."""

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def held(self) -> int:
        """Return the bytes kept."""
        return self._held if self._parts else 0

    def keep(self, tail: bytes) -> None:
        """Keep the beginning of the packet at the end of a read.

        Raises:
            MalformedPacket: the packet is, or will be, over the limit.
        """
        place = packet_end(tail, 0, self._packet_bytes_max)
        self._parts = [tail]
        self._held = len(tail)
        self._total = place[1] if place else None

    def complete(self, data: bytes) -> tuple[bytes, int]:
        """Complete the packet from the start of the next read.

        Returns:
            (the whole packet, or ``b""`` while it still lacks bytes; number of bytes of ``data`` used).

        Raises:
            MalformedPacket: as ``keep``.
        """
        if self._total is None:
            head = self._parts[0] + data[: FIXED_HEADER_BYTES_MAX - self._held]
            place = packet_end(head, 0, self._packet_bytes_max)
            if place is None:  # then all of data is in head
                self.keep(head)
                return b"", len(data)
            self._total = place[1]
        lacking = self._total - self._held
        if lacking > len(data):
            self._parts.append(data)
            self._held += len(data)
            return b"", len(data)
        packet = b"".join((*self._parts, data[:lacking]))
        self._parts = []
        return packet, lacking
