"""The machine's clocks: the time, the boot, and whether a time source has set the clock.

A Raspberry Pi has no battery clock: after a power cut its wall clock may be days off until the network sets it. Each
batch therefore names its boot, the boot's monotonic clock, and whether the kernel considered the wall clock right.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable

from weft.protocols.batch import ClockReading, ClockState
from weft.storage.kernel_clock import synchronised_reader

_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
SYNC_KNOWN_NS = 100_000_000
"""Time for which the answer to "is the wall clock synchronised?" holds: a commit every millisecond need not ask."""


def read_boot_id() -> int:
    """Return 64 bits that are the same for every process of this boot; random where the kernel has no boot id."""
    try:
        with open(_BOOT_ID_FILE, encoding="ascii") as file:
            return int.from_bytes(uuid.UUID(file.read().strip()).bytes[:8], "big")
    except (OSError, ValueError):
        return int.from_bytes(os.urandom(8), "big")


def wall_clock() -> int:
    """Return nanoseconds since 1970 by the machine's wall clock."""
    return time.time_ns()


def clock_reader() -> Callable[[], ClockReading]:
    """Return a function that reads the clocks, and asks once in ``SYNC_KNOWN_NS`` whether the wall clock is
    synchronised.

    It makes a system call or two and never blocks.
    """
    boot_id = read_boot_id()
    # CLOCK_BOOTTIME counts the time of a suspended machine, as the wall clock does.
    clock_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    is_synchronised = synchronised_reader()
    state, asked = ClockState.UNSYNCED, -SYNC_KNOWN_NS

    def read() -> ClockReading:
        nonlocal state, asked
        now = time.clock_gettime_ns(clock_id)
        if now - asked >= SYNC_KNOWN_NS:
            state, asked = ClockState.SYNCED if is_synchronised() else ClockState.UNSYNCED, now
        return ClockReading(boot_id, now, state)

    return read


def seconds(nanoseconds: int | None) -> float | None:
    """Return a time in the unit of facts."""
    return None if nanoseconds is None else nanoseconds / 1e9
