"""A client identifier is no secret: with that of another user's device a client gets and destroys nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.edge_node.servers.mqtt.harness import RawClient
from tests.hostile.edge import GuardedEdge
from weft.protocols.mqtt.packets import Disconnect, PubAck, Publish

pytestmark = pytest.mark.processes
CLIENT_ID = "press-7"


async def connect(edge: GuardedEdge, user: str, client_id: str = CLIENT_ID, **fields: Any) -> RawClient:
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
    alice = await connect(edge, "alice")
    assert await alice.subscribe(("secret/#", 1)) == (1,)
    device = await connect(edge, "device", "device")
    await say(device, b"in flight")
    assert bytes((await alice.receive()).payload) == b"in flight"  # and is not acknowledged
    alice.writer.transport.abort()
    await say(device, b"stored 1", b"stored 2")
    if restarts:
        edge.restart()
        device = await connect(edge, "device", "device")
    mallory = await connect(edge, "mallory", clean_start=clean_start)
    assert not mallory.welcome.session_present
    await say(device, b"stored 3")
    assert await mallory.silent()
    await leave(mallory)
    alice = await connect(edge, "alice")
    assert alice.welcome.session_present
    assert await hear(alice, 4) == [b"in flight", b"stored 1", b"stored 2", b"stored 3"]
    await leave(alice)


async def test_a_connection_is_not_ended_by_another_user(edge: GuardedEdge) -> None:
    alice = await connect(edge, "alice")
    await alice.subscribe(("secret/#", 1))
    mallory = await connect(edge, "mallory")
    device = await connect(edge, "device", "device")
    await say(device, b"code")
    assert await hear(alice, 1) == [b"code"]
    assert await mallory.silent()


async def test_what_may_not_be_read_any_more_is_not_sent_again(edge: GuardedEdge) -> None:
    alice = await connect(edge, "alice")
    await alice.subscribe(("secret/#", 1), ("plant/#", 1))
    device = await connect(edge, "device", "device")
    await say(device, b"code")
    await alice.receive()  # and does not acknowledge it
    alice.writer.transport.abort()
    rules = (edge.folder / "acl").read_text()
    (edge.folder / "acl").write_text(rules.replace("topic readwrite secret/#\n", ""))
    edge.restart()
    alice = await connect(edge, "alice")
    device = await connect(edge, "device", "device")
    device.send(Publish(b"plant/a/b/telemetry", b"next", 1, packet_id=1))
    assert await hear(alice, 1) == [b"next"]
