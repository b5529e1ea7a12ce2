"""Patience counts what the machine could do, and ends before a test's own limit."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.clocks import Clock
from tests.support.waiting import PATIENCE_S, Patience, by_the_clock, share, until, wait_until


def test_a_quiet_machine_has_as_long_as_was_said() -> None:
    clock = Clock()
    patience = Patience(20, clock, lambda: 1.0)
    clock.now = 19.9
    assert not patience.is_over()
    clock.now = 20
    assert patience.is_over()


def test_a_machine_with_ten_times_the_work_has_ten_times_as_long() -> None:
    clock = Clock()
    patience = Patience(20, clock, lambda: 0.1)
    for second in range(1, 200):
        clock.now = second
        assert not patience.is_over()
    clock.now = 201
    assert patience.is_over()


def test_a_load_counts_while_it_lasts() -> None:
    clock, busy = Clock(), [0.1]
    patience = Patience(20, clock, lambda: busy[0])
    clock.now = 100
    assert patience.left() == pytest.approx(10)
    busy[0] = 1.0
    clock.now = 109
    assert patience.left() == pytest.approx(1)


def test_no_wait_outlasts_the_limit_of_its_test(pytestconfig: pytest.Config) -> None:
    clock = Clock()
    patience = Patience(20, clock, lambda: 0.0)
    clock.now = PATIENCE_S
    assert patience.is_over()
    assert PATIENCE_S < float(pytestconfig.getini("timeout"))


def test_listening_for_nothing_ends_by_the_clock() -> None:
    assert 0 < by_the_clock(0.3).left() <= 0.3
    assert by_the_clock(0).is_over()


def test_a_program_never_has_more_than_a_processor() -> None:
    assert 0 < share() <= 1


def test_what_is_waited_for_is_told() -> None:
    with pytest.raises(AssertionError, match="in 0 s it did not happen: the last message"):
        wait_until(lambda: False, 0, "the last message")
    with pytest.raises(AssertionError, match="a log of 3 lines"):
        wait_until(lambda: False, 0, lambda: f"a log of {1 + 2} lines")


async def test_an_event_loop_waits_for_what_is_asked_with_await_too() -> None:
    answers = iter((False, True))

    async def answer() -> bool:
        await asyncio.sleep(0)
        return next(answers)

    await until(answer)
    with pytest.raises(TimeoutError):
        await until(lambda: False, 0)
