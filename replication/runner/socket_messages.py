"""Messages of a WebSocket that a client of the HTTP server has opened, taken in turns."""

from __future__ import annotations

import asyncio
import contextlib
import select

from aiohttp import WSMessage, WSMsgType, web

FRAMES_AT_ONCE = 64
"""Messages, pings and pongs of one client after which the event loop serves others. One read has room for 43,690 of
them, an eighth of a second of the loop; the library hands them out, and answers pings, without a pause."""
_ENDS = (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR)


def has_left(socket: web.WebSocketResponse) -> bool:
    """Return whether the client has closed the connection, though not all that it sent was read. The kernel knows on
    Linux; elsewhere only what was read tells."""
    tcp = socket.get_extra_info("socket")
    if tcp is None or tcp.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(tcp.fileno(), getattr(select, "POLLRDHUP", 0))
    return bool(poll.poll(0))


class SocketReader:
    """The receiving side of a WebSocket. One task uses it at a time.

    Args:
        socket: made with ``autoping=False``.
    """

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._count = 0

    async def next(self) -> WSMessage:
        """Return the next message that is no ping and no pong (RFC 6455, section 5.5.2), or the end of the connection.
        Pings are answered."""
        while True:
            message = await self._socket.receive()
            self._count += 1
            if self._count % FRAMES_AT_ONCE == 0:
                await asyncio.sleep(0)
            if message.type is WSMsgType.PING:
                with contextlib.suppress(ConnectionError):  # the next message says that the connection has ended
                    await self._socket.pong(message.data)
            elif message.type is not WSMsgType.PONG:
                return message

    async def close(self, code: int, reason: bytes, seconds: float) -> None:
        """Send a closing frame, and end the connection when the client has answered it, or after some seconds. What it
        sent before its answer is dropped."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(seconds):
                await self._socket.send_frame(code.to_bytes(2, "big") + reason, WSMsgType.CLOSE)
                while (await self._socket.receive()).type not in _ENDS:
                    self._count += 1
                    if self._count % FRAMES_AT_ONCE == 0:
                        await asyncio.sleep(0)
        await self._socket.close()
