"""Bytes of a client that wait for their rest, or for their turn, and who is charged with them."""

from __future__ import annotations

from weft.bounds import Bound, Owner

FREE_BYTES = 4096
"""Bytes of one client that are not counted."""


class Held:
    """Bytes of one client that the node holds, charged to its owner."""

    __slots__ = ("_bound", "_charged", "data", "owner", "parts_bytes")

    def __init__(self, bound: Bound, owner: Owner) -> None:
        """Hold nothing.

        Args:
            bound: bytes of all clients.
            owner: the address, until ``belongs_to`` names a user.
        """
        self._bound = bound
        self._charged = 0
        self.owner = owner
        self.data = bytearray()
        """Frames that are not handled, the last of which may not be whole."""
        self.parts_bytes = 0
        """Bytes of messages that have not come whole."""

    def belongs_to(self, owner: Owner) -> None:
        """Charge the client's user from now on."""
        self._charge(0)
        self.owner = owner

    def settle(self) -> bool:
        """Charge what is held now. Return whether the owner may have that much; if not, nothing is charged."""
        held = len(self.data) + self.parts_bytes
        wanted = held if held > FREE_BYTES else 0
        return wanted == self._charged or self._charge(wanted)

    def clear(self) -> None:
        """Hold nothing any more: the connection has ended."""
        self.data = bytearray()
        self._charge(0)

    def _charge(self, size: int) -> bool:
        if self._charged:
            self._bound.free(self.owner, self._charged)
            self._charged = 0
        if not size:
            return True
        if not self._bound.take(self.owner, size):
            self._bound.refuse(self.owner, size)
            return False
        self._charged = size
        return True
