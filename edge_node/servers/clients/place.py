"""Place of one connection among those of its user, of all protocols."""

from __future__ import annotations

from weft.bounds import Bound, Owner, OwnerKind
from weft.edge_node.counters import Counters

FULL = "too many connections of one user (limits.connections_per_user); use fewer"


class Place:
    """Count of one connection from its client's login to its end, in the bound that also counts MQTT sessions."""

    __slots__ = ("_bound", "_counters", "_owner")

    def __init__(self, bound: Bound, counters: Counters) -> None:
        """Start without a client."""
        self._bound = bound
        self._counters = counters
        self._owner: Owner | None = None

    def take(self, owner: Owner) -> bool:
        """Return whether the client is admitted: always without a user, as addresses have bounds of their own."""
        if owner.kind is OwnerKind.USER and self._bound.is_own_share_full(owner):
            self._bound.refuse(owner)
            self._counters.connections_refused += 1
            return False
        self._bound.hold(owner)
        self._owner = owner
        return True

    def free(self) -> None:
        """Forget the client; do nothing without one."""
        owner, self._owner = self._owner, None
        if owner is not None:
            self._bound.free(owner)
