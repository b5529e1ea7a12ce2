"""Streaming jobs in processes of their own that are killed at chosen moments, for tests of what a table holds then.

A job is a script. It calls ``arm()`` first and runs its queries on ``master()``. ``Jobs.run`` starts it in a process
group together with its JVM and kills the group as a whole: nothing of it gets a chance to clean up.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_sinks.sinks import StreamSink
from spark_sinks.sinks.delta.table import DurableTable
from tests.support.spark_cluster import kill_group, temporary_of_spark
from weft.storage.table.delta_log import TableLog

ROOT = Path(__file__).parents[3]
KILL, MASTER = "WEFT_TEST_KILL", "WEFT_TEST_MASTER"
BEFORE, AFTER = "before", "after"
RUN_SECONDS_MAX = 600.0
_POLL_SECONDS = 0.02


def arm() -> None:
    """Kill this process group before or after a commit, as ``Jobs.run`` asked: ``before 2``, or ``after 1 alerts``.

    A commit is a version of a table, or a micro-batch that is sent into a stream. With a third word only those of the
    table or the stream of that name count.
    """
    moment, left, name = asked()

    def counted(commit: Callable[..., Any], name_of: Callable[[Any], str]) -> Callable[..., Any]:
        def call(self: Any, *given: Any) -> Any:
            nonlocal left
            at = -1
            if name in {"", name_of(self)}:
                left, at = left - 1, left - 1  # Queries count at once: each has its own number.
            if (moment, at) == (BEFORE, 0):
                os.killpg(0, signal.SIGKILL)
            result = commit(self, *given)
            if (moment, at) == (AFTER, 0):
                os.killpg(0, signal.SIGKILL)
            return result

        return call

    DurableTable.commit = counted(DurableTable.commit, lambda table: table.place.key)  # type: ignore[method-assign]
    sent = counted(StreamSink.__call__, lambda sink: sink._settings.stream)
    StreamSink.__call__ = sent  # type: ignore[method-assign]


def arm_tables() -> None:
    """Kill this process group before or after a version of a table that is made from the log, as was asked."""
    moment, left, _ = asked()
    commit = TableLog.commit

    async def counted(self: TableLog, *given: Any) -> Any:
        nonlocal left
        left, at = left - 1, left - 1
        if (moment, at) == (BEFORE, 0):
            os.killpg(0, signal.SIGKILL)
        state = await commit(self, *given)
        if (moment, at) == (AFTER, 0):
            os.killpg(0, signal.SIGKILL)
        return state

    TableLog.commit = counted  # type: ignore[method-assign, assignment]


def asked() -> tuple[str, int, str]:
    """Return which kill this process was asked for: the moment, the number of the commit, the name of the table."""
    moment, number, name = [*os.environ.get(KILL, "").split(), "", "", ""][:3]
    return moment, int(number or 0), name


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
            kill: ``before N`` or ``after N``, as ``arm`` takes it: at the N-th commit of this run; ``random``: within
                a second after its first; otherwise not at all.
        """
        with temporary_of_spark() as temporary:
            own = {KILL: kill, MASTER: self._master, **temporary, **(environment or {})}
            process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=os.environ | own,
                start_new_session=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            ended = threading.Event()
            if kill == "random":
                threading.Thread(target=self._kill_later, args=(process, ended)).start()
            try:
                said, _ = process.communicate(timeout=RUN_SECONDS_MAX)
            finally:
                ended.set()
                kill_group(process)
        status = process.wait()
        if status == -signal.SIGKILL:
            self.killed.append(kill)
        assert status in {0, -signal.SIGKILL}, said[-4000:]
        return status

    def _kill_later(self, process: subprocess.Popen[str], ended: threading.Event) -> None:
        before = self._versions()
        while self._versions() == before:
            if ended.wait(_POLL_SECONDS):
                return
        if not ended.wait(self._random.random()):
            kill_group(process)

    def _versions(self) -> int:
        log = self._watched / "_delta_log"
        return len(list(log.glob("*.json"))) if log.is_dir() else 0
