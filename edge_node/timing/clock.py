"""The machine's clocks: the time, the boot, and whether a time source has set the clock.

A Raspberry Pi has no battery clock: after a power cut its wall clock may be days off until the network sets it. Each
batch therefore names its boot, the boot's monotonic clock, and whether the kernel took the wall clock to be right.
"""

from __future__ import annotations

import ctypes
import os
import time
import uuid
from collections.abc import Callable

from weft.protocols.batch import ClockReading, ClockState

_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
SYNC_KNOWN_NS = 100_000_000
"""Time for which the answer to "is the wall clock synchronised?" holds: a commit every millisecond need not ask."""
_STA_UNSYNC = 0x0040
_ERROR_MAX_NS = 16_000_000_000
"""Error from which on the kernel takes the clock for unsynchronised (NTP_PHASE_LIMIT of Linux)."""
_TIME_ERROR = 5
"""Return value of adjtimex(2) for a clock that no time source disciplines."""


class _Timex(ctypes.Structure):
    # struct timex of adjtimex(2), up to the field we read; the rest is room that the kernel writes to.
    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    ]


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


def wall_clock_error() -> int:
    """Return the most nanoseconds by which the wall clock is wrong, as the kernel has it while it is synchronised."""
    timex = _Timex(modes=0)
    try:
        ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return _ERROR_MAX_NS
    return min(int(timex.maxerror) * 1000, _ERROR_MAX_NS)


def clock_reader() -> Callable[[], ClockReading]:
    """Return a function that reads the clocks, and asks once in ``SYNC_KNOWN_NS`` whether the wall clock is
    synchronised.

    It makes a system call or two and never blocks.
    """
    boot_id = read_boot_id()
    # CLOCK_BOOTTIME goes on while the machine is suspended, as the wall clock does.
    clock_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    is_synchronised = _synchronised_reader()
    state, asked = ClockState.UNSYNCED, -SYNC_KNOWN_NS

    def read() -> ClockReading:
        nonlocal state, asked
        now = time.clock_gettime_ns(clock_id)
        if now - asked >= SYNC_KNOWN_NS:
            state, asked = ClockState.SYNCED if is_synchronised() else ClockState.UNSYNCED, now
        return ClockReading(boot_id, now, state)

    return read


def _synchronised_reader() -> Callable[[], bool]:
    try:
        adjtimex = ctypes.CDLL(None).adjtimex
    except (OSError, AttributeError):
        return lambda: False

    def read() -> bool:
        timex = _Timex(modes=0)
        result: int = adjtimex(ctypes.byref(timex))
        return 0 <= result != _TIME_ERROR and not timex.status & _STA_UNSYNC

    return read


def seconds(nanoseconds: int | None) -> float | None:
    """Return a time as facts have it."""
    return None if nanoseconds is None else nanoseconds / 1e9
