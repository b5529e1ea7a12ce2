"""Crowds: so many clients that get something in one step that some of them have to wait for a later one."""

from __future__ import annotations

CROWD = 256
"""Clients that are written to in one step: a write takes 10 to 15 µs."""


class Crowd:
    """Says whether the step at hand has written to ``CROWD`` clients. Belongs to the event loop's thread."""

    __slots__ = ("is_here",)

    def __init__(self) -> None:
        self.is_here = False
        """True while what is written has to wait for its turn."""
