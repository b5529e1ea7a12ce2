"""The generator: a process of its own with many links, each a WebSocket of a few lines."""

from __future__ import annotations

import asyncio
import base64
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

from bench.hub.script import RECORDS, Fleet, Message, greeting, idle_message
from weft.protocols.link import Ack, FrameDecoder, LaneClosed, LaneOpened, Marks, Ping, Pong, Refuse, Welcome

OUTSTANDING_BATCHES = 60
"""Batches that a link has on the way at most."""
CONNECTS_AT_ONCE = 50
CONNECT_S_MAX = 60.0


@dataclass
class Counts:
    """Counts over all links."""

    acked: int = 0
    """Batches."""
    opened: int = 0
    refusals: list[str] = field(default_factory=list)


class Link(asyncio.Protocol):
    """One link. It sends its messages as fast as acknowledgements allow."""

    transport: asyncio.WriteTransport

    def __init__(self, fleet: Fleet, number: int, messages: Sequence[Message], counts: Counts, host: str) -> None:
        self._fleet, self._number = fleet, number
        self._messages = messages
        self._counts = counts
        self._host = host
        self._decoder = FrameDecoder()
        self._buffer = bytearray()
        self._upgraded = False
        self._next = 0
        self._sent = self._acked = 0
        self.ends = [0] * fleet.streams
        """Acknowledged records of each lane."""
        self.opened = 0
        self.go = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no class of asyncio's.
        self.transport = cast("asyncio.WriteTransport", transport)
        key = base64.b64encode(struct.pack("<QQ", self._number, 0)).decode()
        self.transport.write(
            f"GET /v1/link HTTP/1.1\r\nHost: {self._host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._upgraded:
            head, end, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            if not end:
                return
            assert head.startswith(b"HTTP/1.1 101"), head
            self._upgraded = True
            self._buffer = bytearray(rest)
            self.transport.write(greeting(self._fleet, self._number))
        while (payload := self._frame()) is not None:
            for frame in self._decoder.decode(payload):
                self._receive(frame)
        self.send()

    def _frame(self) -> bytes | None:
        """Return the payload of the next WebSocket frame, when all of it is there."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        length, at = buffer[1], 2
        if length == 126:
            if len(buffer) < 4:
                return None
            length, at = struct.unpack_from("!H", buffer, 2)[0], 4
        elif length == 127:
            if len(buffer) < 10:
                return None
            length, at = struct.unpack_from("!Q", buffer, 2)[0], 10
        if len(buffer) < at + length:
            return None
        opcode, payload = buffer[0] & 15, bytes(buffer[at : at + length])
        del buffer[: at + length]
        if opcode == 8:
            self._refuse(f"closed: {payload[2:]!r}")
        return payload if opcode == 2 else b""

    def _receive(self, frame: object) -> None:
        match frame:
            case Ack():
                end = frame.ranges[-1][1]
                newly = (end - self.ends[frame.lane]) // RECORDS
                if newly > 0:
                    self.ends[frame.lane] = end
                    self._acked += newly
                    self._counts.acked += newly
            case LaneOpened():
                self.opened += 1
                if self.opened == self._fleet.streams:
                    self._counts.opened += 1
                    self.ready.set_result(None)
            case Refuse() | LaneClosed():
                self._refuse(frame.message)
            case Welcome() | Ping() | Pong():
                pass

    def _refuse(self, why: str) -> None:
        self._counts.refusals.append(why)
        if not self.ready.done():
            self.ready.set_result(None)

    def send(self) -> None:
        """Send what may be sent."""
        while self.go and self._sent - self._acked < OUTSTANDING_BATCHES and self._next < len(self._messages):
            message = self._messages[self._next]
            self._next += 1
            self._sent = message.batches
            self.transport.write(message.data)

    @property
    def is_over(self) -> bool:
        """Return whether it has sent all its messages."""
        return self._next == len(self._messages)

    @property
    def waits(self) -> bool:
        """Return whether batches are not acknowledged yet."""
        return self._acked < self._sent

    def rest(self) -> None:
        """Say what an idle edge says: it lives, and its marks continue."""
        now = time.time_ns()
        self.transport.write(
            idle_message([Ping(now), Marks(now, [(lane, self.ends[lane]) for lane in range(self._fleet.streams)])])
        )


async def connect(
    url_of: dict[int, str], fleet: Fleet, variants: Sequence[Sequence[Message]], counts: Counts
) -> list[Link]:
    """Open all links and their lanes.

    Args:
        url_of: the URL of each link's process.
    """
    loop = asyncio.get_running_loop()
    slots = asyncio.Semaphore(CONNECTS_AT_ONCE)

    async def one(number: int) -> Link:
        url = urlsplit(url_of[number])
        assert url.hostname is not None
        assert url.port is not None
        async with slots:
            _, link = await loop.create_connection(
                lambda: Link(fleet, number, variants[number % len(variants)], counts, url.netloc),
                url.hostname,
                url.port,
            )
            await link.ready
        return link

    async with asyncio.timeout(CONNECT_S_MAX):
        links = await asyncio.gather(*map(one, url_of))
    if counts.refusals:
        raise SystemExit(f"the hub refused {len(counts.refusals)} links: {counts.refusals[0]}")
    return list(links)
