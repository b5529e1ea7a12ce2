"""ClientSlots and those who wait for one. Holders are numbers here."""

from __future__ import annotations

import asyncio

import pytest

from weft.network import admission
from weft.network.admission import ClientSlots

LONG_S = 10.0


@pytest.fixture
def full() -> ClientSlots[int]:
    """Two slots, of 1 and 2."""
    made: ClientSlots[int] = ClientSlots(2)
    made.take(1)
    made.take(2)
    return made


async def turns() -> None:
    """Let the event loop do all that is due."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_waits_gets_the_slots_that_become_free_in_order(
    full: ClientSlots[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "WAIT_S", LONG_S)
    waiting = [asyncio.create_task(full.get(holder)) for holder in (3, 4, 5)]
    await turns()
    full.leave(2)
    await turns()
    assert [task.done() for task in waiting] == [True, False, False]
    full.leave(1)
    full.leave(3)
    assert await asyncio.gather(*waiting) == [True, True, True]
    assert len(full) == 2


async def test_without_a_slot_in_time_the_answer_is_no(full: ClientSlots[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "WAIT_S", 0.01)
    assert not await full.get(3)
    full.leave(1)
    await turns()
    assert len(full) == 1, "nothing is kept for a holder that gave up"
    assert await full.get(4)


async def test_who_is_displaced_leaves_its_slot_to_its_successor(
    full: ClientSlots[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many wait, the number of holders does not grow."""
    monkeypatch.setattr(admission, "WAIT_S", LONG_S)
    waiting = asyncio.create_task(full.get(3))
    await turns()
    for holder in range(10, 20):
        full.leave(1 if holder == 10 else holder - 1)
        full.take(holder)
        await turns()
        assert len(full) == 2
    assert not waiting.done()
    full.leave(2)
    assert await waiting


async def test_who_left_while_it_waited_gets_none(full: ClientSlots[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "WAIT_S", LONG_S)
    gone, stays = asyncio.create_task(full.get(3)), asyncio.create_task(full.get(4))
    await turns()
    full.leave(3)
    assert not await gone
    full.leave(1)
    assert await stays
    assert len(full) == 2


async def test_a_cancelled_wait_is_passed_over(full: ClientSlots[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "WAIT_S", LONG_S)
    cancelled, stays = asyncio.create_task(full.get(3)), asyncio.create_task(full.get(4))
    await turns()
    full.leave(1)
    cancelled.cancel()
    assert await stays
    assert len(full) == 2
