"""Facts of this machine: how wrong its clock may be, and how fast and how worn its disk is."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from weft.config.machine import Verdict, act, good, unknown, why_unreadable

# The kernel's word on the wall clock: whether a time source keeps it right, and how wrong it may be.

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


# Time that the disk of a folder takes to sync, measured in a file without a name.

SYNCS = 20
"""Syncs of a measurement: half of them say what is usual, and the slowest what a device may meet."""
SYNCED_BYTES = 4096
MEASURED_S_MAX = 2.0
"""Seconds after which no further sync begins."""
ANSWER_S_MAX = 10.0
"""Seconds after which the disk is said not to answer; a sync cannot be stopped."""
SLOW_S = 0.1
"""Usual time of a sync from which on devices notice it: they wait that long for each acknowledgement."""
STALL_S = 1.0
_SPEED_CHECK = "disk speed"


class DiskSpeed(NamedTuple):
    """Times of some syncs."""

    syncs: int
    usual_s: float
    slowest_s: float


def measure(directory: str, clock: Callable[[], float]) -> DiskSpeed:
    """Sync small writes to the disk of a folder, at most ``SYNCS`` and for ``MEASURED_S_MAX``. Blocks.

    The file has no name (``O_TMPFILE``): it is gone with the process, however that ends, and no node finds it in its
    folder.

    Raises:
        OSError: the folder is missing, or takes no such file.
    """
    file = os.open(directory, os.O_TMPFILE | os.O_WRONLY, 0o600)
    try:
        times: list[float] = []
        begun = clock()
        while len(times) < SYNCS and clock() - begun < MEASURED_S_MAX:
            os.write(file, bytes(SYNCED_BYTES))
            before = clock()
            os.fdatasync(file)
            times.append(clock() - before)
    finally:
        os.close(file)
    import statistics  # the speed is measured where a command asks for it

    return DiskSpeed(len(times), statistics.median(times), max(times))


def disk_speed(
    directory: str,
    clock: Callable[[], float],
    patience_s: float = ANSWER_S_MAX,
    measured: Callable[[str, Callable[[], float]], DiskSpeed] = measure,
) -> Verdict:
    """Return the line about the disk's speed. Blocks for ``patience_s`` at most."""
    if not os.path.isdir(directory):
        return unknown(_SPEED_CHECK, f"{directory} does not exist yet. The first start of the node creates it")
    found: list[DiskSpeed | OSError] = []

    def run() -> None:
        try:
            found.append(measured(directory, clock))
        except OSError as error:
            found.append(error)

    # A thread that does not keep the command from ending: a sync on a dying disk may take minutes.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(patience_s)
    if not found:
        return act(
            _SPEED_CHECK,
            f"a sync takes more than {patience_s:.0f} s. The disk may be failing: look at `dmesg`, and replace it",
        )
    if isinstance(found[0], OSError):
        return unknown(_SPEED_CHECK, _why_not(directory, found[0]))
    return judged(found[0])


def judged(speed: DiskSpeed) -> Verdict:
    """Return the line about a measurement."""
    says = f"a sync takes {_time(speed.usual_s)}, the slowest of {speed.syncs} took {_time(speed.slowest_s)}"
    if speed.usual_s >= SLOW_S:
        return act(
            _SPEED_CHECK, f"{says}. Devices wait as long for acknowledgements: use a faster disk or a newer card"
        )
    if speed.slowest_s >= STALL_S:
        return act(_SPEED_CHECK, f"{says}. Look for other programs that write to this disk, and for a worn card")
    return good(_SPEED_CHECK, says)


def _why_not(directory: str, error: OSError) -> str:
    if error.errno in (errno.EOPNOTSUPP, errno.EISDIR):
        return f"the file system of {directory} has no files without a name, so nothing was measured"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{directory}: {why_unreadable(error)}"
    return f"{directory}: nothing could be written ({(error.strerror or str(error)).lower()})"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


# Wear of the disk of a folder, and damage that its file system has met, as the kernel tells them.

SYSFS = "/sys"
USED_UP = 11
"""Step of an eMMC's life that stands for more than it was made for. Step 1 is up to 10 percent, and so on."""
WORN = 9
"""Step from which on a replacement is due: 80 percent."""
RESERVES = {1: "normal", 2: "mostly used", 3: "used up"}
"""Blocks that an eMMC has left for those that fail (``pre_eol_info`` of JEDEC 5.1)."""
_WEAR_CHECK = "disk wear"


def disk_wear(directory: str, sysfs: str = SYSFS) -> Verdict:
    """Return the line about wear. Blocks for the time of some small reads, which touch no disk."""
    if not os.path.isdir(directory):
        return unknown(_WEAR_CHECK, f"{directory} does not exist yet. The first start of the node creates it")
    number = os.stat(directory).st_dev
    part = os.path.realpath(f"{sysfs}/dev/block/{os.major(number)}:{os.minor(number)}")
    faults = _number(f"{sysfs}/fs/ext4/{os.path.basename(part)}/errors_count")
    if faults:
        advice = "Copy what you need, have `fsck` look at it before it is mounted again, and replace an aged card"
        return act(_WEAR_CHECK, f"the file system of {directory} has met {faults} errors. {advice}")
    disk = os.path.dirname(part) if os.path.exists(f"{part}/partition") else part
    step = max(_numbers(f"{disk}/device/life_time"), default=0)
    reserve = _number(f"{disk}/device/pre_eol_info")
    if not step and not reserve:
        return unknown(_WEAR_CHECK, "the disk does not report its wear, as memory cards and virtual disks do not")
    used = (
        "more than its life"
        if step >= USED_UP
        else f"up to {step * 10} percent of its life"
        if step
        else "no one knows"
    )
    says = f"used: {used}; blocks in reserve: {RESERVES.get(reserve, 'no one knows')}"
    if step >= WORN or reserve > 1:
        advice = "Replace it soon. A longer `commit_interval` wears it less (docs/sizing.md)"
        return act(_WEAR_CHECK, f"{says}. {advice}")
    return good(_WEAR_CHECK, says)


def _number(path: str) -> int:
    return max(_numbers(path), default=0)


def _numbers(path: str) -> list[int]:
    """Return the numbers in a file of the kernel; none where it has no such file."""
    try:
        with open(path, encoding="ascii") as file:
            return [int(word, 0) for word in file.read(64).split()]
    except (OSError, ValueError):
        return []
