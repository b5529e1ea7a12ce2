"""Properties and bodies of messages: from AMQP 1.0 to headers and back, and to clients of MQTT."""

from __future__ import annotations

import uuid
from pathlib import Path

from tests.edge_node.servers.amqp1.harness import Message, amqp, in_thread, symbol, timestamp, ulong
from tests.edge_node.servers.mqtt.harness import RawClient
from weft.protocols.message_headers import EXPIRES
from weft.protocols.mqtt.packets import Publish
from weft.protocols.mqtt.properties import Properties

IDENTIFIER = uuid.uuid4()


async def test_properties_are_headers_with_typed_values(tmp_path: Path) -> None:
    sent = Message(
        body="text", id=ulong(7), subject="alarm", reply_to="answers/1", correlation_id=b"\0\1", priority=6,
        content_type="text/plain", creation_time=1.5, group_id="g", group_sequence=2,
        properties={
            "text": "t", "number": -5, "float": 0.5, "bytes": b"\0", "true": True, "nil": None, "weft.x": "mine",
            "when": timestamp(5), "id": IDENTIFIER, "big": ulong(1 << 63),
        },
        annotations={symbol("x-opt-a"): "b"},
    )  # fmt: skip
    async with amqp(tmp_path, wall_clock=lambda: 10**18) as node:
        client = await node.client()
        sent.ttl = 2.0
        await in_thread(client.send, "plant/1/x", sent)
        (record,) = await node.node.stored()
        assert record.payload == b"text"
        assert dict(record.headers) == {
            "text": "t", "number": -5, "float": 0.5, "bytes": b"\0", "true": True, "nil": None,
            "weft.user.weft.x": "mine", "when": 5, "id": str(IDENTIFIER), "big": str(1 << 63),
            "weft.message-id": 7, "weft.subject": "alarm", "weft.reply-to": "answers/1",
            "weft.correlation-id": b"\0\1", "weft.priority": 6, "weft.content-type": "text/plain",
            "weft.sent": 1_500_000_000, "amqp.group-id": "g", "amqp.group-sequence": 2,
            "amqp.annotation.x-opt-a": "b", "amqp.body": "string", EXPIRES: 10**18 + 2 * 10**9,
        }  # fmt: skip
        await client.close()


async def test_what_was_sent_comes_back_to_a_receiver(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        receiver = await in_thread(client.receiver, "stream/telemetry")
        for body in ("text", {"a": [1, None, True]}, b"binary", ["list", 1]):
            sent = Message(
                body=body, id="m", subject="s", reply_to="r", correlation_id="c", content_type="x/y", durable=True,
                properties={"a": 1, "b": "two", "c": 0.5}, annotations={symbol("x-opt-a"): 1}, priority=9, ttl=60,
            )  # fmt: skip
            await in_thread(client.send, "plant/1/x", sent)
            (found,) = await in_thread(client.receive, receiver, 1)
            assert (bytes(found.body) if isinstance(body, bytes) else found.body) == body
            for name in ("id", "subject", "reply_to", "correlation_id", "content_type", "properties", "priority"):
                assert getattr(found, name) == getattr(sent, name), name
            assert (found.durable, found.address, found.annotations["x-opt-a"]) == (True, "plant/1/x", 1)
            assert 50 < found.ttl <= 60
        await client.close()


async def test_mqtt_and_amqp_meet(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        receiver = await in_thread(client.receiver, "plant/#")
        mqtt = await RawClient.connect5(node.node.port, "mqtt")
        properties = Properties(
            content_type="x/y", response_topic="answers/1", correlation_data=b"c", user_properties=(("a", "b"),)
        )
        mqtt.send(Publish(b"plant/1/x", b"by MQTT", 1, packet_id=1, properties=properties))
        (found,) = await in_thread(client.receive, receiver, 1)
        assert (bytes(found.body), found.content_type, found.reply_to) == (b"by MQTT", "x/y", "answers/1")
        assert (bytes(found.correlation_id), found.properties) == (b"c", {"a": "b"})
        await mqtt.receive()  # PUBACK
        await mqtt.subscribe(("answers/+", 1))
        answer = Message(body="by AMQP", correlation_id=7, content_type="x/y", properties={"a": 5})
        await in_thread(client.send, "answers/1", answer)
        packet = await mqtt.receive()
        assert (packet.payload, packet.properties.content_type) == (b"by AMQP", "x/y")
        assert packet.properties.correlation_data == b"7"
        assert packet.properties.user_properties == (("a", "5"),)
        await client.close()
        await mqtt.close()
