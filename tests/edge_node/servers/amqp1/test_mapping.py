"""Properties and bodies of messages: from AMQP 1.0 to headers and back, and to clients of MQTT."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

pytest.importorskip("proton", reason="python-qpid-proton is not installed: pip install weft-fabric[amqp1]")

from proton import (
    UNDESCRIBED,
    Array,
    Data,
    byte,
    char,
    decimal32,
    decimal64,
    decimal128,
    float32,
    int32,
    short,
    ubyte,
    uint,
    ushort,
)

from tests.edge_node.servers.amqp1.harness import Message, amqp, in_thread, symbol, timestamp, ulong
from tests.edge_node.servers.mqtt.harness import RawClient
from weft.edge_node.servers.amqp1.mapping import to_headers, to_message
from weft.edge_node.subscriptions.message import Message as Stored
from weft.protocols.amqp.typed_values import TYPES, Symbol, UInt32
from weft.protocols.amqp1 import Body, decode_message, encode_message
from weft.protocols.amqp1 import Message as Received
from weft.protocols.message_headers import EXPIRES
from weft.protocols.mqtt.packets import Properties, Publish

IDENTIFIER = uuid.uuid4()


async def test_properties_are_headers_with_typed_values(tmp_path: Path) -> None:
    sent = Message(
        body="text",
        id=ulong(7),
        subject="alarm",
        reply_to="answers/1",
        correlation_id=b"\0\1",
        priority=6,
        content_type="text/plain",
        creation_time=1.5,
        group_id="g",
        group_sequence=2,
        properties={
            "text": "t",
            "number": -5,
            "float": 0.5,
            "bytes": b"\0",
            "true": True,
            "nil": None,
            "weft.x": "mine",
            "when": timestamp(5),
            "id": IDENTIFIER,
            "big": ulong(1 << 63),
        },
        annotations={symbol("x-opt-a"): "b"},
    )
    async with amqp(tmp_path, wall_clock=lambda: 10**18) as node:
        client = await node.client()
        sent.ttl = 2.0
        await in_thread(client.send, "plant/1/x", sent)
        (record,) = await node.node.stored()
        assert record.payload == b"text"
        assert dict(record.headers) == {
            "text": "t",
            "number": -5,
            "float": 0.5,
            "bytes": b"\0",
            "true": True,
            "nil": None,
            "weft.user.weft.x": "mine",
            "when": "1970-01-01T00:00:00.005Z",
            "id": str(IDENTIFIER),
            "big": str(1 << 63),
            "weft.message-id": 7,
            "weft.subject": "alarm",
            "weft.reply-to": "answers/1",
            "weft.correlation-id": b"\0\1",
            "weft.priority": 6,
            "weft.content-type": "text/plain",
            "weft.sent": 1_500_000_000,
            "amqp.group-id": "g",
            "amqp.group-sequence": 2,
            "amqp.annotation.x-opt-a": "b",
            "amqp.body": "string",
            EXPIRES: 10**18 + 2 * 10**9,
            "amqp.types": '{"when":"T","id":"uuid","big":"ulong"}',
        }
        await client.close()


async def test_what_was_sent_comes_back_to_a_receiver(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        receiver = await in_thread(client.receiver, "stream/telemetry")
        for body in ("text", {"a": [1, None, True]}, b"binary", ["list", 1]):
            sent = Message(
                body=body,
                id="m",
                subject="s",
                reply_to="r",
                correlation_id="c",
                content_type="x/y",
                durable=True,
                properties={"a": 1, "b": "two", "c": 0.5},
                annotations={symbol("x-opt-a"): 1},
                priority=9,
                ttl=60,
            )
            await in_thread(client.send, "plant/1/x", sent)
            (found,) = await in_thread(client.receive, receiver, 1)
            assert (bytes(found.body) if isinstance(body, bytes) else found.body) == body
            for name in ("id", "subject", "reply_to", "correlation_id", "content_type", "properties", "priority"):
                assert getattr(found, name) == getattr(sent, name), name
            assert (found.durable, found.address, found.annotations["x-opt-a"]) == (True, "plant/1/x", 1)
            assert 50 < found.ttl <= 60
        await client.close()


async def test_every_type_comes_back_as_it_was_sent(tmp_path: Path) -> None:
    values = {
        "nil": None,
        "true": True,
        "ubyte": ubyte(255),
        "byte": byte(-1),
        "ushort": ushort(1),
        "short": short(-1),
        "uint": uint(1),
        "int": int32(-1),
        "ulong": ulong((1 << 64) - 1),
        "long": -5,
        "float": float32(0.5),
        "double": 0.1,
        "decimal32": decimal32(0x320004D2),
        "decimal64": decimal64(7),
        "decimal128": decimal128(bytes(16)),
        "char": char("\u00e9"),
        "time": timestamp(1_700_000_000_123),
        "uuid": IDENTIFIER,
        "binary": b"\0",
        "string": "s",
        "symbol": symbol("s"),
    }
    annotations = {
        symbol("x-opt-a"): [1, {"b": uint(2)}],
        symbol("x-opt-b"): Array(UNDESCRIBED, Data.SYMBOL, symbol("x")),
    }
    async with amqp(tmp_path) as node:
        client = await node.client()
        receiver = await in_thread(client.receiver, "stream/telemetry")
        sent = Message(body=b"", inferred=True, id=IDENTIFIER, properties=values, annotations=annotations)
        await in_thread(client.send, "plant/1/x", sent)
        (found,) = await in_thread(client.receive, receiver, 1)
        came = {**found.properties, "binary": bytes(found.properties["binary"])}  # Proton gives a view of it
        assert {name: (type(value), repr(value)) for name, value in came.items()} == {
            name: (type(value), repr(value)) for name, value in values.items()
        }
        assert found.id == IDENTIFIER
        for name, value in annotations.items():
            assert repr(found.annotations[name]) == repr(value)
        await client.close()


def test_the_footer_comes_back() -> None:
    footer = {Symbol("crc"): UInt32(7), Symbol("sum"): b"\0"}
    sent = encode_message(Received(footer=footer, body=Body("data", b"x")))
    headers = to_headers(decode_message(sent), 0, ())
    assert dict(headers) == {"amqp.footer.crc": 7, "amqp.footer.sum": b"\0", TYPES: '{"amqp.footer.crc":"i"}'}
    again = to_message(Stored(b"plant/1/x", b"x", headers=headers), 0, None, 0)
    assert decode_message(encode_message(again)).footer == footer


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
