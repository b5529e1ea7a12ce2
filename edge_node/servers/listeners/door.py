"""Interface of a listener for its accepted connections. Listeners implement it; tests have their own."""

from __future__ import annotations

from typing import Any, Protocol

from weft.edge_node.access.credentials import Credentials
from weft.edge_node.access.identity import Identity


class Door(Protocol):
    """Authentication by one listener."""

    @property
    def name(self) -> str:
        """Return the listener's name in the configuration."""
        ...

    async def authenticate(self, credentials: Credentials, transport: Any, address: str) -> Identity:
        """Return the identity of an admitted client. The connection is not read meanwhile.

        Args:
            transport: source of ``peername``, ``ssl_object``, ... by ``get_extra_info``.
            address: address of the client, for charges; empty for this machine.

        Raises:
            AccessDenied: it is refused.
        """
        ...


class Arrival(Protocol):
    """One connection in its listener's counts. Until ``opened`` the listener bounds the client's time."""

    name: str
    """The client's address, for log lines."""
    origin: str
    """Address for charges, for IPv6 the /64; empty for this machine."""

    async def room(self) -> bool:
        """Return whether there is room for one more client; wait a moment for one that leaves.

        Call it before ``opened``, except for a client whose other connection is about to be closed.
        """
        ...

    def opened(self) -> None:
        """Note that the client was admitted."""

    def closed(self) -> None:
        """Note that the connection has ended. Called once."""
