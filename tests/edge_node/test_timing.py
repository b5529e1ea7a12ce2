"""The timer wheel: every client is asked in time, once, and none that has gone."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.waiting import PATIENCE_S
from weft.edge_node.timing import SLOTS, STEP_S, TICK_S, TimerWheel, clock_reader, read_boot_id, wall_clock
from weft.protocols.batch import ClockState

TURN_S = TICK_S * SLOTS


class Clock:
    """An event loop's clock and one timer, as far as the wheel needs them."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timer: tuple[float, Callable[[], None]] | None = None

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        self.timer = self.now + delay, callback
        return self

    def cancel(self) -> None:
        self.timer = None

    def run_until(self, when: float) -> None:
        while self.timer is not None and self.timer[0] <= when:
            self.now, callback = self.timer
            self.timer = None
            callback()
        self.now = when


class Waiter:
    """Waits until ``deadline``."""

    def __init__(self, deadline: float) -> None:
        self.wheel_slot = -1
        self.deadline = deadline
        self.ended: float | None = None

    def due(self, now: float) -> float | None:
        if now < self.deadline:
            return self.deadline
        assert self.ended is None
        self.ended = now
        return None


class Slow(Waiter):
    """Waits likewise, and takes a while when it is due."""

    def __init__(self, clock: Clock, deadline: float) -> None:
        super().__init__(deadline)
        self.clock = clock

    def due(self, now: float) -> float | None:
        self.clock.now += 0.001
        return super().due(now)


def wheel() -> tuple[Clock, TimerWheel]:
    clock = Clock()
    return clock, TimerWheel(clock)  # type: ignore[arg-type]


@given(st.lists(st.floats(0, 3 * TURN_S), max_size=20), st.floats(0, 10))
def test_everybody_is_asked_within_a_tick_of_the_deadline(delays: list[float], late: float) -> None:
    clock, timers = wheel()
    clients = [Waiter(clock.now + delay) for delay in delays]
    for client in clients:
        timers.set(client, client.deadline)
    clock.run_until(clock.now + late)
    clock.run_until(clock.now + 4 * TURN_S)
    for client in clients:
        assert client.ended is not None
        assert client.deadline <= client.ended <= client.deadline + 2 * TICK_S
        assert client.wheel_slot == -1
    assert clock.timer is None, "nobody waits, nothing ticks"


def test_who_was_cancelled_or_set_anew_is_not_asked_at_the_old_time() -> None:
    clock, timers = wheel()
    gone, later = Waiter(clock.now + 1), Waiter(clock.now + 50)
    timers.set(gone, gone.deadline)
    timers.set(later, clock.now + 1)
    timers.set(later, later.deadline)
    timers.cancel(gone)
    timers.cancel(gone)
    clock.run_until(clock.now + 49)
    assert (gone.ended, later.ended) == (None, None)
    clock.run_until(clock.now + 2)
    assert (gone.ended, later.ended is None) == (None, False)


def test_a_client_may_cancel_another_when_asked() -> None:
    clock, timers = wheel()

    class Ending(Waiter):
        other: Ending

        def due(self, now: float) -> float | None:
            timers.cancel(self.other)
            return super().due(now)

    pair = [Ending(clock.now + 1) for _ in range(2)]
    pair[0].other, pair[1].other = pair[1], pair[0]
    for client in pair:
        timers.set(client, client.deadline)
    clock.run_until(clock.now + 5)
    assert sum(client.ended is not None for client in pair) == 1


async def test_it_runs_on_a_real_loop() -> None:
    timers = TimerWheel(asyncio.get_running_loop(), 0.01)
    client = Waiter(asyncio.get_running_loop().time() + 0.02)
    timers.set(client, client.deadline)
    async with asyncio.timeout(PATIENCE_S):
        while client.ended is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    timers.close()


def test_many_that_are_due_at_once_are_asked_a_few_at_a_time() -> None:
    clock, timers = wheel()
    waiters = [Slow(clock, clock.now + 0.1) for _ in range(100)]
    for waiter in waiters:
        timers.set(waiter, waiter.deadline)
    asked = [0]
    while clock.timer is not None:
        clock.run_until(clock.timer[0])
        asked.append(sum(waiter.ended is not None for waiter in waiters))
    assert asked[-1] == len(waiters)
    steps = [after - before for before, after in itertools.pairwise(asked)]
    assert max(steps) <= STEP_S / 0.001 + 1
    assert max(waiter.ended or 0 for waiter in waiters) < 1000 + 2 * TICK_S


# --- The machine's clocks


def test_readings_go_forward_within_one_boot() -> None:
    read = clock_reader()
    first, second = read(), read()
    assert first.boot_id == second.boot_id
    assert first.monotonic <= second.monotonic
    assert first.state in ClockState


def test_every_process_of_a_boot_sees_the_same_boot() -> None:
    code = "from weft.edge_node.timing import read_boot_id; print(read_boot_id())"
    assert int(subprocess.check_output([sys.executable, "-c", code])) == read_boot_id()


def test_the_wall_clock_is_in_nanoseconds_since_1970() -> None:
    assert 10**18 < wall_clock() < 10**19
