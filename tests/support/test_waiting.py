"""Patience counts what the machine could do, and ends before a test's own limit."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.clocks import Clock
from tests.support.speed import Stopwatch
from tests.support.waiting import PATIENCE_S, Patience, by_the_clock, share, until, wait_until


def test_a_quiet_machine_has_as_long_as_was_said() -> None:
    clock = Clock()
    patience = Patience(20, clock, lambda: 1.0)
    clock.now = 19.9
    assert not patience.is_over()
    clock.now = 20
    assert patience.is_over()


def test_a_machine_with_ten_times_the_work_has_ten_times_as_long() -> None:
    clock = Clock()
    patience = Patience(20, clock, lambda: 0.1)
    for second in range(1, 200):
        clock.now = second
        assert not patience.is_over()
    clock.now = 201
    assert patience.is_over()


def test_a_load_counts_while_it_lasts() -> None:
    clock, busy = Clock(), [0.1]
    patience = Patience(20, clock, lambda: busy[0])
    clock.now = 100
    assert patience.left() == pytest.approx(10)
    busy[0] = 1.0
    clock.now = 109
    assert patience.left() == pytest.approx(1)


def test_no_wait_outlasts_the_limit_of_its_test(pytestconfig: pytest.Config) -> None:
    clock = Clock()
    patience = Patience(20, clock, lambda: 0.0)
    clock.now = PATIENCE_S
    assert patience.is_over()
    assert PATIENCE_S < float(pytestconfig.getini("timeout"))


def test_listening_for_nothing_ends_by_the_clock() -> None:
    assert 0 < by_the_clock(0.3).left() <= 0.3
    assert by_the_clock(0).is_over()


def test_a_program_never_has_more_than_a_processor() -> None:
    assert 0 < share() <= 1


def test_what_is_waited_for_is_told() -> None:
    with pytest.raises(AssertionError, match="in 0 s it did not happen: the last message"):
        wait_until(lambda: False, 0, "the last message")
    with pytest.raises(AssertionError, match="a log of 3 lines"):
        wait_until(lambda: False, 0, lambda: f"a log of {1 + 2} lines")


async def test_an_event_loop_waits_for_what_is_asked_with_await_too() -> None:
    answers = iter((False, True))

    async def answer() -> bool:
        await asyncio.sleep(0)
        return next(answers)

    await until(answer)
    with pytest.raises(TimeoutError):
        await until(lambda: False, 0)


# --- A stopwatch takes off a wait what other programs of the machine caused, and nothing else


HOGS = 4
WORK_S = 0.3


@pytest.fixture
def crowded() -> Iterator[None]:
    """One processor for this thread and some programs that never rest."""
    usual = os.sched_getaffinity(0)
    one = {min(usual)}
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(HOGS)]
    try:
        for hog in hogs:
            os.sched_setaffinity(hog.pid, one)
        os.sched_setaffinity(0, one)
        yield
    finally:
        os.sched_setaffinity(0, usual)
        for hog in hogs:
            hog.kill()
            hog.wait()


def work() -> None:
    end = time.thread_time() + WORK_S
    while time.thread_time() < end:
        pass


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the system does not count it")
@pytest.mark.slow
def test_what_other_programs_take_of_the_processor_is_no_wait(crowded: None) -> None:
    began, stopwatch = time.perf_counter(), Stopwatch(os.getpid())
    work()
    waited, wall = stopwatch.seconds(), time.perf_counter() - began
    assert 0.9 * WORK_S < waited < wall / 2


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the system does not count it")
def test_the_node_s_own_work_is_a_wait() -> None:
    worker = threading.Thread(target=work)
    stopwatch = Stopwatch(os.getpid())
    worker.start()
    worker.join()
    assert stopwatch.seconds() > 0.9 * WORK_S


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the system does not count it")
def test_a_node_that_does_nothing_keeps_its_clients_waiting() -> None:
    stopwatch = Stopwatch(os.getpid())
    time.sleep(WORK_S)
    assert stopwatch.seconds() > 0.9 * WORK_S
