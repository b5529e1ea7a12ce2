"""Times that a well-behaved client waited for acknowledgements.

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
from typing import NamedTuple

import pytest

MEASURED_AGAIN = pytest.mark.flaky(reruns=2, only_rerun=["WaitedTooLong"])
"""Of tests that measure waits, on a machine that others use as well: what an attack causes is there every time.
Whatever else a test finds wrong fails it at once."""


class WaitedTooLong(AssertionError):
    """A wait that was longer than a test allows."""


def at_most(most_s: float, waited_s: float, *seen: object) -> None:
    """Fail a test whose client waited longer.

    Raises:
        WaitedTooLong: with everything that was seen.
    """
    if not waited_s <= most_s:
        raise WaitedTooLong(f"{waited_s:.3f} s, and at most {most_s:.3f} s are allowed", *seen)


class Stopwatch:
    """Measures how long a client waits for a node, less what the machine kept from them.

    What is taken off is the time that one thread, of the node or the client's own, waited for a processor: of several
    threads the one that waited longest, since they wait side by side.

    Args:
        node: its process.
        thread: the client's, of this process (`threading.get_native_id`).
    """

    def __init__(self, node: int, thread: int | None = None) -> None:
        self._node = Path(f"/proc/{node}/task")
        self._client = Path(f"/proc/self/task/{thread or threading.get_native_id()}")
        self.start()

    def start(self) -> None:
        self._starved, self._began = self._starved_s(), time.perf_counter()

    def seconds(self) -> float:
        """Return how long the client has waited since the start."""
        waited = time.perf_counter() - self._began
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


class Waits(NamedTuple):
    """Times to acknowledgements in seconds, as a `Stopwatch` measures them."""

    acknowledged: int
    p99: float
    longest: float


def summary(waits: list[float]) -> Waits:
    """Return what is said of some waits, of which there is at least one."""
    assert waits, "the well-behaved client got no acknowledgement at all"
    ordered = sorted(waits)
    return Waits(len(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], ordered[-1])
