"""A machine whose clock is set: a folder for PYTHONPATH that gives a process its own wall clock.

Nothing else of the process is touched: the kernel says when the clock is disciplined, and here it says that it is.
"""

from __future__ import annotations

from pathlib import Path

_CUSTOMIZE = """\
import time

_time_ns, _monotonic, _read_at, _offset = time.time_ns, time.monotonic, 0.0, 0

def time_ns():
    global _read_at, _offset
    if _monotonic() - _read_at > 0.01:
        _read_at = _monotonic()
        with open({path!r}) as file:
            _offset = int(file.read() or _offset)
    return _time_ns() + _offset

time.time_ns = time_ns
time.time = lambda: time_ns() / 1e9

import weft.storage.host
weft.storage.host.synchronised_reader = lambda: lambda: True
"""


class SteppingClock:
    """The wall clock of the processes that get ``environment``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._path = folder / "offset"
        self.set(0)
        (folder / "sitecustomize.py").write_text(_CUSTOMIZE.format(path=str(self._path)))
        self.environment = {"PYTHONPATH": str(folder)}

    def set(self, seconds: float) -> None:
        """Let the clock differ so much from the right time; at once and in one step."""
        fresh = self._path.with_suffix(".new")
        fresh.write_text(str(int(seconds * 1e9)))
        fresh.rename(self._path)
