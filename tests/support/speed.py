"""How fast this machine is just now, so that processor time can be compared with that of another hour or machine."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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


# --- Times that a program was waited for, of which the share of other programs is no part
#
# Other programs of a busy machine take its processors, for longer than any attack keeps a client waiting: a node that
# gets a tenth of a processor takes ten times as long for the same work. Linux counts, for each thread, the time that
# it could have run and got no processor. That time is no one's fault, and is taken off a wait.


MOMENT_S = 0.005
"""Longest time between two readings that count as one."""
MOMENT_TRIES = 20


class Stopwatch:
    """Measures how long a client waits for a node, less what the machine kept from them.

    What is taken off is the time that one thread, of the node or the client's own, waited for a processor: of several
    threads the one that waited longest, since they wait side by side.

    Args:
        node: its process; this one by default, with the node in it.
        thread: the client's, of this process (`threading.get_native_id`).
    """

    def __init__(self, node: int | None = None, thread: int | None = None) -> None:
        self._node = Path(f"/proc/{node or os.getpid()}/task")
        self._client = Path(f"/proc/self/task/{thread or threading.get_native_id()}")
        self.start()

    def start(self) -> None:
        self._began, self._starved = self._moment()

    def by_the_clock(self) -> float:
        """Return the seconds since the start, for what must not come too early."""
        return time.perf_counter() - self._began

    def seconds(self) -> float:
        """Return how long the client has waited since the start, for what must not come too late."""
        now, starved = self._moment()
        kept = (later - self._starved.get(thread, later) for thread, later in starved.items())
        return max(0.0, now - self._began - max(kept, default=0.0))

    def _moment(self) -> tuple[float, dict[str, float]]:
        """Return the clock and what threads have waited by then: read again where this thread had to wait between."""
        for _ in range(MOMENT_TRIES):
            now = time.perf_counter()
            starved = self._starved_s()
            if time.perf_counter() - now < MOMENT_S:
                break
        return now, starved

    def _starved_s(self) -> dict[str, float]:
        """Return what each thread has waited for a processor (proc(5)); nothing where the system does not count it."""
        found = {}
        with contextlib.suppress(OSError):
            for task in (self._client, *map(self._node.joinpath, os.listdir(self._node))):
                with contextlib.suppress(OSError):  # the thread has ended
                    found[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
        return found
