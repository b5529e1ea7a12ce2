"""Asynchronous storage calls from Spark's synchronous API."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from spark_sinks.errors import ReadError

Value = TypeVar("Value")


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
        asyncio.run(keep())
    else:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, keep()).result()
    return result[0]
