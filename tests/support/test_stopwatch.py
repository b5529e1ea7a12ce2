"""A stopwatch takes off a wait what other programs of the machine caused, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.stopwatch import Stopwatch

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the system does not count it")
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


@pytest.mark.slow
def test_what_other_programs_take_of_the_processor_is_no_wait(crowded: None) -> None:
    began, stopwatch = time.perf_counter(), Stopwatch(os.getpid())
    work()
    waited, wall = stopwatch.seconds(), time.perf_counter() - began
    assert 0.9 * WORK_S < waited < wall / 2


def test_the_node_s_own_work_is_a_wait() -> None:
    worker = threading.Thread(target=work)
    stopwatch = Stopwatch(os.getpid())
    worker.start()
    worker.join()
    assert stopwatch.seconds() > 0.9 * WORK_S


def test_a_node_that_does_nothing_keeps_its_clients_waiting() -> None:
    stopwatch = Stopwatch(os.getpid())
    time.sleep(WORK_S)
    assert stopwatch.seconds() > 0.9 * WORK_S
