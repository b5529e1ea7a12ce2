"""Python processes of Spark without traces of broken pipes.

Spark closes its end when it has read enough, after ``limit``, ``show`` or ``first``, and when a query is stopped.
PySpark's processes then print a trace on the user's terminal, although nothing is wrong: the daemon prints one for each
worker, and the process that plans a query's batches its own if it was about to answer.
"""

from __future__ import annotations

import sys
import traceback
from types import TracebackType
from typing import Any

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
