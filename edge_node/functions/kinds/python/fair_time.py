"""Time that a process had, without the time that it waited for a processor.

A user's code has a low priority: on a busy node it waits. A limit on plain time would then reject records for the
node's load and not for what the code does.
"""

from __future__ import annotations


def waited_s(process: str = "self") -> float:
    """Return the seconds that a process has waited for a processor since it began: the second number of
    ``/proc/PID/schedstat`` (proc(5), kernels with CONFIG_SCHED_INFO). 0 where the system does not tell."""
    try:
        with open(f"/proc/{process}/schedstat", encoding="ascii") as file:
            return int(file.read(100).split()[1]) / 10**9
    except (OSError, ValueError, IndexError):
        return 0.0
