"""Interface of a connection for the node."""

from __future__ import annotations

from typing import Protocol


class Connected(Protocol):
    """A connection of any protocol."""

    def shut_down(self) -> None:
        """Close because the node stops."""
