"""CONNECT, the packet that names its own version (section 3.1)."""

from __future__ import annotations

from weft.protocols.mqtt.errors import ConnectRefused, MalformedPacket, MqttError, ReasonCode
from weft.protocols.mqtt.packet_types import BRIDGE_BIT, PacketType, Version
from weft.protocols.mqtt.packets import Connect, Will
from weft.protocols.mqtt.properties import NO_PROPERTIES
from weft.protocols.mqtt.property_codec import read_properties
from weft.protocols.mqtt.reader import Reader

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
            "3.1.2-2", Version.V5 if level > Version.V5 else Version.V311,
        )  # fmt: skip
    return known


def _body(reader: Reader, *, bridge: bool = False) -> Connect:
    flags, keep_alive_s = reader.u8("connect flags"), reader.u16("keep alive")
    if reader.version == Version.V31:
        flags = _used_in_31(flags)
    _check_flags(reader, flags)
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
    )  # fmt: skip


def _used_in_31(flags: int) -> int:
    """Return the connect flags without unused ones. MQTT 3.1 does not use the lowest bit, nor will QoS and will retain
    without a will (its section 3.1), and does not require that they are 0."""
    return flags & (0xFE if flags & 0x04 else 0xC6)


def _check_flags(reader: Reader, flags: int) -> None:
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
