"""The end of an interpreter beside threads of libraries, which must not enter it then.

obstore passes results from threads of its own, and pyarrow releases Python objects in them, for an instant after the
result is there. Before Python 3.14, an ending interpreter stops a thread that asks for its lock by unwinding it, and
Rust and C++ then end the process with SIGABRT: a command that has done its work and reported it exits with 134. It
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
"""Time in which a thread that waits for the interpreter's lock is seen to run: it wakes up every 5 ms
(sys.getswitchinterval)."""
LOOKS_MAX = 80
_TASKS = "/proc/self/task"
_FIELDS = ("State:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")
_ASLEEP = "State:\tS"


@functools.cache
def wait_at_exit() -> None:
    """Make the interpreter wait for other threads before it ends. May be called again."""
    if sys.version_info < (3, 14):
        atexit.register(wait_until_quiet)


def wait_until_quiet() -> None:
    """Wait until no other thread of the process has run for ``QUIET_S``; at most about a second. If the system does not
    report the state of threads, only wait ``QUIET_S``."""
    before = _threads()
    for _ in range(LOOKS_MAX):
        # The sleep releases the interpreter's lock for waiting threads.
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
