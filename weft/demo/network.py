"""A network that can be cut: a TCP relay between an edge and the hub, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading

_READ_BYTES = 256 << 10
_SLOW_BYTES = 2 << 10
SLOW_BYTES_PER_S = 8 << 10
"""Rate of a line that came back, so that a person sees the backlog drain: that of a modem of GPRS."""


class Relay:
    """A relay to ``target_port`` on loopback, until ``cut`` and again after ``restore``."""

    def __init__(self, target_port: int) -> None:
        self._is_slow = False
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._up = True
        self._server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name="demo-network", daemon=True)
        self._thread.start()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if self._up:
                await self._pass_on(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(reader, far_writer))
                group.create_task(self._copy(far_reader, writer))
        except* OSError:
            pass
        finally:
            far_writer.close()

    def cut(self) -> None:
        """Drop every connection and refuse new ones."""
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        self._up = False
        for task in self._connections:
            task.cancel()

    def restore(self) -> None:
        """Let connections through again, at the rate of a slow line."""
        self._is_slow = True
        self._up = True

    def close(self) -> None:
        """Cut for good and end the thread."""
        self.cut()
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_SLOW_BYTES if self._is_slow else _READ_BYTES):
                writer.write(data)
                await writer.drain()
                if self._is_slow:
                    await asyncio.sleep(len(data) / SLOW_BYTES_PER_S)
        writer.close()
