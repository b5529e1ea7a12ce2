"""Long work for clients: a little of it in each turn of the event loop, shared fairly among owners."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from itertools import islice
from typing import TypeVar

from weft.bounds.bound import Owner

ROUND_S = 0.002
"""Time of the turns in a row before the event loop serves everything else."""
PAUSE_S = 0.001
"""Pause before each round, in which the event loop does everything else."""
YIELD_S = 0.000_2
"""Sleep of the whole thread before each round, for the threads that sync the log. The loop releases the interpreter's
lock often and acquires it again at once: while it is never idle, other threads may wait a second for the lock."""
YIELD_INTERVAL_S = 0.004
"""Interval of such sleeps when rounds follow each other without a pause."""
SLICE = 64
"""Number of items in one turn."""
Item = TypeVar("Item")


class RoundRobin:
    """Work that waits for its turn. Each owner has one queue, and owners take turns: many clients of one user do not
    delay another's. Belongs to the event loop's thread."""

    def __init__(
        self,
        after: Callable[[], None],
        pause_s: float = PAUSE_S,
        turns_max: int | None = None,
        round_s: float | None = None,
    ) -> None:
        """Start with nothing to do.

        Args:
            after: called at the end of each round.
            pause_s: pause before each round; 0 for none.
            turns_max: turns in a round; None for as many as there is time for.
            round_s: seconds of a round; None for ``ROUND_S``.
        """
        self._turns_max = turns_max
        self._pause_s = pause_s
        self._round_s = ROUND_S if round_s is None else round_s
        self._after = after
        self._yielded = 0.0
        """Time of the last sleep."""
        self._waiting: OrderedDict[Owner | None, deque[Callable[[], None]]] = OrderedDict()
        self._called = False

    def __len__(self) -> int:
        """Return the number of waiting pieces of work."""
        return sum(map(len, self._waiting.values()))

    def wait(self, owner: Owner | None, work: Callable[[], None]) -> None:
        """Call ``work`` when it is the owner's turn."""
        self._waiting.setdefault(owner, deque()).append(work)
        self._call()

    def turn(self, owner: Owner | None) -> asyncio.Future[None]:
        """Return a future that is done when it is the owner's turn. Its task runs a step of the loop later; one that is
        cancelled meanwhile loses nothing but its turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wait(owner, partial(_begin, turn))
        return turn

    def each(self, owner: Owner | None, items: Iterable[Item], do: Callable[[Item], None]) -> None:
        """Do something with each item: with some of them now, and with the rest in later turns."""
        left = iter(items)

        def resume() -> None:
            count = 0
            for item in islice(left, SLICE):
                do(item)
                count += 1
            if count == SLICE:
                self.wait(owner, resume)

        resume()

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
        until = clock() + self._round_s
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
        finally:  # an error of one client must not cost the others their turn
            if self._waiting:
                self._call()
            self._after()


def _begin(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # or the waiting task was cancelled
        turn.set_result(None)


# Cap of the fan-out: one step writes to no more clients, and the others wait for a later step.

FAN_OUT_MAX = 256
"""Clients that are written to in one step: a write takes 10 to 15 µs."""


class FanOutCap:
    """Counter that reports when the present step has written to ``FAN_OUT_MAX`` clients. Belongs to the event loop's
    thread."""

    __slots__ = ("is_reached",)

    def __init__(self) -> None:
        self.is_reached = False
        """True while further writes must wait for their turn."""


# Bound on one owner's work before the others' turn.


class TurnBudget:
    """A cost and a time for one turn; an owner that has spent either waits for its next turn.

    Spending is checked after the fact, so one step may pass the budget by its own cost: bound the steps as well.

    Args:
        cost_max: units of work in a turn.
        seconds_max: longest time of a turn.
        clock: monotonic seconds.
    """

    __slots__ = ("_clock", "_cost_max", "_left", "_seconds_max", "_until")

    def __init__(self, cost_max: int, seconds_max: float, clock: Callable[[], float]) -> None:
        self._cost_max = cost_max
        self._seconds_max = seconds_max
        self._clock = clock
        self._left = cost_max
        self._until = float("inf")

    def begin(self, now: float) -> None:
        """Begin a turn with the whole budget.

        Args:
            now: time of the clock, which a caller in a hot loop has already.
        """
        self._left = self._cost_max
        self._until = now + self._seconds_max

    def spend(self, cost: int = 1) -> bool:
        """Charge work that was done. Return whether the turn may continue."""
        self._left -= cost
        return self._left > 0 and self._clock() < self._until


# Tasks that run beside everything else until their owner is closed.


class BackgroundTask:
    """A task of one owner, which starts and ends it. Event loop's thread only."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Return whether the task was started, and has not ended."""
        return self._task is not None and not self._task.done()

    def start(self, work: Coroutine[object, object, None], *, name: str) -> None:
        """Start the work.

        Args:
            name: of the task, for debuggers and for the warning about an error that nothing takes.
        """
        self._task = asyncio.get_running_loop().create_task(work, name=name)

    async def close(self) -> bool:
        """Cancel the work and wait for its end. Return false, and do nothing, if none was started.

        It waits for the task and not for its result, so a cancelled caller is cancelled, and an error that ended the
        task before does not keep the caller from closing the rest.
        """
        if (task := self._task) is None:
            return False
        task.cancel()
        await asyncio.wait([task])
        self._task = None
        return True
