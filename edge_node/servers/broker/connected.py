"""Interface of a connection for the broker."""

from __future__ import annotations

from typing import Protocol

from weft.edge_node.ingest.back_pressure import Publisher


class Connected(Publisher, Protocol):
    """A connection of any protocol."""

    def shut_down(self) -> None:
        """Close because the node stops."""
