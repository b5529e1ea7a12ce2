"""Waiting for what no event tells: the state of another process, or a figure that a status says."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

PATIENCE_S = 240.0
"""For calls that count by the clock alone. A busy machine has room in it, and it ends before the test's own limit
does, so that the failure says what did not come. Only a failing test waits that long."""
USUAL_S = 20.0
"""Generous for anything on a machine that has nothing else to do."""
POLL_INTERVAL_S = 0.02
LOOK_INTERVAL_S = 0.1


def share() -> float:
    """Return which part of a processor a program has now that wants to run all the time: at most 1.

    Both figures of the system are of use: the programs that wait at this moment tell of a load that has just begun,
    the mean of a minute of one that rests by chance at this moment.
    """
    running = os.getloadavg()[0]
    try:
        with open("/proc/loadavg") as figures:
            running = max(running, float(figures.read().split()[3].partition("/")[0]))
    except OSError:
        pass  # no Linux: the mean is all there is
    return min(1.0, (os.cpu_count() or 1) / max(running, 1.0))


class Patience:
    """How long a wait may still take, counted in what this machine can do and not by the clock.

    While other programs want its processors, a second counts as the part of it that was there for one program. So a
    test that waits in vain on a quiet machine says so soon, and one on a machine with thirty times the work has thirty
    times as long, up to ``end_s`` by the clock, or ``seconds`` where that is more.
    """

    def __init__(
        self,
        seconds: float = USUAL_S,
        clock: Callable[[], float] = time.monotonic,
        share: Callable[[], float] = share,
        end_s: float = PATIENCE_S,
    ) -> None:
        self._left = seconds
        self._clock, self._share = clock, share
        self._looked = clock()
        self._end = self._looked + max(seconds, end_s)

    def left(self) -> float:
        """Return how many seconds there still are, for a call that waits so long at most and is made again."""
        now = self._clock()
        passed = now - self._looked
        if passed >= min(self._left, LOOK_INTERVAL_S):
            self._left -= passed * self._share()
            self._looked = now
        return max(0.0, min(self._left, self._end - now))

    def is_over(self) -> bool:
        return self.left() <= 0


def by_the_clock(seconds: float) -> Patience:
    """Return what ends at its time however busy the machine is: for as long a test listens for nothing."""
    return Patience(seconds, share=lambda: 1.0)


async def until(condition: Callable[[], object | Awaitable[object]], seconds: float = USUAL_S) -> None:
    """Let the event loop run until the condition holds.

    Args:
        condition: answers, or gives something to await that does.
        seconds: as `Patience` counts them.

    Raises:
        TimeoutError: it did not hold in time.
    """
    patience = Patience(seconds, asyncio.get_running_loop().time)
    async with asyncio.timeout(max(seconds, PATIENCE_S)):
        while True:
            holds = condition()
            if await holds if isinstance(holds, Awaitable) else holds:
                return
            if patience.is_over():
                raise TimeoutError
            await asyncio.sleep(0.001)


def wait_until(
    condition: Callable[[], object],
    seconds: float = USUAL_S,
    what: str | Callable[[], object] = "it",
    *,
    interval_s: float = POLL_INTERVAL_S,
) -> None:
    """Block until the condition holds: there is no event to wait for across processes.

    Args:
        seconds: as `Patience` counts them.
        what: is waited for; or tells it when it is known, such as what a log says by then.
        interval_s: between two questions; longer where one is much work.

    Raises:
        AssertionError: ``what`` did not happen in time.
    """
    patience = Patience(seconds)
    while not condition():
        assert not patience.is_over(), f"in {seconds:g} s it did not happen: {what() if callable(what) else what}"
        time.sleep(interval_s)
