"""The demo's Spark session, started in the background and silenced."""

from __future__ import annotations

import os
import threading
from typing import Any

CONF = {
    # The demo is over before the compiler of long runs pays: without it, and with a collector in one thread, the first
    # window takes 17 seconds of CPU from Spark's start on, and 30 with Spark's own settings.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}


class SparkStart(threading.Thread):
    """A Spark session that starts while the messages flow, because a JVM takes its time."""

    def __init__(self) -> None:
        super().__init__(name="demo-spark", daemon=True)
        self._session: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            from spark_sinks import session
            from spark_sinks.pipelines import job  # noqa: F401  (imports take a second, which the replay must not lose)
            from spark_sinks.runtime.quiet import NO_PERFORMANCE_DATA

            for name, options in NO_PERFORMANCE_DATA.items():
                os.environ.setdefault(name, options)
            self._session = session(**CONF)
        except BaseException as error:
            self._error = error

    def session(self) -> Any:
        """Return the session; None while it starts. Raises the error of a failed start."""
        if self._error is not None:
            raise self._error
        return self._session

    def finish(self, timeout_s: float) -> None:
        """Wait until the start has ended: the interpreter must not end in the middle of a native import."""
        if self.ident is not None:
            self.join(timeout_s)
