"""Bytes of a client that cannot be handled yet: the beginning of a packet, and what it sent ahead of its turn or of its
password check."""

from __future__ import annotations

from weft.bounds import Bound, Owner
from weft.protocols.mqtt.reassembly import Reassembly

FREE_BYTES = 4096
"""Bytes of one client that are not counted: those of the small packets that devices send."""


class Inbox:
    """Holds such bytes of one client, charged to its owner.

    Args:
        bound: bytes of all clients.
        owner: the address, until ``belongs_to`` names a user.
        packet_bytes_max: of CONNECT.
    """

    __slots__ = ("_bound", "ahead", "charged", "owner", "partial")

    def __init__(self, bound: Bound, owner: Owner, packet_bytes_max: int) -> None:
        self._bound = bound
        self.charged = 0
        """Bytes that count against the owner's share."""
        self.owner = owner
        """Owner whom what is held is charged to."""
        self.partial = Reassembly(packet_bytes_max)
        self.ahead = b""
        """Bytes that came while the connection waits, for its turn or for an answer from elsewhere."""

    def belongs_to(self, owner: Owner, packet_bytes_max: int) -> None:
        """Charge the client's session from now on; its packets may be longer. No packet is held but those ahead."""
        self._charge(0)
        self.owner = owner
        self.partial = Reassembly(packet_bytes_max)

    def take(self) -> bytes:
        """Take out what came ahead; it is charged until ``settle``."""
        ahead, self.ahead = self.ahead, b""
        return ahead

    def settle(self) -> bool:
        """Charge what is held now. Return whether the owner may have that much; if not, nothing is charged."""
        held = self.partial.held + len(self.ahead)
        return self._charge(held if held > FREE_BYTES else 0)

    def clear(self) -> None:
        """Hold nothing any more: the connection has ended."""
        self.ahead = b""
        self._charge(0)

    def _charge(self, size: int) -> bool:
        if self.charged:
            self._bound.free(self.owner, self.charged)
            self.charged = 0
        if not size:
            return True
        if not self._bound.take(self.owner, size):
            self._bound.refuse(self.owner, size)
            return False
        self.charged = size
        return True
