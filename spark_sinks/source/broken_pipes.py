"""Python workers of Spark without traces of broken pipes.

Spark closes its end when it has read enough, after ``limit``, ``show`` or ``first``. PySpark's daemon then prints a
trace on the terminal of the person who asked, for each worker, though nothing is wrong.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

_DAEMON = "pyspark.daemon"


def keep_broken_pipes_quiet() -> None:
    """Let this process print no trace of a broken pipe if it is a worker of PySpark's daemon; else do nothing."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or spec.name != _DAEMON or getattr(traceback.print_exc, "is_ours", False):
        return
    print_exc = traceback.print_exc

    def print_others(*args: Any, **options: Any) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            print_exc(*args, **options)

    print_others.is_ours = True  # type: ignore[attr-defined]
    traceback.print_exc = print_others
