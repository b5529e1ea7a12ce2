"""The end of a connection after its last answer."""

from __future__ import annotations

import asyncio
import contextlib

LINGER_S = 2.0
"""Time for which what still comes is thrown away before a connection is closed: closed at once, the system would reset
it, and the client might not get the answer."""
LINGER_BYTES_MAX = 4 << 20


class Ending:
    """Throws away what a client still sends, for a while."""

    __slots__ = ("_left", "_timer", "_transport", "_write_timeout_s")

    def __init__(self, transport: asyncio.Transport, write_timeout_s: float) -> None:
        """Begin to end a connection: nothing is written to it any more.

        Args:
            write_timeout_s: time that the client has for what it was sent.
        """
        self._write_timeout_s = write_timeout_s
        self._left = LINGER_BYTES_MAX
        self._transport = transport
        if transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has closed it
                transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._close)

    def received(self, size: int) -> None:
        """Throw away what came."""
        self._left -= size
        if self._left < 0:
            self._transport.abort()

    def _close(self) -> None:
        self._transport.close()
        self._timer = asyncio.get_running_loop().call_later(self._write_timeout_s, self._transport.abort)

    def cancel(self) -> None:
        """Wait no longer: the connection has ended."""
        self._timer.cancel()
