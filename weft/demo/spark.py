"""The demo's Spark session, started in the background and silenced."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any


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
            from spark_sinks.runtime.quiet import NO_PERFORMANCE_DATA, stderr_to

            for name, options in NO_PERFORMANCE_DATA.items():
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
