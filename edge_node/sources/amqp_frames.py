"""Deliveries of a broker, extracted from the frames before the client library reads them.

The library handles all frames except deliveries, for two reasons. pamqp decodes the properties of each message, and
closes the connection if it cannot: with a routing key or a content type that is not UTF-8, or a timestamp after the
year 9999, all of which brokers accept from every client. Such a message would come again on every connection, and block
its queue for good. And aiormq has three queues and a task for each message, which cost several times as much as the
node's own work for it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from aiormq import TransportFactory
from aiormq.connection import TCPTransportFactory, TLSTransportFactory
from yarl import URL

FRAME_BYTES_MAX = 16 << 20
"""Longest accepted frame: RabbitMQ's are 128 KiB."""
AT_A_TIME = 64
"""Number of deliveries before others have their turn."""
BYTES_EACH = 512
"""Bytes that count as one more delivery: their payloads may be checked."""
HEARD_S = 1.0
"""Interval at which aiormq gets a heartbeat: a broker sends none while it sends messages."""
_HEAD = struct.Struct(">BHI")
_TAG = struct.Struct(">Q")
_METHOD, _HEADER, _BODY = 1, 2, 3
_DELIVER = b"\x00\x3c\x00\x3c"
_SIZE_AT, _FLAGS_AT = 4, 12
"""Offsets of the length of the body, and of the flags, in a content header."""
_END = 0xCE
_HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


class Delivery(NamedTuple):
    """A received message."""

    tag: int
    redelivered: bool
    exchange: bytes
    routing_key: bytes
    properties: bytes
    """Content header, beginning at its flags."""
    size: int
    """Bytes of the body; a body beyond the bound is not kept."""
    body: bytes


Take = Callable[[Delivery], None]


class Deliveries(TransportFactory):  # type: ignore[misc]  # aiormq has no types
    """Transport of the connection that passes on its deliveries, of one channel.

    Args:
        body_bytes_max: longest body that is kept.
    """

    def __init__(self, body_bytes_max: int, *, is_tls: bool) -> None:
        self._factory = TLSTransportFactory() if is_tls else TCPTransportFactory()
        self._body_bytes_max = body_bytes_max
        self.take: Take = lambda _: None
        """Called with each delivery, in order. It must not raise."""

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection.

        Raises:
            AMQPConnectionError, OSError: it cannot be opened.
        """
        reader, writer = await self._factory.create(url, **kwargs)
        rest = FrameReader(reader, self._body_bytes_max, self._hand_over)
        return rest, writer  # type: ignore[return-value]  # it is what aiormq uses of a StreamReader

    def _hand_over(self, delivery: Delivery) -> None:
        self.take(delivery)


class FrameReader:
    """The part of a ``StreamReader`` that aiormq reads frames with: one byte, six bytes, and the rest."""

    def __init__(self, reader: asyncio.StreamReader, body_bytes_max: int, take: Take) -> None:
        self._reader = reader
        self._take = take
        self._body_bytes_max = body_bytes_max
        self._frame = b""
        self._at = 0
        self._begun: tuple[int, bool, bytes, bytes] | None = None
        """First fields of the incomplete delivery."""
        self._properties = b""
        self._size = self._left = 0
        self._parts: list[bytes] = []
        self._taken = 0
        self._loop = asyncio.get_running_loop()
        self._told = self._loop.time()

    def at_eof(self) -> bool:
        """Return whether the stream has ended."""
        return self._at >= len(self._frame) and self._reader.at_eof()

    async def read(self, count: int = -1) -> bytes:
        """Return the next bytes unchanged."""
        return await self._reader.read(count)

    async def readexactly(self, count: int) -> bytes:
        """Return the next bytes of the remaining frames.

        Raises:
            IncompleteReadError, OSError: the connection has ended, or must end.
        """
        if self._at >= len(self._frame):
            self._frame, self._at = await self._next(), 0
        found = self._frame[self._at : self._at + count]
        self._at += count
        return found

    async def _next(self) -> bytes:
        """Return the next remaining frame, or the first bytes of other data."""
        read = self._reader.readexactly
        while True:
            head = await read(_HEAD.size)
            if head.startswith(b"AMQP"):
                return head  # the broker speaks another version
            kind, channel, size = _HEAD.unpack(head)
            if size > FRAME_BYTES_MAX:
                raise ConnectionError(f"the broker announced a frame of {size} bytes")
            frame = await read(size + 1)
            if not channel or frame[-1] != _END or not self._is_of_delivery(kind, frame):
                self._told = self._loop.time()
                return head + frame
            if self._loop.time() - self._told >= HEARD_S:
                self._told = self._loop.time()
                return _HEARTBEAT
            if self._taken >= AT_A_TIME:
                self._taken = 0
                await asyncio.sleep(0)

    def _is_of_delivery(self, kind: int, frame: bytes) -> bool:
        """Return whether a frame belongs to a delivery, and handle such a frame."""
        if kind == _METHOD:
            if not frame.startswith(_DELIVER):
                return False
            self._begin(frame)
            return True
        if self._begun is None:
            return False
        if kind == _HEADER:
            if len(frame) <= _FLAGS_AT:
                raise ConnectionError("the broker sent a content header that is too short")
            (self._size,) = _TAG.unpack_from(frame, _SIZE_AT)
            self._left, self._properties = self._size, frame[_FLAGS_AT:-1]
        elif kind == _BODY:
            self._left -= len(frame) - 1
            if self._size <= self._body_bytes_max:
                self._parts.append(frame[:-1])
        else:
            return False
        if self._left <= 0:
            begun, parts, self._begun, self._parts = self._begun, self._parts, None, []
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            self._taken += 1 + self._size // BYTES_EACH
            self._take(Delivery(*begun, self._properties, self._size, body))
        return True

    def _begin(self, frame: bytes) -> None:
        try:
            at = len(_DELIVER) + 1 + frame[len(_DELIVER)]  # behind the consumer tag
            (tag,) = _TAG.unpack_from(frame, at)
            at += _TAG.size
            exchange_end = at + 2 + frame[at + 1]
            key_end = exchange_end + 1 + frame[exchange_end]
        except (IndexError, struct.error):
            raise ConnectionError("the broker sent a delivery that is too short") from None
        self._begun = (tag, bool(frame[at] & 1), frame[at + 2 : exchange_end], frame[exchange_end + 1 : key_end])
