"""Waiting for what no event tells: the state of another process, or a figure that a status says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

PATIENCE_S = 20.0
"""Generous: the machine may be slow or busy, and only a failing test waits that long."""
POLL_INTERVAL_S = 0.02


async def until(condition: Callable[[], object | Awaitable[object]], seconds: float = PATIENCE_S) -> None:
    """Let the event loop run until the condition holds.

    Args:
        condition: answers, or gives something to await that does.

    Raises:
        TimeoutError: it did not hold within ``seconds``.
    """
    async with asyncio.timeout(seconds):
        while True:
            holds = condition()
            if await holds if isinstance(holds, Awaitable) else holds:
                return
            await asyncio.sleep(0.001)


def wait_until(condition: Callable[[], object], seconds_max: float = PATIENCE_S, what: str = "it") -> None:
    """Block until the condition holds: there is no event to wait for across processes.

    Raises:
        AssertionError: ``what`` did not happen in time.
    """
    deadline = time.monotonic() + seconds_max
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds_max:g} s"
        time.sleep(POLL_INTERVAL_S)
