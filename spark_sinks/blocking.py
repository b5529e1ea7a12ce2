"""Asynchronous storage calls from Spark's synchronous API."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from spark_sinks.errors import ReadError

Value = TypeVar("Value")


def is_of_spark(module: str = "pyspark.") -> bool:
    """Return whether this process was started by Spark: it runs a module of PySpark whose name begins so."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith(module)


def run(work: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine to its end, also if this thread already runs an event loop, as in a notebook.

    Raises:
        ReadError: the coroutine's error, without the frames in between: Spark prints them all before the sentence.
    """
    try:
        return _run(work)
    except ReadError as error:
        raise error.with_traceback(None) from None


def _run(work: Coroutine[Any, Any, Value]) -> Value:
    result: list[Value] = []

    async def keep() -> None:
        # The task itself returns nothing: when asyncio.run removes its signal handler, Python 3.11 makes the repr of
        # the handler, of the task and of its result. For megabytes of chunks this took twice as long as decoding.
        result.append(await work)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if is_of_spark() and threading.current_thread() is threading.main_thread():
            _runner(os.getpid()).run(_alone(keep()))
        else:
            asyncio.run(keep())
    else:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, keep()).result()
    return result[0]


@cache
def _runner(process: int) -> asyncio.Runner:  # noqa: ARG001
    """Return the event loop of a process of Spark, whose main thread makes one call after the other.

    A loop of its own for each call, with threads that read files, took longer than the reads of a small task.

    Args:
        process: number of this process. One that a user's code forks has none of the threads of its parent's loop; that
            loop stays referenced there, as its end would change what the parent waits for.
    """
    return asyncio.Runner()


async def _alone(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, and cancel what it leaves running, as ``asyncio.run`` does."""
    try:
        await work
    finally:
        if rest := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
