"""Time of a process without its waits for a processor.

A user's code has a low priority: on a busy node it waits. A limit on elapsed time would then reject records because of
the node's load, not because of the code.
"""

from __future__ import annotations


def waited_s(process: str = "self") -> float:
    """Return the seconds that a process has waited for a processor since it began: the second number of
    ``/proc/PID/schedstat`` (proc(5), kernels with CONFIG_SCHED_INFO). 0 where the system does not report it."""
    try:
        with open(f"/proc/{process}/schedstat", encoding="ascii") as file:
            return int(file.read(100).split()[1]) / 10**9
    except (OSError, ValueError, IndexError):
        return 0.0
