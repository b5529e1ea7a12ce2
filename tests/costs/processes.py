"""What ``/proc`` says of processes and their processor time."""

from __future__ import annotations

import os

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Return the children of a process, of all its threads."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found


def identity(pid: int) -> str:
    """Return a name of a process that no other has: its number, and when it began."""
    return f"{pid}@{int(fields[19])}" if (fields := _stat(pid)) else ""


def spent(pid: int, counted: dict[str, float]) -> float:
    """Return the processor time, in seconds, of a process, those it has waited for, and those below it.

    Args:
        counted: gets what each of them has spent, by `identity`.
    """
    fields = _stat(pid)
    if not fields:
        return 0.0
    own = sum(map(int, fields[11:15])) * TICK_S
    counted[f"{pid}@{int(fields[19])}"] = own
    return own + sum(spent(child, counted) for child in children(pid))


def command(pid: int) -> list[str]:
    """Return its command line."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode(errors="replace").split("\0")
    except OSError:
        return []


def _stat(pid: int) -> list[bytes]:
    """The fields behind the name: proc(5) counts the first of them, the state, as the third."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []
