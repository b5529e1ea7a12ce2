"""The fourteen control packets of MQTT 3.1.1 as values (chapter 3)."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class PacketType(IntEnum):
    """Upper four bits of a packet's first byte (table 2.1)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14


class Packet(msgspec.Struct, frozen=True):
    """Base of all packets."""


class Will(msgspec.Struct, frozen=True):
    """What the server publishes for a client that goes without DISCONNECT (section 3.1.2.5)."""

    topic: bytes
    """UTF-8, checked: not empty, no wildcard."""
    payload: bytes
    qos: int = 0
    retain: bool = False


class Connect(Packet, frozen=True):
    """Section 3.1."""

    client_id: str
    """May be empty."""
    clean_session: bool = True
    keep_alive_s: int = 0
    """0 turns the mechanism off."""
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None


class ConnAck(Packet, frozen=True):
    """Section 3.2."""

    session_present: bool
    code: int


class Publish(Packet, frozen=True):
    """Section 3.3."""

    topic: bytes
    """UTF-8, checked: not empty, no wildcard. Bytes, because bytes are routed, stored and sent on."""
    payload: bytes
    qos: int = 0
    packet_id: int = 0
    """1 to 65,535 at QoS 1 and 2, 0 at QoS 0."""
    retain: bool = False
    dup: bool = False


class PubAck(Packet, frozen=True):
    """Section 3.4."""

    packet_id: int


class PubRec(Packet, frozen=True):
    """Section 3.5."""

    packet_id: int


class PubRel(Packet, frozen=True):
    """Section 3.6."""

    packet_id: int


class PubComp(Packet, frozen=True):
    """Section 3.7."""

    packet_id: int


class Subscribe(Packet, frozen=True):
    """Section 3.8."""

    packet_id: int
    filters: tuple[tuple[str, int], ...]
    """(topic filter, requested QoS), at least one; the filters are valid."""


class SubAck(Packet, frozen=True):
    """Section 3.9."""

    packet_id: int
    codes: tuple[int, ...]
    """Granted QoS, or 0x80 for a failure, in the order of the SUBSCRIBE's filters."""


class Unsubscribe(Packet, frozen=True):
    """Section 3.10."""

    packet_id: int
    filters: tuple[str, ...]


class UnsubAck(Packet, frozen=True):
    """Section 3.11."""

    packet_id: int


class PingReq(Packet, frozen=True):
    """Section 3.12."""


class PingResp(Packet, frozen=True):
    """Section 3.13."""


class Disconnect(Packet, frozen=True):
    """Section 3.14."""


SUBSCRIBE_FAILED = 0x80
"""SUBACK's return code for a filter that was not accepted (section 3.9.3)."""
