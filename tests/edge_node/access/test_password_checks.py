"""Wrong passwords of one client keep no other waiting: turns of addresses and users, and pauses after wrong ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.support.waiting import PATIENCE_S
from weft.bounds import Bound, Quota, Refusals, user_or_address
from weft.edge_node.access import authentication
from weft.edge_node.access.authentication import BACK_OFF_S, FREE_TRIES, THREADS, PasswordChecks, TooMany

HOSTILE, OTHER = user_or_address(None, "10.0.0.66"), user_or_address(None, "10.0.0.1")


class Hall:
    """Checks whose threads wait for ``opened``, a clock that stands, and the order in which passwords were checked."""

    def __init__(self, total: int = 100, share: int = 100) -> None:
        self.now = 1000.0
        self.opened = threading.Event()
        self.checked: list[str] = []
        self.refusals = Refusals(lambda: self.now)
        self.waiting = Bound(Quota("total", total, share, "passwords"), self.refusals)
        self.checks = PasswordChecks(self.waiting, self.refusals, lambda: self.now)
        self.known: set[str] = set()

    def ask(self, address: object, user: str, *, right: bool = False) -> asyncio.Task[bool]:
        def verify() -> bool:
            assert self.opened.wait(PATIENCE_S)
            self.checked.append(user)
            return right

        return asyncio.ensure_future(
            self.checks.is_right(address, user, lambda: user in self.known, verify)  # type: ignore[arg-type]
        )

    async def settled(self) -> None:
        """Have everything asked that was begun."""
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
def hall() -> Iterator[Hall]:
    made = Hall()
    yield made
    made.opened.set()
    made.checks.close()


async def test_addresses_take_turns(hall: Hall) -> None:
    flood = [hall.ask(HOSTILE, f"made up {number}") for number in range(50)]
    await hall.settled()
    device = hall.ask(OTHER, "press-7", right=True)
    await hall.settled()
    hall.opened.set()
    assert await device
    assert hall.checked.index("press-7") <= 2 * THREADS
    assert not any(await asyncio.gather(*flood))
    assert hall.waiting.used == 0


async def test_users_of_an_address_take_turns(hall: Hall) -> None:
    flood = [hall.ask(HOSTILE, "alice") for _ in range(50)]
    await hall.settled()
    device = hall.ask(HOSTILE, "press-7", right=True)
    await hall.settled()
    hall.opened.set()
    assert await device
    assert hall.checked.index("press-7") <= 2 * THREADS
    await asyncio.gather(*flood)


async def test_a_password_that_was_found_right_meanwhile_is_not_checked(hall: Hall) -> None:
    all_of_them = [hall.ask(OTHER, "press-7", right=True) for _ in range(20)]
    await hall.settled()
    hall.known.add("press-7")
    hall.opened.set()
    assert all(await asyncio.gather(*all_of_them))
    assert len(hall.checked) == THREADS


async def test_wrong_passwords_make_the_same_user_of_the_same_address_wait(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(authentication.asyncio, "sleep", pause)  # type: ignore[attr-defined]
    hall.opened.set()
    for _ in range(FREE_TRIES):
        assert not await hall.ask(HOSTILE, "alice")
    assert pauses == []
    assert not await hall.ask(HOSTILE, "alice")
    assert pauses == [BACK_OFF_S]
    outcomes = await asyncio.gather(*(hall.ask(HOSTILE, "alice") for _ in range(60)), return_exceptions=True)
    assert any(isinstance(each, TooMany) and "wrong passwords" in str(each) for each in outcomes)
    assert len(hall.checked) < FREE_TRIES + 30
    assert [(each.bound, each.owner) for each in hall.refusals] == [("wrong passwords", HOSTILE)]
    pauses.clear()
    assert await hall.ask(OTHER, "alice", right=True), "from elsewhere she is not kept waiting"
    assert await hall.ask(HOSTILE, "press-7", right=True), "and others are not"
    assert pauses == []
    hall.now += 60
    assert await hall.ask(HOSTILE, "alice", right=True)
    assert await hall.ask(HOSTILE, "alice", right=True)
    assert pauses == [], "a right one ends it"


async def test_one_address_has_a_share_of_the_checks_that_wait() -> None:
    hall = Hall(share=5)
    flood = [hall.ask(HOSTILE, f"{number}") for number in range(20)]
    await hall.settled()
    device = hall.ask(OTHER, "press-7", right=True)
    hall.opened.set()
    outcomes = await asyncio.gather(*flood, return_exceptions=True)
    assert sum(isinstance(each, TooMany) for each in outcomes) == 15
    assert await device
    hall.checks.close()


async def test_where_too_many_wait_the_address_with_most_gives_way() -> None:
    hall = Hall(total=10)
    flood = [hall.ask(HOSTILE, f"{number}") for number in range(20)]
    await hall.settled()
    devices = [hall.ask(OTHER, f"press-{number}", right=True) for number in range(3)]
    await hall.settled()
    hall.opened.set()
    assert all(await asyncio.gather(*devices))
    outcomes = await asyncio.gather(*flood, return_exceptions=True)
    assert sum(isinstance(each, TooMany) for each in outcomes) == 13
    assert hall.waiting.used == 0
    hall.checks.close()


async def test_who_goes_away_takes_its_turn_from_nobody(hall: Hall) -> None:
    flood = [hall.ask(HOSTILE, f"{number}") for number in range(50)]
    await hall.settled()
    for each in flood:
        each.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    assert hall.waiting.used == 0
    device = hall.ask(OTHER, "press-7", right=True)
    await hall.settled()
    hall.opened.set()
    assert await device
    assert len(hall.checked) <= THREADS + 1
