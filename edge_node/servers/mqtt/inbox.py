"""Bytes of a client that cannot be handled yet: the beginning of a packet, and what it sent ahead of its turn or of its
password check."""

from __future__ import annotations

from weft.bounds import Bound, Owner
from weft.edge_node.servers.broker.held import Held
from weft.protocols.mqtt.reassembly import Reassembly


class Inbox(Held):
    """Holds such bytes of one client, charged to its owner.

    Args:
        bound: bytes of all clients.
        owner: the address, until ``belongs_to`` names a user.
        packet_bytes_max: of CONNECT.
    """

    __slots__ = ("ahead", "partial")

    def __init__(self, bound: Bound, owner: Owner, packet_bytes_max: int) -> None:
        super().__init__(bound, owner)
        self.partial = Reassembly(packet_bytes_max)
        self.ahead = b""
        """Bytes that came while the connection waits, for its turn or for an answer from elsewhere."""

    def welcome(self, owner: Owner, packet_bytes_max: int) -> None:
        """Charge the client's session from now on; its packets may be longer. No packet is held but those ahead."""
        self.belongs_to(owner)
        self.partial = Reassembly(packet_bytes_max)

    def take(self) -> bytes:
        """Take out what came ahead; it is charged until ``settle``."""
        ahead, self.ahead = self.ahead, b""
        return ahead

    def settle(self) -> bool:
        """Charge what is held now. Return whether the owner may have that much; if not, nothing is charged."""
        return self.charge(self.partial.held + len(self.ahead))

    def clear(self) -> None:
        """Hold nothing any more: the connection has ended."""
        self.ahead = b""
        self.charge(0)
