"""The kernel's word on the wall clock: whether a time source keeps it right, and how wrong it may be."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from weft.config.verdict import Verdict, act, good

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


def wall_clock_error() -> int:
    """Return the most nanoseconds by which the wall clock is wrong, as the kernel has it while it is synchronised."""
    timex = _Timex(modes=0)
    try:
        ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return _ERROR_MAX_NS
    return min(int(timex.maxerror) * 1000, _ERROR_MAX_NS)


def synchronised_reader() -> Callable[[], bool]:
    """Return a function that asks whether a time source has set the wall clock, and still does. It never blocks."""
    try:
        adjtimex = ctypes.CDLL(None).adjtimex
    except (OSError, AttributeError):
        return lambda: False

    def read() -> bool:
        timex = _Timex(modes=0)
        result: int = adjtimex(ctypes.byref(timex))
        return 0 <= result != _TIME_ERROR and not timex.status & _STA_UNSYNC

    return read


def clock_verdict() -> Verdict:
    """Return a doctor's line about this machine's clock."""
    if synchronised_reader()():
        return good("clock", "a time source keeps it right")
    return act("clock", "no time source keeps it right. Run a time service: `timedatectl set-ntp true`")
