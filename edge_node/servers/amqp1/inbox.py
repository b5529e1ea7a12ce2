"""Bytes of a client that wait for their rest, or for their turn, and the owner charged with them."""

from __future__ import annotations

from weft.bounds import Bound, Owner
from weft.edge_node.servers.clients.held import Held


class Amqp1Inbox(Held):
    """Store of such bytes of one client, charged to its owner."""

    __slots__ = ("data", "parts_bytes")

    def __init__(self, bound: Bound, owner: Owner) -> None:
        """Start without bytes.

        Args:
            bound: bytes of all clients.
            owner: the address, until ``belongs_to`` names a user.
        """
        super().__init__(bound, owner)
        self.data = bytearray()
        """Frames to handle; the last may be incomplete."""
        self.parts_bytes = 0
        """Bytes of incomplete messages."""

    @property
    def waits(self) -> bool:
        """Return whether bytes wait."""
        return bool(self.data)

    def clear(self) -> None:
        """Drop all bytes: the connection has ended."""
        self.data = bytearray()
        super().clear()

    def settle(self) -> bool:
        """Charge the bytes held now. Return whether the owner may have so many; if not, nothing is charged."""
        return self.charge(len(self.data) + self.parts_bytes)
