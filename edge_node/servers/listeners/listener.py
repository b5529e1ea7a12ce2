"""One listener, for clients of any protocol."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any

from weft.config.errors import SettingError
from weft.config.units import Address, UnixSocket
from weft.edge_node.access.authentication import Accounts
from weft.edge_node.access.credentials import Credentials
from weft.edge_node.access.identity import Identity
from weft.edge_node.servers.listeners.door import Arrival, Door
from weft.edge_node.servers.listeners.settings import ListenerSettings
from weft.edge_node.servers.listeners.websocket import WebSockets
from weft.network.accepting import Acceptor
from weft.network.admission import Admission, NetworkConnection, is_loopback
from weft.network.binding import CannotListen
from weft.network.tls.certificate import CertificateName, certificate_name
from weft.network.tls.contexts import TlsInForce, common_name, read_tls
from weft.network.tls.files import TlsUnusable

MakeConnection = Callable[[Door, Arrival], asyncio.Protocol]
"""Factory of a connection's protocol object."""


class Listener:
    """Listener on one address; the ``Door`` of its connections. Event loop's thread only."""

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
