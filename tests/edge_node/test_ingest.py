from pathlib import Path

import pytest

from edge_node import ingest, subscriptions
from edge_node.message import PUBLISHER
from protocols.batch import Flag
from protocols.mqtt.packets import PubAck, Publish, Subscription
from protocols.mqtt.properties import Properties
from protocols.mqtt.publish_run import PublishRun
from tests.edge_node.mqtt_harness import RawClient, running


async def test_streams_that_share_topics_keep_their_records_apart(tmp_path: Path) -> None:
    async with running(tmp_path, patterns={"one": ["a/+"], "both": ["a/+", "b"]}) as node:
        for topic, payload in ((b"a/1", b"1"), (b"b", b"2"), (b"a/2", b"3")):
            run: PublishRun[ingest.Target] = PublishRun()
            run.add(node.broker.ingest.target(topic), topic, payload, Flag.RETAINED if payload == b"3" else 0)
            node.broker.ingest.store(run, {})
        assert [(record.payload, record.flags) for record in await node.stored("one")] == [
            (b"1", 0), (b"3", Flag.RETAINED),
        ]  # fmt: skip
        assert [(record.payload, record.flags) for record in await node.stored("both")] == [
            (b"1", 0), (b"2", 0), (b"3", Flag.RETAINED),
        ]  # fmt: skip


async def test_what_is_remembered_of_topics_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "TOPICS_MAX", 10)
    monkeypatch.setattr(subscriptions, "PLANS_MAX", 10)
    async with running(tmp_path) as node:
        topics = node.broker.ingest.everybody
        stream = (node.log.stream("telemetry"),)
        for number in range(100):
            kept, unrouted = topics.target(b"plant/a/%d" % number), topics.target(b"none/%d" % number)
            assert kept is not None
            assert unrouted is not None
            assert (kept.streams, unrouted.streams) == (stream, ())
            assert len(topics.plain) <= 10
            assert len(node.broker.subscriptions.plans) <= 10
        long = b"plant/a/" + b"x" * 600
        assert topics.target(long) is not None
        assert long not in topics.plain


async def test_who_gets_a_topic_is_found_anew_after_every_change(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        topics = node.broker.ingest.everybody
        client = await RawClient.connect(node.port, "c", clean_start=False)

        def look(topic: bytes) -> tuple[bool, bool]:
            target = topics.target(topic)
            assert target is not None
            return target.live, target.kept_for_sessions

        assert look(b"other") == (False, False)
        await client.subscribe(("other", 0))
        assert look(b"other") == (True, False)
        await client.subscribe(("other", 1))
        assert look(b"other") == (True, True), "a session that survives its connection wants it at QoS 1"
        assert look(b"plant/a") == (False, False)


async def test_properties_become_headers_in_every_stream(tmp_path: Path) -> None:
    """[MQTT-3.3.2-17] [MQTT-3.3.2-18]"""
    async with running(tmp_path, patterns={"one": ["a"], "two": ["a"]}) as node:
        device = await RawClient.connect5(node.port)
        properties = Properties(user_properties=(("unit", "mm"), ("unit", "cm")), content_type="text")
        device.send(Publish(b"a", b"x", 1, 1, properties=properties), Publish(b"a", b"y", 1, 2))
        assert [await device.receive(), await device.receive()] == [PubAck(1), PubAck(2)]
        for stream in ("one", "two"):
            headers = [record.headers for record in await node.stored(stream)]
            assert headers == [(("unit", "mm"), ("unit", "cm"), ("mqtt.content-type", "text")), ()]


async def test_the_log_names_the_publisher_where_a_session_does_not_want_its_own_messages(tmp_path: Path) -> None:
    """[MQTT-3.8.3-3]"""
    async with running(tmp_path) as node:
        client = await RawClient.connect5(node.port, "c", session_expiry_interval=100)
        await client.subscribe(Subscription("plant/a", 1, no_local=True))
        client.send(Publish(b"plant/a", b"own", 1, 1), Publish(b"plant/b", b"", 1, 2))
        assert [await client.receive(), await client.receive()] == [PubAck(1), PubAck(2)]
        assert [record.headers for record in await node.stored()] == [((PUBLISHER, "c"),), ()]
