"""The publishes of one read, gathered by where they go: the hot loop of the edge.

Devices mostly send small plain PUBLISH packets, many to a read. ``scan`` takes exactly those (QoS 0 or 1, no DUP, no
retain, a known topic, a remaining length of one or two bytes) in one loop over local variables, and leaves every
other packet, and everything that could be an error, to ``decoder.decode``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from protocols.mqtt.encoder import PUBACK, PUBREC
from protocols.mqtt.packet_types import PacketType, Version

Target = TypeVar("Target")

SCAN_PACKET_BYTES_MIN = 129
"""The longest packet that ``scan`` takes without asking the limit: ``packet_bytes_max`` must not be smaller."""

_QOS0 = PacketType.PUBLISH << 4
_QOS1 = PacketType.PUBLISH << 4 | 1 << 1
_NO_ID = b"\0\0"
_NOTHING = object()


class Records:
    """A run of records for one target, in order of receipt."""

    __slots__ = ("flags", "keys", "payloads")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.payloads: list[bytes] = []
        self.flags: dict[int, int] = {}
        """Index in this run -> flag bits, for the records that have any."""


class PublishRun(Generic[Target]):
    """What one read brought."""

    __slots__ = ("acks", "groups")

    def __init__(self) -> None:
        self.groups: dict[Target, Records] = {}
        self.acks: list[bytes] = []
        """PUBACKs and PUBRECs in order of receipt, due once the records are durable [MQTT-4.6.0-2, 4.6.0-3]."""

    def add(self, target: Target, topic: bytes, payload: bytes, flags: int = 0) -> None:
        """Add one record, of a publish that came through the full decoder."""
        records = self.groups.get(target)
        if records is None:
            records = self.groups[target] = Records()
        if flags:
            records.flags[len(records.keys)] = flags
        records.keys.append(topic)
        records.payloads.append(payload)

    def acknowledge(self, qos: int, packet_id: int) -> None:
        """Note the answer that a QoS 1 or 2 publish is due."""
        if qos:
            self.acks.append((PUBACK if qos == 1 else PUBREC) + packet_id.to_bytes(2, "big"))


def scan(  # noqa: PLR0917 - positional, for speed
    data: bytes,
    at: int,
    targets: Mapping[bytes, Target],
    run: PublishRun[Target],
    packet_bytes_max: int,
    version: int = Version.V311,
    qos0_flags: int = 0,
) -> int:
    """Take plain PUBLISH packets from ``data[at:]`` into ``run``, up to the first packet that is anything else.

    Args:
        targets: valid topic -> where its records go. Topics that need more than storing are left out of it.
        packet_bytes_max: at least ``SCAN_PACKET_BYTES_MIN``.
        version: in MQTT 5.0 a plain packet's property section is empty.
        qos0_flags: flag bits for the records of QoS 0 publishes.

    Returns:
        The offset of the first packet not taken (perhaps an incomplete one). Never raises.
    """
    # About one microsecond a packet is all there is: no call but list.append, no attribute but the lists' own.
    groups = run.groups
    find = targets.get
    ids: list[bytes] = []
    add_id = ids.append
    current: object = _NOTHING
    in_5 = version == Version.V5
    end = len(data)
    last = end - 4  # the shortest PUBLISH has four bytes; below, at + 3 is inside
    while at <= last:
        first_byte = data[at]
        length = data[at + 1]
        body = at + 2
        if length > 127:
            high = data[body]
            body += 1
            if high > 127:
                break
            length += (high << 7) - 128
            if body + length - at > packet_bytes_max:
                break
        after = body + length
        if after > end or length < 2:
            break
        topic_start = body + 2
        topic_end = topic_start + (data[body] << 8) + data[body + 1]
        if first_byte == _QOS1:
            start = topic_end + 2
            if start > after:
                break
            packet_id = data[topic_end:start]
            if packet_id == _NO_ID:
                break
        elif first_byte == _QOS0:
            start = topic_end
            if start > after:
                break
            packet_id = b""
        else:
            break
        if in_5:
            if start >= after or data[start]:
                break
            start += 1
        topic = data[topic_start:topic_end]
        target = find(topic)
        if target is not current:
            if target is None:
                break
            current = target
            records = groups.get(target)
            if records is None:
                records = groups[target] = Records()
            keys = records.keys
            flags = records.flags
            add_key = keys.append
            add_payload = records.payloads.append
        if packet_id:
            add_id(packet_id)
        elif qos0_flags:
            flags[len(keys)] = qos0_flags
        add_key(topic)
        add_payload(data[start:after])
        at = after
    if ids:
        run.acks.append(PUBACK + PUBACK.join(ids))
    return at
