"""Streaming jobs in processes of their own that are killed at chosen moments, for tests of what a table holds then.

A job is a script. It calls ``arm()`` first and runs its queries on ``master()``. ``Jobs.run`` starts it in a process
group together with its JVM and kills the group as a whole: nothing of it gets a chance to clean up.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_sinks.sinks.delta.table import DurableTable

ROOT = Path(__file__).parents[3]
KILL, MASTER = "WEFT_TEST_KILL", "WEFT_TEST_MASTER"
BEFORE, AFTER = "before", "after"
RUN_SECONDS_MAX = 600.0
_POLL_SECONDS = 0.02


def arm() -> None:
    """Kill this process group before or after a commit to a table, as ``Jobs.run`` asked: ``before 2``."""
    moment, _, number = os.environ.get(KILL, "").partition(" ")
    commit, left = DurableTable.commit, int(number or 0)

    def counted(self: DurableTable, *given: Any) -> int:
        nonlocal left
        left -= 1
        if (moment, left) == (BEFORE, 0):
            os.killpg(0, signal.SIGKILL)
        version = commit(self, *given)
        if (moment, left) == (AFTER, 0):
            os.killpg(0, signal.SIGKILL)
        return version

    DurableTable.commit = counted  # type: ignore[method-assign, assignment]


def master() -> str:
    """The master that the job's session has to use."""
    return os.environ.get(MASTER, "local[2]")


class Jobs:
    """Runs of one script.

    Args:
        script: a module, and its arguments.
        watched: the table; random kills count from its next version on.
        seed: of the random moments.
    """

    def __init__(self, script: Sequence[str], watched: Path, *, seed: int = 0, master: str = "local[2]") -> None:
        self._command = [sys.executable, "-m", *script]
        self._watched = watched
        self._random = random.Random(seed)
        self._master = master
        self.killed: list[str] = []
        """Moments of the kills that happened."""

    def run(self, kill: str = "", environment: Mapping[str, str] | None = None) -> int:
        """Run the job until it ends or is killed. Return its exit status.

        Args:
            kill: ``before N`` or ``after N``: at the N-th commit of this run; ``random``: within a second after its
                first; otherwise not at all.
        """
        own = {KILL: kill, MASTER: self._master, **(environment or {})}
        process = subprocess.Popen(
            self._command, cwd=ROOT, env=os.environ | own, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        ended = threading.Event()
        if kill == "random":
            threading.Thread(target=self._kill_later, args=(process.pid, ended)).start()
        try:
            said, _ = process.communicate(timeout=RUN_SECONDS_MAX)
        finally:
            ended.set()
            _kill_group(process.pid)
        status = process.wait()
        if status == -signal.SIGKILL:
            self.killed.append(kill)
        assert status in {0, -signal.SIGKILL}, said[-4000:]
        return status

    def _kill_later(self, group: int, ended: threading.Event) -> None:
        before = self._versions()
        while self._versions() == before:
            if ended.wait(_POLL_SECONDS):
                return
        if not ended.wait(self._random.random()):
            _kill_group(group)

    def _versions(self) -> int:
        log = self._watched / "_delta_log"
        return len(list(log.glob("*.json"))) if log.is_dir() else 0


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    # The group's last member may take a moment to go; the JVM holds the folders that the next run opens.
    until = time.monotonic() + RUN_SECONDS_MAX
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(_POLL_SECONDS)
