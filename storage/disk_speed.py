"""Time that the disk of a folder takes to sync, measured in a file without a name."""

from __future__ import annotations

import errno
import os
import statistics
import threading
from collections.abc import Callable
from typing import NamedTuple

from weft.config.machine import why_unreadable
from weft.config.verdict import Verdict, act, good, unknown

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
_CHECK = "disk speed"


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
    return DiskSpeed(len(times), statistics.median(times), max(times))


def disk_speed(
    directory: str, clock: Callable[[], float], patience_s: float = ANSWER_S_MAX,
    measured: Callable[[str, Callable[[], float]], DiskSpeed] = measure,
) -> Verdict:  # fmt: skip
    """Return the line about the disk's speed. Blocks for ``patience_s`` at most."""
    if not os.path.isdir(directory):
        return unknown(_CHECK, f"{directory} is not there yet. The first start of the node creates it")
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
            _CHECK,
            f"a sync takes more than {patience_s:.0f} s. The disk may be failing: look at `dmesg`, and replace it",
        )
    if isinstance(found[0], OSError):
        return unknown(_CHECK, _why_not(directory, found[0]))
    return judged(found[0])


def judged(speed: DiskSpeed) -> Verdict:
    """Return the line about a measurement."""
    says = f"a sync takes {_time(speed.usual_s)}, the slowest of {speed.syncs} took {_time(speed.slowest_s)}"
    if speed.usual_s >= SLOW_S:
        return act(_CHECK, f"{says}. Devices wait as long for acknowledgements: use a faster disk or a newer card")
    if speed.slowest_s >= STALL_S:
        return act(_CHECK, f"{says}. Look for other programs that write to this disk, and for a worn card")
    return good(_CHECK, says)


def _why_not(directory: str, error: OSError) -> str:
    if error.errno in (errno.EOPNOTSUPP, errno.EISDIR):
        return f"the file system of {directory} has no files without a name, so nothing was measured"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{directory}: {why_unreadable(error)}"
    return f"{directory}: nothing could be written ({(error.strerror or str(error)).lower()})"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
