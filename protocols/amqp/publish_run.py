"""Plain basic.publish, gathered by where they go: the hot loop of publishers that speak AMQP.

A message is three frames: method, content header, body. Publishers send the same method frame and the same properties
again and again, so frames are recognised by their bytes: ``scan`` looks method frames up in what a connection has
published to before, and properties in what was published with it. What is not known, and everything that could be an
error, is left to the way that reads fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from weft.protocols.columns import HeaderPairs

SHORTEST_BYTES = 8 + 9 + 8 + 14
"""A basic.publish with empty names, and a content header of a message without properties and body."""
_BASIC_HEADER = b"\x00\x3c\x00\x00"
"""Class and weight of a content header."""
_END = 0xCE


class Target(Protocol):
    """Exchange and routing key of one method frame."""

    channel: bytes
    """Number of the channel, as frames have it."""
    topic: bytes
    known: Mapping[bytes, HeaderPairs]
    """Properties -> headers of a record."""
    publisher: Any
    """The channel, which counts what it published."""
    route: Any
    """Route of its records."""


class Publisher(Protocol):
    """A channel in normal operation."""

    def published(self, count: int) -> None:
        """Count messages that were gathered, and have them confirmed where that is asked for."""


class Run(Protocol):
    """Records of one destination, in order of receipt."""

    keys: list[bytes]
    payloads: list[bytes]
    sources: list[Any]
    headers: dict[int, HeaderPairs]


class Gathered(Protocol):
    """Collector of the records (``edge_node/ingest/record.py``)."""

    @property
    def groups(self) -> Mapping[Any, Run]:
        """Return the runs by destination; a new destination gets an empty run."""
        ...

    def note(self, route: Any, run: Any, first: int) -> None:
        """Note that the records of a run from ``first`` on are of a route that is ``noted``."""


def scan(data: bytes, at: int, targets: Mapping[bytes, Any], gathered: Gathered, until: int) -> int:
    """Take a row of plain messages from ``data[at:]``.

    Args:
        targets: method frame -> its target. Those that need more than storing are left out of it.
        until: messages that begin behind this offset are left.

    Returns:
        The offset of the first frame not taken (perhaps of an incomplete message). Never raises.
    """
    end = len(data)
    last = min(until, end - SHORTEST_BYTES)
    find, starts, groups = targets.get, data.startswith, gathered.groups
    publisher: Any = None
    count = 0
    while at <= last and data[at] == 1:
        method_end = at + 8 + (data[at + 4] << 16 | data[at + 5] << 8 | data[at + 6])
        target = find(data[at:method_end])
        if target is None or method_end + 22 > end or data[method_end] != 2:
            break
        # type, channel, size, class and weight, body size, properties, end
        properties_at = method_end + 19
        header_end = method_end + 8 + int.from_bytes(data[method_end + 3 : method_end + 7], "big")
        if header_end > end or data[header_end - 1] != _END or header_end < properties_at + 3:
            break
        channel = target.channel
        if not starts(channel, method_end + 1) or not starts(_BASIC_HEADER, method_end + 7):
            break
        headers = target.known.get(data[properties_at : header_end - 1])
        if headers is None:
            break
        size = int.from_bytes(data[method_end + 11 : properties_at], "big")
        start = header_end
        after = header_end
        if size:
            start += 7
            after = start + size + 1
            if (
                after > end
                or data[header_end] != 3
                or not starts(channel, header_end + 1)
                or int.from_bytes(data[header_end + 3 : start], "big") != size
                or data[after - 1] != _END
            ):
                break
        if target.publisher is not publisher:
            if count:
                publisher.published(count)
            publisher, count = target.publisher, 0
        route = target.route
        run = groups[route.destination]
        first = len(run.keys)
        run.keys.append(target.topic)
        run.payloads.append(data[start : start + size])
        first_at, at = at, after
        taken = 1
        if at <= last:
            # Messages that follow with the same frames but for the body's octets are as good as the one just taken.
            alike, stride = data[first_at:start], after - first_at
            stop = at
            while stop + stride <= end and stop <= until and starts(alike, stop) and data[stop + stride - 1] == _END:
                stop += stride
            if stop > at:
                more = (stop - at) // stride
                offset = start - first_at
                run.keys += [target.topic] * more
                if size:
                    run.payloads += [data[each : each + size] for each in range(at + offset, stop, stride)]
                else:
                    run.payloads += [b""] * more
                taken += more
                at = stop
        run.sources += [publisher] * taken
        if headers:
            if taken == 1:
                run.headers[first] = headers
            else:
                run.headers.update(dict.fromkeys(range(first, first + taken), headers))
        if route.noted:
            gathered.note(route, run, first)
        count += taken
    if count:
        publisher.published(count)
    return at
