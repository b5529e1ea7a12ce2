"""Storage calls of Spark's processes, which keep an event loop."""

from __future__ import annotations

import asyncio
import importlib.machinery
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator

import pytest

from spark_sinks import blocking
from spark_sinks.blocking import run
from spark_sinks.errors import ReadError


@pytest.fixture
def of_spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    blocking._runner.cache_clear()
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", importlib.machinery.ModuleSpec("pyspark.daemon", None))
    yield
    blocking._runner(os.getpid()).close()
    blocking._runner.cache_clear()


async def failing(stopped: list[str]) -> None:
    async def other() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("other")

    rest = asyncio.create_task(other())
    await asyncio.sleep(0)
    assert not rest.done()
    raise ReadError("no store")


@pytest.mark.usefixtures("of_spark")
def test_a_call_leaves_nothing_running_for_the_next() -> None:
    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    stopped: list[str] = []
    with pytest.raises(ReadError, match="no store"):
        run(failing(stopped))
    assert stopped == ["other"]
    assert run(loop()) is run(loop()), "a process of Spark has one loop"


@pytest.mark.usefixtures("of_spark")
def test_another_thread_has_a_loop_of_its_own() -> None:
    async def inner() -> int:
        return threading.get_ident()

    async def outer() -> int:
        return await asyncio.to_thread(run, inner())

    assert run(outer()) != threading.get_ident()


def test_a_process_that_users_code_forks_waits_for_no_thread_of_its_parent(of_spark: None) -> None:
    assert run(asyncio.to_thread(os.getpid)) == os.getpid()
    child = multiprocessing.get_context("fork").Process(target=lambda: run(asyncio.to_thread(os.getpid)))
    child.start()
    child.join(60)
    try:
        assert child.exitcode == 0
    finally:
        child.kill()
    assert run(asyncio.to_thread(os.getpid)) == os.getpid()
