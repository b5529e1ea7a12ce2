"""How fast this machine is just now, so that processor time can be compared with that of another hour or machine."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

REFERENCE_S = 0.0032
"""Processor time of the sample on the machine that the budgets were measured on, with nothing else running."""
LOOP_REFERENCE_S = 0.0029
"""That of the loop."""
LOOP_ROUNDS = 100_000
_DOCUMENT = json.dumps(
    [
        {"name": f"machine-{i}", "values": [i, i * 1.5, None, True], "tags": {"line": str(i % 7), "unit": "C"}}
        for i in range(600)
    ]
)


def sample_s() -> float:
    """Return the processor time of a small, fixed piece of work in Python, without that of other threads.

    It parses a document, walks through it, makes a table of it and writes it again. Beside programs that took all of
    both cores, tests took 1.29 times as long, this 1.30 times, and a loop that adds numbers 1.12 times: it needs no
    more than the nearest cache.
    """
    collected = gc.isenabled()
    gc.disable()  # a collection takes as long as the process has objects
    try:
        started = time.thread_time()
        items = json.loads(_DOCUMENT)
        _count(items)
        sorted({f"{item['name']}/{name}": value for item in items for name, value in item["tags"].items()})
        json.dumps(items)
        return time.thread_time() - started
    finally:
        if collected:
            gc.enable()


def _count(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_count(each) for each in value.values())
    if isinstance(value, list):
        return sum(map(_count, value))
    return 1 if value else 0


def slowness() -> float:
    """Return how many times as long this machine takes just now as the one of the budgets, at least 1.

    For a step that is timed by itself, with all that it needs in the caches, as this loop is.
    """
    started = time.thread_time()
    total = 0
    for number in range(LOOP_ROUNDS):
        total += number & 7
    return max(1.0, (time.thread_time() - started) / LOOP_REFERENCE_S)


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector away: what it takes grows with all that the process has, not with what is timed."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
