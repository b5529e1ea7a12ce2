"""A proxy that says, by the PROXY protocol, that its clients are where a test wants them to be."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.network.test_proxy_protocol import header


@asynccontextmanager
async def proxy(port: int, host: str) -> AsyncIterator[int]:
    """Yield the port of a proxy before ``port``, whose clients are at ``host``."""
    relays: set[asyncio.Task[None]] = set()
    clients = 0

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal clients
        clients += 1
        to_node = await asyncio.open_connection("127.0.0.1", port)
        to_node[1].write(header(socket.inet_aton(host) * 2 + struct.pack("!HH", 40_000 + clients, port)))
        for pair in ((reader, to_node[1]), (to_node[0], writer)):
            task = asyncio.create_task(copy(*pair))
            relays.add(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for each in relays:
            each.cancel()
        await asyncio.gather(*relays, return_exceptions=True)
