"""The end of a connection after its last answer."""

from __future__ import annotations

import asyncio
import contextlib

LINGER_S = 2.0
"""Time for which input is discarded before a connection is closed: without it the system would reset the connection,
and the client might not get the answer."""
LINGER_BYTES_MAX = 4 << 20


class Ending:
    """Reader that discards a client's input for a while."""

    __slots__ = ("_left", "_timer", "_transport", "_write_timeout_s")

    def __init__(self, transport: asyncio.Transport, write_timeout_s: float) -> None:
        """Begin to end a connection, without further writes.

        Args:
            write_timeout_s: time in which the client can read the sent data.
        """
        self._write_timeout_s = write_timeout_s
        self._left = LINGER_BYTES_MAX
        self._transport = transport
        if transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has closed it
                transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._close)

    def received(self, size: int) -> None:
        """Discard received bytes."""
        self._left -= size
        if self._left < 0:
            self._transport.abort()

    def _close(self) -> None:
        self._transport.close()
        self._timer = asyncio.get_running_loop().call_later(self._write_timeout_s, self._transport.abort)

    def cancel(self) -> None:
        """Stop waiting: the connection has ended."""
        self._timer.cancel()
