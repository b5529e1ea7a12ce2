"""Python processes of Spark: quiet about broken pipes, settled after a task, and planners that send rows along."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Iterator, Sequence
from functools import cache
from types import ModuleType, TracebackType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_sinks.blocking import is_of_spark

# Python processes of Spark without traces of broken pipes.
#
# Spark closes its end when it has read enough, after ``limit``, ``show`` or ``first``, and when a query is stopped.
# PySpark's processes then print a trace on the user's terminal, although nothing is wrong: the daemon prints one for
# each worker, and the process that plans a query's batches its own if it was about to answer.

_DAEMON = "pyspark.daemon"
_PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"


def keep_broken_pipes_quiet() -> None:
    """Suppress traces of broken pipes in this process if it is one of PySpark's; else do nothing."""
    if is_of_spark(_DAEMON) and not getattr(traceback.print_exc, "is_ours", False):
        _patch_daemon()
    elif is_of_spark(_PLANNER) and not getattr(sys.excepthook, "is_ours", False):
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


# Rows of small micro-batches, sent with their plan.
#
# A task in a Python worker takes ten milliseconds and more before its first row, whatever it reads. Spark spares the
# readers of its class `SimpleDataSourceStreamReader` this: the planner sends the rows with the plan, and Java keeps
# them as a block beside the task's partition. A task that finds no block, as after the loss of an executor, reads its
# partition in a worker as always. That class has neither limits nor a latest offset, so its way is taken here for a
# plan alone.


def send_rows_with_plans() -> None:
    """Let this process ask readers for ``rows_with_plan`` if it is one of Spark's planners; else do nothing."""
    planner = sys.modules.get("__main__")
    if planner is not None and is_of_spark(_PLANNER):
        _patch_plans(planner)


@cache
def _patch_plans(planner: ModuleType) -> None:
    spark_plan, wrapper = (
        getattr(planner, "partitions_func", None),
        getattr(planner, "_SimpleStreamReaderWrapper", None),
    )
    if spark_plan is None or not hasattr(wrapper, "getCache"):
        return  # A release of Spark with another planner: all rows are read by tasks.

    class WithRows(wrapper):  # type: ignore[misc, valid-type]
        """A reader as Spark's planner sees it while it plans."""

        def __init__(self, reader: Any) -> None:
            self._reader = reader
            self._tasks: Sequence[InputPartition] = ()

        def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
            self._tasks = self._reader.partitions(start, end)
            return self._tasks

        def getCache(self, start: Any, end: Any) -> Iterator[pa.RecordBatch] | None:  # noqa: N802  (Spark's name)
            del start, end  # Spark asks right after the plan.
            return self._reader.rows_with_plan(self._tasks)

    def plan(reader: Any, *arguments: Any) -> None:
        spark_plan(WithRows(reader) if hasattr(reader, "rows_with_plan") else reader, *arguments)

    planner.partitions_func = plan  # type: ignore[attr-defined]


# Garbage collection in Spark's Python workers.


@cache
def settle() -> None:
    """Exclude this Python worker's imports from garbage collection; in other processes do nothing.

    Spark's daemon calls ``gc.collect()`` after every task and every call of the driver. Arrow, deltalake and PySpark
    are hundreds of thousands of objects that live as long as the process. Scanning them took longer than reading a
    small task: a third of the processor time of a scan, and most of a micro-batch's.
    """
    if is_of_spark():
        gc.collect()
        gc.freeze()
