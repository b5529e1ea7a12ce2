"""ClientSlots and those who wait for one. Holders are numbers here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from weft.network import admission
from weft.network.admission import ClientSlots, HalfOpen

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


# --- Which half-open connection makes room for another


@dataclass(eq=False)
class Guest:
    origin: str


def test_the_address_with_most_makes_room_with_its_oldest() -> None:
    half_open: HalfOpen[Guest] = HalfOpen()
    device, flood = Guest("10.0.0.1"), [Guest("10.0.0.66") for _ in range(5)]
    half_open.add(device)
    for each in flood:
        half_open.add(each)
    for expected in flood[:4]:
        assert half_open.victim() is expected
        assert half_open.discard(expected)
    assert half_open.victim() is device, "with one each, the address that came first"
    assert not half_open.discard(flood[0])
    assert half_open.discard(device)
    assert list(half_open) == flood[4:]
    assert len(half_open) == 1


def test_an_address_that_a_proxy_names_later_counts_from_then_on() -> None:
    half_open: HalfOpen[Guest] = HalfOpen()
    behind_a_proxy = [Guest("10.0.0.2") for _ in range(3)]
    for each in behind_a_proxy:
        half_open.add(each)
    for number, each in enumerate(behind_a_proxy):
        each.origin = f"192.0.2.{number % 2}"
        assert half_open.discard(each)
        half_open.add(each)
    assert half_open.victim() is behind_a_proxy[0]
    assert half_open.discard(behind_a_proxy[0])
    assert len(half_open) == 2
