"""What becomes of the connections that a listening socket brings."""

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
from weft.edge_node.listeners.admission import Admission, Visit
from weft.edge_node.listeners.binding import listening_sockets
from weft.edge_node.listeners.proxied import ProxiedTransport, read_header
from weft.edge_node.listeners.proxy_protocol import BadProxyHeader
from weft.edge_node.listeners.settings import ListenerSettings, Network
from weft.edge_node.listeners.shared_buffer import SharedBufferProtocol
from weft.edge_node.listeners.tls_alert import Alert

log = logging.getLogger(__name__)

ACCEPTS_MAX = 64
"""Connections accepted before others of the event loop have their turn."""
ACCEPT_PAUSE_S = 1.0
"""How long nothing is accepted after the process ran out of file descriptors; asyncio waits as long."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Welcome = Callable[[asyncio.Transport, Visit], asyncio.Protocol]
"""Makes the protocol of a connection whose transport is ready."""


class Acceptor:
    """Accepts on one address, and brings each connection through proxy header and TLS handshake to its protocol."""

    def __init__(self, settings: ListenerSettings, admission: Admission, welcome: Welcome) -> None:
        self._settings = settings
        self._admission = admission
        self._welcome = welcome
        self.tls: ssl.SSLContext | None = None
        """For handshakes from now on; None for none."""
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._entering: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self.bound: Address | UnixSocket = settings.bind
        """The address with the port that was found for port 0."""

    async def start(self) -> None:
        """Bind and accept.

        Raises:
            OSError: the address cannot be bound.
        """
        self._sockets, self.bound = await listening_sockets(self._settings.bind)
        for each in self._sockets:
            self._loop.add_reader(each, self._accept, each)

    def stop(self) -> None:
        """Accept no more; handshakes under way are given up."""
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
        for task in self._entering:
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._exhausted(error)
                return
            self._arrive(connection, address)

    def _arrive(self, connection: socket.socket, address: Any) -> None:
        host, name = ("", str(self.bound)) if not isinstance(address, tuple) else (address[0], shown(address))
        proxies = self._settings.proxies
        if proxies is not None and not _is_trusted(host, proxies):
            self._admission.door_counters.proxy_headers_refused += 1
            self._complain("untrusted", "refused %s at listener %s: it is no trusted proxy", name)
            connection.close()
            return
        visit = self._admission.arrive(host, name, via_proxy=proxies is not None)
        if visit is None:
            connection.close()
            return
        task = self._loop.create_task(self._enter(connection, visit))
        visit.ending = _Entering(task)
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)

    async def _enter(self, connection: socket.socket, visit: Visit) -> None:
        """Up to ``welcome``. The admission's deadline holds for all of it: past it the task is cancelled."""
        connection.setblocking(False)
        if self.tls is None:
            await self._bring_in(connection, visit, None)
            return
        with Alert(connection) as alert:
            await self._bring_in(connection, visit, alert)

    async def _bring_in(self, connection: socket.socket, visit: Visit, alert: Alert | None) -> None:
        try:
            if self._settings.proxies is not None and not await self._enter_by_proxy(connection, visit):
                raise ConnectionAbortedError
            # The deadline is the admission's; asyncio wants one of its own.
            timeout_s = self._admission.limits.connect_timeout_s if self.tls is not None else None
            await self._loop.connect_accepted_socket(
                lambda: _Entrance(self._welcome, visit), connection, ssl=self.tls, ssl_handshake_timeout=timeout_s
            )
        except BadProxyHeader as error:
            self._admission.door_counters.proxy_headers_refused += 1
            self._complain("no header", "refused %s at listener %s: %s", visit.name, error)
            self._end(connection, visit)
        except OSError as error:  # ssl.SSLError is one
            if self.tls is not None:
                self._admission.door_counters.handshakes_failed += 1
            self._complain("handshake", "no connection with %s at listener %s: %s", visit.name, error)
            try:
                if alert is not None:
                    await alert.send()
            finally:
                self._end(connection, visit)
        except asyncio.CancelledError:
            self._end(connection, visit)
            raise

    async def _enter_by_proxy(self, connection: socket.socket, visit: Visit) -> bool:
        source = await read_header(self._loop, connection)
        if source is None:  # the proxy speaks for itself
            return self._admission.named(visit, visit.host, visit.name)
        return self._admission.named(visit, source.host, shown(source))

    def _end(self, connection: socket.socket, visit: Visit) -> None:
        self._admission.leave(visit)
        connection.close()

    def _complain(self, what: str, message: str, name: str, *arguments: object) -> None:
        self._admission.complain(f"{self._settings.name} {what}", message, name, self._settings.name, *arguments)

    def _exhausted(self, error: OSError) -> None:
        self._admission.door_counters.accept_pauses += 1
        if self._pause is not None:
            return
        log.error("listener %s accepts nothing for now: %s; raise the process's limit of open files, or lower "
                  "limits.connections", self._settings.name, error.strerror)  # fmt: skip
        for each in self._sockets:
            self._loop.remove_reader(each)
        self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._try_again)

    def _try_again(self) -> None:
        """Accept again as soon as a file can be opened. That is tried, so that each shortage makes one log line."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._try_again)
            return
        self._pause = None
        for each in self._sockets:
            self._loop.add_reader(each, self._accept, each)


class _Entering:
    """Stands for the transport while there is none."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def abort(self) -> None:
        self._task.cancel()

    def is_closing(self) -> bool:
        return False


class _Entrance(asyncio.Protocol):
    """Takes a transport that is ready to the protocol it is for, and is gone."""

    __slots__ = ("_visit", "_welcome")

    def __init__(self, welcome: Welcome, visit: Visit) -> None:
        self._welcome = welcome
        self._visit = visit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        visit, real = self._visit, cast(asyncio.Transport, transport)
        if visit.is_over:  # given up during the handshake
            real.abort()
            return
        peername = real.get_extra_info("peername")
        is_proxied = isinstance(peername, tuple) and shown(peername) != visit.name
        facade = cast(asyncio.Transport, ProxiedTransport(real, visit)) if is_proxied else real
        visit.ending = facade
        protocol = self._welcome(facade, visit)
        is_tls = real.get_extra_info("sslcontext") is not None
        real.set_protocol(SharedBufferProtocol(protocol) if is_tls else protocol)
        protocol.connection_made(facade)


def shown(address: tuple[Any, ...]) -> str:
    """An internet address for log lines."""
    return str(Address(address[0], address[1]))


def _is_trusted(host: str, proxies: tuple[Network, ...]) -> bool:
    from ipaddress import ip_address

    if not host:
        return True  # a unix socket: whoever may write to it
    address = ip_address(host.partition("%")[0])
    return any(address in network for network in proxies)
