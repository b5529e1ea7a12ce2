"""Times that a program was waited for, of which the share of other programs is no part.

Other programs of a busy machine take its processors, for longer than any attack keeps a client waiting: a node that
gets a tenth of a processor takes ten times as long for the same work. Linux counts, for each thread, the time that it
could have run and got no processor. That time is no one's fault, and is taken off a wait.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

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
