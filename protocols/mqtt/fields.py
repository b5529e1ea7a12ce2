"""Fields of packets (section 1.5) and sections of properties (MQTT 5.0 section 2.2.2) as bytes, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.protocols.mqtt.packets import (
    NO_PROPERTIES,
    TABLE,
    Kind,
    MalformedPacket,
    PacketType,
    Properties,
    ProtocolViolation,
    ReasonCode,
    Version,
)
from weft.protocols.topics import InvalidTopic, check_filter, check_topic

# Values -> the bytes of a packet's fields (section 1.5).

VARIABLE_MAX = 268_435_455
"""Largest variable byte integer, and largest remaining length: four bytes of seven bits (section 2.2.3)."""

TEXT_BYTES_MAX = 65_535


def variable(value: int) -> bytes:
    """Encode a variable byte integer in one to four bytes.

    Raises:
        ValueError: over ``VARIABLE_MAX``.
    """
    if value < 128:
        return bytes((value,))
    if value > VARIABLE_MAX:
        raise ValueError(f"a packet of {value} bytes; MQTT has room for {VARIABLE_MAX}")
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def u16(value: int) -> bytes:
    """Encode a two byte integer."""
    return value.to_bytes(2, "big")


def text(value: str | bytes) -> bytes:
    """Encode a string or binary data with its length before it.

    Raises:
        ValueError: over ``TEXT_BYTES_MAX``.
    """
    data = value.encode() if isinstance(value, str) else value
    if len(data) > TEXT_BYTES_MAX:
        raise ValueError(f"a field of {len(data)} bytes; MQTT has room for {TEXT_BYTES_MAX}")
    return len(data).to_bytes(2, "big") + data


# A reader of the fields of one complete packet (section 1.5).


class Reader:
    """A reader of one field after another. A field that runs past the packet's end is an error, never a wait for more
    bytes."""

    __slots__ = ("at", "data", "end", "name", "version")

    def __init__(self, data: bytes, at: int, end: int, name: str, version: int) -> None:
        self.data = data
        self.at = at
        self.end = end
        self.name = name
        self.version = version

    def clause(self, before_5: str, in_5: str) -> str:
        """Return the number of a rule in this packet's version."""
        return in_5 if self.version == Version.V5 else before_5

    def take(self, length: int, field: str) -> bytes:
        """Return the next bytes unchanged."""
        start = self.at
        if start + length > self.end:
            raise MalformedPacket(f"{self.name} ends inside its {field}")
        self.at = start + length
        return self.data[start : self.at]

    def u8(self, field: str) -> int:
        """Return a byte."""
        return self.take(1, field)[0]

    def u16(self, field: str) -> int:
        """Return a two byte integer."""
        return int.from_bytes(self.take(2, field), "big")

    def u32(self, field: str) -> int:
        """Return a four byte integer."""
        return int.from_bytes(self.take(4, field), "big")

    def variable(self, field: str) -> int:
        """Return a variable byte integer; only its shortest form is valid (MQTT 5.0 section 1.5.5)."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.u8(field)
            value |= (byte & 127) << shift
            if byte < 128:
                if not byte and shift:
                    raise MalformedPacket(f"the {field} of {self.name} is longer than necessary", "1.5.5-1")
                return value
        raise MalformedPacket(f"the {field} of {self.name} is an integer of more than four bytes")

    def binary(self, field: str) -> bytes:
        """Return bytes that follow their length."""
        return self.take(self.u16(field), field)

    def text(self, field: str) -> str:
        """Return UTF-8 text that follows its length."""
        data = self.binary(field)
        try:
            value = data.decode()
        except UnicodeDecodeError:
            clause = self.clause("1.5.3-1", "1.5.4-1")
            raise MalformedPacket(f"the {field} of {self.name} is not UTF-8", clause) from None
        if "\0" in value:
            clause = self.clause("1.5.3-2", "1.5.4-2")
            raise MalformedPacket(f"the {field} of {self.name} holds the null character U+0000", clause)
        return value

    def topic(self, field: str, *, may_be_empty: bool = False) -> bytes:
        """Return a topic name."""
        value = self.text(field)
        if not value and may_be_empty:
            return b""
        try:
            check_topic(value)
        except InvalidTopic as error:
            raise MalformedPacket(str(error), code=ReasonCode.TOPIC_NAME_INVALID) from None
        return value.encode()

    def filter(self) -> str:
        """Return a topic filter."""
        value = self.text("topic filter")
        try:
            check_filter(value)
        except InvalidTopic as error:
            raise MalformedPacket(str(error), code=ReasonCode.TOPIC_FILTER_INVALID) from None
        return value

    def packet_id(self) -> int:
        """Return a packet identifier."""
        value = self.u16("packet identifier")
        if not value:
            reason, clause = f"{self.name} with packet identifier 0", self.clause("2.3.1-1", "2.2.1-3")
            raise MalformedPacket(reason, clause, ReasonCode.PROTOCOL_ERROR)
        return value

    def code(self, allowed: frozenset[int]) -> int:
        """Return a reason code from the packet's table."""
        value = self.u8("reason code")
        if value not in allowed:
            raise ProtocolViolation(f"{self.name} with reason code {value:#04x}, which it cannot have")
        return value

    def rest(self) -> bytes:
        """Return all remaining bytes."""
        return self.take(self.end - self.at, "payload")

    def finish(self) -> None:
        """Check that no bytes are left."""
        if self.at != self.end:
            raise MalformedPacket(f"{self.end - self.at} bytes follow the last field of {self.name}")


# Property sections <-> ``Properties`` (MQTT 5.0 section 2.2.2).

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
        raise ProtocolViolation(
            f"response topic {value!r} is not a topic name", "3.3.2-14", ReasonCode.TOPIC_NAME_INVALID
        )


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
