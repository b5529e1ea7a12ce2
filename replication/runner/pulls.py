"""The contract between a link and the edge's part that sends records which its hub asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from weft.protocols.link.pull import PullRequest, PullState
from weft.replication.source import LogSource

Tell = Callable[[PullState], None]


class Puller(Protocol):
    """The puller of one link (``edge_node.links.pull.puller.LinkPuller``, which may not be imported here).

    It adds lanes of its own to those of the link, with ``OfferedLane.is_background``. All calls come on the event
    loop's thread, and must not block.
    """

    @property
    def is_offered(self) -> bool:
        """Return whether the link says in its HELLO that it sends what the hub asks for."""
        ...

    def over(self, source: LogSource) -> LogSource:
        """Return the link's lanes with those of pulls."""
        ...

    def opened(self, hub: str, tell: Tell) -> None:
        """Note that a connection to ``hub``, the ``cluster_id`` of its WELCOME, takes pulls.

        Args:
            tell: sends a word; it does nothing once the connection is over.
        """

    def take(self, pulls: list[PullRequest]) -> None:
        """Serve these pulls from now on, and no others."""

    def lane_ended(self, reason: str) -> None:
        """Note that the hub closed the lane of a pull. The link offers it again after a while."""

    def closed(self) -> None:
        """Note that the connection is over."""
