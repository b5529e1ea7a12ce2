"""The publishes of one read, gathered by where they go: the hot loop of the edge.

Devices mostly send small plain PUBLISH packets, many to a read. ``scan`` takes exactly those (no DUP, no retain, a
known topic, a remaining length of one or two bytes) in one loop over local variables, and leaves every other packet,
and everything that could be an error, to ``decoder.decode``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from weft.protocols.mqtt.encoder import PUBACK, PUBREC
from weft.protocols.mqtt.packet_ids import PacketIds
from weft.protocols.mqtt.packet_types import PacketType, Version

Target = TypeVar("Target")

SCAN_PACKET_BYTES_MIN = 129
"""The longest packet that ``scan`` takes without asking the limit: ``packet_bytes_max`` must not be smaller."""

_ANSWERS = {PacketType.PUBLISH << 4 | qos << 1: (answer, qos) for qos, answer in enumerate((b"", PUBACK, PUBREC))}
"""First byte of a PUBLISH without DUP and retain -> what answers it, and its QoS."""
_NO_ID = b"\0\0"
_NOTHING = object()


class Records:
    """A run of records for one target, in order of receipt."""

    __slots__ = ("flags", "keys", "payload_bytes", "payloads")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.payloads: list[bytes] = []
        self.payload_bytes = 0
        self.flags: dict[int, int] = {}
        """Index in this run -> flag bits, for the records that have any."""


class PublishRun(Generic[Target]):
    """What one read brought."""

    __slots__ = ("acks", "groups", "received")

    def __init__(self) -> None:
        self.groups: dict[Target, Records] = {}
        self.acks: list[bytes] = []
        """PUBACKs and PUBRECs in order of receipt, due once the records are durable [MQTT-4.6.0-2, 4.6.0-3]."""
        self.received: list[int] = []
        """QoS 2 identifiers that this read opened; to be closed again if its records cannot be stored."""

    def add(self, target: Target, topic: bytes, payload: bytes, flags: int = 0) -> None:
        """Add one record, of a publish that came through the full decoder."""
        records = self.groups.get(target)
        if records is None:
            records = self.groups[target] = Records()
        if flags:
            records.flags[len(records.keys)] = flags
        records.keys.append(topic)
        records.payloads.append(payload)
        records.payload_bytes += len(payload)

    def acknowledge(self, qos: int, packet_id: int) -> None:
        """Note the answer that a QoS 1 or 2 publish is due."""
        if qos:
            self.acks.append((PUBACK if qos == 1 else PUBREC) + packet_id.to_bytes(2, "big"))


def scan(  # noqa: PLR0917 - positional, for speed
    data: bytes,
    at: int,
    targets: Mapping[bytes, Target],
    run: PublishRun[Target],
    received: PacketIds,
    packet_bytes_max: int,
    version: int = Version.V311,
    qos_flags: tuple[int, int, int] = (0, 0, 0),
) -> int:
    """Take a row of plain PUBLISH packets of one QoS from ``data[at:]`` into ``run``, up to the first other packet.

    Args:
        targets: valid topic -> where its records go. Topics that need more than storing are left out of it.
        received: the QoS 2 identifiers that are open; those of the packets taken are added.
        packet_bytes_max: at least ``SCAN_PACKET_BYTES_MIN``.
        version: in MQTT 5.0 a plain packet's property section is empty.
        qos_flags: flag bits for the records of publishes, by QoS.

    Returns:
        The offset of the first packet not taken (perhaps an incomplete one). Never raises.
    """
    # A third of a microsecond a packet, a fifth where packets are alike but for identifier and payload: at QoS 0 and 1
    # no call of each but dict.get, startswith and list.append.
    end = len(data)
    last = end - 4  # the shortest PUBLISH has four bytes; below, at + 3 is inside
    if at > last or (kind := data[at]) not in _ANSWERS:
        return at
    answer, qos = _ANSWERS[kind]
    bits = qos_flags[qos]
    groups, find = run.groups, targets.get
    ids: list[bytes] = []
    add_id = ids.append
    starts = data.startswith
    current: object = _NOTHING
    in_5, at_most_once, exactly_once = version == Version.V5, qos == 0, qos == 2
    while at <= last and data[at] == kind:
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
        start = topic_end = topic_start + (data[body] << 8) + data[body + 1]
        if not at_most_once:
            start += 2
        if start > after:
            break
        if in_5:
            if start >= after or data[start]:
                break
            start += 1
        topic = data[topic_start:topic_end]
        target = find(topic)
        if target is None:
            break
        if not at_most_once:
            packet_id = data[topic_end : topic_end + 2]
            if packet_id == _NO_ID:
                break
            if exactly_once:
                number = packet_id[0] << 8 | packet_id[1]
                if not received.add(number):
                    break
                run.received.append(number)
            add_id(packet_id)
        if target is not current:
            current = target
            known = groups.get(target)
            records = groups[target] = Records() if known is None else known
            keys = records.keys
            flags = records.flags
            add_key = keys.append
            add_payload = records.payloads.append
        if bits:
            flags[len(keys)] = bits
        add_key(topic)
        add_payload(data[start:after])
        size = after - start
        records.payload_bytes += size
        first, at = at, after
        if at > last or data[at + 1] != data[first + 1] or exactly_once or not size:
            continue
        # How many packets follow with the same length and topic; each of them is as good as the one just taken.
        stride, stop, alike = after - first, at, data[first:topic_end]
        while stop + stride <= end and starts(alike, stop):
            stop += stride
        if in_5:
            no_properties = data[start - 1 + stride : stop : stride]
            count = len(no_properties) - len(no_properties.lstrip(b"\0"))
            stop = at + stride * count
        if not at_most_once:
            row = [data[offset : offset + 2] for offset in range(topic_end + stride, stop, stride)]
            if _NO_ID in row:
                del row[row.index(_NO_ID) :]
                stop = at + stride * len(row)
            ids += row
        count = (stop - at) // stride
        if bits:
            flags.update(dict.fromkeys(range(len(keys), len(keys) + count), bits))
        keys += [topic] * count
        records.payload_bytes += size * count
        records.payloads += [data[offset : offset + size] for offset in range(start + stride, stop, stride)]
        at = stop
    if ids:
        run.acks.append(answer + answer.join(ids))
    return at
