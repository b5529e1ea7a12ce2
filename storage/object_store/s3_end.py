"""The end of an interpreter that has used obstore, whose threads must not come back into it then.

obstore answers from threads of its own, which hold the interpreter's lock while they hand a result over, and once more
for an instant after the result is there. Before Python 3.14 an interpreter that ends stops a thread which asks for the
lock by unwinding it, and Rust ends the process for that with SIGABRT: a command that has done its work and said so
exits with 134. It happened to 4 of 60 runs of ``weft hub check`` on two busy cores.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time

THREAD_NAME = "tokio-rt-worker"
QUIET_S = 0.012
"""A thread that waits for the interpreter's lock wakes up every 5 ms (sys.getswitchinterval), so it is seen in this."""
LOOKS_MAX = 150
_TASKS = "/proc/self/task"
_FIELDS = ("State:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")
_ASLEEP = "State:\tS"


def wait_at_exit() -> None:
    """Have the interpreter wait for obstore's threads before it ends."""
    if sys.version_info < (3, 14):
        atexit.register(wait_until_quiet)


def wait_until_quiet() -> None:
    """Wait until no thread of obstore has run for ``QUIET_S``; at most about two seconds. Where the system does not say
    what threads do, wait ``QUIET_S`` alone."""
    before = _threads()
    for _ in range(LOOKS_MAX):
        # Sleep leaves the interpreter's lock to threads that wait for it.
        time.sleep(QUIET_S)
        now = _threads()
        if now == before and all(lines[0].startswith(_ASLEEP) for lines in now.values()):
            return
        before = now


def _threads() -> dict[str, list[str]]:
    """Return the state of each thread of obstore, with the counts of its context switches."""
    threads = {}
    with contextlib.suppress(FileNotFoundError):
        for thread in os.listdir(_TASKS):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"{_TASKS}/{thread}/status") as file:
                lines = file.read().splitlines()
                if lines[0].endswith(THREAD_NAME):
                    threads[thread] = [line for line in lines if line.startswith(_FIELDS)]
    return threads
