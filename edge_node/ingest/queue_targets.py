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


WIDE = 5
"""Queues of a route from which on its messages are looked at one by one: each costs as much as so many."""


class QueueTargets(Protocol):
    """Queues that the messages of a route are for. Compared by identity."""

    width: int
    """Number of the queues, which is what a message of the route costs."""
    is_of_topic: bool
    """True if publishers that named no exchange reach them, by a topic: those of other protocols than AMQP 0-9-1."""

    def admit(self, headers: HeaderPairs, size: int) -> Admitted | None:
        """Return those that take a message; None when none does.

        Args:
            headers: of the message.
            size: of its payload.
        """
        ...
