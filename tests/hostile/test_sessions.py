"""Sessions and filters of one user fill that user's share, and those of others stay as they were."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.edge_node.servers.mqtt.harness import RawClient
from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient, at_most
from tests.support.slices import SLICE
from tests.support.speed import Stopwatch
from tests.support.waiting import PATIENCE_S
from weft.protocols.mqtt.decoder import decode
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Properties,
    PubAck,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)

pytestmark = pytest.mark.processes


# --- A user whose sessions change all the time fills its own share of the session journal, and slows itself down


LONG = [f"public/{number}/{'x' * 60_000}" for number in range(15)]
"""Filters of a packet of nearly 1 MiB: each is in the journal."""


async def connect(edge: GuardedEdge, user: str, client_id: str) -> tuple[RawClient, ConnAck | None]:
    client = await RawClient.open(edge.mqtt_port)
    client.send(Connect(client_id, clean_start=False, username=user, password=user.encode()))
    return client, await client.receive()


async def subscribe_and_unsubscribe(edge: GuardedEdge, number: int) -> None:
    client, _ = await connect(edge, "mallory", f"churn-{number}")
    try:
        while True:
            client.send(Subscribe(1, tuple(Subscription(text, 1) for text in LONG)), Unsubscribe(2, tuple(LONG)))
            if await client.receive() is None or await client.receive() is None:
                return
    finally:
        await client.close()


async def connect_and_leave(edge: GuardedEdge, number: int) -> None:
    client, answer = await connect(edge, "mallory", f"churn-{number}")
    if answer is not None and answer.code == 0:
        client.send(Subscribe(1, (Subscription(LONG[number], 1),)), Disconnect())
        await client.receive()
    await client.close()


Attack = Callable[[GuardedEdge, int], Coroutine[None, None, None]]


@asynccontextmanager
async def attacked(edge: GuardedEdge, attack: Attack) -> AsyncIterator[None]:
    async def again_and_again(number: int) -> None:
        while True:
            with suppress(OSError, TimeoutError):
                await attack(edge, number)
            await asyncio.sleep(0.01)

    attackers = [asyncio.create_task(again_and_again(number)) for number in range(3)]
    try:
        yield
    finally:
        for each in attackers:
            each.cancel()
        await asyncio.gather(*attackers, return_exceptions=True)


async def come_and_go(edge: GuardedEdge, seconds: float) -> tuple[Counter[str], float]:
    """A device with a persistent session that comes, publishes and goes: what came of it, and its longest time."""
    outcomes: Counter[str] = Counter()
    longest, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        stopwatch = Stopwatch(edge.pid)
        client, answer = await connect(edge, "device", "comes-and-goes")
        if isinstance(answer, ConnAck) and answer.code == 0:
            client.send(Publish(b"plant/a/b/telemetry", b"x", 1, 7))
            outcomes["acknowledged" if isinstance(await client.receive(), PubAck) else "closed"] += 1
            client.send(Disconnect())
            await client.receive()
        else:
            outcomes[f"refused: {answer}"] += 1
        await client.close()
        longest = max(longest, stopwatch.seconds())
        await asyncio.sleep(0.05)
    return outcomes, longest


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("attack", "seconds"),
    [
        (subscribe_and_unsubscribe, 2),
        *(
            pytest.param(attack, SLICE.amount(ci=3, night=8), marks=pytest.mark.search)
            for attack in SLICE.some([connect_and_leave, subscribe_and_unsubscribe], ci=1)
        ),
    ],
)
async def test_churn_of_one_user_neither_stops_others_nor_fills_the_disk(
    edge: GuardedEdge, attack: Attack, seconds: float
) -> None:
    before = bytes_of(edge.folder / "data")
    with GoodClient(edge, "device") as good:
        async with attacked(edge, attack):
            outcomes, longest = await come_and_go(edge, seconds)
        waits = good.take()
    written = bytes_of(edge.folder / "data") - before
    figures = dict(line.split() for line in edge.metrics().splitlines() if line.startswith("weft_edge_journal"))
    assert set(outcomes) == {"acknowledged"}
    at_most(1, longest)
    at_most(1, waits.p99)
    assert float(figures["weft_edge_journal_refused_total"]) == 0
    assert float(figures["weft_edge_journal_bytes"]) < 40e6, "a burst, and what comes between two saves"
    assert written < 100e6


# --- A client identifier is no secret: with that of another user's device a client gets and destroys nothing


CLIENT_ID = "press-7"


async def sessions_of_others_connect(
    edge: GuardedEdge, user: str, client_id: str = CLIENT_ID, **fields: Any
) -> RawClient:
    return await RawClient.connect(
        edge.mqtt_port, client_id, username=user, password=user.encode(), clean_start=fields.pop("clean_start", False)
    )


async def leave(client: RawClient) -> None:
    client.send(Disconnect())
    assert await client.receive() is None
    await client.close()


async def say(device: RawClient, *payloads: bytes) -> None:
    for number, payload in enumerate(payloads, 1):
        device.send(Publish(b"secret/door", payload, 1, packet_id=number))
        answer = await device.receive()
        assert isinstance(answer, PubAck)


async def hear(client: RawClient, count: int) -> list[bytes]:
    heard = []
    for _ in range(count):
        message = await client.receive()
        assert isinstance(message, Publish)
        client.send(PubAck(message.packet_id))
        heard.append(bytes(message.payload))
    return heard


@pytest.mark.parametrize(
    ("clean_start", "restarts"),
    [
        pytest.param(False, False, marks=pytest.mark.slow),
        (False, True),
        (True, False),
        pytest.param(True, True, marks=pytest.mark.slow),
    ],
)
async def test_messages_stored_for_one_user_are_no_other_s(
    edge: GuardedEdge, clean_start: bool, restarts: bool
) -> None:
    alice = await sessions_of_others_connect(edge, "alice")
    assert await alice.subscribe(("secret/#", 1)) == (1,)
    device = await sessions_of_others_connect(edge, "device", "device")
    await say(device, b"in flight")
    assert bytes((await alice.receive()).payload) == b"in flight"  # and is not acknowledged
    alice.writer.transport.abort()
    await say(device, b"stored 1", b"stored 2")
    if restarts:
        edge.restart()
        device = await sessions_of_others_connect(edge, "device", "device")
    mallory = await sessions_of_others_connect(edge, "mallory", clean_start=clean_start)
    assert not mallory.welcome.session_present
    await say(device, b"stored 3")
    assert await mallory.silent()
    await leave(mallory)
    alice = await sessions_of_others_connect(edge, "alice")
    assert alice.welcome.session_present
    assert await hear(alice, 4) == [b"in flight", b"stored 1", b"stored 2", b"stored 3"]
    await leave(alice)


async def test_a_connection_is_not_ended_by_another_user(edge: GuardedEdge) -> None:
    alice = await sessions_of_others_connect(edge, "alice")
    await alice.subscribe(("secret/#", 1))
    mallory = await sessions_of_others_connect(edge, "mallory")
    device = await sessions_of_others_connect(edge, "device", "device")
    await say(device, b"code")
    assert await hear(alice, 1) == [b"code"]
    assert await mallory.silent()


async def test_what_may_not_be_read_any_more_is_not_sent_again(edge: GuardedEdge) -> None:
    alice = await sessions_of_others_connect(edge, "alice")
    await alice.subscribe(("secret/#", 1), ("plant/#", 1))
    device = await sessions_of_others_connect(edge, "device", "device")
    await say(device, b"code")
    await alice.receive()  # and does not acknowledge it
    alice.writer.transport.abort()
    rules = (edge.folder / "acl").read_text()
    (edge.folder / "acl").write_text(rules.replace("topic readwrite secret/#\n", ""))
    edge.restart()
    alice = await sessions_of_others_connect(edge, "alice")
    device = await sessions_of_others_connect(edge, "device", "device")
    device.send(Publish(b"plant/a/b/telemetry", b"next", 1, packet_id=1))
    assert await hear(alice, 1) == [b"next"]


# --- One user may fill its own share of what the node keeps for its clients, and nothing of what others need


LIMITS = "sessions: 200, subscriptions_total: 4000, wills: 1MiB, retained: 400"
FOR_LONG = Properties(session_expiry_interval=100_000)
BIG_WILL = Will(b"public/gone", b"w" * 60_000, properties=Properties(will_delay_interval=100_000))
SMALL_WILL = Will(b"plant/gone", b"gone", 1)


@pytest.fixture
def shares_of_users_edge(tmp_path: Path) -> Iterator[GuardedEdge]:
    node = GuardedEdge(tmp_path, LIMITS)
    node.start()
    try:
        yield node
    finally:
        node.stop()


async def shares_of_users_connect(
    edge: GuardedEdge, user: str, client_id: str, will: Will | None = None
) -> tuple[RawClient, ConnAck]:
    """A client of a persistent session, and what CONNACK said."""
    client = await RawClient.open(edge.mqtt_port)
    client.version = 5
    who: dict[str, Any] = {"username": user, "password": user.encode()}
    client.send(Connect(client_id, version=5, clean_start=False, will=will, properties=FOR_LONG, **who))
    answer = await client.receive()
    assert isinstance(answer, ConnAck)
    return client, answer


async def publish(client: RawClient, topic: str, *, retain: bool = False, payload: bytes = b"x") -> int:
    client.send(Publish(topic.encode(), payload, 1, 7, retain))
    while not isinstance(answer := await client.receive(), PubAck):
        pass
    return int(answer.code)


async def take_all(edge: GuardedEdge) -> None:
    """Fill each bound as far as it goes, as mallory."""
    refused = 0
    for number in range(220):
        client, answer = await shares_of_users_connect(edge, "mallory", f"m{number}", BIG_WILL)
        refused += answer.code == ReasonCode.QUOTA_EXCEEDED
        client.writer.transport.abort()
    assert refused > 200, "wills"
    for number in range(220):
        client, answer = await shares_of_users_connect(edge, "mallory", f"n{number}")
        assert answer.code == 0
        await leave(client)
    codes: list[int] = []
    for number in range(5):
        client, _ = await shares_of_users_connect(edge, "mallory", f"s{number}")
        codes += await client.subscribe(*((f"public/{number}/{each}", 1) for each in range(900)))
    assert 0 < codes.count(ReasonCode.QUOTA_EXCEEDED) < len(codes), "subscriptions"
    codes = [await publish(client, f"public/{number}", retain=True) for number in range(420)]
    assert 300 < codes.count(ReasonCode.QUOTA_EXCEEDED) < 420, "retained messages"


async def check_others(edge: GuardedEdge, name: str) -> None:
    """Others can do what they could, and the messages that wait for alice are there."""
    client, answer = await shares_of_users_connect(edge, "device", name, SMALL_WILL)
    assert answer.code == 0
    assert await client.subscribe(*((f"plant/{number}/{name}", 1) for number in range(500))) == (1,) * 500
    for number in range(50):
        assert await publish(client, f"plant/{number}/{name}", retain=True) in {0, ReasonCode.NO_MATCHING_SUBSCRIBERS}
    await leave(client)


@pytest.mark.slow
async def test_one_user_takes_its_share_and_no_more(shares_of_users_edge: GuardedEdge) -> None:
    alice, _ = await shares_of_users_connect(shares_of_users_edge, "alice", "alice")
    await alice.subscribe(("secret/#", 1))
    await leave(alice)
    device, _ = await shares_of_users_connect(shares_of_users_edge, "device", "bell")
    assert await publish(device, "secret/door", payload=b"ring") == 0
    with GoodClient(shares_of_users_edge, "device") as good:
        await take_all(shares_of_users_edge)
        at_most(1, good.take().p99)
        await check_others(shares_of_users_edge, "during")
    shares_of_users_edge.restart()
    await check_others(shares_of_users_edge, "after")
    alice, answer = await shares_of_users_connect(shares_of_users_edge, "alice", "alice")
    assert answer.session_present
    assert (await alice.receive()).payload == b"ring"
    await leave(alice)


async def test_metrics_and_status_name_who_is_refused(shares_of_users_edge: GuardedEdge) -> None:
    client, _ = await shares_of_users_connect(shares_of_users_edge, "mallory", "m")
    for number in range(101):
        await publish(client, f"public/{number}", retain=True)
    bound = "limits.user_share of limits.retained"
    line = f'weft_edge_refusals_total{{bound="{bound}",owner="user mallory"}} 1.0'
    assert line in shares_of_users_edge.metrics().splitlines()
    assert shares_of_users_edge.status()["refusals"] == [{"bound": bound, "owner": "user mallory", "times": 1}]


# --- Filters of one user that are costly to match, to look up or to keep: others wait no longer than for their turn


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
