"""Tests of ``edge_node/ingest/routing.py``."""

from __future__ import annotations

import logging
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.edge_node.servers.mqtt.harness import RawClient, SyncGate, running
from tests.support.waiting import until
from weft.edge_node.ingest import routing
from weft.edge_node.ingest.routing import TOPIC_BYTES_MAX, TOPICS_KEPT, BusiestTopics, Router, UnroutedPolicy
from weft.edge_node.streams import SESSION_TOPICS_STREAM
from weft.protocols.mqtt.packets import Connect, PubAck, PubComp, Publish, PubRec, PubRel, ReasonCode, Will
from weft.protocols.topics import InvalidTopic
from weft.storage.segment_log import LogSettings, StreamPolicy

NUMBERS = {"a": 1, "b": 2, "c": 3}


def test_a_topic_belongs_to_every_stream_that_matches_in_order() -> None:
    router = Router({"b": ["x/{line}/t", "y/#"], "a": ["#"], "c": ["x/+/t", "+/1/t"]}, NUMBERS.__getitem__)
    assert router.streams("x/1/t") == (2, 1, 3)
    assert router.streams("y") == (2, 1)
    assert router.streams("z") == (1,)
    assert router.streams("$SYS/x") == ()


def test_bad_patterns_are_refused() -> None:
    with pytest.raises(InvalidTopic, match=r"MQTT-4\.7\.1-2"):
        Router({"a": ["x/#/y"]}, NUMBERS.__getitem__)


# --- Messages whose topic no stream matches: kept by default, and never acknowledged before that is so


NO_STREAM = ReasonCode.TOPIC_NAME_INVALID


@pytest.mark.parametrize("version", [4, 5])
async def test_what_was_acknowledged_is_in_the_stream_unrouted(tmp_path: Path, version: int) -> None:
    async with running(tmp_path, kill=True) as node:
        device = await RawClient.connect(node.port, version=version)
        device.send(Publish(b"none/0", b"0"), Publish(b"none/1", b"1", 1, 1), Publish(b"none/2", b"2", 2, 2))
        assert [await device.receive(), await device.receive()] == [PubAck(1), PubRec(2)]
        device.send(PubRel(2))
        assert await device.receive() == PubComp(2)
    async with running(tmp_path) as node:
        assert [(record.key, record.payload) for record in await node.stored("unrouted")] == [
            (b"none/0", b"0"),
            (b"none/1", b"1"),
            (b"none/2", b"2"),
        ]


async def test_no_acknowledgement_before_the_disk_has_it(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running(tmp_path, filesystem=gate) as node:
        device = await RawClient.connect(node.port)
        with gate.held():
            device.send(Publish(b"none", b"x", 1, 1), Publish(b"none", b"y", 2, 2))
            assert await device.silent()
        assert [await device.receive(), await device.receive()] == [PubAck(1), PubRec(2)]


async def test_who_is_subscribed_does_not_change_what_is_kept(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        device = await RawClient.connect(node.port, "device")
        session = await RawClient.connect(node.port, "session", clean_start=False)
        await session.subscribe(("none/#", 1))
        device.send(Publish(b"none/a", b"0"), Publish(b"none/a", b"1", 1, 1))
        assert await device.receive() == PubAck(1)
        assert [(await session.receive()).payload for _ in range(2)] == [b"0", b"1"]
        assert [record.payload for record in await node.stored("unrouted")] == [b"0", b"1"]
        device.send(Publish(b"none/a", b"again, at most once"))
        assert (await session.receive()).payload == b"again, at most once"
        await node.durable()
        copies = [record.payload for record in await node.stored(SESSION_TOPICS_STREAM)]
        assert b"1" in copies
        assert b"again, at most once" not in copies, "sessions read no QoS 0 messages from the log"


async def test_what_an_absent_session_is_owed_stays_when_unrouted_is_full(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        device = await RawClient.connect(node.port, "device")
        session = await RawClient.connect(node.port, "session", clean_start=False)
        await session.subscribe(("none/#", 1))
        await session.close()
        node.log.set_policy(node.log.stream("unrouted"), StreamPolicy("drop_oldest", 1.0, 20_000, replicated=False))
        payloads = [random.Random(number).randbytes(2000) for number in range(100)]
        for number, payload in enumerate(payloads, 1):
            device.send(Publish(b"none/a", payload, 1, number))
            assert await device.receive() == PubAck(number)
        await node.durable()
        assert node.log.stream_bytes(node.log.stream("unrouted")) <= 20_000
        assert node.log.ranges(node.log.stream("unrouted")).count() < 20
        session = await RawClient.connect(node.port, "session", clean_start=False)
        for payload in payloads:
            message = await session.receive()
            assert message.payload == payload
            session.send(PubAck(message.packet_id))
        assert node.counters.deliveries_lost == 0


async def test_messages_of_a_shared_subscription_that_is_not_kept_are_counted_when_they_are_lost(
    tmp_path: Path,
) -> None:
    """No session reads `unrouted`: what waits in memory for such a group is never taken for safe in the log."""
    async with running(tmp_path) as node:
        device = await RawClient.connect(node.port, "device")
        slow = await RawClient.connect5(node.port, "slow", receive_maximum=1)
        await slow.subscribe(("$share/g/none/#", 1))
        for number in range(1, 4):
            device.send(Publish(b"none/a", b"%d" % number, 1, number))
            assert await device.receive() == PubAck(number)
        first = await slow.receive()
        keeper = await RawClient.connect5(node.port, "keeper", session_expiry_interval=100, receive_maximum=1)
        await keeper.subscribe(("$share/g/none/#", 1))
        slow.send(PubAck(first.packet_id))
        got = {first.payload, (await slow.receive()).payload, (await keeper.receive()).payload}
        assert got == {b"1", b"2", b"3"}


async def test_retained_messages_and_wills_are_kept(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        device = await RawClient.connect(node.port, "device", will=Will(b"none/will", b"gone", 1))
        device.send(Publish(b"none/a", b"last", 1, 1, retain=True))
        assert await device.receive() == PubAck(1)
        await device.close()
        await until(lambda: node.counters.wills_published == 1)
        watching = await RawClient.connect(node.port, "watching")
        await watching.subscribe(("none/#", 1))
        assert (await watching.receive()).payload == b"last"
        assert [record.payload for record in await node.stored("unrouted")] == [b"last", b"gone"]


async def test_a_burst_longer_than_the_stream_is_acknowledged(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running(tmp_path, filesystem=gate) as node:
        stray = node.log.stream("unrouted")
        node.log.set_policy(stray, StreamPolicy("drop_oldest", 86_400.0, 20_000, replicated=False))
        device = await RawClient.connect(node.port)
        with gate.held():
            device.send(*(Publish(b"none", bytes(1000), 1, number) for number in range(1, 101)))
            await until(lambda: node.log.next_seq(stray) == 100)
        assert [await device.receive() for _ in range(100)] == [PubAck(number) for number in range(1, 101)]


async def test_it_makes_room_before_anybody_is_refused(tmp_path: Path) -> None:
    small = LogSettings(segment_bytes=64 << 10, budget_bytes=1 << 20, compression_level=None)
    async with running(tmp_path, log_settings=small) as node:
        stray = node.log.stream("unrouted")
        node.log.set_policy(stray, StreamPolicy("drop_oldest", 86_400.0, 256 << 10, replicated=False))
        device = await RawClient.connect(node.port, "device")
        for number in range(1, 201):
            device.send(Publish(b"none", bytes(1000), 1, number))
            assert await device.receive() == PubAck(number)
        assert node.log.stream_bytes(stray) > 200_000
        acknowledged = 0
        while node.log.shortage() is None:  # nor is there one while the last commit leaves room for a record more
            device.send(Publish(b"plant/a", bytes(1000), 1, acknowledged + 1))
            if await device.receive() is None:
                device = await RawClient.connect(node.port, "device")
            else:
                acknowledged += 1
        assert acknowledged > 700, "what no stream matches takes no room from what must not be lost"
        assert node.log.ranges(stray).count() < 60
        assert len(await node.stored()) == acknowledged
        again = await RawClient.connect(node.port, "again")
        again.send(Publish(b"none", b"last".ljust(1000), 1, 1))
        # How much room the last commit left depends on how many commits there were: rarely one more record fits.
        if await again.receive() is not None:
            kept = [record.payload for record in await node.stored("unrouted")]
            assert kept[-1:] == [b"last".ljust(1000)], "what cannot be kept is not acknowledged"


# --- live


async def test_live_messages_go_to_subscribers_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, routing.__name__)
    async with running(tmp_path, unrouted="live") as node:
        device = await RawClient.connect(node.port, "device")
        watching = await RawClient.connect(node.port, "watching")
        await watching.subscribe(("none/#", 0))
        for number in (1, 2):
            device.send(Publish(b"none/a", b"x", 1, number))
            assert await device.receive() == PubAck(number)
            assert (await watching.receive()).payload == b"x"
        assert "unrouted" not in node.log.streams()
        await watching.subscribe(("none/b", 1))  # what is known of topics is forgotten
        device.send(Publish(b"none/a", b"x", 1, 3))
        assert await device.receive() == PubAck(3)
        assert node.counters.publishes_unrouted == 3
    lines = [record.getMessage() for record in caplog.records if record.name == routing.__name__]
    assert len(lines) == 1, "once for each topic"
    assert "'none/a'" in lines[0]
    assert "`unrouted: live`" in lines[0]


async def test_live_messages_are_kept_for_the_sessions_that_want_them(tmp_path: Path) -> None:
    async with running(tmp_path, unrouted="live") as node:
        device = await RawClient.connect(node.port, "device")
        session = await RawClient.connect(node.port, "session", clean_start=False)
        await session.subscribe(("none/#", 1))
        await session.close()
        device.send(Publish(b"none/a", b"x", 1, 1))
        assert await device.receive() == PubAck(1)
        session = await RawClient.connect(node.port, "session", clean_start=False)
        assert (await session.receive()).payload == b"x"


# --- refuse


async def test_refused_messages_are_never_acknowledged_with_success(tmp_path: Path) -> None:
    """MQTT 5.0 section 3.4.2.1."""
    async with running(tmp_path, unrouted="refuse") as node:
        device = await RawClient.connect5(node.port, "device")
        session = await RawClient.connect(node.port, "session", clean_start=False)
        await session.subscribe(("#", 1))
        device.send(
            Publish(b"none/0", b""),
            Publish(b"none/1", b"x", 1, 1, retain=True),
            Publish(b"none/2", b"", 2, 2),
            Publish(b"plant/a", b"taken", 1, 3),
        )
        assert [await device.receive() for _ in range(3)] == [PubAck(1, NO_STREAM), PubRec(2, NO_STREAM), PubAck(3)]
        assert (await session.receive()).payload == b"taken"
        assert (node.counters.publishes_unrouted, node.counters.publishes_denied) == (3, 0)
        late = await RawClient.connect(node.port, "late")
        await late.subscribe(("none/1", 1))
        assert await late.silent(), "nothing refused is retained"
        assert await node.stored(SESSION_TOPICS_STREAM) == []


async def test_refused_publishes_of_old_versions_follow_the_setting(tmp_path: Path) -> None:
    """[MQTT-3.3.5-2]"""
    async with running(tmp_path / "close", unrouted="refuse", closes_on_refusal=True) as node:
        device = await RawClient.connect(node.port, "device")
        device.send(Publish(b"none/a", b"", 1, 1))
        assert await device.receive() is None
    async with running(tmp_path / "acknowledge", unrouted="refuse", closes_on_refusal=False) as node:
        device = await RawClient.connect(node.port, "device")
        device.send(Publish(b"none/a", b"", 1, 1))
        assert await device.receive() == PubAck(1)
        assert node.counters.publishes_unrouted == 1


async def test_who_may_not_publish_is_told_so_whatever_streams_match(tmp_path: Path) -> None:
    async with running(tmp_path, unrouted="refuse") as node:
        node.authenticator.may = lambda what, topic: what != "publish" or topic != "none/secret"
        device = await RawClient.connect5(node.port, "device")
        device.send(Publish(b"none/secret", b"", 1, 1), Publish(b"none/a", b"", 1, 2))
        assert await device.receive() == PubAck(1, ReasonCode.NOT_AUTHORIZED)
        assert await device.receive() == PubAck(2, NO_STREAM)
        assert (node.counters.publishes_unrouted, node.counters.publishes_denied) == (1, 1)


@pytest.mark.parametrize(("version", "code"), [(4, 5), (5, int(NO_STREAM))])
async def test_a_will_that_would_be_refused_is_refused_at_connect(tmp_path: Path, version: int, code: int) -> None:
    """MQTT 5.0 section 3.2.2.2."""
    async with running(tmp_path, unrouted="refuse") as node:
        device = await RawClient.open(node.port)
        device.version = version
        device.send(Connect("device", version=version, will=Will(b"none/will", b"gone", 1)))
        assert (await device.receive()).code == code


async def test_a_will_from_before_the_setting_is_not_published(tmp_path: Path) -> None:
    async with running(tmp_path, kill=True) as node:
        await RawClient.connect(node.port, "device", clean_start=False, will=Will(b"none/will", b"gone", 1))
    async with running(tmp_path, unrouted="refuse") as node:
        assert node.counters.wills_waiting == 0
        assert node.counters.wills_published == 0
        assert await node.stored("unrouted") == []


# --- what the node says


async def test_the_first_message_kept_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, routing.__name__)
    async with running(tmp_path) as node:
        device = await RawClient.connect(node.port)
        device.send(Publish(b"plant/a", b"", 1, 1), Publish(b"none\x1b/a", b"", 1, 2), Publish(b"none/b", b"", 1, 3))
        assert [await device.receive() for _ in range(3)] == [PubAck(1), PubAck(2), PubAck(3)]
        await node.durable()
    (line,) = (record for record in caplog.records if record.name == routing.__name__)
    assert line.levelno == logging.INFO
    assert "'none\\x1b/a'" in line.getMessage(), "nothing that a device wrote steers a terminal"
    assert "`from`" in line.getMessage()


@pytest.mark.parametrize("policy", ["live", "refuse"])
async def test_the_topics_named_in_the_log_are_bounded(
    tmp_path: Path, policy: UnroutedPolicy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "TOPICS_NAMED_MAX", 5)
    async with running(tmp_path, unrouted=policy) as node:
        topics = node.context.routing.everybody
        for _ in range(2):
            for number in range(20):
                assert (topics.route(b"none/%d" % number) is None) is (policy == "refuse")
            node.context.routing.forget()
    lines = [record.getMessage() for record in caplog.records if record.name == routing.__name__]
    assert len(lines) == 6
    assert "further ones are not named" in lines[-1]


async def test_the_facts_name_the_busiest_topics(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        device = await RawClient.connect(node.port)
        for number in range(1, 31):
            device.send(Publish(b"none/%d" % (number % 20), b"", 1, number))
        device.send(*(Publish(b"none/busy", b"", 1, number) for number in range(100, 150)))
        assert [await device.receive() for _ in range(80)]
        facts = node.context.routing.unrouted.facts()
    assert (facts["policy"], facts["messages"]) == ("keep", 80)
    assert facts["busiest"][0] == {"topic": "none/busy", "messages": 50}
    assert [each["messages"] for each in facts["busiest"][1:]] == [2] * 9


RUNS = st.lists(st.lists(st.integers(0, 400).map(lambda n: b"t/%d" % (n * n // 400)), min_size=1), max_size=60)


@settings(deadline=None)
@given(RUNS)
def test_counts_are_never_too_high_and_too_low_by_a_bound(runs: list[list[bytes]]) -> None:
    busiest, exact = BusiestTopics(), Counter[bytes]()
    for run in runs:
        busiest.add(run)
        exact.update(run)
    found = dict(busiest.top(10_000))
    assert len(found) <= 2 * TOPICS_KEPT
    allowed = exact.total() / (TOPICS_KEPT + 1)
    for topic, count in exact.items():
        assert count - allowed <= found.get(topic, 0) <= count


def test_long_topics_are_counted_by_their_beginning() -> None:
    busiest = BusiestTopics()
    busiest.add([b"x" * 60_000] * 2 + [b"y"])
    busiest.add([b"x" * 60_000])
    assert busiest.top(1) == [(b"x" * TOPIC_BYTES_MAX, 3)]
