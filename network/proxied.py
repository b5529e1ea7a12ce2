"""Connections through a trusted proxy: read its header, and use the client's address from it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from weft.network.admission import NetworkConnection
from weft.network.proxy_protocol import (
    LINE_BYTES_MAX,
    LINE_END,
    LINE_START,
    PREFIX_BYTES,
    START_BYTES,
    BadProxyHeader,
    ProxiedAddress,
    body_length,
    source,
    source_of_line,
)


class ProxiedTransport:
    """A transport whose peer is the client behind the proxy. All other information is the transport's own."""

    __slots__ = ("_peername", "_transport", "write")

    def __init__(self, transport: asyncio.Transport, connection: NetworkConnection) -> None:
        self._transport = transport
        self._peername = (connection.host, int(connection.name.rpartition(":")[2]))
        self.write = transport.write
        """Method of the transport, bound once: connections call it most often."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the transport's information, except for the peer's name."""
        return self._peername if name == "peername" else self._transport.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def read_header(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> ProxiedAddress | None:
    """Read the PROXY header and not a byte more, as a TLS handshake may follow.

    Raises:
        BadProxyHeader: there is no header, or a bad one.
        OSError: the connection broke.
    """
    start = await _read(loop, connection, START_BYTES)
    if start.startswith(LINE_START):
        return source_of_line(await _read_line(loop, connection, start))
    prefix = start + await _read(loop, connection, PREFIX_BYTES - START_BYTES)
    return source(prefix, await _read(loop, connection, body_length(prefix)))


async def _read_line(loop: asyncio.AbstractEventLoop, connection: socket.socket, line: bytes) -> bytes:
    """Read the rest of a line. Proxies send it whole: peek at it first, then read it up to its end."""
    while not line.endswith(LINE_END):
        if len(line) >= LINE_BYTES_MAX:
            raise BadProxyHeader(f"a line of version 1 without an end in {LINE_BYTES_MAX} bytes")
        try:
            ahead = line[-1:] + connection.recv(LINE_BYTES_MAX - len(line), socket.MSG_PEEK)
        except BlockingIOError:
            ahead = b""
        end = ahead.find(LINE_END)
        line += await _read(loop, connection, end + 1 if end >= 0 else max(len(ahead) - 1, 1))
    return line


async def _read(loop: asyncio.AbstractEventLoop, connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = await loop.sock_recv(connection, length - len(data))
        if not more:
            raise BadProxyHeader("the connection ended within the header")
        data += more
    return data
