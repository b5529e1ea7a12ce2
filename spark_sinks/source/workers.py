"""Python processes of Spark's workers: quiet about broken pipes, and settled after a task."""

from __future__ import annotations

import gc
import sys
import traceback
from functools import cache
from types import TracebackType
from typing import Any

# Python processes of Spark without traces of broken pipes.
#
# Spark closes its end when it has read enough, after ``limit``, ``show`` or ``first``, and when a query is stopped.
# PySpark's processes then print a trace on the user's terminal, although nothing is wrong: the daemon prints one for
# each worker, and the process that plans a query's batches its own if it was about to answer.

_DAEMON = "pyspark.daemon"
_PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"


def keep_broken_pipes_quiet() -> None:
    """Suppress traces of broken pipes in this process if it is one of PySpark's; else do nothing."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = None if spec is None else spec.name
    if name == _DAEMON and not getattr(traceback.print_exc, "is_ours", False):
        _patch_daemon()
    elif name == _PLANNER and not getattr(sys.excepthook, "is_ours", False):
        _patch_planner()


def _patch_daemon() -> None:
    print_exc = traceback.print_exc

    def print_others(*args: Any, **options: Any) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            print_exc(*args, **options)

    print_others.is_ours = True  # type: ignore[attr-defined]
    traceback.print_exc = print_others


def _patch_planner() -> None:
    excepthook = sys.excepthook

    def print_others(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, BrokenPipeError):
            excepthook(kind, error, trace)

    print_others.is_ours = True  # type: ignore[attr-defined]
    sys.excepthook = print_others


# Garbage collection in Spark's Python workers.


@cache
def settle() -> None:
    """Exclude this Python worker's imports from garbage collection; in other processes do nothing.

    Spark's daemon calls ``gc.collect()`` after every task and every call of the driver. Arrow, deltalake and PySpark
    are hundreds of thousands of objects that live as long as the process. Scanning them took longer than reading a
    small task: a third of the processor time of a scan, and most of a micro-batch's.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name.startswith("pyspark."):
        gc.collect()
        gc.freeze()
