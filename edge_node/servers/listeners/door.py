"""Interface of a listener for the connections that it accepted. Listeners implement it; tests have their own."""

from __future__ import annotations

from typing import Any, Protocol

from weft.edge_node.access.credentials import Credentials
from weft.edge_node.access.identity import Identity


class Door(Protocol):
    """Authentication as one listener does it."""

    @property
    def name(self) -> str:
        """Return the listener's name in the configuration."""
        ...

    async def authenticate(self, credentials: Credentials, transport: Any, address: str) -> Identity:
        """Return the identity of a client that may come in. The connection is not read meanwhile.

        Args:
            transport: asks for ``peername``, ``ssl_object``, ... with ``get_extra_info``.
            address: of the client, whom costs are charged to; empty for this machine.

        Raises:
            AccessDenied: it may not.
        """
        ...


class Arrival(Protocol):
    """One connection as its listener counts it. Until ``opened`` the listener minds the time that the client takes."""

    name: str
    """The client's address, for log lines."""
    origin: str
    """Address whom costs are charged to, of IPv6 the /64; empty for this machine."""

    async def room(self) -> bool:
        """Return whether there is room for one more client. Waits a moment for one that leaves.

        To be asked before ``opened``, except for a client whose other connection is about to be closed.
        """
        ...

    def opened(self) -> None:
        """Note that the client was let in."""

    def closed(self) -> None:
        """Note that the connection has ended. Called once."""
