"""Turns of clients: bounds on the loop's time for the data of one client, and of all clients."""

from __future__ import annotations

import asyncio

from weft.bounds import TurnBudget

TURN_COST_MAX = 64
TURN_S_MAX = 0.002
"""Filters and pings of one client, and seconds for its packets, before others have their turn. A single read has room
for 131,072 PINGREQs, half a second of the loop."""
READS_S_MAX = 0.01
"""Seconds for which one iteration of the loop handles reads; clients whose reads come later wait for their turn.
Otherwise a thousand connections of one user would have a thousand turns, two seconds of the loop."""
NOT_BEGUN = float("-inf")
"""Value of that end before an iteration's first read."""


class Turns:
    """Time of clients before others have their turn. A client without time left waits in the ``rounds``.

    Args:
        loop: supplies the time, and calls back at the end of each iteration.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.reads_until = NOT_BEGUN
        """Time until which reads of this iteration of the loop are handled at once."""
        self.budget = TurnBudget(TURN_COST_MAX, TURN_S_MAX, loop.time)
        """Budget of the client whose turn it is."""

    def admits(self, now: float) -> bool:
        """Return whether a read may be handled at once. It need not be called before ``reads_until``."""
        if self.reads_until == NOT_BEGUN:
            self.reads_until = now + READS_S_MAX
            self._loop.call_soon(self._end_of_iteration)
            return True
        return now < self.reads_until

    def _end_of_iteration(self) -> None:
        self.reads_until = NOT_BEGUN
