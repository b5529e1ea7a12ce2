"""A proxy on loopback that counts what a connection costs a network: payload, and the headers of every TCP segment.

The kernel counts segments of both directions, pure acknowledgements and repetitions included, at the socket towards the
client (``struct tcp_info``). Segments are as long as on Ethernet.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import NamedTuple

HEADER_BYTES = 52
"""IPv4, TCP and its timestamps."""
SEGMENT_BYTES = 1460
"""Largest segment, with timestamps, on Ethernet."""
_COUNTERS = struct.Struct("=120xQQII")
"""The kernel's struct tcp_info from tcpi_bytes_acked to tcpi_segs_in (Linux 4.6)."""
_READ_BYTES = 1 << 16


class Wire(NamedTuple):
    """Counters of all connections so far, as the client's network sees them."""

    up_bytes: int = 0
    down_bytes: int = 0
    up_segments: int = 0
    down_segments: int = 0

    @property
    def bytes(self) -> int:
        """Return all bytes, with the headers of IP and TCP."""
        return self.up_bytes + self.down_bytes + HEADER_BYTES * (self.up_segments + self.down_segments)

    def __sub__(self, other: Wire) -> Wire:
        """Return what came since ``other``."""
        return Wire(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


class CountingProxy:
    """A running proxy; ``counted`` makes one."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: dict[int, Wire] = {}
        """Connection -> its counters as last read, which a closed socket does not tell any more."""
        self._open: dict[int, socket.socket] = {}

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on one connection."""
        client = writer.get_extra_info("socket")
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        for each in (client, back.get_extra_info("socket")):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = len(self._clients)
        self._open[number], self._clients[number] = client, Wire()
        ways = [asyncio.create_task(self._copy(reader, back)), asyncio.create_task(self._copy(there, writer))]
        self._tasks.update(ways)
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        self.count()
        del self._open[number]
        for way, end in zip(ways, (back, writer), strict=True):
            way.cancel()
            end.close()

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(_READ_BYTES):
                target.write(data)
                await target.drain()

    def count(self) -> Wire:
        """Return the counters of all connections, open and ended."""
        for number, client in self._open.items():
            with contextlib.suppress(OSError):
                self._clients[number] = _counters(client)
        return Wire(*(sum(figures) for figures in zip(*self._clients.values(), strict=True)))


def _counters(client: socket.socket) -> Wire:
    counters = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTERS.size)
    acked, received, out, taken = _COUNTERS.unpack(counters)
    return Wire(received, acked, taken, out)


@contextlib.asynccontextmanager
async def counted(port: int, to: int) -> AsyncIterator[CountingProxy]:
    """Run a proxy from ``port`` to ``to``, both on loopback."""
    proxy = CountingProxy(to)
    listener = socket.create_server(("127.0.0.1", port))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    server = await asyncio.start_server(proxy.connect, sock=listener)
    try:
        yield proxy
    finally:
        server.close()
        for task in proxy._tasks:
            task.cancel()
        await asyncio.gather(*proxy._tasks, return_exceptions=True)
