"""Options and figures of a link's TCP socket, where the system offers them."""

from __future__ import annotations

import contextlib
import fcntl
import socket as sockets
import struct
import termios

import aiohttp

NOTSENT_BYTES = 64 << 10
"""Bytes that the kernel takes ahead of what it can send. A PING waits behind them, and a new connection must not begin
with minutes of old data in buffers."""


def keep_queue_short(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Have the kernel take little more than it can send at once (TCP_NOTSENT_LOWAT)."""
    tcp = socket.get_extra_info("socket")
    option = getattr(sockets, "TCP_NOTSENT_LOWAT", None)
    if tcp is not None and option is not None:
        with contextlib.suppress(OSError):
            tcp.setsockopt(sockets.IPPROTO_TCP, option, NOTSENT_BYTES)


def unsent_bytes(socket: aiohttp.ClientWebSocketResponse) -> int:
    """Return the bytes that the kernel has not brought to the peer (SIOCOUTQ); 0 where that is unknown."""
    tcp = socket.get_extra_info("socket")
    if tcp is None:
        return 0
    try:
        answer = fcntl.ioctl(tcp.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int(struct.unpack("i", answer)[0])
