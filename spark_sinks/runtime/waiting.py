"""Waiting for a streaming query in a script that Ctrl-C or a service manager may end, and its end without noise."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol, TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

SIGNALS = (signal.SIGINT, signal.SIGTERM)


LOOK_S = 0.5
"""Time between two checks of a running query."""
SIGNAL_S = 1.0
"""Time for which an error of the bridge to Java waits for the signal that may be its cause. The handler of a signal
runs in the main thread, and the bridge's own thread may be before it."""
_STEP_S = 0.01


class Query(Protocol):
    """A running query: Spark's ``StreamingQuery``, or one with the same methods."""

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Return whether it runs."""

    def awaitTermination(self) -> bool | None:  # noqa: N802
        """Wait for its end."""

    def stop(self) -> None:
        """End it."""

    def exception(self) -> BaseException | None:
        """Return the error with which it ended."""


Running = TypeVar("Running", bound=Query)


class Stop(threading.Event):
    """Set when a query is to end, or has ended."""

    asked = False
    """True if a signal asked for it."""


_INTERRUPTIONS = (
    "SPARK_JOB_CANCELLED",
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
"""Words of Spark's errors about work that the stop of a query interrupted."""


class JobInterrupted(Exception):
    """A batch whose work was interrupted, in the few words by which Spark knows that a stopped query ended well.

    Spark searches the text of an error for them with a regular expression that takes a frame of Java's stack for each
    character. The trace of an error of Java is longer than that: the query's thread would end in a StackOverflowError.
    """

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling the sink: java.lang.InterruptedException: "
            "the work was cancelled"
        )


@contextmanager
def interrupted_shortly() -> Iterator[None]:
    """Raise ``JobInterrupted`` in place of an error of Spark about interrupted work. Put it around a batch."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        if not any(each in str(error) for each in _INTERRUPTIONS):
            raise
        raise JobInterrupted from None


def _is_of_stop(error: BaseException) -> bool:
    """Return whether an error only says that a stopped query was interrupted, or that Java has ended, too: a signal to
    a whole group of processes, as service managers send it, ends Java first."""
    if isinstance(error, Py4JError | ConnectionError | EOFError):
        return True
    return isinstance(error, PySparkException) and any(each in str(error) for each in (*_INTERRUPTIONS, "py4j."))


def await_termination(query: Running, look: Callable[[Running], None] | None = None, stop: Stop | None = None) -> None:
    """Wait until a streaming query ends; stop it cleanly at Ctrl-C (SIGINT) or SIGTERM.

    ``query.awaitTermination()`` waits too. But in it, PySpark answers a signal with calls to the JVM from within a
    call. They fail, and PySpark prints three tracebacks. After a signal, work that was interrupted is no error, and
    neither is a Java process that got the signal, too: the next start does that work again.

    Args:
        look: called with the query about every ``LOOK_S`` seconds while it runs, and once when it has ended.
        stop: the event of ``stop_asked``, if signals were held while the query started.

    Raises:
        StreamingQueryException: the query failed.
        ValueError: not called from the main thread, the only one that gets signals.
    """
    with stop_asked() if stop is None else nullcontext(stop) as over:
        waiter = threading.Thread(target=_wait, args=(query, over), name="weft-await-termination", daemon=True)
        waiter.start()
        try:
            while not over.wait(None if look is None else LOOK_S):
                if look is not None:
                    look(query)
            _end(query, waiter, look)
        except Exception as error:
            if not (over.asked and _is_of_stop(error)):
                raise


def _end(query: Running, waiter: threading.Thread, look: Callable[[Running], None] | None) -> None:
    """Stop a query, and raise what ended it."""
    if query.isActive:
        query.stop()
    waiter.join()
    if look is not None:
        look(query)
    if (error := query.exception()) is not None:
        raise error


def silence_py4j() -> None:
    """Keep the logs of the bridge to Java from the terminal until this process ends.

    When Java is gone, it writes a traceback for each call, to logs of its own and to Python's root log, which prints
    them. Threads that Java calls do so even when all that waited for them has ended.
    """
    logging.getLogger("py4j").propagate = False
    logging.root.addFilter(_is_not_of_py4j)


class _Unasked(logging.Filter):
    """Keeps errors of the bridge to Java from the terminal that come with a signal."""

    def __init__(self, stop: Stop) -> None:
        super().__init__()
        self._stop = stop

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or _is_not_of_py4j(record):
            return True
        for _ in range(math.ceil(SIGNAL_S / _STEP_S)):
            if self._stop.asked:
                break
            time.sleep(_STEP_S)
        return not self._stop.asked


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname.split(os.sep)


def _wait(query: Query, over: threading.Event) -> None:
    try:
        query.awaitTermination()
    except Exception:  # noqa: S110  # Raised again by the main thread, where the caller sees it.
        pass
    finally:
        over.set()


@contextmanager
def stop_asked() -> Iterator[Stop]:
    """Return an event that Ctrl-C (SIGINT) or SIGTERM sets, instead of the signals' usual effect.

    Around the start of a query, it keeps a signal from interrupting a call to the JVM. From the signal on, the bridge
    to Java logs nothing within.

    Raises:
        ValueError: not called from the main thread.
    """
    event = Stop()

    def ask(*_: object) -> None:
        event.asked = True
        event.set()

    before = {number: signal.signal(number, ask) for number in SIGNALS}
    # Filters count for the log alone to which a record is given.
    quiet, names = _Unasked(event), (None, "py4j.clientserver", "py4j.java_gateway")
    logs = [logging.getLogger(name) for name in names]
    for log in logs:
        log.addFilter(quiet)
    try:
        yield event
    finally:
        for log in logs:
            log.removeFilter(quiet)
        for number, handler in before.items():
            signal.signal(number, handler)


# Spark without its log on the terminal: the Java process keeps the standard error that it is started with.

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
