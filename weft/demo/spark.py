"""The demo's Spark session, started in the background and silenced."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NO_PERFORMANCE_DATA = dict.fromkeys(("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"), "-XX:-UsePerfData")
"""Java options of Spark and of its launcher that turn performance data off. Monitors read it from a folder of ``/tmp``,
which stays."""


@contextlib.contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Send this process's stderr, and that of its new child processes, to a file."""
    kept = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


class SparkStart(threading.Thread):
    """A Spark session that starts while the messages flow, because a JVM takes its time."""

    def __init__(self, log_path: Path) -> None:
        super().__init__(name="demo-spark", daemon=True)
        self._log_path = log_path
        self._session: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            from spark_sinks import session

            for name, options in _NO_PERFORMANCE_DATA.items():
                os.environ.setdefault(name, options)
            with stderr_to(self._log_path):  # the JVM keeps the stderr it is started with, and has much to say
                self._session = session()
        except BaseException as error:
            self._error = error

    def session(self) -> Any:
        """Return the session once it has started. Raises the error of a failed start."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._session
