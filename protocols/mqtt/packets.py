"""The control packets of MQTT 3.1, 3.1.1 and 5.0 as values (chapter 3). Fields that a version lacks have their default
value."""

from __future__ import annotations

import msgspec

from weft.protocols.mqtt.packet_types import PacketType, Version
from weft.protocols.mqtt.properties import NO_PROPERTIES, Properties
from weft.protocols.mqtt.reason_codes import FAILED

__all__ = [
    "Auth", "ConnAck", "Connect", "Disconnect", "Packet", "PacketType", "PingReq", "PingResp", "PubAck", "PubComp",
    "PubRec", "PubRel", "Publish", "SubAck", "Subscribe", "Subscription", "UnsubAck", "Unsubscribe", "Version", "Will",
]  # fmt: skip


class Packet(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Base of all packets."""


class Will(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A message that the server publishes for a client that leaves without DISCONNECT (section 3.1.2.5)."""

    topic: bytes
    """UTF-8, checked: not empty, no wildcard."""
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES
    """``will_delay_interval`` among them."""


class Connect(Packet, frozen=True):
    """Section 3.1."""

    client_id: str
    """May be empty."""
    clean_start: bool = True
    """Clean session, as the versions before 5.0 call it."""
    keep_alive_s: int = 0
    """0 turns the mechanism off."""
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None
    version: int = Version.V311
    properties: Properties = NO_PROPERTIES
    bridge: bool = False
    """True for a bridge before MQTT 5.0: another broker, which must not get its own messages back
    (``packet_types.BRIDGE_BIT``)."""


class ConnAck(Packet, frozen=True):
    """Section 3.2."""

    session_present: bool
    code: int
    """A ``ReasonCode``, which the encoder translates for older versions, or an older version's ``ConnectCode``."""
    properties: Properties = NO_PROPERTIES


class Publish(Packet, frozen=True):
    """Section 3.3."""

    topic: bytes
    """UTF-8, checked: no wildcard, and empty only with a topic alias instead. Bytes, because the server routes, stores
    and sends bytes."""
    payload: bytes
    qos: int = 0
    packet_id: int = 0
    """1 to 65,535 at QoS 1 and 2, 0 at QoS 0."""
    retain: bool = False
    dup: bool = False
    properties: Properties = NO_PROPERTIES


class PubAck(Packet, frozen=True):
    """Section 3.4."""

    packet_id: int
    code: int = 0
    properties: Properties = NO_PROPERTIES


class PubRec(Packet, frozen=True):
    """Section 3.5."""

    packet_id: int
    code: int = 0
    properties: Properties = NO_PROPERTIES


class PubRel(Packet, frozen=True):
    """Section 3.6."""

    packet_id: int
    code: int = 0
    properties: Properties = NO_PROPERTIES


class PubComp(Packet, frozen=True):
    """Section 3.7."""

    packet_id: int
    code: int = 0
    properties: Properties = NO_PROPERTIES


class Subscription(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """One line of a SUBSCRIBE (section 3.8.3)."""

    filter: str
    """Valid; ``protocols.topics.split_share`` splits that of a shared subscription."""
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    """Retained messages are sent: 0 always, 1 if the subscription is new, 2 never."""


class Subscribe(Packet, frozen=True):
    """Section 3.8."""

    packet_id: int
    filters: tuple[Subscription, ...]
    """At least one."""
    properties: Properties = NO_PROPERTIES


class SubAck(Packet, frozen=True):
    """Section 3.9."""

    packet_id: int
    codes: tuple[int, ...]
    """Granted QoS, or a ``ReasonCode`` from 0x80 on, in the order of the SUBSCRIBE's filters."""
    properties: Properties = NO_PROPERTIES


class Unsubscribe(Packet, frozen=True):
    """Section 3.10."""

    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


class UnsubAck(Packet, frozen=True):
    """Section 3.11."""

    packet_id: int
    codes: tuple[int, ...] = ()
    """One for each filter in MQTT 5.0; older versions have none, and the encoder leaves them out."""
    properties: Properties = NO_PROPERTIES


class PingReq(Packet, frozen=True):
    """Section 3.12."""


class PingResp(Packet, frozen=True):
    """Section 3.13."""


class Disconnect(Packet, frozen=True):
    """Section 3.14. Servers send it in MQTT 5.0 only."""

    code: int = 0
    properties: Properties = NO_PROPERTIES


class Auth(Packet, frozen=True):
    """Section 3.15 of MQTT 5.0; no other version has it."""

    code: int = 0
    properties: Properties = NO_PROPERTIES


SUBSCRIBE_FAILED = FAILED
"""SUBACK's return code for a filter that was not accepted (section 3.9.3)."""
