"""Limits that the process of a user's code puts on itself before it loads the code.

They protect the node from mistakes, not from malice: the code runs as the node's user with that user's rights.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys

NICENESS = 10
"""A tenth of a busy processor, all of an idle one."""
FILES_MAX = 256
ADDRESSES_BYTES_MORE = 1 << 30
"""Address space beyond the memory: libraries such as onnxruntime reserve far more than they write to."""
_PR_SET_PDEATHSIG = 1


def take_over_pipes() -> tuple[int, int]:
    """Return the descriptors of the pipes from and to the node. The code's standard input is empty, and its output goes
    to the standard error; neither reaches the pipes."""
    pipes = os.dup(0), os.dup(1)  # not inherited by processes that the code starts (PEP 446)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return pipes


def confine(memory_bytes: int, parent: int) -> None:
    """Lower the priority, limit memory, and tie the process's life to the node's."""
    # Set before the check: a node that ended in between has another parent in its place already.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the node has ended")
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    # When memory is short, the kernel must end this process and not the node (proc(5); raising it needs no right).
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    # RLIMIT_DATA counts writable memory; RLIMIT_AS is a further bound for shared memory.
    _limit(resource.RLIMIT_DATA, memory_bytes)
    _limit(resource.RLIMIT_AS, memory_bytes + ADDRESSES_BYTES_MORE)
    _limit(resource.RLIMIT_NOFILE, FILES_MAX)
    _limit(resource.RLIMIT_CORE, 0)


def limit_cpu(seconds: float) -> None:
    """Let the kernel end the process when it uses so much processor time from now on. The node normally ends it sooner;
    this is for a node that cannot."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime + seconds) + 1, hard))


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(ValueError, OSError):  # a system without this limit
        resource.setrlimit(what, (value, value))
