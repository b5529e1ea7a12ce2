"""Options and figures of a link's TCP socket, if the system has them."""

from __future__ import annotations

import contextlib
import fcntl
import socket as sockets
import struct
import termios

import aiohttp

NOTSENT_BYTES = 64 << 10
"""Bytes that the kernel buffers beyond those that it can send. A PING waits behind them, and a new connection must not
begin with minutes of old data in buffers."""
_BYTES_ACKED = struct.Struct("=120xQ")
"""The kernel's struct tcp_info up to tcpi_bytes_acked."""


def keep_queue_short(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Limit the kernel's buffer of bytes that it cannot send yet (TCP_NOTSENT_LOWAT)."""
    tcp = socket.get_extra_info("socket")
    option = getattr(sockets, "TCP_NOTSENT_LOWAT", None)
    if tcp is not None and option is not None:
        with contextlib.suppress(OSError):
            tcp.setsockopt(sockets.IPPROTO_TCP, option, NOTSENT_BYTES)


class Drain:
    """The way of one connection's bytes out of this machine."""

    def __init__(self, tcp: sockets.socket | None) -> None:
        self._tcp = tcp
        self._taken = 0
        self._written = 0

    def goes_on(self, *, again: bool) -> bool:
        """Return whether bytes of the last check still wait here, and the peer's machine has acknowledged some since.

        The number of waiting bytes is no evidence: new bytes are added also when the peer has stopped, and on any line
        the last ones wait a moment for TCP's acknowledgement.

        Args:
            again: False for the first check, which returns True if bytes wait.
        """
        waiting = self._unsent_bytes()
        if not waiting:
            return False
        taken = self._taken_bytes()
        before, written = self._taken, self._written
        self._taken, self._written = taken, taken + waiting
        return not again or before < taken < written

    def _unsent_bytes(self) -> int:
        """Return the bytes that the kernel has not delivered to the peer (SIOCOUTQ); 0 if unknown."""
        if self._tcp is None:
            return 0
        try:
            answer = fcntl.ioctl(self._tcp.fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:
            return 0
        return int(struct.unpack("i", answer)[0])

    def _taken_bytes(self) -> int:
        """Return the bytes that the peer's machine has acknowledged (tcpi_bytes_acked of Linux 4.1); 0 if unknown."""
        if self._tcp is None or not hasattr(sockets, "TCP_INFO"):
            return 0
        try:
            info = self._tcp.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _BYTES_ACKED.size)
        except OSError:
            return 0
        return int(_BYTES_ACKED.unpack(info)[0]) if len(info) == _BYTES_ACKED.size else 0
