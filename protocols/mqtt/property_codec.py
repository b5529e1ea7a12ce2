"""Property sections <-> ``Properties`` (MQTT 5.0 section 2.2.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.protocols.mqtt.errors import MalformedPacket, ProtocolViolation, ReasonCode
from weft.protocols.mqtt.fields import text, u16, variable
from weft.protocols.mqtt.packet_types import PacketType
from weft.protocols.mqtt.properties import NO_PROPERTIES, TABLE, Kind, Properties
from weft.protocols.mqtt.reader import Reader

PROPERTIES_MAX = 1024
"""Maximum number of properties of one packet. A packet of 1 MiB has room for 170,000, whose decoding alone would keep
all other clients waiting for half a second."""

_READERS: dict[Kind, Callable[[Reader, str], Any]] = {
    Kind.FLAG: Reader.u8,
    Kind.BYTE: Reader.u8,
    Kind.TWO_BYTES: Reader.u16,
    Kind.FOUR_BYTES: Reader.u32,
    Kind.VARIABLE: Reader.variable,
    Kind.TEXT: Reader.text,
    Kind.BINARY: Reader.binary,
    Kind.PAIR: lambda reader, field: (reader.text(field), reader.text(field)),
}

_WRITERS: dict[Kind, Callable[[Any], bytes]] = {
    Kind.FLAG: lambda value: bytes([value]),
    Kind.BYTE: lambda value: bytes([value]),
    Kind.TWO_BYTES: u16,
    Kind.FOUR_BYTES: lambda value: value.to_bytes(4, "big"),
    Kind.VARIABLE: variable,
    Kind.TEXT: text,
    Kind.BINARY: text,
    Kind.PAIR: lambda value: text(value[0]) + text(value[1]),
}

_NOT_ZERO = frozenset({"receive_maximum", "maximum_packet_size", "subscription_identifiers"})
_BITS = frozenset({"payload_format_indicator", "maximum_qos"})


def read_properties(reader: Reader, packet: PacketType) -> Properties:
    """Read a property section.

    Returns:
        ``NO_PROPERTIES`` itself for an empty one.

    Raises:
        MalformedPacket: a property that the packet cannot have, or a malformed value.
        ProtocolViolation: a property that comes twice, or with a forbidden value.
    """
    length = reader.variable("property length")
    if not length:
        return NO_PROPERTIES
    outer_end, reader.end = reader.end, reader.at + length
    if reader.end > outer_end:
        raise MalformedPacket(f"{reader.name} ends inside its properties")
    found: dict[str, Any] = {}
    count = 0
    while reader.at < reader.end:
        _read_one(reader, packet, found)
        count += 1
        if count > PROPERTIES_MAX:
            reason = f"{_what(reader, packet)} with more than {PROPERTIES_MAX} properties; send fewer"
            raise ProtocolViolation(reason, code=ReasonCode.QUOTA_EXCEEDED)
    reader.end = outer_end
    for name in ("user_properties", "subscription_identifiers"):
        if name in found:
            found[name] = tuple(found[name])
    if "authentication_data" in found and "authentication_method" not in found:
        raise ProtocolViolation(f"{reader.name} with authentication data but no authentication method")
    return Properties(**found)


def _read_one(reader: Reader, packet: PacketType, found: dict[str, Any]) -> None:
    identifier = reader.variable("property identifier")
    name, kind, packets = TABLE.get(identifier, ("", Kind.FLAG, ()))
    if packet not in packets:
        raise MalformedPacket(f"{_what(reader, packet)} with property {identifier:#04x} {name}".rstrip())
    value = _READERS[kind](reader, name)
    if name in _NOT_ZERO and not value:
        raise ProtocolViolation(f"{_what(reader, packet)} with {name} 0")
    if name == "topic_alias" and not value:
        raise ProtocolViolation("PUBLISH with topic alias 0", "3.3.2-8", ReasonCode.TOPIC_ALIAS_INVALID)
    if (kind is Kind.FLAG or name in _BITS) and value > 1:
        raise ProtocolViolation(f"{_what(reader, packet)} with {name} {value}, expected 0 or 1")
    if name == "response_topic":
        _check_response_topic(value)
    if kind is Kind.PAIR or (name == "subscription_identifiers" and packet is PacketType.PUBLISH):
        found.setdefault(name, []).append(value)
    elif name in found:
        raise ProtocolViolation(f"{_what(reader, packet)} with more than one {name}")
    else:
        found[name] = [value] if kind is Kind.VARIABLE else bool(value) if kind is Kind.FLAG else value


def _what(reader: Reader, packet: PacketType) -> str:
    return "a will" if packet is PacketType.WILL else reader.name


def _check_response_topic(value: str) -> None:
    if not value or "+" in value or "#" in value:
        raise ProtocolViolation(f"response topic {value!r} is no topic name", "3.3.2-14", ReasonCode.TOPIC_NAME_INVALID)


def encode_properties(properties: Properties) -> bytes:
    """Encode a property section, including its length. The values come from this server and are not checked again."""
    if properties is NO_PROPERTIES:
        return b"\0"
    body = property_body(properties)
    return variable(len(body)) + body


def property_body(properties: Properties) -> bytes:
    """Encode the properties without their length, so that more can follow."""
    parts: list[bytes] = []
    for prefix, name, write, many in _WRITE:
        value = getattr(properties, name)
        if value is None or value == ():
            continue
        for one in value if many else (value,):
            parts += (prefix, write(one))
    return b"".join(parts)


_WRITE = tuple(
    (bytes([identifier]), name, _WRITERS[kind], name in ("user_properties", "subscription_identifiers"))
    for identifier, (name, kind, _) in TABLE.items()
)
