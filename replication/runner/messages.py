"""The contract between a sender and the edge's part that takes the hub's messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from weft.protocols.link.down import DownMessage, DownOpen, Outcomes

Answer = Callable[[Outcomes], None]


class MessageTaker(Protocol):
    """The taker of one link (``edge_node.links.down.taking.LinkTaker``, which may not be imported here).

    All calls come on the event loop's thread, and must not block.
    """

    def opening(self, hub: str) -> DownOpen:
        """Return the frame by which the edge says that it takes messages of ``hub``, the ``cluster_id`` of its
        WELCOME. Messages that an earlier connection brought, and that wait, are forgotten: the hub sends them
        again."""
        ...

    def take(self, hub: str, messages: list[DownMessage], answer: Answer) -> None:
        """Take messages in order. Each gets an outcome when that is durable, and after a WAITING another one.

        Args:
            answer: sends outcomes; it does nothing once the connection is over.
        """
        ...
