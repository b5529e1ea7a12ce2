"""Bytes of a client that cannot be handled yet, and the owner charged with them."""

from __future__ import annotations

from weft.bounds import Bound, Owner

FREE_BYTES = 4096
"""Bytes of one client that are not counted: enough for the small messages of devices."""


class Held:
    """Count of the bytes that the node holds for one client.

    Args:
        bound: bytes of all clients.
        owner: the address, until ``belongs_to`` names a user.
    """

    __slots__ = ("_bound", "ahead", "charged", "owner")

    def __init__(self, bound: Bound, owner: Owner) -> None:
        self._bound = bound
        self.ahead = b""
        """Bytes that wait for the client's turn, or for an asynchronous result."""
        self.owner = owner
        """Owner that they are charged to."""
        self.charged = 0
        """Bytes that count against the owner's share."""

    @property
    def waits(self) -> bool:
        """Return whether bytes wait."""
        return bool(self.ahead)

    def take(self) -> bytes:
        """Remove and return the waiting bytes; they are charged until the next ``charge``."""
        ahead, self.ahead = self.ahead, b""
        return ahead

    def clear(self) -> None:
        """Drop all bytes: the connection has ended."""
        self.ahead = b""
        self.charge(0)

    def charge(self, held: int) -> bool:
        """Charge the bytes held now. Return whether the owner may have so many; if not, nothing is charged."""
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
        """Charge another owner from now on; bytes without room are charged at the client's next ``charge``."""
        held = self.charged
        self.charge(0)
        self.owner = owner
        if held and self._bound.take(owner, held):
            self.charged = held
