"""Adopts the processes below this one whose parents have ended, and measures what they took.

A killed Python process leaves a Java runtime behind, and a Spark session that ends one that still runs: no test waits
for them, so nothing else would know their processor time. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Any

from tests.costs.processes import children, identity

_PR_SET_CHILD_SUBREAPER = 36


class Orphans:
    """What processes took that became children of this one when their parent ended."""

    def __init__(self) -> None:
        self.ended_s: dict[str, float] = {}
        """Process (`identity`) -> its processor time and that of those it has waited for, in seconds."""
        self._own: set[int] = set()
        make = subprocess.Popen._execute_child  # type: ignore[attr-defined]

        def execute(popen: Any, *given: Any) -> None:
            make(popen, *given)
            self._own.add(popen.pid)

        subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        self._process = os.getpid()
        signal.signal(signal.SIGCHLD, self._reap)

    def _reap(self, *_signal: object) -> None:
        """Wait for those that have ended, as the system's first process does; those started here wait for theirs."""
        if os.getpid() != self._process:
            return
        for pid in children(self._process):
            if pid in self._own:
                continue
            who = identity(pid)
            with contextlib.suppress(ChildProcessError):
                ended, _, usage = os.wait4(pid, os.WNOHANG)
                if ended:
                    self.ended_s[who] = usage.ru_utime + usage.ru_stime

    def unseen_s(self, counted_s: Mapping[str, float]) -> float:
        """Return what they took beyond what was counted while their parents lived (process -> seconds)."""
        self._reap()
        return sum(max(0.0, spent - counted_s.get(who, 0.0)) for who, spent in self.ended_s.items())
