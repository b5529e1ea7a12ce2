"""Connections that are not admitted yet, by their addresses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class HasOrigin(Protocol):
    """A connection with an address."""

    origin: str
    """Address for the bounds per address."""


ConnectionT = TypeVar("ConnectionT", bound=HasOrigin)


class HalfOpen(Generic[ConnectionT]):
    """Half-open connections, each address's in order of arrival."""

    def __init__(self) -> None:
        """Start without any."""
        self._origins: dict[ConnectionT, str] = {}
        """Connection -> the origin for which it counts."""
        self._of: dict[str, dict[ConnectionT, None]] = {}

    def __len__(self) -> int:
        return len(self._origins)

    def __iter__(self) -> Iterator[ConnectionT]:
        return iter(self._origins)

    def add(self, connection: ConnectionT) -> None:
        """Count a connection."""
        self._origins[connection] = connection.origin
        self._of.setdefault(connection.origin, {})[connection] = None

    def discard(self, connection: ConnectionT) -> bool:
        """Forget a connection that was admitted or has ended. Return whether it was there."""
        origin = self._origins.pop(connection, None)
        if origin is None:
            return False
        own = self._of[origin]
        del own[connection]
        if not own:
            del self._of[origin]
        return True

    def victim(self) -> ConnectionT:
        """Return the oldest connection of the address that has most: it makes room for another."""
        most: dict[ConnectionT, None] = max(self._of.values(), key=len)
        return next(iter(most))
