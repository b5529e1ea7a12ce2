"""A small HTTP proxy that connects (RFC 9110 section 9.3.6), for links that go through one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator


class ConnectProxy:
    """A proxy on a port of this machine; what it was asked for is in ``targets``."""

    def __init__(self, credentials: str | None = None, hosts: dict[str, int] | None = None) -> None:
        """Ask for ``user:password``, if given. ``hosts`` are the ports behind names, as this proxy resolves them."""
        self._wanted = None if credentials is None else f"Basic {base64.b64encode(credentials.encode()).decode()}"
        self.hosts = hosts or {}
        self.targets: list[str] = []
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        method, target, _ = first.split(" ")
        self.targets.append(target)
        if self._wanted is not None and headers.get("proxy-authorization") != self._wanted:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        host, _, port = target.rpartition(":")
        assert method == "CONNECT"
        there, back = await asyncio.open_connection("127.0.0.1", self.hosts.get(host, int(port)))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._copy(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                sink.write(data)
        sink.close()


@contextlib.asynccontextmanager
async def connect_proxy(
    credentials: str | None = None, hosts: dict[str, int] | None = None
) -> AsyncIterator[ConnectProxy]:
    """Run a proxy until the block ends."""
    proxy = ConnectProxy(credentials, hosts)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
