"""An event loop whose time is a number: sleeps cost nothing, and one seed gives one history."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
NS = 1_000_000_000
THREAD_S = 20.0
"""Real time for which a loop without timers waits for a thread, whose end wakes it."""


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0:  # tasks are ready; a thread that ends adds its own without a look at the descriptors
            return []
        ready = super().select(0)
        if not ready and timeout is None:
            ready = super().select(THREAD_S)
        if not ready and timeout is None:
            raise AssertionError("every task waits for something that never comes")
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def time_ns(self) -> int:
        return int(self.time() * NS)

    def jump(self, seconds: float) -> None:
        """Time passes while nothing runs: the machine was suspended."""
        self._jumping.now += seconds


def run(main: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def now_ns() -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop.time_ns()
