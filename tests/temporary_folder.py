"""A temporary folder for each run of the tests, which has to be empty again at the end and goes with the run.

Every test, worker process and program that the tests start makes its temporary files there: Python and most programs
follow ``TMPDIR``, and Java gets an option. It is in memory where there is much of it: tests kill processes, never the
machine, so all that a disk gives them is waiting for it. What is left in it at the end fails the run, with a status of
its own: `tests.stage` counts it as an unsteady test. After a failed run the folders of its failed tests stay until the
next run, for a look at the reason.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
import zlib
from pathlib import Path

import pytest

from tests.support.spark_classes import LOADING, QUICK

ROOT = Path(__file__).parents[1]
IN_MEMORY = Path("/dev/shm")
FREE_BYTES_MIN = 20 << 30
"""Above what a node's log takes by default, `disk.budget`: nodes say when a disk is smaller."""
PREFIX = f"weft-tests-{zlib.crc32(bytes(ROOT)):08x}-"
"""Of all runs of this checkout."""
LEFT_BEHIND = 16
"""Exit status of a run whose tests passed and left something; pytest's own end at 5."""
LEAVE_S_MAX = 15.0
"""How long processes whose parent has ended may take to end too: a Java runtime deletes its files when it does."""
POLL_INTERVAL_S = 0.1


class TemporaryFolder:
    """A pytest plugin for the process that starts the workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._remove_earlier()
        self._path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_in_memory()))
        self._lock = os.open(self._path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._temporary = self._path / "tmp"
        self._temporary.mkdir()
        for folder in (self._path, self._temporary):
            folder.chmod(0o711)  # programs that tests start as another user get through, and see no names
        self._left: list[str] = []
        self._failed = False
        os.environ |= {
            "TMPDIR": str(self._temporary),
            # Java takes /tmp whatever TMPDIR says. The first is for Spark, the second for what starts Spark.
            "SPARK_SUBMIT_OPTS": f"-XX:-UsePerfData {LOADING} -Djava.io.tmpdir={self._temporary}",
            "SPARK_LAUNCHER_OPTS": f"{QUICK} -Djava.io.tmpdir={self._temporary}",
        }
        tempfile.tempdir = None
        if config.option.basetemp is None:
            config.option.basetemp = str(self._path / "of")  # short: paths of unix sockets end at 107 bytes

    @staticmethod
    def _remove_earlier() -> None:
        """Remove what failed and killed runs of this checkout left; a run that continues holds a lock."""
        for path in (*Path(tempfile.gettempdir()).glob(f"{PREFIX}*"), *IN_MEMORY.glob(f"{PREFIX}*")):
            with contextlib.suppress(OSError):
                folder = os.open(path, os.O_RDONLY)
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(folder)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        deadline = time.monotonic() + LEAVE_S_MAX
        while (left := sorted(os.listdir(self._temporary))) and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        self._left = left
        if left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = LEFT_BEHIND
        self._failed = session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left:
            terminalreporter.section("left in the temporary folder", red=True)
            terminalreporter.line("\n".join(self._left))
        if self._failed:
            terminalreporter.line(f"The folders of failed tests are in {self._path} until the next run.")

    def pytest_unconfigure(self) -> None:
        if not self._failed:
            shutil.rmtree(self._path, ignore_errors=True)
        os.close(self._lock)


def _in_memory() -> Path | None:
    """Return the folder in memory, unless ``TMPDIR`` names another or it is small or may hold no programs."""
    if "TMPDIR" in os.environ or not os.access(IN_MEMORY, os.W_OK):
        return None
    found = os.statvfs(IN_MEMORY)
    is_large = found.f_bavail * found.f_frsize >= FREE_BYTES_MIN
    return IN_MEMORY if is_large and not found.f_flag & os.ST_NOEXEC else None
