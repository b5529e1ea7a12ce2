"""A node of several processes, over processes that end at once."""

from __future__ import annotations

import asyncio
import errno
import logging
import sys

import pytest

from tests.support.waiting import PATIENCE_S
from weft.service import serving
from weft.service.serving import CannotStart, DidNotStart, Signals, Supervisor


async def test_a_machine_that_cannot_start_a_process_for_a_moment_does_not_stop_the_node(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "RESTART_MIN_S", 0.05)
    starts, again, start = 0, asyncio.Event(), asyncio.create_subprocess_exec

    async def sometimes(*args: str, **options: object) -> asyncio.subprocess.Process:
        nonlocal starts
        starts += 1
        if starts == 2:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        if starts == 3:
            again.set()
        return await start(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", sometimes)
    signals = Signals()
    node = asyncio.create_task(Supervisor(lambda _number, _alive, _first: ["--version"], 1).run(signals))
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(PATIENCE_S):
            await again.wait()
    assert not node.done()
    signals.stop.set()
    await node
    assert "process 0 ended: exit status 0; starting it again" in caplog.text
    assert "process 0 cannot be started: Resource temporarily unavailable; starting it again" in caplog.text


async def test_a_process_that_is_killed_before_it_is_ready_is_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "RESTART_MIN_S", 0.05)
    starts, again, start = 0, asyncio.Event(), asyncio.create_subprocess_exec

    async def killed_at_first(*args: str, **options: object) -> asyncio.subprocess.Process:
        nonlocal starts
        starts += 1
        process = await start(*args, **options)  # type: ignore[arg-type]
        if starts == 1:
            process.kill()
        else:
            again.set()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", killed_at_first)
    signals = Signals()
    node = asyncio.create_task(Supervisor(lambda _number, _alive, _first: ["--version"], 1).run(signals))
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(PATIENCE_S):
            await again.wait()
    assert not node.done()
    signals.stop.set()
    await node
    assert "process 0 ended: killed by SIGKILL; starting it again" in caplog.text


async def test_a_process_that_never_was_ready_ends_the_node() -> None:
    with pytest.raises(DidNotStart) as ended:
        await Supervisor(lambda _number, _alive, _first: ["no-such-command"], 1).run(Signals())
    assert ended.value.status == 2


async def test_a_machine_that_starts_no_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(CannotStart, match=r"process 0 of the hub, /nonexistent/python, cannot be started: No such"):
        await Supervisor(lambda _number, _alive, _first: ["--version"], 1).run(Signals())
