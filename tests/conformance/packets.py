"""Control packets as bytes, right or wrong, built by hand, and what a broker sends, taken apart."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

# --- Control packets as bytes, right or wrong, built by hand from the standard's tables


CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(8, 16)

PROPERTIES = {
    "payload_format_indicator": (1, "byte"),
    "message_expiry_interval": (2, "four"),
    "content_type": (3, "string"),
    "response_topic": (8, "string"),
    "correlation_data": (9, "binary"),
    "subscription_identifier": (11, "variable"),
    "session_expiry_interval": (17, "four"),
    "assigned_client_identifier": (18, "string"),
    "server_keep_alive": (19, "two"),
    "authentication_method": (21, "string"),
    "authentication_data": (22, "binary"),
    "request_problem_information": (23, "byte"),
    "will_delay_interval": (24, "four"),
    "request_response_information": (25, "byte"),
    "response_information": (26, "string"),
    "server_reference": (28, "string"),
    "reason_string": (31, "string"),
    "receive_maximum": (33, "two"),
    "topic_alias_maximum": (34, "two"),
    "topic_alias": (35, "two"),
    "maximum_qos": (36, "byte"),
    "retain_available": (37, "byte"),
    "user_property": (38, "pair"),
    "maximum_packet_size": (39, "four"),
    "wildcard_subscription_available": (40, "byte"),
    "subscription_identifier_available": (41, "byte"),
    "shared_subscription_available": (42, "byte"),
}
"""Name -> (identifier, type) of every property (MQTT 5.0 section 2.2.2.2)."""


def number(value: int) -> bytes:
    """A variable byte integer (MQTT 5.0 section 1.5.5)."""
    encoded = bytearray()
    while True:
        value, low = divmod(value, 128)
        encoded.append(low | 128 if value else low)
        if not value:
            return bytes(encoded)


def string(text: str | bytes) -> bytes:
    """A UTF-8 string or binary data: two bytes of length first."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("!H", len(data)) + data


def packet(kind: int, flags: int, body: bytes) -> bytes:
    """A control packet."""
    return bytes([kind << 4 | flags]) + number(len(body)) + body


def _property(name: str, value: Any) -> bytes:
    identifier, kind = PROPERTIES[name]
    data = {
        "byte": lambda: struct.pack("!B", value),
        "two": lambda: struct.pack("!H", value),
        "four": lambda: struct.pack("!I", value),
        "variable": lambda: number(value),
        "string": lambda: string(value),
        "binary": lambda: string(value),
        "pair": lambda: string(value[0]) + string(value[1]),
    }[kind]()
    return number(identifier) + data


def properties(values: dict[str, Any] | bytes | None) -> bytes:
    """A property section, its length included. Lists repeat a property; bytes are taken as they are."""
    if values is None:
        return b"\x00"
    if isinstance(values, bytes):
        return number(len(values)) + values
    encoded = b"".join(
        _property(name, one)
        for name, value in values.items()
        for one in (value if isinstance(value, list) else [value])
    )
    return number(len(encoded)) + encoded


@dataclass
class Will:
    topic: str
    payload: bytes = b"gone"
    qos: int = 0
    retain: bool = False
    properties: dict[str, Any] | bytes | None = None


def connect(
    client_id: str | bytes = "",
    *,
    version: int = 4,
    clean: bool = True,
    keep_alive: int = 0,
    will: Will | None = None,
    username: str | bytes | None = None,
    password: bytes | None = None,
    properties_: dict[str, Any] | bytes | None = None,
    flags: int | None = None,
    name: str | bytes | None = None,
) -> bytes:
    """CONNECT. ``flags`` and ``name`` replace the right connect flags and protocol name."""
    bits = (clean << 1) | ((username is not None) << 7) | ((password is not None) << 6)
    payload = string(client_id)
    if will is not None:
        bits |= 4 | will.qos << 3 | will.retain << 5
        payload += properties(will.properties) if version == 5 else b""
        payload += string(will.topic) + string(will.payload)
    payload += string(username) if username is not None else b""
    payload += string(password) if password is not None else b""
    name = name if name is not None else ("MQIsdp" if version == 3 else "MQTT")
    head = string(name) + struct.pack("!BBH", version, bits if flags is None else flags, keep_alive)
    return packet(CONNECT, 0, head + (properties(properties_) if version == 5 else b"") + payload)


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    *,
    version: int = 4,
    qos: int = 0,
    packet_id: int | None = None,
    retain: bool = False,
    dup: bool = False,
    properties_: dict[str, Any] | bytes | None = None,
) -> bytes:
    head = string(topic) + (struct.pack("!H", packet_id) if packet_id is not None else b"")
    section = properties(properties_) if version == 5 else b""
    return packet(PUBLISH, dup << 3 | qos << 1 | retain, head + section + payload)


def acknowledge(
    kind: int,
    packet_id: int,
    *,
    reason: int | None = None,
    properties_: dict[str, Any] | bytes | None = None,
    flags: int | None = None,
) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP; with a reason it is one of MQTT 5."""
    body = struct.pack("!H", packet_id) + (bytes([reason]) if reason is not None else b"")
    body += properties(properties_) if properties_ is not None else b""
    return packet(kind, flags if flags is not None else (2 if kind == PUBREL else 0), body)


def subscribe(
    packet_id: int,
    *filters: tuple[str | bytes, int],
    version: int = 4,
    properties_: dict[str, Any] | bytes | None = None,
) -> bytes:
    """SUBSCRIBE; each filter comes with its options byte."""
    head = struct.pack("!H", packet_id) + (properties(properties_) if version == 5 else b"")
    return packet(SUBSCRIBE, 2, head + b"".join(string(text) + bytes([options]) for text, options in filters))


def unsubscribe(packet_id: int, *filters: str | bytes, version: int = 4) -> bytes:
    head = struct.pack("!H", packet_id) + (properties(None) if version == 5 else b"")
    return packet(UNSUBSCRIBE, 2, head + b"".join(map(string, filters)))


def disconnect(reason: int | None = None, properties_: dict[str, Any] | bytes | None = None) -> bytes:
    body = bytes([reason]) if reason is not None else b""
    return packet(DISCONNECT, 0, body + (properties(properties_) if properties_ is not None else b""))


# --- What a broker sends, taken apart; what it may not send fails an assertion


_PROPERTY_NAMES = {number: (name, kind) for name, (number, kind) in PROPERTIES.items()}
_REPEATED = ("user_property", "subscription_identifier")


@dataclass
class Packet:
    """What the broker sent, taken apart."""

    kind: int
    flags: int
    body: bytes
    packet_id: int = 0
    topic: str = ""
    payload: bytes = b""
    reason: int = 0
    reasons: list[int] = field(default_factory=list)
    properties: dict[str, Any] = field(default_factory=dict)
    session_present: bool = False
    size: int = 0

    @property
    def qos(self) -> int:
        return self.flags >> 1 & 3

    @property
    def dup(self) -> bool:
        return bool(self.flags & 8)

    @property
    def retain(self) -> bool:
        return bool(self.flags & 1)

    @property
    def user_properties(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = self.properties.get("user_property", [])
        return found


def read_number(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _read_string(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("!H", data, at)
    assert at + 2 + length <= len(data), "a string reaches past its packet"
    return data[at + 2 : at + 2 + length], at + 2 + length


def _read_value(kind: str, data: bytes, at: int) -> tuple[Any, int]:
    if kind == "variable":
        return read_number(data, at)
    if kind in ("string", "binary"):
        value, at = _read_string(data, at)
        return (value.decode() if kind == "string" else value), at
    if kind == "pair":
        name, at = _read_string(data, at)
        value, at = _read_string(data, at)
        return (name.decode(), value.decode()), at
    form = {"byte": "!B", "two": "!H", "four": "!I"}[kind]
    return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)


def read_properties(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    """A property section as a dictionary; what may repeat is a list."""
    length, at = read_number(data, at)
    end = at + length
    assert end <= len(data), "a property section reaches past its packet"
    found: dict[str, Any] = {}
    while at < end:
        identifier, at = read_number(data, at)
        name, kind = _PROPERTY_NAMES[identifier]
        value, at = _read_value(kind, data, at)
        if name in _REPEATED:
            found.setdefault(name, []).append(value)
        else:
            assert name not in found, f"{name} is there twice"
            found[name] = value
    assert at == end, "a property reaches past its section"
    return found, at


def take_apart(kind: int, flags: int, body: bytes, version: int) -> Packet:
    read = Packet(kind, flags, body)
    if kind != PUBLISH:
        assert flags == (2 if kind == PUBREL else 0), f"reserved flags {flags:04b} of packet type {kind}"
    if kind == CONNACK:
        assert body[0] in (0, 1)
        read.session_present, read.reason = bool(body[0]), body[1]
        if version == 5:
            read.properties, at = read_properties(body, 2)
            assert at == len(body)
        else:
            assert len(body) == 2
    elif kind == PUBLISH:
        topic, at = _read_string(body, 0)
        read.topic = topic.decode()
        if read.qos:
            read.packet_id, at = struct.unpack_from("!H", body, at)[0], at + 2
            assert read.packet_id
        if version == 5:
            read.properties, at = read_properties(body, at)
        read.payload = body[at:]
    elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
        read.packet_id = struct.unpack_from("!H", body)[0]
        assert version == 5 or len(body) == 2
        read.reason = body[2] if len(body) > 2 else 0
        if len(body) > 3:
            read.properties, at = read_properties(body, 3)
            assert at == len(body)
    elif kind in (SUBACK, UNSUBACK):
        read.packet_id, at = struct.unpack_from("!H", body)[0], 2
        if version == 5:
            read.properties, at = read_properties(body, at)
        read.reasons = list(body[at:])
    elif kind == DISCONNECT:
        assert version == 5, "a server of MQTT 3.1.1 sends no DISCONNECT"
        read.reason = body[0] if body else 0
        if len(body) > 1:
            read.properties, at = read_properties(body, 1)
            assert at == len(body)
    elif kind == PINGRESP:
        assert not body
    else:
        raise AssertionError(f"a server sends no packet of type {kind}")
    return read
