"""One user may fill its own share of what the node keeps for its clients, and nothing of what others need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.edge_node.servers.mqtt.harness import RawClient
from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient
from tests.hostile.waits import at_most
from weft.protocols.mqtt.packets import ConnAck, Connect, Disconnect, Properties, PubAck, Publish, ReasonCode, Will

pytestmark = pytest.mark.processes
LIMITS = "sessions: 200, subscriptions_total: 4000, wills: 1MiB, retained: 400"
FOR_LONG = Properties(session_expiry_interval=100_000)
BIG_WILL = Will(b"public/gone", b"w" * 60_000, properties=Properties(will_delay_interval=100_000))
SMALL_WILL = Will(b"plant/gone", b"gone", 1)


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[GuardedEdge]:
    node = GuardedEdge(tmp_path, LIMITS)
    node.start()
    try:
        yield node
    finally:
        node.stop()


async def connect(edge: GuardedEdge, user: str, client_id: str, will: Will | None = None) -> tuple[RawClient, ConnAck]:
    """A client of a persistent session, and what CONNACK said."""
    client = await RawClient.open(edge.mqtt_port)
    client.version = 5
    who: dict[str, Any] = {"username": user, "password": user.encode()}
    client.send(Connect(client_id, version=5, clean_start=False, will=will, properties=FOR_LONG, **who))
    answer = await client.receive()
    assert isinstance(answer, ConnAck)
    return client, answer


async def leave(client: RawClient) -> None:
    client.send(Disconnect())
    assert await client.receive() is None
    await client.close()


async def publish(client: RawClient, topic: str, *, retain: bool = False, payload: bytes = b"x") -> int:
    client.send(Publish(topic.encode(), payload, 1, 7, retain))
    while not isinstance(answer := await client.receive(), PubAck):
        pass
    return int(answer.code)


async def take_all(edge: GuardedEdge) -> None:
    """Fill each bound as far as it goes, as mallory."""
    refused = 0
    for number in range(220):
        client, answer = await connect(edge, "mallory", f"m{number}", BIG_WILL)
        refused += answer.code == ReasonCode.QUOTA_EXCEEDED
        client.writer.transport.abort()
    assert refused > 200, "wills"
    for number in range(220):
        client, answer = await connect(edge, "mallory", f"n{number}")
        assert answer.code == 0
        await leave(client)
    codes: list[int] = []
    for number in range(5):
        client, _ = await connect(edge, "mallory", f"s{number}")
        codes += await client.subscribe(*((f"public/{number}/{each}", 1) for each in range(900)))
    assert 0 < codes.count(ReasonCode.QUOTA_EXCEEDED) < len(codes), "subscriptions"
    codes = [await publish(client, f"public/{number}", retain=True) for number in range(420)]
    assert 300 < codes.count(ReasonCode.QUOTA_EXCEEDED) < 420, "retained messages"


async def check_others(edge: GuardedEdge, name: str) -> None:
    """Others can do what they could, and the messages that wait for alice are there."""
    client, answer = await connect(edge, "device", name, SMALL_WILL)
    assert answer.code == 0
    assert await client.subscribe(*((f"plant/{number}/{name}", 1) for number in range(500))) == (1,) * 500
    for number in range(50):
        assert await publish(client, f"plant/{number}/{name}", retain=True) in {0, ReasonCode.NO_MATCHING_SUBSCRIBERS}
    await leave(client)


@pytest.mark.slow
async def test_one_user_takes_its_share_and_no_more(edge: GuardedEdge) -> None:
    alice, _ = await connect(edge, "alice", "alice")
    await alice.subscribe(("secret/#", 1))
    await leave(alice)
    device, _ = await connect(edge, "device", "bell")
    assert await publish(device, "secret/door", payload=b"ring") == 0
    with GoodClient(edge, "device") as good:
        await take_all(edge)
        at_most(1, good.take().p99)
        await check_others(edge, "during")
    edge.restart()
    await check_others(edge, "after")
    alice, answer = await connect(edge, "alice", "alice")
    assert answer.session_present
    assert (await alice.receive()).payload == b"ring"
    await leave(alice)


async def test_metrics_and_status_name_who_is_refused(edge: GuardedEdge) -> None:
    client, _ = await connect(edge, "mallory", "m")
    for number in range(101):
        await publish(client, f"public/{number}", retain=True)
    bound = "limits.user_share of limits.retained"
    line = f'weft_edge_refusals_total{{bound="{bound}",owner="user mallory"}} 1.0'
    assert line in edge.metrics().splitlines()
    assert edge.status()["refusals"] == [{"bound": bound, "owner": "user mallory", "times": 1}]
