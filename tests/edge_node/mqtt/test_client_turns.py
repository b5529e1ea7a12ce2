"""Clients that wait for another turn get it fairly, by owner."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from weft.bounds import Owner, OwnerKind
from weft.edge_node.mqtt.turns import READS_S_MAX, ROUND_S_MAX, Turns, cost
from weft.protocols.mqtt.packets import PingReq, Publish, Subscribe, Subscription

ANNE, BERT = Owner(OwnerKind.USER, "anne"), Owner(OwnerKind.USER, "bert")


class Loop:
    """An event loop whose clock the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, _delay: float, callback: Callable[[], None]) -> object:
        self.due.append(callback)
        return object()

    def call_soon(self, callback: Callable[[], None]) -> object:
        self.due.append(callback)
        return object()

    def next(self) -> None:
        self.due.pop(0)()


def test_owners_take_turns_however_many_connections_they_have() -> None:
    loop, served = Loop(), list[str]()
    turns = Turns(loop)  # type: ignore[arg-type]
    for name in ("a1", "a2", "a3"):
        turns.wait(ANNE, partial(served.append, name))
    turns.wait(BERT, lambda: served.append("b1"))
    loop.next()
    assert served == ["a1", "b1", "a2", "a3"]
    assert loop.due == [], "nobody waits, nothing runs"


def test_a_round_is_short_and_the_rest_comes_in_the_next() -> None:
    loop, served = Loop(), list[int]()
    turns = Turns(loop)  # type: ignore[arg-type]

    def work(number: int) -> None:
        served.append(number)
        loop.now += ROUND_S_MAX / 2
        if number < 5:
            turns.wait(ANNE, lambda: work(number + 1))

    turns.wait(ANNE, lambda: work(0))
    rounds = []
    while loop.due:
        before = len(served)
        loop.next()
        rounds.append(len(served) - before)
    assert rounds == [2, 2, 2]


def test_the_reads_of_one_iteration_have_a_time_together() -> None:
    loop = Loop()
    turns = Turns(loop)  # type: ignore[arg-type]
    assert turns.admits(loop.now)
    loop.now += READS_S_MAX / 2
    assert turns.admits(loop.now)
    loop.now += READS_S_MAX
    assert not turns.admits(loop.now)
    loop.next()
    assert turns.admits(loop.now), "the next iteration has a time of its own"


def test_what_becomes_of_one_client_does_not_stop_the_others() -> None:
    loop, served = Loop(), list[str]()
    turns = Turns(loop)  # type: ignore[arg-type]

    def fail() -> None:
        raise RuntimeError

    turns.wait(ANNE, fail)
    turns.wait(BERT, lambda: served.append("b"))
    try:
        loop.next()
    except RuntimeError:
        loop.next()
    assert served == ["b"]


def test_a_packet_costs_what_it_makes_the_node_do() -> None:
    assert cost(Subscribe(1, tuple(Subscription(f"a/{number}", 0) for number in range(7)))) == 7
    assert cost(PingReq()) == 1
    assert cost(Publish(b"a", b"x" * 1000, 0)) == 0
