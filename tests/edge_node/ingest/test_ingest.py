import random
from pathlib import Path

import pytest

from tests.edge_node.servers.mqtt.harness import RawClient, Somebody, running
from tests.support.waiting import until
from weft.edge_node.ingest import routing
from weft.edge_node.ingest.record import Gathering, NodeRecord, NodeSource
from weft.edge_node.subscriptions import subscriptions
from weft.edge_node.subscriptions.message import PUBLISHER
from weft.protocols.batch import Flag
from weft.protocols.mqtt.packets import Properties, PubAck, Publish, Subscription
from weft.storage.segment_log import LogFull, StreamPolicy


async def test_streams_that_share_topics_keep_their_records_apart(tmp_path: Path) -> None:
    async with running(tmp_path, patterns={"one": ["a/+"], "both": ["a/+", "b"]}) as node:
        for topic, payload in ((b"a/1", b"1"), (b"b", b"2"), (b"a/2", b"3")):
            gathered, flags = Gathering(), Flag.RETAINED if payload == b"3" else 0
            gathered.add(node.context.routing.route(topic), topic, payload, NodeSource(None), flags)
            node.context.ingest.store(gathered)
        assert [(record.payload, record.flags) for record in await node.stored("one")] == [
            (b"1", 0),
            (b"3", Flag.RETAINED),
        ]
        assert [(record.payload, record.flags) for record in await node.stored("both")] == [
            (b"1", 0),
            (b"2", 0),
            (b"3", Flag.RETAINED),
        ]


async def test_what_is_remembered_of_topics_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "TOPICS_MAX", 10)
    monkeypatch.setattr(subscriptions, "TOPICS_MAX", 10)
    async with running(tmp_path) as node:
        topics = node.context.routing.everybody
        stream = (node.log.stream("telemetry"),)
        for number in range(100):
            kept, unrouted = topics.route(b"plant/a/%d" % number), topics.route(b"none/%d" % number)
            assert kept is not None
            assert unrouted is not None
            assert (kept.streams, unrouted.streams) == (stream, (node.log.stream("unrouted"),))
            assert len(topics.plain) <= 10
            assert len(node.context.subscriptions.known) <= 10
        long = b"plant/a/" + b"x" * 600
        assert topics.route(long) is not None
        assert long not in topics.plain


async def test_who_gets_a_topic_is_found_anew_after_every_change(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        topics = node.context.routing.everybody
        client = await RawClient.connect(node.port, "c", clean_start=False)

        def look(topic: bytes) -> tuple[bool, bool]:
            target = topics.route(topic)
            assert target is not None
            return bool(target.live), target.kept_for_sessions

        assert look(b"other") == (False, False)
        await client.subscribe(("other", 0))
        assert look(b"other") == (True, False)
        await client.subscribe(("other", 1))
        assert look(b"other") == (True, True), "a session that survives its connection wants it at QoS 1"
        assert look(b"plant/a") == (False, False)


async def test_a_known_topic_finds_new_subscribers_after_a_client_has_gone(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        gone, publisher = await RawClient.connect(node.port, "gone"), await RawClient.connect(node.port, "publisher")
        publisher.send(Publish(b"other/a", b"nobody yet", 1, 1))
        assert await publisher.receive() == PubAck(1)
        await gone.close()
        await until(lambda: node.counters.connections == 1)
        subscriber = await RawClient.connect(node.port, "subscriber")
        await subscriber.subscribe(("other/#", 0))
        publisher.send(Publish(b"other/a", b"for you"))
        assert await subscriber.receive() == Publish(b"other/a", b"for you")


async def test_clients_that_published_nothing_have_nothing_to_forget(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.authenticator.may = lambda _what, _topic: True
        owner = node.context.routing
        one, two = (owner.routes_of(Somebody(node.authenticator, name)) for name in ("one", "two"))
        assert one.route(b"plant/a") is not None
        assert owner.remembering == {one}
        node.authenticator.may = lambda _what, _topic: False
        node.mqtt.sessions.permissions_changed()
        assert owner.remembering == set()
        assert one.route(b"plant/a") is None
        assert two.route(b"plant/a") is None
        node.authenticator.may = lambda _what, _topic: True
        assert two.route(b"plant/a") is not None
        owner.leave(two)
        assert owner.remembering == set()


async def test_properties_become_headers_in_every_stream(tmp_path: Path) -> None:
    """[MQTT-3.3.2-17] [MQTT-3.3.2-18]"""
    async with running(tmp_path, patterns={"one": ["a"], "two": ["a"]}) as node:
        device = await RawClient.connect5(node.port)
        properties = Properties(user_properties=(("unit", "mm"), ("unit", "cm")), content_type="text")
        device.send(Publish(b"a", b"x", 1, 1, properties=properties), Publish(b"a", b"y", 1, 2))
        assert [await device.receive(), await device.receive()] == [PubAck(1), PubAck(2)]
        for stream in ("one", "two"):
            headers = [record.headers for record in await node.stored(stream)]
            assert headers == [(("unit", "mm"), ("unit", "cm"), ("weft.content-type", "text")), ()]


async def test_the_log_names_the_publisher_where_a_session_does_not_want_its_own_messages(tmp_path: Path) -> None:
    """[MQTT-3.8.3-3]"""
    async with running(tmp_path) as node:
        client = await RawClient.connect5(node.port, "c", session_expiry_interval=100)
        await client.subscribe(Subscription("plant/a", 1, no_local=True))
        client.send(Publish(b"plant/a", b"own", 1, 1), Publish(b"plant/b", b"", 1, 2))
        assert [await client.receive(), await client.receive()] == [PubAck(1), PubAck(2)]
        assert [record.headers for record in await node.stored()] == [((PUBLISHER, "c"),), ()]


@pytest.mark.parametrize("clean_start", [True, False])
async def test_a_full_stream_refuses_whoever_publishes_to_it(tmp_path: Path, clean_start: bool) -> None:
    async with running(tmp_path, patterns={"small": ["s"], "large": ["l"]}) as node:
        small = node.log.stream("small")
        node.log.set_policy(small, StreamPolicy(retain_bytes=8000))
        client = await RawClient.connect(node.port, "c", clean_start=clean_start)
        acknowledged = 0
        while True:
            client.send(Publish(b"s", random.Random(acknowledged).randbytes(500), 1, acknowledged + 1))
            if await client.receive() is None:
                break
            acknowledged += 1
        assert 5 < acknowledged < 16
        assert node.log.stream_bytes(small) <= 8000
        assert len(await node.stored("small")) == acknowledged
        client = await RawClient.connect(node.port, "c", clean_start=clean_start)
        client.send(Publish(b"l", b"x", 1, 1))
        assert await client.receive() == PubAck(1)


async def test_what_belongs_together_is_refused_as_a_whole_when_one_stream_is_full(tmp_path: Path) -> None:
    async with running(tmp_path, patterns={"drops": ["a"], "small": ["b"], "both": ["a", "b"]}) as node:
        log, store = node.log, node.context.ingest.store
        log.set_policy(log.stream("drops"), StreamPolicy("drop_oldest", retain_bytes=5000))
        log.set_policy(log.stream("small"), StreamPolicy(retain_bytes=5000))

        def read_of(size: int) -> Gathering:
            gathered = Gathering()
            for topic in (b"a", b"b"):
                gathered.add(
                    node.context.routing.route(topic), topic, random.Random(size).randbytes(size), NodeSource(None)
                )
            return gathered

        with log.together(20_000):
            store(read_of(4000))
        await node.durable()
        before = [(log.next_seq(log.stream(name)), log.ranges(log.stream(name)).count()) for name in ("drops", "both")]
        with pytest.raises(LogFull, match="stream small takes"), log.together(20_000):
            store(read_of(2000))
        await node.durable()
        after = [(log.next_seq(log.stream(name)), log.ranges(log.stream(name)).count()) for name in ("drops", "both")]
        assert after == before == [(1, 1), (2, 2)]
        # No client would send a will again: it is taken.
        with log.together(20_000):
            node.context.ingest.publish(NodeRecord(b"b", bytes(2000)))
