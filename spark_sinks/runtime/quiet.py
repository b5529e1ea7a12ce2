"""Spark without its log on the terminal: the Java process keeps the standard error that it is started with."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

NO_PERFORMANCE_DATA = dict.fromkeys(("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"), "-XX:-UsePerfData")
"""Java options of Spark and of its launcher that turn performance data off: Java would leave a folder for it in
``/tmp``."""


@contextlib.contextmanager
def stderr_to(path: str | os.PathLike[str]) -> Iterator[None]:
    """Send this process's standard error, and that of its new child processes, to a file."""
    kept = os.dup(2)
    with open(path, "ab") as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def keep_lost_java_quiet(spark: SparkSession) -> None:
    """Let the thread that Java sends accumulators to print no traceback when Java ends before it."""
    server = spark.sparkContext._accumulatorServer
    print_error = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
            print_error(request, client_address)

    server.handle_error = handle_error


_CONTEXT_LOGS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Logs in which PySpark writes an error of analysis, as JSON with the Java trace, before it raises the error."""


@contextlib.contextmanager
def without_context_logs() -> Iterator[None]:
    """Keep errors of analysis from standard error while they are caught and explained."""
    # Created by PySpark's own class: PySpark passes these logs arguments that another logger rejects.
    logs = [PySparkLogger.getLogger(name) for name in _CONTEXT_LOGS]
    before = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    try:
        yield
    finally:
        for log, was_disabled in zip(logs, before, strict=True):
            log.disabled = was_disabled
