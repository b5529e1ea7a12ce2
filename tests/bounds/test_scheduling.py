"""Work that waits its turn: some of it in each round, and no owner before another."""

from __future__ import annotations

import asyncio

import pytest

from weft.bounds import Owner, OwnerKind, RoundRobin, scheduling
from weft.bounds.scheduling import SLICE, BackgroundTask

ALICE, MALLORY = Owner(OwnerKind.USER, "alice"), Owner(OwnerKind.USER, "mallory")


async def until_idle(count: int = 200) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_owners_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "ROUND_S", 0.0)
    done: list[str] = []
    made = RoundRobin(lambda: done.append("|"), 0)
    for number in range(3):
        made.wait(MALLORY, lambda number=number: done.append(f"m{number}"))  # type: ignore[misc]
    made.wait(ALICE, lambda: done.append("a"))
    await until_idle()
    assert done == ["m0", "|", "a", "|", "m1", "|", "m2", "|"]


async def test_a_turn_can_be_awaited_and_given_up() -> None:
    done: list[str] = []
    made = RoundRobin(lambda: None, 0, turns_max=1)

    async def work(owner: Owner, name: str) -> None:
        await made.turn(owner)
        done.append(name)

    tasks = [asyncio.create_task(work(MALLORY, name)) for name in ("m0", "given up", "m1")]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(work(ALICE, "a")))
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert done == ["m0", "a", "m1"], "owners take turns, and one that was given up holds up nobody"


async def test_many_items_are_done_a_slice_at_a_time() -> None:
    done: list[int] = []
    made = RoundRobin(lambda: None, 0)
    made.each(MALLORY, range(3 * SLICE + 1), done.append)
    assert done == list(range(SLICE)), "few need no turn at all"
    await asyncio.sleep(0)
    assert len(done) == 2 * SLICE
    await until_idle()
    assert done == list(range(3 * SLICE + 1))


async def test_a_fault_of_one_keeps_no_other_waiting() -> None:
    done: list[str] = []
    made = RoundRobin(lambda: None, 0)
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))

    def fail() -> None:
        raise KeyError("missing")

    made.wait(MALLORY, fail)
    made.wait(ALICE, lambda: done.append("a"))
    await until_idle()
    assert done == ["a"]
    assert isinstance(faults[0], KeyError)


async def test_a_round_that_ends_with_a_fault_has_an_end() -> None:
    ends: list[str] = []
    made = RoundRobin(lambda: ends.append("end"), 0)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    def fail() -> None:
        raise KeyError("missing")

    made.wait(MALLORY, fail)
    await until_idle()
    assert ends == ["end"]


# --- A background task ends with its owner, whatever happened to it


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
