"""Bytes of a link's connections on the wire, as its sockets count them."""

from __future__ import annotations

import contextlib
import socket as sockets
import struct
from typing import Any

_INFO = struct.Struct("=5xB114xQQII56xQ")
"""The kernel's struct tcp_info: tcpi_options, tcpi_bytes_acked, tcpi_bytes_received, tcpi_segs_out, tcpi_segs_in, and
tcpi_bytes_sent (Linux 4.19)."""
_TIMESTAMPS = 1
"""TCPI_OPT_TIMESTAMPS of tcpi_options."""
TCP_BYTES, TIMESTAMP_BYTES = 20, 12
IP_BYTES = {sockets.AF_INET: 20, sockets.AF_INET6: 40}


class WireMeter:
    """A count of IP packets of both directions, with their headers: what a network operator charges for.

    It sees a connection from its first packet on, also one whose TLS handshake fails, because it makes the sockets and
    keeps a second handle of each until ``close``. Resolving names is not counted, nor what the ends of a connection
    still say after ``close``.
    """

    def __init__(self, *, is_on: bool = True) -> None:
        self._is_on = is_on
        self._handles: list[tuple[sockets.socket, int]] = []
        """Handle of a socket, and its bytes that were counted."""

    def make_socket(self, address: tuple[Any, ...]) -> sockets.socket:
        """Make a socket for an address as ``getaddrinfo`` returns it."""
        made = sockets.socket(address[0], address[1], address[2])
        if self._is_on:
            with contextlib.suppress(OSError):
                self._handles.append((made.dup(), 0))
        return made

    def take(self) -> int:
        """Return the bytes since the last call."""
        found = 0
        for at, (handle, before) in enumerate(self._handles):
            total = wire_bytes(handle)
            found += max(0, total - before)
            self._handles[at] = handle, max(total, before)
        return found

    def close(self) -> int:
        """Drop the sockets; return their bytes since the last ``take``."""
        found = self.take()
        for handle, _ in self._handles:
            handle.close()
        self._handles.clear()
        return found


def wire_bytes(socket: sockets.socket) -> int:
    """Return the bytes of a TCP connection's packets in both directions; 0 where the system does not count them."""
    if not hasattr(sockets, "TCP_INFO"):
        return 0
    try:
        info = socket.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _INFO.size)
    except OSError:
        return 0
    if len(info) < _INFO.size:
        return 0
    options, _, received, segments_out, segments_in, sent = _INFO.unpack(info)
    header = IP_BYTES.get(socket.family, IP_BYTES[sockets.AF_INET6]) + TCP_BYTES
    header += TIMESTAMP_BYTES if options & _TIMESTAMPS else 0
    return int(sent + received + (segments_out + segments_in) * header)
