"""What a process finds when it begins, as JSON, and one of its possible ends: ``python -m`` this module, END."""

from __future__ import annotations

import atexit
import io
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

HEAVY = ("deltalake", "numpy", "obstore", "pandas", "pyarrow")
"""Modules that no command of an edge needs."""
OF_THE_LIBRARY = 3 << 31
"""Signals 32 and 33, of the C library's threads."""


def facts() -> dict[str, Any]:
    """Return what commands depend on."""
    status = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return {
        "arguments": sys.argv,
        "name": __name__,
        "folder": os.getcwd(),
        "first on the path": sys.path[0],
        "variables": dict(os.environ),
        "signals": {name: int(status[name], 16) & ~OF_THE_LIBRARY for name in ("SigBlk", "SigIgn", "SigCgt")},
        "Ctrl-C": repr(signal.getsignal(signal.SIGINT)),
        "umask": status["Umask"],
        "user": (status["Uid"], status["Gid"], status["Groups"].strip()),
        "threads": [thread.name for thread in threading.enumerate()],
        "heavy modules": [name for name in HEAVY if name in sys.modules],
        "descriptors": sorted(name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")),
        "streams": [
            (
                each.encoding,
                each.errors,
                each.line_buffering,
                each.writable() and each.write_through,
                each.isatty(),
                each.fileno(),
            )
            for each in (sys.stdin, sys.stdout, sys.stderr)
            if isinstance(each, io.TextIOWrapper)
        ],
        "limits": Path("/proc/self/limits").read_text(),
        "nice": os.nice(0),
        "processors": sorted(os.sched_getaffinity(0)),
        "parent": os.getppid(),
        "is leader": (os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()),
        "session": os.getsid(0) == os.getsid(os.getppid()),
        "input": sys.stdin.read(),
    }


def end(how: str) -> None:
    """End in one of the ways in which processes do."""
    atexit.register(print, "at exit")
    if how == "status":
        sys.exit(7)
    if how == "words":
        sys.exit("gone")
    if how == "exception":
        raise LookupError("no such end")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "thread":
        threading.Timer(0.05, print, ["a thread"]).start()


if __name__ == "__main__":
    print(json.dumps(facts()), flush=True)
    end(*sys.argv[1:])
