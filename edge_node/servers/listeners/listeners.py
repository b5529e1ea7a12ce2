"""All listeners of a node, their accounts, and the files that are read again."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import resource
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from weft.bounds import Refusals
from weft.config.errors import SettingError
from weft.config.log_lines import DisconnectLog
from weft.config.metrics.exposition import Sample
from weft.config.models import EdgeConfig
from weft.config.units import Address, UnixSocket
from weft.edge_node.access import identity, users
from weft.edge_node.access.authentication import Accounts, PasswordCache
from weft.edge_node.access.identity import Credentials, Identity
from weft.edge_node.counters import Counters, ListenerCounters
from weft.edge_node.part import Part
from weft.edge_node.servers.listeners.settings import (
    AcceptedConnection,
    Authenticator,
    ListenerSettings,
    WebSocketSettings,
    admission_limits,
    listener_settings,
)
from weft.network import http_server
from weft.network.accepting import Acceptor, CannotListen, SharedBufferProtocol
from weft.network.admission import Admission, AdmissionLimits, NetworkConnection, is_loopback
from weft.network.reload import Reloads, Watched
from weft.network.tls import CertificateName, TlsInForce, TlsUnusable, certificate_name, common_name, read_tls

if TYPE_CHECKING:
    from weft.edge_node.servers.listeners.websocket_connection import WebSocketContext, WebSocketTransport


# MQTT over WebSocket (MQTT 5.0 section 6): the WebSocket side of one listener.

Connect = Callable[[asyncio.Transport, NetworkConnection], asyncio.Protocol]
"""Function that creates the MQTT connection of an open WebSocket."""


class WebSockets:
    """The WebSocket connections of a listener, from their HTTP request on."""

    def __init__(self, settings: WebSocketSettings, connect: Connect, admission: Admission) -> None:
        """Serve only ``settings.path``."""
        self._parts = (settings, connect, admission, self._opened, self._ended)
        self._shared: WebSocketContext | None = None
        self._open: set[WebSocketTransport] = set()
        self._all_left: asyncio.Future[None] | None = None

    def make_protocol(self, _transport: asyncio.Transport, connection: NetworkConnection) -> asyncio.Protocol:
        """Begin HTTP with a new connection."""
        # Imported here, so that a node does not load the library before it has such a client.
        from weft.edge_node.servers.listeners.websocket_connection import WebSocketContext, WebSocketTransport

        if self._shared is None:
            self._shared = WebSocketContext(*self._parts)
        return WebSocketTransport(self._shared, connection)

    async def close(self) -> None:
        """End all connections; clients have ``CLOSE_TIMEOUT_S`` to answer a closing frame."""
        if self._open:
            self._all_left = asyncio.get_running_loop().create_future()
            for each in list(self._open):
                each.go_away()
            await self._all_left

    def _opened(self, connection: WebSocketTransport) -> None:
        self._open.add(connection)

    def _ended(self, connection: WebSocketTransport) -> None:
        self._open.discard(connection)
        if not self._open and self._all_left is not None and not self._all_left.done():
            self._all_left.set_result(None)


# One listener, for clients of any protocol.

MakeConnection = Callable[[Authenticator, AcceptedConnection], asyncio.Protocol]
"""Factory of a connection's protocol object."""


class Listener:
    """Listener on one address; the ``Authenticator`` of its connections. Event loop's thread only."""

    def __init__(
        self, make_connection: MakeConnection, settings: ListenerSettings, admission: Admission, accounts: Accounts
    ) -> None:
        """Connect a listener to its protocol, and to the parts that all listeners share."""
        self._make_connection = make_connection
        self._settings = settings
        self._admission = admission
        self._accounts = accounts
        self._revoked: frozenset[CertificateName] = frozenset()
        self.expires: datetime | None = None
        """End of the certificate in use; None without TLS."""
        self._websockets: WebSockets | None = None
        if settings.websocket is not None:
            self._websockets = WebSockets(settings.websocket, self._connect, admission)
        make_protocol = self._connect if self._websockets is None else self._websockets.make_protocol
        self._acceptor = Acceptor(
            make_protocol, admission, name=settings.name, bind=settings.bind, proxies=settings.proxies
        )

    async def start(self) -> None:
        """Bind and listen: connections wait in the kernel until ``accept``.

        Raises:
            SettingError: the address cannot be bound, or the TLS files cannot be used.
        """
        path = ("listeners", self.name)
        try:
            self.use_tls(await asyncio.to_thread(self.read_tls))
            await self._acceptor.start()
        except TlsUnusable as error:
            raise SettingError((*path, "tls"), str(error)) from None
        except CannotListen as error:
            raise SettingError((*path, "bind"), str(error)) from None

    def accept(self) -> None:
        """Accept connections from now on."""
        self._acceptor.accept()

    @property
    def name(self) -> str:
        """Return the name in the configuration."""
        return self._settings.name

    @property
    def bound(self) -> Address | UnixSocket:
        """Return the address that it listens on, with the actual port for port 0."""
        return self._acceptor.bound

    @property
    def port(self) -> int:
        """Return the TCP port; 0 for a unix socket."""
        return self.bound.port if isinstance(self.bound, Address) else 0

    def stop(self) -> None:
        """Stop accepting. Connections stay: their protocol closes them."""
        self._acceptor.stop()

    async def close(self) -> None:
        """Stop accepting, and end the remaining parts of connections once their protocol has closed them."""
        self.stop()
        if self._websockets is not None:
            await self._websockets.close()

    # --- TLS

    @property
    def tls_files(self) -> list[str]:
        """Return the paths of the TLS files; none without TLS."""
        return [] if self._settings.tls is None else list(self._settings.tls.paths)

    def read_tls(self) -> TlsInForce | None:
        """Read the present TLS files; return None without TLS. Blocks.

        Raises:
            OSError: they cannot be used.
        """
        return None if self._settings.tls is None else read_tls(self._settings.tls)

    def use_tls(self, tls: TlsInForce | None) -> None:
        """Use newly read files for handshakes from now on, and end connections whose certificate was revoked."""
        self._acceptor.tls = None if tls is None else tls.context
        self.expires = None if tls is None else tls.expires
        before, self._revoked = self._revoked, frozenset() if tls is None else tls.revoked
        if self._revoked - before:
            self._accounts.changed()

    # --- for connections

    async def authenticate(self, credentials: Credentials, transport: Any, address: str) -> Identity:
        """Return the identity of an admitted client.

        Args:
            address: address of the client, for charges; empty for this machine.

        Raises:
            AccessDenied: it is refused.
        """
        name, is_revoked = None, None
        if self._settings.tls is not None and self._settings.tls.client_ca is not None:
            name = common_name(transport.get_extra_info("peercert"))
            if self._settings.tls.crl_file is not None and name is not None:
                certificate = certificate_name(transport.get_extra_info("ssl_object").getpeercert(binary_form=True))
                is_revoked = functools.partial(self._is_revoked, certificate)
        may_be_anonymous = self._may_be_anonymous(transport)
        return await self._accounts.identify(
            credentials, name, may_be_anonymous=may_be_anonymous, address=address, is_revoked=is_revoked
        )

    def _is_revoked(self, certificate: CertificateName) -> bool:
        return certificate in self._revoked

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back after users or access rules were read again: remembered permissions are then void."""
        self._accounts.watch(callback)

    def _may_be_anonymous(self, transport: asyncio.BaseTransport) -> bool:
        if self._settings.anonymous != "loopback":
            return self._settings.anonymous == "allowed_beyond_loopback"
        peername = transport.get_extra_info("peername")
        return is_loopback(peername[0] if isinstance(peername, tuple) else "")

    def _connect(self, transport: asyncio.Transport, connection: NetworkConnection) -> asyncio.Protocol:
        connection.transport = transport
        return self._make_connection(self, connection)


log = logging.getLogger(__name__)

FILES_RESERVED = 128
"""File descriptors reserved for the log, links and threads."""
HALF_OPEN_PART = 8
"""Divisor for the share of connections that may be half open, where the process may not open enough files."""


class Listeners:
    """All listeners of a node. ``open`` and ``close`` once each, on the event loop's thread."""

    def __init__(
        self, config: EdgeConfig, counters: Counters, listener_counters: ListenerCounters, refusals: Refusals
    ) -> None:
        """Read users and access rules; blocks.

        Raises:
            OSError: a file cannot be read.
            UsersUnusable, AclUnusable: a file is not valid.
        """
        self._config = config
        auth = config.auth
        self.accounts = Accounts(
            None if auth.users_file is None else users.read(auth.users_file),
            None if auth.acl_file is None else identity.read(auth.acl_file),
            counters=listener_counters,
            limits=config.limits,
            known=PasswordCache(config.data_dir if auth.remember_passwords else None, refusals.clock),
            refusals=refusals,
            clock=refusals.clock,
        )
        pages = config.limits.http_connections + http_server.BACKLOG
        self._admission = Admission(with_files_for(admission_limits(config), pages), counters, listener_counters)
        self._listeners: list[Listener] = []
        self.reloads = Reloads(listener_counters)
        """Users, access rules and certificates, which are read again when they change."""
        self.is_open = False
        """True while all listeners accept."""

    @property
    def addresses(self) -> dict[str, Address | UnixSocket]:
        """Return the address of each listener by its name."""
        return {listener.name: listener.bound for listener in self._listeners}

    @property
    def certificate_ends(self) -> dict[str, datetime]:
        """Return the end of each listener's certificate in use by the listener's name."""
        return {listener.name: listener.expires for listener in self._listeners if listener.expires is not None}

    @property
    def watched(self) -> list[str]:
        """Return the names of files that are read again: ``users``, ``access rules``, ``certificates of listener
        mqtts``."""
        return self.reloads.watched

    async def open(self, make_connections: Mapping[str, MakeConnection]) -> None:
        """Listen everywhere, and watch the files. Connections wait in the kernel until ``accept``.

        Args:
            make_connections: protocol -> factory of its listeners' connections.

        Raises:
            OSError: an address cannot be bound, or TLS files cannot be used; nothing listens then.
        """
        try:
            for settings in listener_settings(self._config):
                listener = Listener(make_connections[settings.protocol], settings, self._admission, self.accounts)
                await listener.start()
                self._listeners.append(listener)
                if listener.tls_files:
                    what = f"certificates of listener {listener.name}"
                    self.reloads.add(Watched(what, listener.tls_files, listener.read_tls, listener.use_tls))
        except OSError:
            await self.close()
            raise
        self._watch_accounts()

    def accept(self) -> None:
        """Accept connections everywhere from now on."""
        for listener in self._listeners:
            listener.accept()
        self.is_open = True

    def stop(self) -> None:
        """Stop accepting. Connections stay until their protocol closes them."""
        self.is_open = False
        for listener in self._listeners:
            listener.stop()

    async def close(self) -> None:
        """End the remaining parts of connections, once their protocol has closed them."""
        await asyncio.gather(*(listener.close() for listener in self._listeners))
        self._admission.close()
        self.accounts.close()
        await self.accounts.known.save(at_end=True)

    def _watch_accounts(self) -> None:
        accounts, auth = self.accounts, self._config.auth
        if auth.users_file is not None:
            path = auth.users_file
            self.reloads.add(
                Watched("users", [path], lambda: users.read(path), lambda names: accounts.replace(names=names))
            )
        if auth.acl_file is not None:
            rules = auth.acl_file
            self.reloads.add(
                Watched(
                    "access rules", [rules], lambda: identity.read(rules), lambda found: accounts.replace(acl=found)
                )
            )


def with_files_for(limits: AdmissionLimits, other_connections: int = 0) -> AdmissionLimits:
    """Return the limits, with connections reduced to the number for which the process may open files.

    The soft limit is raised to the hard one first: systemd's 1,024 is meant for programs that use ``select``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections, half_open = limits.connections_max, limits.half_open_max
    reserved = FILES_RESERVED + other_connections
    wanted = connections + half_open + reserved
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft >= wanted:
        return limits
    possible = max(soft - reserved, 2)
    half_open = min(half_open, max(possible // HALF_OPEN_PART, possible - connections, 1))
    connections = min(connections, possible - half_open)
    log.warning(
        "this process may have %d files open, so it accepts %d connections and not the %d of limits.connections, "
        "and %d half open. Raise its limit (systemd: LimitNOFILE)",
        soft,
        connections,
        limits.connections_max,
        half_open,
    )
    return dataclasses.replace(limits, connections_max=connections, half_open_max=half_open)


class ListenersPart(Part):
    """The listeners as a part of the node: the last to start, and the first to end, among the parts that clients
    reach."""

    name = "listeners"

    def __init__(self, listeners: Listeners, counters: ListenerCounters) -> None:
        self._listeners = listeners
        self.counters = counters

    def samples(self) -> Iterator[Sample]:
        """Yield the ends of the listeners' certificates."""
        for name, end in self._listeners.certificate_ends.items():
            yield Sample("weft_edge_listener_certificate_expires_timestamp_seconds", end.timestamp(), (name,))

    def start(self) -> None:
        """Accept connections everywhere."""
        self._listeners.accept()

    async def close(self) -> None:
        """Stop accepting."""
        self._listeners.stop()


# One listener for protocols that differ in their first bytes.


class ByPrefix(asyncio.Protocol):
    """A connection until its protocol is known; then that protocol's connection takes the transport over.

    The listener bounds the time for the first bytes.
    """

    __slots__ = (
        "_accepted",
        "_answer",
        "_authenticator",
        "_choices",
        "_data",
        "_disconnect_log",
        "_transport",
        "_what",
    )

    def __init__(  # noqa: PLR0917
        self,
        authenticator: Authenticator,
        accepted: AcceptedConnection,
        choices: Mapping[bytes, MakeConnection],
        answer: bytes,
        what: str,
        disconnect_log: DisconnectLog,
    ) -> None:
        """Wait for the bytes of a prefix.

        Args:
            choices: prefix, all of one length -> factory of its connections.
            answer: sent to a client of another protocol before it is closed: a protocol that this listener has.
            what: the protocols of the listener, for the log.
            disconnect_log: log lines about clients that are closed.
        """
        self._authenticator = authenticator
        self._accepted = accepted
        self._choices = choices
        self._answer = answer
        self._what = what
        self._disconnect_log = disconnect_log
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first bytes."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Choose a protocol as soon as the prefix is complete, or cannot match."""
        transport = self._transport
        if transport is None:
            return
        self._data += data
        prefix = self._data[: len(next(iter(self._choices)))]
        if not any(known.startswith(prefix) for known in self._choices):
            self._refuse(transport, prefix)
        elif prefix in self._choices:
            self._transport = None
            protocol = self._choices[prefix](self._authenticator, self._accepted)
            is_tls = transport.get_extra_info("sslcontext") is not None
            transport.set_protocol(SharedBufferProtocol(protocol) if is_tls else protocol)
            protocol.connection_made(transport)
            protocol.data_received(self._data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Forget a client that has gone before its first bytes."""
        if self._transport is not None:
            self._transport = None
            self._accepted.closed()

    def _refuse(self, transport: asyncio.Transport, prefix: bytes) -> None:
        reason = f"its first bytes are {prefix!r}, and this is a port for {self._what}"
        self._disconnect_log.closed(log, f"closed {self._accepted.name}", reason, stranger_at=self._accepted.origin)
        self._transport = None
        transport.write(self._answer)
        transport.close()
        self._accepted.closed()
