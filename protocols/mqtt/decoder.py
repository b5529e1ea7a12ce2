"""Bytes -> packets, with three outcomes: a packet, None for "need more", or ``MqttError``.

Once a packet's bytes are all there, nothing inside it can ask for more: a field that runs past the packet's end is
an error. Sizes are checked on the fixed header, before a byte of the body is kept.
"""

from __future__ import annotations

from collections.abc import Callable

from protocols.mqtt.errors import ConnectCode, ConnectRefused, MalformedPacket
from protocols.mqtt.packets import (
    SUBSCRIBE_FAILED,
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
    Will,
)
from protocols.topics import InvalidTopic, check_filter, check_topic

FIXED_HEADER_BYTES_MAX = 5
_LENGTH_BYTES_MAX = 4


def packet_end(data: bytes, at: int, packet_bytes_max: int) -> tuple[int, int] | None:
    """Where the packet at ``at`` has its body and its end (which may lie past the end of ``data``).

    Returns:
        (offset of the body, offset one past the packet), or None when the fixed header is not all there.

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
                raise MalformedPacket(f"a packet of {end - at} bytes; the limit is {packet_bytes_max}")
            return position + 1, end
    raise MalformedPacket("a remaining length of more than four bytes (section 2.2.3)")


def decode(data: bytes, at: int, packet_bytes_max: int) -> tuple[Packet, int] | None:
    """Decode the packet at ``at``.

    Returns:
        The packet and the offset after it, or None when its bytes are not all there.

    Raises:
        MalformedPacket: the bytes can never become a packet.
        ConnectRefused: a CONNECT of a protocol version other than 3.1.1.
    """
    if at >= len(data):
        return None
    # The first byte is judged before the rest is waited for: "GET / HTTP/1.1" is no PUBACK of 69 bytes.
    kind, flags = data[at] >> 4, data[at] & 15
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise MalformedPacket(f"packet type {kind} is reserved (table 2.1)")
    required, decode_body = decoder
    if required is not None and flags != required:
        raise MalformedPacket(f"{PacketType(kind).name} with flags {flags:04b}, expected {required:04b}", "2.2.2-2")
    place = packet_end(data, at, packet_bytes_max)
    if place is None or place[1] > len(data):
        return None
    body, end = place
    reader = _Reader(data, body, end, PacketType(kind).name)
    packet = decode_body(reader, flags)
    reader.finish()
    return packet, end


class _Reader:
    """Walks the fields of one complete packet."""

    __slots__ = ("at", "data", "end", "name")

    def __init__(self, data: bytes, at: int, end: int, name: str) -> None:
        self.data = data
        self.at = at
        self.end = end
        self.name = name

    def take(self, length: int, field: str) -> bytes:
        start = self.at
        if start + length > self.end:
            raise MalformedPacket(f"{self.name} ends inside its {field}")
        self.at = start + length
        return self.data[start : self.at]

    def u8(self, field: str) -> int:
        return self.take(1, field)[0]

    def u16(self, field: str) -> int:
        return int.from_bytes(self.take(2, field), "big")

    def binary(self, field: str) -> bytes:
        return self.take(self.u16(field), field)

    def text(self, field: str) -> str:
        data = self.binary(field)
        try:
            value = data.decode()
        except UnicodeDecodeError:
            raise MalformedPacket(f"the {field} of {self.name} is not UTF-8", "1.5.3-1") from None
        if "\0" in value:
            raise MalformedPacket(f"the {field} of {self.name} holds the null character U+0000", "1.5.3-2")
        return value

    def topic(self, field: str) -> bytes:
        value = self.text(field)
        try:
            check_topic(value)
        except InvalidTopic as error:
            raise MalformedPacket(str(error)) from None
        return value.encode()

    def filter(self) -> str:
        value = self.text("topic filter")
        try:
            check_filter(value)
        except InvalidTopic as error:
            raise MalformedPacket(str(error)) from None
        return value

    def packet_id(self) -> int:
        value = self.u16("packet identifier")
        if not value:
            raise MalformedPacket(f"{self.name} with packet identifier 0", "2.3.1-1")
        return value

    def rest(self) -> bytes:
        return self.take(self.end - self.at, "payload")

    def finish(self) -> None:
        if self.at != self.end:
            raise MalformedPacket(f"{self.end - self.at} bytes follow the last field of {self.name}")


def _connect(reader: _Reader, _flags: int) -> Packet:
    name, level = reader.binary("protocol name"), reader.u8("protocol level")
    if name not in (b"MQTT", b"MQIsdp"):
        raise MalformedPacket(f"protocol name {name[:16]!r}, expected 'MQTT'", "3.1.2-1")
    if (name, level) != (b"MQTT", 4):
        raise ConnectRefused(
            ConnectCode.UNACCEPTABLE_PROTOCOL_VERSION,
            f"protocol level {level} of {name.decode()}; this server speaks MQTT 3.1.1 (level 4)", "3.1.2-2",
        )  # fmt: skip
    flags, keep_alive_s = reader.u8("connect flags"), reader.u16("keep alive")
    _check_connect_flags(flags)
    client_id = reader.text("client identifier")
    will = None
    if flags & 0x04:
        topic, payload = reader.topic("will topic"), reader.binary("will message")
        will = Will(topic, payload, flags >> 3 & 3, bool(flags & 0x20))
    username = reader.text("user name") if flags & 0x80 else None
    password = reader.binary("password") if flags & 0x40 else None
    return Connect(client_id, bool(flags & 0x02), keep_alive_s, will, username, password)


def _check_connect_flags(flags: int) -> None:
    if flags & 0x01:
        raise MalformedPacket("CONNECT with its reserved flag set", "3.1.2-3")
    if not flags & 0x04 and flags & 0x38:
        raise MalformedPacket("CONNECT without a will, but with a will QoS or will retain", "3.1.2-11")
    if flags & 0x18 == 0x18:
        raise MalformedPacket("CONNECT with will QoS 3", "3.1.2-14")
    if flags & 0x40 and not flags & 0x80:
        raise MalformedPacket("CONNECT with a password but no user name", "3.1.2-22")


def _connack(reader: _Reader, _flags: int) -> Packet:
    flags, code = reader.u8("acknowledge flags"), reader.u8("return code")
    if flags > 1 or (flags and code):
        raise MalformedPacket(f"CONNACK with acknowledge flags {flags:#04x} and return code {code}", "3.2.2-4")
    return ConnAck(bool(flags), code)


def _publish(reader: _Reader, flags: int) -> Packet:
    qos = flags >> 1 & 3
    if qos == 3:
        raise MalformedPacket("PUBLISH with QoS 3", "3.3.1-4")
    if flags & 8 and not qos:
        raise MalformedPacket("PUBLISH with DUP at QoS 0", "3.3.1-2")
    topic = reader.topic("topic name")
    packet_id = reader.packet_id() if qos else 0
    return Publish(topic, reader.rest(), qos, packet_id, bool(flags & 1), bool(flags & 8))


def _subscribe(reader: _Reader, _flags: int) -> Packet:
    packet_id = reader.packet_id()
    filters: list[tuple[str, int]] = []
    while reader.at < reader.end:
        topic_filter, qos = reader.filter(), reader.u8("requested QoS")
        if qos > 2:
            raise MalformedPacket(f"SUBSCRIBE with requested QoS byte {qos:#04x}", "3.8.3-4")
        filters.append((topic_filter, qos))
    if not filters:
        raise MalformedPacket("SUBSCRIBE without a topic filter", "3.8.3-3")
    return Subscribe(packet_id, tuple(filters))


def _suback(reader: _Reader, _flags: int) -> Packet:
    packet_id, codes = reader.packet_id(), reader.rest()
    if not codes or any(code > 2 and code != SUBSCRIBE_FAILED for code in codes):
        raise MalformedPacket(f"SUBACK with return codes {codes[:16].hex()}", "3.9.3-2")
    return SubAck(packet_id, tuple(codes))


def _unsubscribe(reader: _Reader, _flags: int) -> Packet:
    packet_id = reader.packet_id()
    filters: list[str] = []
    while reader.at < reader.end:
        filters.append(reader.filter())
    if not filters:
        raise MalformedPacket("UNSUBSCRIBE without a topic filter", "3.10.3-2")
    return Unsubscribe(packet_id, tuple(filters))


def _id_only(
    packet: type[PubAck] | type[PubRec] | type[PubRel] | type[PubComp] | type[UnsubAck],
) -> Callable[[_Reader, int], Packet]:
    return lambda reader, _: packet(reader.packet_id())


_DECODERS: dict[int, tuple[int | None, Callable[[_Reader, int], Packet]]] = {
    PacketType.CONNECT: (0, _connect),
    PacketType.CONNACK: (0, _connack),
    PacketType.PUBLISH: (None, _publish),
    PacketType.PUBACK: (0, _id_only(PubAck)),
    PacketType.PUBREC: (0, _id_only(PubRec)),
    PacketType.PUBREL: (2, _id_only(PubRel)),
    PacketType.PUBCOMP: (0, _id_only(PubComp)),
    PacketType.SUBSCRIBE: (2, _subscribe),
    PacketType.SUBACK: (0, _suback),
    PacketType.UNSUBSCRIBE: (2, _unsubscribe),
    PacketType.UNSUBACK: (0, _id_only(UnsubAck)),
    PacketType.PINGREQ: (0, lambda *_: PingReq()),
    PacketType.PINGRESP: (0, lambda *_: PingResp()),
    PacketType.DISCONNECT: (0, lambda *_: Disconnect()),
}
"""Packet type -> (required flags or None, decoder of the body). Table 2.2 and section 2.2.2."""
