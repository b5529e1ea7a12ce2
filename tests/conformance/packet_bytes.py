"""Control packets as bytes, right or wrong, built by hand from the standard's tables."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

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
