"""Crowds: more clients of one step than it can write to, so that some wait for a later step."""

from __future__ import annotations

CROWD = 256
"""Clients that are written to in one step: a write takes 10 to 15 µs."""


class Crowd:
    """Counter that reports when the present step has written to ``CROWD`` clients. Belongs to the event loop's
    thread."""

    __slots__ = ("is_here",)

    def __init__(self) -> None:
        self.is_here = False
        """True while further writes must wait for their turn."""
