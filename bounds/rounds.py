"""Work for clients that may take long: a little of it each time that the event loop comes by, fairly by owner."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from weft.bounds.owner import Owner

ROUND_S = 0.002
"""Time of the turns that clients get one after the other before the event loop is left to everything else."""
PAUSE_S = 0.001
"""Pause before each round, in which the event loop does everything else."""
YIELD_S = 0.000_2
"""Sleep of the whole thread before each round, for the threads that sync the log. The loop gives the interpreter's lock
back often and takes it again at once: while it is never idle, that keeps the lock from other threads for a second."""
YIELD_INTERVAL_S = 0.004
"""Interval of such sleeps where rounds follow each other without a pause."""
SLICE = 64
"""Items that are done in one turn."""
Item = TypeVar("Item")


class Rounds:
    """Work that waits for its turn. Those of one owner wait in one queue, and owners take turns: many clients of one
    user are no hindrance to another's. Belongs to the event loop's thread."""

    def __init__(self, after: Callable[[], None], pause_s: float = PAUSE_S, turns_max: int | None = None) -> None:
        """Start with nothing to do.

        Args:
            after: called at the end of each round.
            pause_s: pause before each round; 0 for none.
            turns_max: turns in a round; None for as many as there is time for.
        """
        self._turns_max = turns_max
        self._pause_s = pause_s
        self._after = after
        self._yielded = 0.0
        """Time of the last sleep."""
        self._waiting: OrderedDict[Owner | None, deque[Callable[[], None]]] = OrderedDict()
        self._called = False

    def __len__(self) -> int:
        """Return how many wait."""
        return sum(map(len, self._waiting.values()))

    def wait(self, owner: Owner | None, work: Callable[[], None]) -> None:
        """Call back when it is the owner's turn."""
        self._waiting.setdefault(owner, deque()).append(work)
        self._call()

    def each(self, owner: Owner | None, items: Iterable[Item], do: Callable[[Item], None]) -> None:
        """Do something with each item: with some of them now, and with the rest in later turns."""
        left = iter(items)

        def go_on() -> None:
            count = 0
            for item in islice(left, SLICE):
                do(item)
                count += 1
            if count == SLICE:
                self.wait(owner, go_on)

        go_on()

    def _call(self) -> None:
        if not self._called:
            self._called = True
            loop = asyncio.get_running_loop()
            if self._pause_s:
                loop.call_later(self._pause_s, self._serve)
            else:
                loop.call_soon(self._serve)

    def _serve(self) -> None:
        self._called = False
        clock = asyncio.get_running_loop().time
        now = clock()
        if self._pause_s or now >= self._yielded + YIELD_INTERVAL_S:
            self._yielded = now
            time.sleep(YIELD_S)
        until = clock() + ROUND_S
        try:
            count = len(self)
            for _ in range(count if self._turns_max is None else min(count, self._turns_max)):
                owner, queue = self._waiting.popitem(last=False)
                work = queue.popleft()
                if queue:
                    self._waiting[owner] = queue
                work()
                if clock() >= until:
                    break
        finally:  # whatever becomes of one client, the others get their turn
            if self._waiting:
                self._call()
            self._after()
