"""Plain PUBLISH packets, gathered by destination: the hot loop of the edge.

Devices mostly send small plain PUBLISH packets: one in a read, or many. ``single`` and ``scan`` read exactly those (no
DUP, no retain, a known topic, a remaining length of one or two bytes) with local variables, and leave every other
packet, and any possible error, to ``decoder.decode``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol

from weft.protocols.mqtt.encoder import PUBACK, PUBREC
from weft.protocols.mqtt.packets import PacketIds, PacketType, Version

SCAN_PACKET_BYTES_MIN = 129
"""Longest packet that ``scan`` reads without checking the limit: ``packet_bytes_max`` must not be smaller."""

_ANSWERS = {PacketType.PUBLISH << 4 | qos << 1: (answer, qos) for qos, answer in enumerate((b"", PUBACK, PUBREC))}
"""First byte of a PUBLISH without DUP and retain -> the first byte of its answer, and its QoS."""
_AT_LEAST_ONCE = PacketType.PUBLISH << 4 | 1 << 1
"""The one at QoS 1."""
_SINGLE_BYTES_MIN = 7
"""A PUBLISH at QoS 1 with a topic of one byte and no payload."""
_NO_ID = b"\0\0"


class PublishRoute(Protocol):
    """Destination of the publishes of a topic."""

    destination: Any
    """Key of the run: publishes of one destination are one run."""
    noted: bool
    """True when ``PublishCollector.note`` is called for them."""
    cost: int
    """Storage cost of each of them; 0 unless they are noted."""


class PublishRun(Protocol):
    """Records of one destination, in order of receipt."""

    keys: list[bytes]
    payloads: list[bytes]
    sources: list[Any]
    """Publisher of each record."""
    flags: dict[int, int]
    """Index in this run -> flag bits, for the records that have any."""


class PublishCollector(Protocol):
    """Collector of the packets (``edge_node/ingest/record.py``)."""

    clients: list[Any]
    answers: list[bytes]
    """PUBACKs and PUBRECs in order of receipt, due to the client at the same index of ``clients`` when its records are
    durable [MQTT-4.6.0-2, 4.6.0-3]."""
    more_acks: int
    """Acknowledged publishes beyond one for each of ``answers``."""

    @property
    def groups(self) -> Mapping[Any, PublishRun]:
        """Return the runs by destination; a new destination gets an empty run."""
        ...

    def note(self, route: Any, run: Any, first: int) -> None:
        """Note that the records of a run from ``first`` on are of a route that is ``noted``."""


def single(  # noqa: PLR0917 - positional, for speed
    data: bytes,
    routes: Mapping[bytes, Any],
    gathered: PublishCollector,
    source: object,
    packet_bytes_max: int,
    in_5: bool,
) -> bool:
    """Handle a read that is exactly one plain PUBLISH at QoS 1, like most reads of a fleet of devices.

    The arguments are those of ``scan``; ``in_5`` is True for packets of MQTT 5.0.

    Returns:
        True if it was handled; if not, nothing was changed. Never raises.
    """
    size = len(data)
    if size < _SINGLE_BYTES_MIN or data[0] != _AT_LEAST_ONCE or size > packet_bytes_max:
        return False
    length = data[1]
    body = 2
    if length > 127:
        high = data[2]
        if high > 127:
            return False
        body = 3
        length += (high << 7) - 128
    if body + length != size:
        return False
    topic_end = body + 2 + (data[body] << 8) + data[body + 1]
    start = topic_end + 2
    if start > size:
        return False
    packet_id = data[topic_end:start]
    if packet_id == _NO_ID:
        return False
    if in_5:
        if start >= size or data[start]:
            return False
        start += 1
    topic = data[body + 2 : topic_end]
    route = routes.get(topic)
    if route is None:
        return False
    run = gathered.groups[route.destination]
    run.keys.append(topic)
    run.payloads.append(data[start:])
    run.sources.append(source)
    if route.noted:
        gathered.note(route, run, len(run.keys) - 1)
    gathered.clients.append(source)
    gathered.answers.append(PUBACK + packet_id)
    return True


def scan(  # noqa: PLR0917 - positional, for speed
    data: bytes,
    at: int,
    routes: Mapping[bytes, Any],
    gathered: PublishCollector,
    source: object,
    received: PacketIds,
    opened: list[int],
    packet_bytes_max: int,
    version: int = Version.V311,
    qos_flags: tuple[int, int, int] = (0, 0, 0),
    until: int = sys.maxsize,
    cost_max: int = sys.maxsize,
) -> int:
    """Read a run of plain PUBLISH packets of one QoS from ``data[at:]``, up to the first other packet.

    Args:
        routes: valid topic -> destination of its records. Topics that need more than storing are not among them.
        source: their publisher.
        received: the open QoS 2 identifiers; those of the packets read are added.
        opened: they are appended here, too.
        packet_bytes_max: at least ``SCAN_PACKET_BYTES_MIN``.
        version: in MQTT 5.0 a plain packet's property section is empty.
        qos_flags: flag bits for the records of publishes, by QoS.
        until: packets that begin after this offset are left.
        cost_max: packets that would make the total cost higher are left, except the first.

    Returns:
        The offset of the first packet not read (perhaps an incomplete one). Never raises.
    """
    # A third of a microsecond a packet, a fifth if packets differ only in identifier and payload: at QoS 0 and 1 each
    # packet needs only dict.get, startswith and list.append.
    end = len(data)
    last = end - 4  # the shortest PUBLISH has four bytes; below, at + 3 is inside
    if until < last:  # noqa: PLR1730 - a call of min takes longer
        last = until
    if at > last or (kind := data[at]) not in _ANSWERS:
        return at
    answer, qos = _ANSWERS[kind]
    bits = qos_flags[qos]
    groups, find = gathered.groups, routes.get
    ids: list[bytes] = []
    add_id = ids.append
    starts = data.startswith
    current: PublishRoute | None = None
    run: Any = None
    noted = room = full = 0
    is_limited = False
    keys: list[bytes] = []
    sources: list[Any] = []
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
        route = find(topic)
        if route is None:
            break
        if not at_most_once:
            packet_id = data[topic_end : topic_end + 2]
            if packet_id == _NO_ID:
                break
            if exactly_once:
                number = packet_id[0] << 8 | packet_id[1]
                if not received.add(number):
                    break
                opened.append(number)
            add_id(packet_id)
        if route is not current:
            if current is not None:
                sources += [source] * (len(keys) - len(sources))
                if current.noted:
                    cost_max -= (len(keys) - noted) * current.cost
                    gathered.note(current, run, noted)
            current = route
            run = groups[route.destination]
            noted = len(run.keys)
            if is_limited := route.cost > 0:
                full = noted + max(1, cost_max // route.cost)
            keys, payloads, sources, flags = run.keys, run.payloads, run.sources, run.flags
            add_key = keys.append
            add_payload = payloads.append
        if bits:
            flags[len(keys)] = bits
        add_key(topic)
        add_payload(data[start:after])
        size = after - start
        first, at = at, after
        if is_limited:
            room = full - len(keys)
            if not room:
                break
        if at > last or data[at + 1] != data[first + 1] or exactly_once or not size:
            continue
        # Count the following packets with the same length and topic: each is as valid as the one just read.
        stride, stop, alike = after - first, at, data[first:topic_end]
        limit = end - stride
        if last < limit:  # noqa: PLR1730 - a call of min takes longer
            limit = last
        if is_limited:
            limit = min(limit, at + (room - 1) * stride)
        while stop <= limit and starts(alike, stop):
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
        payloads += [data[offset : offset + size] for offset in range(start + stride, stop, stride)]
        at = stop
        if is_limited and count == room:
            break
    if current is not None:
        sources += [source] * (len(keys) - len(sources))
        if current.noted:
            gathered.note(current, run, noted)
    if ids:
        gathered.clients.append(source)
        gathered.answers.append(answer + answer.join(ids))
        gathered.more_acks += len(ids) - 1
    return at
