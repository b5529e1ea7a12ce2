"""A background task ends with its owner, whatever happened to it."""

from __future__ import annotations

import asyncio

import pytest

from weft.bounds.scheduling import BackgroundTask


async def test_a_task_runs_until_it_is_closed_and_may_start_again() -> None:
    task, steps = BackgroundTask(), list[str]()

    async def work() -> None:
        steps.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("ended")

    assert not await task.close(), "nothing was started"
    for _ in range(2):
        task.start(work(), name="work")
        await asyncio.sleep(0)
        assert task.is_running
        assert await task.close()
        assert not task.is_running
    assert steps == ["begun", "ended"] * 2


async def test_a_cancelled_caller_is_cancelled_and_the_next_one_waits() -> None:
    task, continues = BackgroundTask(), asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await continues.wait()

    task.start(slow(), name="slow")
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await task.close()
    assert task.is_running
    continues.set()
    assert await task.close()
