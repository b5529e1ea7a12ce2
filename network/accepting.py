"""Connections from accepting to their protocol: proxy header, TLS handshake, admission."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

from weft.config.units import Address, UnixSocket
from weft.network.admission import Admission, NetworkConnection
from weft.network.binding import listening_sockets
from weft.network.proxied import ProxiedTransport, read_header
from weft.network.proxy_protocol import BadProxyHeader
from weft.network.settings import Network
from weft.network.shared_buffer import SharedBufferProtocol
from weft.network.tls.alert import TlsAlert

log = logging.getLogger(__name__)

ACCEPTS_MAX = 64
"""Number of connections accepted before other work of the event loop has its turn."""
ACCEPT_PAUSE_S = 1.0
"""Pause in accepting after the process ran out of file descriptors; asyncio waits as long."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

MakeProtocol = Callable[[asyncio.Transport, NetworkConnection], asyncio.Protocol]
"""Function that creates the protocol of a connection whose transport is ready."""


class Acceptor:
    """An acceptor at one address that takes each connection through proxy header and TLS handshake to its protocol.

    Args:
        name: for log lines.
        proxies: networks of proxies, whose connections begin with a PROXY header; None for no proxy.
    """

    def __init__(
        self,
        make_protocol: MakeProtocol,
        admission: Admission,
        *,
        name: str,
        bind: Address | UnixSocket,
        proxies: tuple[Network, ...] | None = None,
    ) -> None:
        self._name = name
        self._proxies = proxies
        self._admission = admission
        self._make_protocol = make_protocol
        self.tls: ssl.SSLContext | None = None
        """Context for further handshakes; None for plain TCP."""
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self.bound = bind
        """Address, with the actual port where port 0 was asked for."""

    async def start(self) -> None:
        """Bind and listen: connections wait in the kernel until ``accept``.

        Raises:
            OSError: the address cannot be bound.
        """
        self._sockets, self.bound = await listening_sockets(self.bound)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Return host and port of each TCP socket that listens."""
        return [each.getsockname()[:2] for each in self._sockets if each.family != socket.AF_UNIX]

    def accept(self) -> None:
        """Accept connections from now on."""
        for each in self._sockets:
            self._loop.add_reader(each, self._accept, each)

    def stop(self) -> None:
        """Stop accepting, and abort handshakes under way."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        for each in self._sockets:
            self._loop.remove_reader(each)
            each.close()
        if self._sockets and isinstance(self.bound, UnixSocket):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.bound.path)
        self._sockets.clear()
        for task in self._handshakes:
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._exhausted(error)
                return
            self._begin(sock, address)

    def _begin(self, sock: socket.socket, address: Any) -> None:
        host, name = ("", str(self.bound)) if not isinstance(address, tuple) else (address[0], shown(address))
        proxies = self._proxies
        if proxies is not None and not _is_trusted(host, proxies):
            self._admission.listener_counters.proxy_headers_refused += 1
            self._complain("untrusted", "refused %s at listener %s: it is not a trusted proxy", name)
            sock.close()
            return
        connection = self._admission.arrive(host, name, via_proxy=proxies is not None)
        if connection is None:
            sock.close()
            return
        task = self._loop.create_task(self._set_up(sock, connection))
        connection.transport = _PendingTransport(task)
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)
        # A task that is cancelled before its first step never closes its socket, and leaves a reference cycle that only
        # a full garbage collection would free.
        task.add_done_callback(lambda done: sock.close() if done.cancelled() else None)

    async def _set_up(self, sock: socket.socket, connection: NetworkConnection) -> None:
        """Take a connection to its protocol. At the admission's deadline the task is cancelled."""
        sock.setblocking(False)
        if self.tls is None:
            await self._shake_hands(sock, connection, None)
            return
        with TlsAlert(sock) as alert:
            await self._shake_hands(sock, connection, alert)

    async def _shake_hands(self, sock: socket.socket, connection: NetworkConnection, alert: TlsAlert | None) -> None:
        try:
            if self._proxies is not None and not await self._read_proxy_header(sock, connection):
                raise ConnectionAbortedError
            # The deadline is the admission's; asyncio wants one of its own.
            timeout_s = self._admission.limits.connect_timeout_s if self.tls is not None else None
            await self._loop.connect_accepted_socket(
                lambda: _ProtocolSwitch(self._make_protocol, connection),
                sock,
                ssl=self.tls,
                ssl_handshake_timeout=timeout_s,
            )
        except BadProxyHeader as error:
            self._admission.listener_counters.proxy_headers_refused += 1
            self._complain("no header", "refused %s at listener %s: %s", connection.name, error)
            self._end(sock, connection)
        except OSError as error:  # ssl.SSLError is one
            if self.tls is not None:
                self._admission.listener_counters.handshakes_failed += 1
            why = str(error) or "it closed the connection before the handshake ended"
            self._complain("handshake", "no connection with %s at listener %s: %s", connection.name, why)
            try:
                if alert is not None:
                    await alert.send()
            finally:
                self._end(sock, connection)
        except asyncio.CancelledError:
            self._end(sock, connection)
            raise

    async def _read_proxy_header(self, sock: socket.socket, connection: NetworkConnection) -> bool:
        source = await read_header(self._loop, sock)
        if source is None:  # the proxy's own connection
            return self._admission.set_address(connection, connection.host, connection.name)
        return self._admission.set_address(connection, source.host, shown(source))

    def _end(self, sock: socket.socket, connection: NetworkConnection) -> None:
        self._admission.leave(connection)
        sock.close()

    def _complain(self, what: str, message: str, name: str, *arguments: object) -> None:
        self._admission.complain(f"{self._name} {what}", message, name, self._name, *arguments)

    def _exhausted(self, error: OSError) -> None:
        self._admission.listener_counters.accept_pauses += 1
        if self._pause is not None:
            return
        log.error("listener %s has stopped accepting for now: %s; raise the process's limit of open files, or lower "
                  "limits.connections", self._name, error.strerror)  # fmt: skip
        for each in self._sockets:
            self._loop.remove_reader(each)
        self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._try_again)

    def _try_again(self) -> None:
        """Accept again as soon as a file can be opened. The test opens one, so that each shortage makes one log
        line."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._try_again)
            return
        self._pause = None
        for each in self._sockets:
            self._loop.add_reader(each, self._accept, each)


class _PendingTransport:
    """A stand-in for the transport while there is none."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def abort(self) -> None:
        self._task.cancel()

    def is_closing(self) -> bool:
        return False


class _ProtocolSwitch(asyncio.Protocol):
    """Switch of a ready transport to its protocol."""

    __slots__ = ("_connection", "_make_protocol")

    def __init__(self, make_protocol: MakeProtocol, connection: NetworkConnection) -> None:
        self._make_protocol = make_protocol
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection, real = self._connection, cast(asyncio.Transport, transport)
        if connection.is_over:  # closed during the handshake
            real.abort()
            return
        peername = real.get_extra_info("peername")
        is_proxied = isinstance(peername, tuple) and shown(peername) != connection.name
        facade = cast(asyncio.Transport, ProxiedTransport(real, connection)) if is_proxied else real
        connection.transport = facade
        protocol = self._make_protocol(facade, connection)
        is_tls = real.get_extra_info("sslcontext") is not None
        real.set_protocol(SharedBufferProtocol(protocol) if is_tls else protocol)
        protocol.connection_made(facade)


def shown(address: tuple[Any, ...]) -> str:
    """Return an internet address for log lines."""
    return str(Address(address[0], address[1]))


def _is_trusted(host: str, proxies: tuple[Network, ...]) -> bool:
    from ipaddress import ip_address

    if not host:
        return True  # a unix socket: its mode says which proxies may connect
    address = ip_address(host.partition("%")[0])
    return any(address in network for network in proxies)
