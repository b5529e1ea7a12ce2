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
        self._starved, self._began = self._starved_s(), time.perf_counter()

    def by_the_clock(self) -> float:
        """Return the seconds since the start, for what must not come too early."""
        return time.perf_counter() - self._began

    def seconds(self) -> float:
        """Return how long the client has waited since the start, for what must not come too late."""
        waited = self.by_the_clock()
        kept = (later - self._starved.get(thread, later) for thread, later in self._starved_s().items())
        return max(0.0, waited - max(kept, default=0.0))

    def _starved_s(self) -> dict[str, float]:
        """Return what each thread has waited for a processor (proc(5)); nothing where the system does not count it."""
        found = {}
        with contextlib.suppress(OSError):
            for task in (self._client, *map(self._node.joinpath, os.listdir(self._node))):
                with contextlib.suppress(OSError):  # the thread has ended
                    found[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
        return found
