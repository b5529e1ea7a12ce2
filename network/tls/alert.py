"""The alert that tells a client why its TLS handshake failed.

OpenSSL puts the alert into the output buffer, and then reports the error. asyncio and uvloop abort the connection on
that error and drop the buffer, so that a client without a good certificate sees a reset and no reason. The context of
this module keeps the alert; the acceptor sends it through a second descriptor of the socket, which the abort does not
close.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from contextvars import ContextVar
from typing import Any

from weft.network.tls.records import BoundedRecords

LINGER_S = 1.0
"""Longest time that a client may take to read its alert. A good network needs one round trip."""
READ_BYTES = 64 << 10
READS_MAX = 16
"""Maximum number of reads discarded after the alert: 1 MiB."""

_alert: ContextVar[TlsAlert | None] = ContextVar("tls alert", default=None)
"""Alert of the connection whose handshake the current task runs; event loops pass the context on."""


class TlsAlert:
    """The alert for one client whose handshake fails; usually none."""

    __slots__ = ("_connection", "_data", "_socket")

    def __init__(self, connection: socket.socket) -> None:
        self._connection: socket.socket | None = connection
        self._data = b""
        self._socket: socket.socket | None = None

    def __enter__(self) -> TlsAlert:
        """Watch the handshake that the current task begins."""
        _alert.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Release the connection: the transport holds the context, and so this object, as long as it is open."""
        self._connection = None
        if self._socket is not None:
            self._socket.close()

    def keep(self, data: bytes) -> None:
        """Remember an alert. Called while the connection is still open."""
        if data and self._connection is not None:
            with contextlib.suppress(OSError):  # no file descriptor is left: then the client gets a reset
                self._socket = self._connection.dup()
                self._data = data

    async def send(self) -> None:
        """Send the alert, if there is one, and wait until the client has read it, at most ``LINGER_S``."""
        connection, loop = self._socket, asyncio.get_running_loop()
        if connection is None:
            return
        with contextlib.suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(LINGER_S):
                await loop.sock_sendall(connection, self._data)
                connection.shutdown(socket.SHUT_WR)
                # Closing a socket that holds unread bytes resets it, and the reset may overtake the alert. There are
                # such bytes: in TLS 1.3 a client sends its first packet before it knows if its certificate is good.
                for _ in range(READS_MAX):
                    if not await loop.sock_recv(connection, READ_BYTES):
                        break


class AlertingContext(ssl.SSLContext):
    """A context whose failed handshakes store their alert in the ``TlsAlert`` of the current task.

    Its connections have a bound on records without data.
    """

    sslobject_class = BoundedRecords

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *arguments: Any, **options: Any
    ) -> ssl.SSLObject:
        """Begin a TLS connection."""
        taken = ssl.MemoryBIO()
        made = super().wrap_bio(taken, outgoing, *arguments, **options)
        assert isinstance(made, BoundedRecords)
        made.incoming, made.taken = incoming, taken
        alert = _alert.get()
        if alert is not None:
            made.kept = alert.keep, outgoing
        return made
