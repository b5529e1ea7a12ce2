"""Traces of messages, from real clients by every protocol to a collector."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aio_pika
import aiohttp
from paho.mqtt.client import MQTTv5
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.collector import Collector, collecting
from tests.support.live_node import LiveNode, running
from tests.support.mqtt_client import BlockingPaho
from weft.config.metrics.exposition import Sample
from weft.edge_node.status.facts import samples
from weft.protocols.message_headers import TRACE

TRACE_ID, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = (f"00-{TRACE_ID}-{PARENT}-{flags}" for flags in ("01", "00"))


def configuration(collector: Collector, **tracing: object) -> str:
    more = "".join(f", {name}: {value}" for name, value in tracing.items())
    return (
        "node: press-7\ndata_dir: data\nhttp: null\n"
        "listeners: {mqtt: {bind: 127.0.0.1:0}, amqp: {bind: 127.0.0.1:0}, http: {bind: 127.0.0.1:0}}\n"
        'streams: {telemetry: {from: "plant/#"}}\n'
        f"tracing: {{endpoint: {collector.url}{more}}}\n"
    )


def publish(port: int, *parents: str | None) -> None:
    """Publish a message by MQTT 5.0 for each value of `traceparent`; None for one without."""
    client = BlockingPaho("press", protocol=MQTTv5)
    client.connect(port)
    for parent in parents:
        properties = Properties(PacketTypes.PUBLISH)
        if parent is not None:
            properties.UserProperty = ("traceparent", parent)
        client.paho.publish("plant/1", b"21.5", 1, properties=properties).wait_for_publish(10)
    client.close()


async def test_messages_by_every_protocol_have_a_span_under_their_publishers(tmp_path: Path) -> None:
    with collecting() as collector:
        async with running(tmp_path, configuration(collector)) as node:
            live = LiveNode(node, tmp_path)
            await asyncio.to_thread(publish, live.port, SAMPLED, UNSAMPLED, "00-nonsense", None)
            connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{node.addresses['amqp'].port}/")  # type: ignore[union-attr]
            async with connection:
                channel = await connection.channel()
                exchange = await channel.get_exchange("amq.topic")
                message = aio_pika.Message(b"22", headers={"traceparent": SAMPLED})
                await exchange.publish(message, "plant.1")
            url = f"http://127.0.0.1:{node.addresses['http'].port}/v1/streams/telemetry/plant/1"  # type: ignore[union-attr]
            async with aiohttp.ClientSession(headers={"traceparent": SAMPLED, "tracestate": "x=1"}) as http:
                assert (await http.post(url, data=b"23")).status == 200
                many = {"Content-Type": "application/x-ndjson"}
                assert (await http.post(url, data=b"1\n2\n3", headers=many)).status == 200
            records = await live.stored()
            spans = await asyncio.to_thread(collector.wait, "weft accept", count=4)
            log = f"{node.log.log_id:016x}"
    assert len(records) == 9
    assert {(span.trace, span.parent, span.error) for span in spans} == {(TRACE_ID, PARENT, "")}
    assert [(span.attributes["network.protocol.name"], span.attributes["weft.seq"]) for span in spans] == [
        ("mqtt", 0),
        ("amqp", 4),
        ("http", 5),
        ("http", 6),
    ]
    assert spans[0].attributes == {
        "weft.tenant": "default",
        "weft.edge": "press-7",
        "weft.log": log,
        "weft.stream": "telemetry",
        "weft.seq": 0,
        "messaging.destination.name": "plant/1",
        "messaging.message.body.size": 4,
        "network.protocol.name": "mqtt",
    }
    assert spans[3].attributes["messaging.batch.message_count"] == 3
    assert spans[0].resource["service.name"] == "weft-edge"
    assert spans[0].resource["service.instance.id"] == "press-7"
    assert all(0 < span.end - span.start < 60e9 for span in spans)
    # The hub finds the edge's span in the record, and subscribers the publisher's own context.
    traces = [dict(record.headers).get(TRACE) for record in records]
    of_edge = [f"00-{TRACE_ID}-{span.span}-01" for span in spans]
    assert traces == [of_edge[0], None, None, None, *of_edge[1:3], *3 * [of_edge[3]]]
    assert dict(records[0].headers)["traceparent"] == SAMPLED
    assert dict(records[1].headers)["traceparent"] == UNSAMPLED
    assert [dict(records[5].headers)[name] for name in ("traceparent", "tracestate")] == [SAMPLED, "x=1"]


async def test_persistent_sessions_and_every_qos_are_traced(tmp_path: Path) -> None:
    def send(port: int) -> None:
        session = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval = 600
        client = BlockingPaho("press", protocol=MQTTv5)
        client.paho.connect("127.0.0.1", port, clean_start=False, properties=session)
        client.paho.loop_start()
        client.code()
        properties = Properties(PacketTypes.PUBLISH)
        properties.UserProperty = ("traceparent", SAMPLED)
        for qos in (0, 1, 2):
            client.paho.publish("plant/1", b"21.5", qos, properties=properties).wait_for_publish(10)
        client.close()

    with collecting() as collector:
        async with running(tmp_path, configuration(collector)) as node:
            await asyncio.to_thread(send, LiveNode(node, tmp_path).port)
            spans = await asyncio.to_thread(collector.wait, "weft accept", count=3)
    assert [(span.attributes["weft.seq"], span.error) for span in spans] == [(0, ""), (1, ""), (2, "")]


async def test_a_collector_that_is_away_harms_nothing(tmp_path: Path) -> None:
    with collecting() as collector:
        text = configuration(collector, sample_ratio=1, queue=5, messages_per_second=100_000)
    async with running(tmp_path, text) as node:
        live = LiveNode(node, tmp_path)
        await asyncio.to_thread(publish, live.port, *[None] * 50)
        assert len(await live.stored()) == 50
        values = {sample.name: sample.value for sample in samples(node.status) if isinstance(sample, Sample)}
        figures = node.status.facts()["traces"]
    assert values["weft_edge_traced_messages_total"] == 50
    assert values["weft_edge_trace_rate_exceeded_total"] == 0
    assert figures["spans_exported_total"] == 0
    assert figures["spans_dropped_total"] > 0
    assert values["weft_edge_trace_spans_dropped_total"] > 0
    assert figures["spans_waiting"] <= 5


async def test_subscribers_get_the_publishers_context_unaltered(tmp_path: Path) -> None:
    def follow(port: int) -> list[tuple[str, str]]:
        client = BlockingPaho("reader", protocol=MQTTv5)
        client.connect(port)
        client.subscribe(("plant/#", 1))
        publish(port, SAMPLED)
        properties = client.message().properties
        client.close()
        return list(properties.UserProperty) if properties is not None else []

    with collecting() as collector:
        async with running(tmp_path, configuration(collector)) as node:
            found = await asyncio.to_thread(follow, LiveNode(node, tmp_path).port)
            await asyncio.to_thread(collector.wait, "weft accept")
    assert found == [("traceparent", SAMPLED)]


async def test_a_cloud_event_is_traced_by_the_context_of_its_request(tmp_path: Path) -> None:
    event = {
        "Content-Type": "application/json",
        "ce-specversion": "1.0",
        "ce-id": "1",
        "ce-source": "/press",
        "ce-type": "reading",
        "traceparent": SAMPLED,
    }
    with collecting() as collector:
        async with running(tmp_path, configuration(collector)) as node:
            url = f"http://127.0.0.1:{node.addresses['http'].port}/v1/streams/telemetry/plant/1"  # type: ignore[union-attr]
            async with aiohttp.ClientSession() as http:
                assert (await http.post(url, data=b"{}", headers=event)).status == 200
                broken = {"traceparent": b"\xff\xfe".decode("latin-1"), "tracestate": "x"}
                assert (await http.post(url, data=b"{}", headers=broken)).status == 200
            (span,) = await asyncio.to_thread(collector.wait, "weft accept")
            records = await LiveNode(node, tmp_path).stored()
    assert (span.trace, span.parent) == (TRACE_ID, PARENT)
    assert [dict(record.headers).get("traceparent") for record in records] == [SAMPLED, None]
