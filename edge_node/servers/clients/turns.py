"""Turns of clients: how long the loop handles what one of them sent, and what all of them sent."""

from __future__ import annotations

import asyncio

from weft.bounds import TurnBudget

TURN_COST_MAX = 64
TURN_S_MAX = 0.002
"""Filters and pings of one client, and seconds for its packets, before it is the turn of others. A single read has room
for 131,072 PINGREQs, half a second of the loop."""
READS_S_MAX = 0.01
"""Seconds for which one iteration of the loop handles what it finds to read; clients whose reads come later wait for
their turn. A thousand connections of one user are a thousand turns otherwise, two seconds of the loop."""
NOT_BEGUN = float("-inf")
"""The end of that time before an iteration's first read."""


class Turns:
    """Time that clients have before it is the turn of others. Who has no more of it waits in the ``rounds``.

    Args:
        loop: tells the time, and calls at the end of each iteration.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.reads_until = NOT_BEGUN
        """Time until which reads of this iteration of the loop are handled at once."""
        self.budget = TurnBudget(TURN_COST_MAX, TURN_S_MAX, loop.time)
        """Budget of the client whose turn it is."""

    def admits(self, now: float) -> bool:
        """Return whether a read that has come may be handled at once. Need not be asked before ``reads_until``."""
        if self.reads_until == NOT_BEGUN:
            self.reads_until = now + READS_S_MAX
            self._loop.call_soon(self._end_of_iteration)
            return True
        return now < self.reads_until

    def _end_of_iteration(self) -> None:
        self.reads_until = NOT_BEGUN
