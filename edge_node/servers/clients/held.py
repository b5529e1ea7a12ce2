"""Bytes of a client that cannot be handled yet, and who is charged with them."""

from __future__ import annotations

from weft.bounds import Bound, Owner

FREE_BYTES = 4096
"""Bytes of one client that are not counted: those of the small messages that devices send."""


class Held:
    """Counts the bytes that one client has the node hold.

    Args:
        bound: bytes of all clients.
        owner: the address, until ``belongs_to`` names a user.
    """

    __slots__ = ("_bound", "ahead", "charged", "owner")

    def __init__(self, bound: Bound, owner: Owner) -> None:
        self._bound = bound
        self.ahead = b""
        """Bytes that wait for the client's turn, or for an answer from elsewhere."""
        self.owner = owner
        """Owner whom they are charged to."""
        self.charged = 0
        """Bytes that count against the owner's share."""

    @property
    def waits(self) -> bool:
        """Return whether anything waits."""
        return bool(self.ahead)

    def take(self) -> bytes:
        """Take out what waits; it is charged until the next ``charge``."""
        ahead, self.ahead = self.ahead, b""
        return ahead

    def clear(self) -> None:
        """Hold nothing any more: the connection has ended."""
        self.ahead = b""
        self.charge(0)

    def charge(self, held: int) -> bool:
        """Charge what is held now. Return whether the owner may have that much; if not, nothing is charged."""
        size = held if held > FREE_BYTES else 0
        if size == self.charged:
            return True
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

    def belongs_to(self, owner: Owner) -> None:
        """Charge another owner from now on; what it has no room for is charged when the client is next looked at."""
        held = self.charged
        self.charge(0)
        self.owner = owner
        if held and self._bound.take(owner, held):
            self.charged = held
