"""The end of an interpreter beside threads of libraries, which must not come back into it then.

obstore hands results over from threads of its own, and pyarrow lets go of Python objects in them, for an instant after
the result is there. Before Python 3.14 an interpreter that ends stops a thread which asks for its lock by unwinding it,
and Rust and C++ end the process for that with SIGABRT: a command that has done its work and said so exits with 134. It
happened to 4 of 60 runs of ``weft hub check`` on S3 beside other work, and to 2 of 25 programs that read a table.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import time

QUIET_S = 0.012
"""A thread that waits for the interpreter's lock wakes up every 5 ms (sys.getswitchinterval), so it is seen in this."""
LOOKS_MAX = 80
_TASKS = "/proc/self/task"
_FIELDS = ("State:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")
_ASLEEP = "State:\tS"


@functools.cache
def wait_at_exit() -> None:
    """Have the interpreter wait for other threads before it ends. May be called again."""
    if sys.version_info < (3, 14):
        atexit.register(wait_until_quiet)


def wait_until_quiet() -> None:
    """Wait until no other thread of the process has run for ``QUIET_S``; at most about a second. Where the system does
    not say what threads do, wait ``QUIET_S`` alone."""
    before = _threads()
    for _ in range(LOOKS_MAX):
        # Sleep leaves the interpreter's lock to threads that wait for it.
        time.sleep(QUIET_S)
        now = _threads()
        if now == before and all(lines[0].startswith(_ASLEEP) for lines in now.values()):
            return
        before = now


def _threads() -> dict[str, list[str]]:
    """Return the state of each other thread, with the counts of its context switches."""
    threads = {}
    own = str(threading.get_native_id())
    with contextlib.suppress(FileNotFoundError):
        for thread in os.listdir(_TASKS):
            if thread == own:
                continue
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"{_TASKS}/{thread}/status") as file:
                threads[thread] = [line for line in file.read().splitlines() if line.startswith(_FIELDS)]
    return threads
