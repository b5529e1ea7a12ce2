"""Listening sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat

from weft.config.machine import why_not_listening
from weft.config.units import Address, UnixSocket

BACKLOG = 1024
"""Number of connections that the kernel may hold before they are accepted: all devices of a plant reconnect at once."""


class CannotListen(OSError):
    """An address that cannot be bound. The text has the reason and the remedy."""


async def listening_sockets(bind: Address | UnixSocket) -> tuple[list[socket.socket], Address | UnixSocket]:
    """Listen at every address of a host name, or at a unix socket.

    Returns:
        The non-blocking sockets, and their address, with the actual port for port 0.

    Raises:
        CannotListen: the address cannot be bound; nothing listens then.
        OSError: no socket can be created.
    """
    if isinstance(bind, UnixSocket):
        return [_listen_unix(bind)], bind
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(bind.to_resolve, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotListen(why_not_listening(error, bind)) from None
    port, sockets = bind.port, []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                listening = socket.socket(family, kind, protocol)
            except OSError as error:
                if bind.to_resolve is None and error.errno == errno.EAFNOSUPPORT:
                    continue  # a machine without IPv6
                raise
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            _bind(listening, (address[0], port, *address[2:]), Address(bind.host, port))
            port = listening.getsockname()[1]
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets, Address(bind.host, port)


def _listen_unix(bind: UnixSocket) -> socket.socket:
    """Listen in place of a socket left by an earlier node. Its group may connect, others may not."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(bind.path).st_mode):
            _refuse_if_alive(bind)
            os.unlink(bind.path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o117)
    try:
        _bind(listening, bind.path, bind)
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(mask)
    return listening


def _bind(listening: socket.socket, address: object, shown: Address | UnixSocket) -> None:
    try:
        listening.bind(address)  # type: ignore[arg-type]
        listening.listen(BACKLOG)
    except OSError as error:
        raise CannotListen(why_not_listening(error, shown)) from None
    listening.setblocking(False)


def _refuse_if_alive(bind: UnixSocket) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(bind.path) == 0:
            raise CannotListen(why_not_listening(OSError(errno.EADDRINUSE, ""), bind))
