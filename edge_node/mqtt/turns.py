"""Turns of clients that sent more than one turn's work, or found the loop busy: rounds that are fair by owner."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from weft.bounds import Owner, TurnBudget
from weft.protocols.mqtt.packets import Packet, PingReq, Subscribe, Unsubscribe

TURN_COST_MAX = 64
TURN_S_MAX = 0.002
"""Filters and pings of one client, and seconds for its packets, before it is the turn of others. A single read has room
for 131,072 PINGREQs, half a second of the loop."""
ROUND_S_MAX = 0.004
"""Seconds for which waiting clients are served before the loop looks for new packets."""
READS_S_MAX = 0.01
"""Seconds for which one iteration of the loop handles what it finds to read; clients whose reads come later wait for
their turn. A thousand connections of one user are a thousand turns otherwise, two seconds of the loop."""
NOT_BEGUN = float("-inf")
"""The end of that time before an iteration's first read."""
PAUSE_S = 0.001
"""Pause before each round. The loop sleeps in it, so that the threads that sync the log and check passwords get the
interpreter's lock: a thread that never lets go of it for more than some microseconds can keep it from them for a
second, since their wait begins again each time."""


def cost(packet: Packet) -> int:
    """Return what a packet is charged with. Publishes cost their time alone: a client that sends much is what the node
    is there for."""
    if isinstance(packet, Subscribe | Unsubscribe):
        return len(packet.filters)
    return isinstance(packet, PingReq)


class Turns:
    """Clients that wait for another turn.

    Those of one owner wait in one queue and owners take turns, so that a hundred connections of one user get on
    no faster than one.

    Args:
        loop: calls at the start of each round.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Owner, deque[Callable[[], None]]] = {}
        self._round: asyncio.TimerHandle | None = None
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

    def wait(self, owner: Owner, go_on: Callable[[], None]) -> None:
        """Call back when it is the owner's turn again."""
        self._waiting.setdefault(owner, deque()).append(go_on)
        if self._round is None:
            self._round = self._loop.call_later(PAUSE_S, self._serve)

    def _end_of_iteration(self) -> None:
        self.reads_until = NOT_BEGUN

    def _serve(self) -> None:
        now = self._loop.time
        until = now() + ROUND_S_MAX
        try:
            while self._waiting and now() < until:
                owner = next(iter(self._waiting))
                queue = self._waiting.pop(owner)
                go_on = queue.popleft()
                if queue:
                    self._waiting[owner] = queue
                go_on()
        finally:  # whatever becomes of one client, the others get their turn
            self._round = self._loop.call_later(PAUSE_S, self._serve) if self._waiting else None
