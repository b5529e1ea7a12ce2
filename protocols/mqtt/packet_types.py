"""Numbers that every part of the codec shares."""

from __future__ import annotations

from enum import IntEnum


class Version(IntEnum):
    """The protocol level that a CONNECT names (section 3.1.2.2)."""

    V31 = 3
    V311 = 4
    V5 = 5


BRIDGE_BIT = 0x80
"""Set in the protocol level of MQTT 3.1 and 3.1.1 by bridges of Mosquitto (``try_private``, which is its default). No
standard has it. It has the effect of two subscription options of MQTT 5.0: no local and retain as published."""


class PacketType(IntEnum):
    """Upper four bits of a packet's first byte (table 2.1)."""

    WILL = 0
    """A property set of its own inside CONNECT, which is not a packet (MQTT 5.0 section 3.1.3.2)."""
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
    AUTH = 15
