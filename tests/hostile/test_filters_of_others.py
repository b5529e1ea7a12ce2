"""Filters of one user that are costly to match, to look up or to keep: others wait no longer than for their turn."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator

import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient
from tests.hostile.waits import at_most
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import PATIENCE_S
from weft.protocols.mqtt.decoder import decode
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import Connect, PubAck, Publish, SubAck, Subscribe, Subscription

pytestmark = pytest.mark.processes
UNDISTURBED_S, ATTACK_S = 1.5, 3.0
MESSAGES = 3000
FACTOR = 10
"""The well-behaved client's p99 may be so many times the undisturbed one."""
LEAST_S = 0.05
"""Undisturbed p99 below which the comparison would measure the machine."""


class Attacker:
    """A session of mallory's."""

    def __init__(self, edge: GuardedEdge, client_id: str, *, clean: bool = True) -> None:
        self.connection = socket.create_connection(("127.0.0.1", edge.mqtt_port), timeout=PATIENCE_S)
        hello = Connect(client_id, clean_start=clean, username="mallory", password=b"mallory")
        self.connection.sendall(encode(hello, 4))
        assert self.connection.recv(4)[3] == 0
        self._read = b""

    def subscribe(self, filters: list[str], qos: int = 0) -> int:
        """The number of filters that were taken."""
        self.ask_for(filters, qos)
        while not isinstance(answer := self.receive(), SubAck):
            pass
        return sum(code < 0x80 for code in answer.codes)

    def ask_for(self, filters: list[str], qos: int = 0) -> None:
        self.connection.sendall(encode(Subscribe(1, tuple(Subscription(each, qos) for each in filters)), 4))

    def receive(self) -> object:
        while (decoded := decode(self._read, 0, 1 << 20, 4)) is None:
            more = self.connection.recv(1 << 20)
            assert more, "the node closed the attacker's connection"
            self._read += more
        packet, end = decoded
        self._read = self._read[end:]
        return packet

    def publish(self, *topics: str, retain: bool = False) -> None:
        """Publish, and wait until the last one is acknowledged."""
        data = b"".join(encode(Publish(topic.encode(), b"x", 0, retain=retain), 4) for topic in topics)
        self.connection.sendall(data + encode(Publish(b"public/end", b"", 1, 1), 4))
        while not isinstance(self.receive(), PubAck):
            pass


@pytest.fixture
def good(edge: GuardedEdge) -> Iterator[GoodClient]:
    with GoodClient(edge, "device") as client:
        yield client


def measured(good: GoodClient, seconds: float) -> float:
    """The p99 since it was last measured and for a while, or the least that a comparison can use."""
    time.sleep(seconds)  # what is measured
    return max(good.take().p99, LEAST_S)


@pytest.mark.slow
def test_deep_filters_cost_a_message_little(edge: GuardedEdge, good: GoodClient) -> None:
    undisturbed = measured(good, UNDISTURBED_S)
    chance, taken, attackers = random.Random(1), 0, []
    for number in range(30):
        filters = {"/".join(["public", *chance.choices("a+", k=16), *"a" * 110]) for _ in range(78)}
        attackers.append(Attacker(edge, f"deep-{number}"))
        taken += attackers[-1].subscribe(sorted(filters))
    assert 0 < taken < 100
    publisher, deep = Attacker(edge, "publisher"), "/".join(["public", *"a" * 125])
    stopwatch, waits = Stopwatch(edge.pid), list[float]()
    while sum(waits) < ATTACK_S and len(waits) < MESSAGES:
        stopwatch.start()
        publisher.publish(f"{deep}/{len(waits)}")
        waits.append(stopwatch.seconds())
    assert len(waits) > 100, f"{sum(waits) / len(waits):.3f} s for a message"
    at_most(FACTOR * undisturbed, good.take().p99)
    assert 'bound="limits.user_share of limits.match_cost",owner="user mallory"' in edge.metrics()
    assert Attacker(edge, "common").subscribe(["public/+/+/x", "public/#"]) == 2


@pytest.mark.slow
def test_many_shared_subscriptions_stand_in_nobody_s_way(edge: GuardedEdge, good: GoodClient) -> None:
    undisturbed = measured(good, UNDISTURBED_S)
    attackers, taken = [], 0
    for number in range(20):
        attackers.append(Attacker(edge, f"shares-{number}", clean=False))
        taken += attackers[-1].subscribe([f"$share/g/public/{number}/{each}" for each in range(1000)], qos=1)
    assert taken == 20_000
    attackers += [Attacker(edge, f"copies-{number}") for number in range(2)]
    copies = [each.subscribe([f"$share/{id(each)}-{name}/public/x" for name in range(1000)]) for each in attackers[-2:]]
    assert sum(copies) <= 1024
    at_most(FACTOR * undisturbed, measured(good, ATTACK_S))
    for attacker in attackers:
        attacker.connection.close()
    time.sleep(1)  # their records are noted, one session after the other
    at_most(1, good.take().longest)
    at_most(FACTOR * undisturbed, measured(good, UNDISTURBED_S))


@pytest.mark.slow
def test_searches_of_retained_messages_take_turns(edge: GuardedEdge, good: GoodClient) -> None:
    undisturbed = measured(good, UNDISTURBED_S)
    first = Attacker(edge, "retains")
    for start in range(0, 10_000, 1000):
        first.publish(*(f"public/{each % 7}/{each}" for each in range(start, start + 1000)), retain=True)
    attackers = [Attacker(edge, f"searches-{number}") for number in range(10)]
    for number, attacker in enumerate(attackers):
        attacker.ask_for([f"public/+/+/nothing-{number}-{each}" for each in range(900)])
    at_most(FACTOR * undisturbed, measured(good, ATTACK_S))
    for attacker in attackers:
        attacker.connection.close()
    at_most(FACTOR * undisturbed, measured(good, UNDISTURBED_S))
