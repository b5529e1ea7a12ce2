"""Bytes of a client that wait for their rest, or for their turn, and who is charged with them."""

from __future__ import annotations

from weft.bounds import Bound, Owner
from weft.edge_node.servers.clients.held import Held


class Amqp1Inbox(Held):
    """Holds such bytes of one client, charged to its owner."""

    __slots__ = ("data", "parts_bytes")

    def __init__(self, bound: Bound, owner: Owner) -> None:
        """Hold nothing.

        Args:
            bound: bytes of all clients.
            owner: the address, until ``belongs_to`` names a user.
        """
        super().__init__(bound, owner)
        self.data = bytearray()
        """Frames that are not handled, the last of which may not be whole."""
        self.parts_bytes = 0
        """Bytes of messages that have not come whole."""

    @property
    def waits(self) -> bool:
        """Return whether anything waits."""
        return bool(self.data)

    def clear(self) -> None:
        """Hold nothing any more: the connection has ended."""
        self.data = bytearray()
        super().clear()

    def settle(self) -> bool:
        """Charge what is held now. Return whether the owner may have that much; if not, nothing is charged."""
        return self.charge(len(self.data) + self.parts_bytes)
