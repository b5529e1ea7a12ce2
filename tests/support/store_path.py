"""The way from one hub node to its S3 server, which a test can break for this node alone."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from enum import Enum

from tests.support.waiting import PATIENCE_S

ERROR = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>%b</Code><Message>%b</Message></Error>'
DENIED = b"403 Forbidden", ERROR % (b"ExpiredToken", b"The provided token has expired.")
FAILED = b"503 Service Unavailable", ERROR % (b"SlowDown", b"Please reduce your request rate.")
SLOW_S = 0.7


class Way(Enum):
    """What becomes of a request."""

    OPEN = "passed on"
    DENIED = "answered with 403, as when the node's credentials have expired"
    SILENT = "never answered, as when a firewall drops what it gets"
    CUT = "connections are closed in the middle of what passes"
    FAILED = "answered with 503, as by a server with too much to do"
    LOST = "carried out, and the connection is closed instead of an answer"
    SLOW = "answered late"


class StorePath:
    """A TCP relay in a thread of its own. Signatures stay right: requests pass unchanged, with the host they name.

    Args:
        port: of the server.
        address: of the server, and of the relay.
    """

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self._server_port, self._address = port, address
        self.puts = 0
        """Requests that write an object, as far as each begins with a packet of its own."""
        self._way = Way.OPEN
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="store-path", daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(PATIENCE_S)

    async def _listen(self) -> int:
        server = await asyncio.start_server(self._serve, self._address, 0)
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
                    case Way.DENIED:
                        await self._refuse(reader, writer, *DENIED)
                    case Way.FAILED:
                        await self._refuse(reader, writer, *FAILED)
                    case Way.SILENT:
                        while await reader.read(1 << 16):
                            pass
                    case _:
                        await self._relay(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._address, self._server_port)
        self._writers.add(back)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, back, is_answer=False))
                pumps.create_task(self._pump(there, writer, is_answer=True))
        except* OSError:
            pass
        finally:
            self._writers.discard(back)
            back.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        while data := await reader.read(1 << 16):
            self.puts += not is_answer and data.startswith(b"PUT ")
            match self._way:
                case Way.CUT:
                    data = data[: len(data) // 2]
                case Way.LOST if is_answer:
                    break
                case Way.SLOW if is_answer:
                    await asyncio.sleep(SLOW_S)
            writer.write(data)
            await writer.drain()
            if self._way is Way.CUT:
                break
        raise ConnectionResetError

    async def _refuse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: bytes, text: bytes
    ) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            await reader.readexactly(length)
            fields = b"HTTP/1.1 %b\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n"
            writer.write(fields % (status, len(text)) + (b"" if head.startswith(b"HEAD ") else text))
            await writer.drain()
