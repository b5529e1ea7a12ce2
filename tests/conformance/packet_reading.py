"""What a broker sends, taken apart; what it may not send fails an assertion."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.packet_bytes import (
    CONNACK,
    DISCONNECT,
    PINGRESP,
    PROPERTIES,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
)

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
