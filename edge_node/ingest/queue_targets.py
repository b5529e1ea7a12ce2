"""Contract of queues that take messages of a route, as routes know them."""

from __future__ import annotations

from typing import Protocol

from weft.protocols.batch import HeaderPairs
from weft.protocols.columns import HeaderValue


class Admitted(Protocol):
    """Queues that take a message."""

    @property
    def header(self) -> tuple[str, HeaderValue]:
        """Return the header that names them in the message's record."""
        ...


class QueueTargets(Protocol):
    """Queues that the messages of a route are for. Compared by identity."""

    def admit(self, headers: HeaderPairs, size: int) -> Admitted | None:
        """Return those that take a message; None when none does.

        Args:
            headers: of the message.
            size: of its payload.
        """
        ...
