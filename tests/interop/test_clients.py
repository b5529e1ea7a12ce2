"""What people do with MQTT, with the clients that they use, over real sockets."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conformance.conftest import Broker
from tests.interop.conftest import Connect
from tests.interop.peers import Message, MqttJs, Options
from tests.support import forked

SILENCE_S = 0.3


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_publish_and_subscribe(connect: Connect, topic: str, qos: int) -> None:
    subscriber, publisher = await connect(), await connect()
    await subscriber.subscribe(f"{topic}/#", qos)
    payloads = [b"%d" % n for n in range(5)]
    for payload in payloads:
        await publisher.publish(f"{topic}/a", payload, qos)
    got = [await subscriber.receive() for _ in payloads]
    assert got == [Message(f"{topic}/a", payload, qos, False) for payload in payloads]
    await subscriber.close()
    await publisher.close()


async def test_retained(connect: Connect, topic: str) -> None:
    publisher = await connect()
    await publisher.publish(topic, b"kept", 1, retain=True)
    subscriber = await connect()
    await subscriber.subscribe(topic, 1)
    assert await subscriber.receive() == Message(topic, b"kept", 1, True)
    await publisher.publish(topic, b"", 1, retain=True)
    late = await connect()
    await late.subscribe(topic, 1)
    with pytest.raises(TimeoutError):
        await late.receive(SILENCE_S)


async def test_will(connect: Connect, topic: str) -> None:
    watching = await connect()
    await watching.subscribe(topic, 1)
    lost = await connect(will=Message(topic, b"gone", 1, False))
    await lost.drop()
    assert await watching.receive() == Message(topic, b"gone", 1, False)


async def test_no_will_after_disconnect(connect: Connect, topic: str) -> None:
    watching = await connect()
    await watching.subscribe(topic, 1)
    leaving = await connect(will=Message(topic, b"gone", 1, False))
    await leaving.close()
    with pytest.raises(TimeoutError):
        await watching.receive(SILENCE_S)


async def test_shared_subscription(connect: Connect, topic: str, library: tuple[str, int]) -> None:
    if library[1] != 5:
        pytest.skip("shared subscriptions are of MQTT 5")
    members = [await connect() for _ in range(2)]
    for member in members:
        await member.subscribe(f"$share/group/{topic}", 1)
    publisher = await connect()
    for n in range(10):
        await publisher.publish(topic, b"%d" % n, 1)
    got: list[list[bytes]] = [[], []]
    while sum(map(len, got)) < 10:
        for index, member in enumerate(members):
            try:
                got[index].append((await member.receive(SILENCE_S)).payload)
            except TimeoutError:
                continue
    assert Counter(got[0] + got[1]) == Counter(b"%d" % n for n in range(10))
    assert all(got), "both take part"


async def test_user_properties(connect: Connect, topic: str, library: tuple[str, int]) -> None:
    if library[1] != 5:
        pytest.skip("user properties are of MQTT 5")
    subscriber, publisher = await connect(), await connect()
    await subscriber.subscribe(topic, 1)
    pairs = (("unit", "bar"), ("site", "north"))
    await publisher.publish(topic, b"x", 1, pairs=pairs)
    message = await subscriber.receive()
    assert (message.payload, message.user_properties) == (b"x", pairs)


@pytest.mark.parametrize("leave", ["close", "drop"])
async def test_reconnect_with_session(connect: Connect, topic: str, client_id: str, leave: str) -> None:
    first = await connect(client_id, persistent=True)
    await first.subscribe(topic, 1)
    await getattr(first, leave)()
    publisher = await connect()
    payloads = [b"%d" % n for n in range(5)]
    for payload in payloads:
        await publisher.publish(topic, payload, 1)
    second = await connect(client_id, persistent=True)
    assert [(await second.receive()).payload for _ in payloads] == payloads
    await second.close()


# --- Clients that publish thousands of messages in one go, whatever the server's Receive Maximum says


MESSAGES = 10_000
TAIL_S_MAX = 60.0


def payloads(broker: Broker, topic: str) -> list[int]:
    """What the log has of a topic, in its order."""
    command = [sys.executable, "-m", "weft", "edge", "tail", str(broker.config), "kept", "--json", "--filter", topic]
    done = forked.run([*command, "--last", "1000000"], capture_output=True, text=True, timeout=TAIL_S_MAX, check=True)
    return [int(json.loads(line)["payload"]) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
async def test_each_message_is_one_record(mqttjs: Path, broker: Broker, version: int, qos: int) -> None:
    """MQTT.js sends past the Receive Maximum, and all again after a disconnect: 0x93 would double what is stored."""
    topic = f"kept/burst/{version}/{qos}"
    peer = MqttJs(Options(broker.port, f"burst-{version}-{qos}", version))
    await peer.connect()
    try:
        await peer.burst(topic, MESSAGES, qos)
        assert payloads(broker, topic) == list(range(MESSAGES))
    finally:
        await peer.drop()
