"""Bytes of a connection that cannot be handled yet, charged to its owner."""

from __future__ import annotations

from weft.bounds import Bound, Owner

FREE_BYTES = 4096
"""Bytes of one connection that are not counted: those of the small requests that devices send."""


class Held:
    """Counts the bytes that one connection has the node hold."""

    __slots__ = ("_bound", "_charged", "owner")

    def __init__(self, bound: Bound, owner: Owner) -> None:
        self._bound = bound
        self._charged = 0
        self.owner = owner
        """Owner whom they are charged to."""

    def settle(self, held: int) -> bool:
        """Charge what is held now. Return whether the owner may have that much; if not, nothing is charged."""
        if self._charged:
            self._bound.free(self.owner, self._charged)
            self._charged = 0
        if held <= FREE_BYTES:
            return True
        if not self._bound.take(self.owner, held):
            self._bound.refuse(self.owner, held)
            return False
        self._charged = held
        return True

    def belongs_to(self, owner: Owner) -> None:
        """Charge another owner from now on."""
        held = self._charged
        self.settle(0)
        self.owner = owner
        if held and self._bound.take(owner, held):
            self._charged = held
