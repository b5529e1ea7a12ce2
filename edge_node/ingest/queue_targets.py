"""Contract between routes and the queues that take their messages."""

from __future__ import annotations

from typing import Protocol

from weft.protocols.batch import HeaderPairs
from weft.protocols.columns import HeaderValue


class Admitted(Protocol):
    """Queues that take a message."""

    @property
    def header(self) -> tuple[str, HeaderValue]:
        """Return the header of the message's record with the queues' names."""
        ...


WIDE = 5
"""Number of queues from which on a route's messages are handled one by one: each costs as much as so many."""


class QueueTargets(Protocol):
    """Queues that the messages of a route are for. Compared by identity."""

    width: int
    """Number of the queues: the cost of a message of the route."""
    is_of_topic: bool
    """True if publishers without an exchange reach them by a topic, with other protocols than AMQP 0-9-1."""

    def admit(self, headers: HeaderPairs, size: int) -> Admitted | None:
        """Return the queues that take a message; None when none does.

        Args:
            headers: of the message.
            size: of its payload.
        """
        ...

    def withdraw(self) -> None:
        """Give back the room that was reserved for a message, which is not stored after all."""
        ...
