from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.forked import run
from tests.support.steps import CALL_S_MAX, STEP_S_MAX, CallTimes, Guard, LongStep, guarded


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def burn_in_the_collector(phase: str, _: object) -> None:
    if phase == "start":
        burn(2 * STEP_S_MAX)


async def steps(lengths: list[float]) -> None:
    for seconds in lengths:
        burn(seconds)
        await asyncio.sleep(0)


@pytest.mark.parametrize("lengths", [[0.0], [STEP_S_MAX / 4] * 8])
async def test_short_steps_are_no_matter_however_many(lengths: list[float]) -> None:
    found: list[LongStep] = []
    with Guard(found.append).on():
        await asyncio.create_task(steps(lengths))
        await asyncio.to_thread(burn, 2 * STEP_S_MAX)
    assert found == []


async def test_a_long_step_is_found_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.steps.slowness", lambda: 1.0)
    found: list[LongStep] = []
    with Guard(found.append).on():
        await asyncio.create_task(steps([0.0, 3 * STEP_S_MAX]))
        asyncio.get_running_loop().call_soon(burn, 3 * STEP_S_MAX)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [step.name for step in found] == ["steps", "burn"]
    assert all(step.seconds > STEP_S_MAX for step in found)
    burn(3 * STEP_S_MAX)
    await asyncio.create_task(steps([3 * STEP_S_MAX]))
    assert len(found) == 2, "the guard ends with its block"


async def test_a_long_step_says_what_it_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.steps.slowness", lambda: 1.0)
    found: list[LongStep] = []
    for times in (3, 30, 300):  # a thread looks at it, which has to get a processor meanwhile
        with Guard(found.append).on():
            await asyncio.create_task(steps([times * STEP_S_MAX]))
        if any(each.endswith(" burn") for each in found[-1].where):
            return
    pytest.fail("nothing was seen of it")


def test_a_long_call_of_another_thread_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.steps.slowness", lambda: 1.0)
    found: list[LongStep] = []

    def work(*pieces: Callable[[], object]) -> None:
        CallTimes(found.append).watch()
        try:
            thread = threading.Thread(target=lambda: [piece() for piece in pieces], name="other")
            thread.start()
        finally:
            threading.setprofile(None)
        thread.join()

    work(lambda: burn(3 * CALL_S_MAX), lambda: zlib.compress(bytes(64 << 20), 1))
    assert found == [], "both let others work"
    work(lambda: sum(range(20_000_000)))
    [call] = found
    assert call.name == "sum in the thread other"
    assert call.where[-1].endswith("<lambda>")


async def test_the_collector_s_time_is_no_step_s() -> None:
    found: list[LongStep] = []
    with Guard(found.append).on():
        gc.callbacks.append(burn_in_the_collector)
        try:
            asyncio.get_running_loop().call_soon(gc.collect, 0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        finally:
            gc.callbacks.remove(burn_in_the_collector)
    assert found == []


@pytest.mark.slow
def test_commands_that_do_not_serve_are_left_alone(tmp_path: Path) -> None:
    with guarded(tmp_path / "long"):
        assert run([sys.executable, "-m", "weft", "--version"], capture_output=True).returncode == 0
    assert (tmp_path / "long").read_bytes() == b""


def test_what_processes_found_fails_the_block(tmp_path: Path) -> None:
    with guarded(tmp_path / "long") as guard:
        guard.check()
        (tmp_path / "long").write_text('{"seconds": 0.03, "name": "serve", "where": ["here"]}\n')
        with pytest.raises(AssertionError, match=r"1 steps took more than 20 ms.*\n.*30 ms in serve"):
            guard.check()
        guard.check()
