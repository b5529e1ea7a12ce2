"""The time that clients have, one by one and together."""

from __future__ import annotations

from collections.abc import Callable

from weft.edge_node.servers.clients.context import READS_S_MAX, ReadPacing
from weft.edge_node.servers.mqtt.connection import cost
from weft.protocols.mqtt.packets import PingReq, Publish, Subscribe, Subscription


class Loop:
    """An event loop whose clock the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> object:
        self.due.append(callback)
        return object()

    def next(self) -> None:
        self.due.pop(0)()


def test_the_reads_of_one_iteration_have_a_time_together() -> None:
    loop = Loop()
    pacing = ReadPacing(loop)  # type: ignore[arg-type]
    assert pacing.admits(loop.now)
    loop.now += READS_S_MAX / 2
    assert pacing.admits(loop.now)
    loop.now += READS_S_MAX
    assert not pacing.admits(loop.now)
    loop.next()
    assert pacing.admits(loop.now), "the next iteration has a time of its own"


def test_a_packet_costs_what_it_makes_the_node_do() -> None:
    assert cost(Subscribe(1, tuple(Subscription(f"a/{number}", 0) for number in range(7)))) == 7
    assert cost(PingReq()) == 1
    assert cost(Publish(b"a", b"x" * 1000, 0)) == 0
