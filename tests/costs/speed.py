"""How fast this machine is just now, so that processor time can be compared with that of another hour or machine."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

REFERENCE_S = 0.0029
"""Processor time of the sample on the machine that the budgets were measured on, with nothing else running."""
ROUNDS = 100_000


def sample_s() -> float:
    """Return the processor time of a small, fixed piece of work in Python, without that of other threads."""
    started = time.thread_time()
    total = 0
    for number in range(ROUNDS):
        total += number & 7
    return time.thread_time() - started


def slowness() -> float:
    """Return how many times as long this machine takes just now as the one of the budgets, at least 1."""
    return max(1.0, sample_s() / REFERENCE_S)


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector away: what it takes grows with all that the process has, not with what is timed."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
