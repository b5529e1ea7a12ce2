"""The way from one hub node to its S3 server, which a test can break for this node alone."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from enum import Enum

from tests.support.waiting import PATIENCE_S

DENIED = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>ExpiredToken</Code>'
    b"<Message>The provided token has expired.</Message></Error>"
)


class Way(Enum):
    """What becomes of a request."""

    OPEN = "passed on"
    DENIED = "answered with 403, as when the node's credentials have expired"
    SILENT = "never answered, as when a firewall drops what it gets"
    CUT = "connections are closed in the middle of what passes"


class StorePath:
    """A TCP relay in a thread of its own. Signatures stay right: requests pass unchanged, with the host they name.

    Args:
        port: of the server.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._way = Way.OPEN
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="store-path", daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(PATIENCE_S)

    async def _listen(self) -> int:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def set(self, way: Way) -> None:
        """Let requests go this way from now on; connections that are open are closed."""

        async def change() -> None:
            self._way = way
            for writer in list(self._writers):
                writer.transport.abort()

        asyncio.run_coroutine_threadsafe(change(), self._loop).result(PATIENCE_S)

    def close(self) -> None:
        """Stop the relay."""

        async def cancel() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(cancel(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                match self._way:
                    case Way.OPEN | Way.CUT:
                        await self._relay(reader, writer)
                    case Way.DENIED:
                        await self._deny(reader, writer)
                    case Way.SILENT:
                        while await reader.read(1 << 16):
                            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._writers.add(back)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, back))
                pumps.create_task(self._pump(there, writer))
        except* OSError:
            pass
        finally:
            self._writers.discard(back)
            back.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if self._way is Way.CUT:
                data = data[: len(data) // 2]
            writer.write(data)
            await writer.drain()
            if self._way is Way.CUT:
                break
        raise ConnectionResetError

    async def _deny(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            await reader.readexactly(length)
            fields = b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n"
            writer.write(fields % len(DENIED) + (b"" if head.startswith(b"HEAD ") else DENIED))
            await writer.drain()
