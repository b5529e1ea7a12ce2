"""What a client is promised, over real sockets and a real log."""

import asyncio
import logging
import os
import time
from pathlib import Path

import pytest

from tests.edge_node.servers.mqtt.harness import RawClient, SyncGate, running
from tests.support.mqtt_client import PahoClient
from tests.support.speed import Stopwatch
from tests.support.steps import TRIES
from tests.support.waiting import PATIENCE_S, until
from weft.protocols.batch import Flag
from weft.protocols.mqtt.encoder import encode, encode_publish
from weft.protocols.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from weft.storage.segment_log import LogFull, LogSettings

TOPIC = b"plant/a/t"


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_paho_publishes_are_stored_in_order_with_their_topic(tmp_path: Path, qos: int) -> None:
    async with running(tmp_path) as node:
        device = PahoClient("device")
        assert (await device.connect(node.port), device.session_present) == ("Success", False)
        for number in range(5):
            await device.publish("plant/a/t", b"%d" % number, qos)
        await device.close()
        await until(lambda: node.counters.publishes_received == 5)
        found = await node.stored()
        assert [(record.seq, record.key, record.payload) for record in found] == [
            (number, TOPIC, b"%d" % number) for number in range(5)
        ]
        assert node.counters.acks_sent == (5 if qos else 0)


@pytest.mark.parametrize(("qos", "answer"), [(1, PubAck(9)), (2, PubRec(9))])
async def test_no_acknowledgement_before_the_record_is_on_disk(tmp_path: Path, qos: int, answer: object) -> None:
    gate = SyncGate()
    async with running(tmp_path, filesystem=gate) as node:
        device = await RawClient.connect(node.port)
        with gate.held():
            device.send(Publish(TOPIC, b"x", qos, 9), PingReq())
            assert await device.receive() == PingResp()
            assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
            assert await device.silent()
        assert await device.receive() == answer
        assert [record.payload for record in await node.stored()] == [b"x"]


async def test_acknowledgements_follow_the_order_of_receipt(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        device = await RawClient.connect(node.port)
        device.send(
            Publish(TOPIC, b"", 1, 3),
            Publish(b"alarm/1", b"", 2, 1),
            Publish(b"elsewhere", b"", 1, 2),
            Publish(TOPIC, b"", 1, 7, dup=True),
            Publish(TOPIC, b"", 1, 5),
        )
        answers = [await device.receive() for _ in range(5)]
        assert answers == [PubAck(3), PubRec(1), PubAck(2), PubAck(7), PubAck(5)]


async def test_a_log_that_fails_acknowledges_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate = SyncGate()
    async with running(tmp_path, filesystem=gate) as node:
        device = await RawClient.connect(node.port, "device-7")
        gate.error = OSError(5, "Input/output error")
        device.send(Publish(TOPIC, b"x", 1, 9))
        assert await device.receive() is None
        assert "'device-7'" in caplog.text
        assert "what it sent could not be stored and is not acknowledged" in caplog.text
        late = await RawClient.connect(node.port, "late")
        late.send(Publish(TOPIC, b"x", 1, 9))
        assert await late.receive() is None
        assert node.counters.acks_sent == 0
        assert node.counters.log_refusals == 2


async def test_a_full_log_closes_the_publisher_and_leaves_the_others(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=1 << 16, budget_bytes=1 << 18)
    async with running(tmp_path, log_settings=settings) as node:
        other = await RawClient.connect(node.port, "other")
        device = await RawClient.connect(node.port, "device")
        acked = 0
        for packet_id in range(1, 100):
            device.send(Publish(TOPIC, os.urandom(8192), 1, packet_id))
            if await device.receive() is None:
                break
            acked += 1
        assert 0 < acked < 99
        assert len(await node.stored()) == acked
        other.send(PingReq())
        assert await other.receive() == PingResp()


async def test_a_repeated_qos_2_publish_is_stored_once(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        device = await RawClient.connect(node.port, "d", clean_start=False)
        device.send(Publish(TOPIC, b"x", 2, 9), Publish(TOPIC, b"x", 2, 9, dup=True))
        assert [await device.receive(), await device.receive()] == [PubRec(9), PubRec(9)]
        await device.close()

        device = await RawClient.connect(node.port, "d", clean_start=False)
        device.send(Publish(TOPIC, b"x", 2, 9, dup=True))
        assert await device.receive() == PubRec(9)
        device.send(PubRel(9))
        assert await device.receive() == PubComp(9)
        assert [record.payload for record in await node.stored()] == [b"x"]
        assert node.counters.publishes_repeated == 2

        device.send(Publish(TOPIC, b"y", 2, 9))  # released: the identifier is free for another message
        assert await device.receive() == PubRec(9)
        assert [record.payload for record in await node.stored()] == [b"x", b"y"]


async def test_a_qos_2_publish_that_could_not_be_stored_is_new_when_it_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise LogFull("full")  # as it was; in truth some bytes may have become free

    settings = LogSettings(segment_bytes=1 << 16, budget_bytes=1 << 20)
    async with running(tmp_path, log_settings=settings) as node:
        device = await RawClient.connect(node.port, "d", clean_start=False)
        packet_id = 0
        while True:
            packet_id += 1
            device.send(Publish(TOPIC, os.urandom(8192), 2, packet_id))
            if await device.receive() is None:
                break
        stored = len(await node.stored())
        assert stored == packet_id - 1
        again = await RawClient.connect(node.port, "d", clean_start=False)
        with monkeypatch.context() as patch:
            patch.setattr(node.log, "together", full)
            again.send(Publish(TOPIC, os.urandom(8192), 2, packet_id, dup=True))
            assert await again.receive() is None, "it must not be acknowledged as one that is stored"
        again = await RawClient.connect(node.port, "d", clean_start=False)
        again.send(Publish(TOPIC, b"", 2, packet_id - 1, dup=True))
        assert await again.receive() == PubRec(packet_id - 1)


async def test_dup_and_retain_become_flags(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        device = await RawClient.connect(node.port)
        device.send(
            Publish(TOPIC, b"0"),
            Publish(TOPIC, b"1", 1, 1, dup=True),
            Publish(TOPIC, b"2", retain=True),
            Publish(TOPIC, b"3", 1, 2, dup=True, retain=True),
            Publish(TOPIC, b"4", 1, 3),
        )
        for packet_id in (1, 2, 3):
            assert await device.receive() == PubAck(packet_id)
        dup, qos0 = Flag.DUPLICATE_SUSPECTED, Flag.PUBLISHED_QOS0
        flags = [qos0, dup, Flag.RETAINED | qos0, dup | Flag.RETAINED, 0]
        assert [record.flags for record in await node.stored()] == flags


async def test_a_topic_goes_into_every_matching_stream_or_none(tmp_path: Path) -> None:
    patterns = {"all": ["#"], "telemetry": ["plant/{line}/#", "plant/+/x"], "alarms": ["alarm/+"]}
    async with running(tmp_path, patterns=patterns) as node:
        device = await RawClient.connect(node.port)
        data = [encode_publish(TOPIC, b"%d" % i, 1, i) for i in (1, 2, 3)]
        device.writer.write(b"".join(data) + encode(Publish(b"$SYS/x", b"4", 1, 4)))
        assert [await device.receive() for _ in range(4)] == [PubAck(i) for i in (1, 2, 3, 4)]
        assert [record.payload for record in await node.stored("all")] == [b"1", b"2", b"3"]
        assert [record.payload for record in await node.stored("telemetry")] == [b"1", b"2", b"3"]
        assert await node.stored("alarms") == []
        assert node.counters.publishes_denied == 1, "$SYS is the server's own"


async def test_what_is_refused_is_not_acknowledged(tmp_path: Path) -> None:
    """v3 [MQTT-3.3.5-2]: MQTT 3.1.1 has no word for "no", and an acknowledgement would say that it is kept."""
    async with running(tmp_path, topic_levels=4) as node:
        node.authenticator.may = lambda _, topic: "secret" not in topic
        for topic, qos in ((b"plant/secret", 1), (b"plant/secret", 2), (b"plant/2/3/4/5", 1)):
            device = await RawClient.connect(node.port)
            device.send(Publish(b"plant/secret", b"lost at QoS 0"), Publish(TOPIC, b"kept", 1, 1))
            assert await device.receive() == PubAck(1)
            device.send(Publish(topic, b"refused", qos, 2))
            assert await device.receive() is None
        assert {record.payload for record in await node.stored()} == {b"kept"}
        assert node.counters.publishes_denied == 6


async def test_what_is_refused_is_acknowledged_where_the_settings_say_so(tmp_path: Path) -> None:
    """v3 [MQTT-3.3.5-2]: a client with a queue would send it at every connection."""
    async with running(tmp_path, closes_on_refusal=False) as node:
        node.authenticator.may = lambda _, topic: "secret" not in topic
        device = await RawClient.connect(node.port)
        device.send(Publish(b"plant/secret", b"dropped", 1, 1), Publish(TOPIC, b"kept", 1, 2))
        assert [await device.receive(), await device.receive()] == [PubAck(1), PubAck(2)]
        assert {record.payload for record in await node.stored()} == {b"kept"}
        assert node.counters.publishes_denied == 1


async def test_packets_cut_anywhere_give_the_same_records(tmp_path: Path) -> None:
    stream = b"".join(
        encode(packet)
        for packet in (
            Connect("cut"),
            Publish(TOPIC, b"1", 1, 1),
            Publish(TOPIC, bytes(200), 2, 2),
            PubRel(2),
            Publish(TOPIC, b"3", 1, 3),
            Publish(TOPIC, b"4", 1, 4, dup=True),
            PingReq(),
        )
    )
    async with running(tmp_path) as node:
        device = await RawClient.open(node.port)
        for at in range(len(stream)):
            device.writer.write(stream[at : at + 1])
            await asyncio.sleep(0)
        answers = [await device.receive() for _ in range(7)]
        assert {type(answer) for answer in answers} == {ConnAck, PubAck, PubRec, PubComp, PingResp}
        assert [record.payload for record in await node.stored()] == [b"1", bytes(200), b"3", b"4"]


async def test_a_large_packet_comes_in_many_reads(tmp_path: Path) -> None:
    async with running(tmp_path, message_bytes=3 << 20) as node:
        device = await RawClient.connect(node.port)
        payload = os.urandom(2 << 20)
        device.send(Publish(TOPIC, payload, 1, 1), Publish(TOPIC, b"after", 1, 2))
        assert [await device.receive(), await device.receive()] == [PubAck(1), PubAck(2)]
        assert [record.payload for record in await node.stored()] == [payload, b"after"]


MALFORMED = [
    (bytes.fromhex("40 02 0000"), "MQTT-2.3.1-1"),
    (bytes.fromhex("36 05 0001 61 0001"), "PUBLISH with QoS 3 [MQTT-3.3.1-4]"),
    (bytes.fromhex("30 03 0005 61"), "PUBLISH ends inside its topic name"),
    (bytes.fromhex("30 ffffffff"), "a remaining length of more than four bytes"),
    (bytes.fromhex("30 ffff7f"), "the limit is 1000"),
    (bytes.fromhex("10 0d 0004 4d515454 04 02 003c 0001 61"), "a second CONNECT [MQTT-3.1.0-2]"),
    (bytes.fromhex("82 07 0001 0002 612b 00"), "MQTT-4.7.1-3"),
    (bytes.fromhex("20 02 00 00"), "CONNACK is nothing that a client may send here"),
]


@pytest.mark.parametrize(("data", "says"), MALFORMED)
async def test_a_malformed_packet_closes_that_connection_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes, says: str
) -> None:
    async with running(tmp_path, message_bytes=1000) as node:
        other, bad = await RawClient.connect(node.port, "other"), await RawClient.connect(node.port, "bad\nid")
        bad.writer.write(encode(Publish(TOPIC, b"good", 0)) + data + encode(Publish(TOPIC, b"after", 0)))
        assert await bad.receive() is None
        other.send(Publish(TOPIC, b"fine", 1, 1))
        assert await other.receive() == PubAck(1)
        assert [record.payload for record in await node.stored()] == [b"good", b"fine"]
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(lines) == 1
        assert lines[0].startswith("closed MQTT client 'bad\\nid' at guest: ")
        assert says in lines[0]
        assert node.counters.protocol_errors == 1


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (bytes.fromhex("10 0d 0004 4d515454 02 02 003c 0001 61"), ConnAck(False, 1)),
        (encode(Connect("", clean_start=False)), ConnAck(False, 2)),
        (encode(PingReq()), None),
        (b"GET / HTTP/1.1\r\n\r\n", None),
        (bytes.fromhex("10 0d 0004 4d515454 04 03 003c 0001 61"), None),
    ],
)
async def test_a_connection_that_does_not_begin_well(tmp_path: Path, data: bytes, answer: object) -> None:
    async with running(tmp_path) as node:
        client = await RawClient.open(node.port)
        client.writer.write(data)
        if answer is not None:
            assert await client.receive() == answer
        assert await client.receive() is None
        assert node.counters.protocol_errors == 1
        assert node.counters.connections == 0


async def test_a_client_without_identifier_gets_a_session_of_its_own(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        one, two = await RawClient.connect(node.port, ""), await RawClient.connect(node.port, "")
        for client in (one, two):
            client.send(PingReq())
            assert await client.receive() == PingResp()
        assert node.counters.sessions == 2


async def test_keep_alive_and_will(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        watcher = PahoClient("watcher")
        await watcher.connect(node.port)
        await watcher.subscribe(("alarm/#", 1))
        will = Will(b"alarm/gone", b"device gone", 1, retain=True)
        stopwatch = Stopwatch()
        device = await RawClient.connect(node.port, "device", keep_alive_s=1, will=will)
        assert await device.receive() is None
        assert stopwatch.by_the_clock() > 1.4
        assert stopwatch.seconds() < 5
        message = await watcher.message()
        assert (message.topic, message.payload, message.qos, message.retain) == ("alarm/gone", b"device gone", 1, False)
        assert [(record.payload, record.flags) for record in await node.stored("alarms")] == [
            (b"device gone", Flag.RETAINED)
        ]
        assert node.counters.keep_alive_timeouts == 1
        await watcher.close()


@pytest.mark.parametrize("ending", ["disconnect", "close", "malformed", "take-over"])
async def test_the_will_is_published_unless_the_client_says_goodbye(tmp_path: Path, ending: str) -> None:
    async with running(tmp_path) as node:
        device = await RawClient.connect(node.port, "device", will=Will(b"alarm/gone", b"w", 0))
        if ending == "disconnect":
            device.send(Disconnect())
        elif ending == "close":
            device.writer.close()
        elif ending == "malformed":
            device.writer.write(b"\0\0")
        else:
            await RawClient.connect(node.port, "device")
        if ending != "close":
            assert await device.receive() is None
        await until(lambda: node.counters.connections == (ending == "take-over"))
        assert len(await node.stored("alarms")) == (0 if ending == "disconnect" else 1)


async def test_back_pressure_holds_publishers_until_the_disk_has_caught_up(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running(tmp_path, filesystem=gate, pending_bytes=100_000) as node:
        device = await RawClient.connect(node.port)
        packets = b"".join(encode_publish(TOPIC, bytes(1000), 1, packet_id) for packet_id in range(1, 3001))
        with gate.held():
            device.writer.write(packets)
            await until(lambda: node.context.ingest.back_pressure.holding)
            assert await device.silent()
            held = node.counters.publishes_received
            assert held < 1000, "what was not read stays in the socket"
            bystander = await RawClient.connect(node.port, "bystander")
            bystander.send(PingReq())
            assert await bystander.receive() == PingResp()
        assert [await device.receive() for _ in range(3000)] == [PubAck(packet_id) for packet_id in range(1, 3001)]
        assert node.counters.publishes_received == 3000


async def test_a_client_that_does_not_read_its_acknowledgements_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path, write_timeout_s=0.1, send_queue_bytes=1000) as node:
        deaf = await RawClient.deaf(node.port, Connect("deaf"), Publish(b"other", b"", 1, 1), again=1_000_000)
        await until(lambda: node.counters.write_timeouts == 1)
        assert node.counters.connections == 0
        await deaf.close()


async def test_subscriptions_come_and_go(tmp_path: Path) -> None:
    """[MQTT-3.8.4-1] [MQTT-3.8.4-5] [MQTT-3.10.4-1] [MQTT-3.10.4-4] [MQTT-3.10.4-5]"""
    async with running(tmp_path) as node:
        client = await RawClient.connect(node.port)
        wanted = (("a/+", 2), ("b", 0), ("$share/g/c", 1), ("/" * 200, 0), ("x" * 2000, 0))
        assert await client.subscribe(*wanted) == (2, 0, 1, 0x80, 0)
        client.send(Publish(b"a/1", b"x", 1, 5))
        answers = {type(answer): answer for answer in (await client.receive(), await client.receive())}
        assert answers[Publish] == Publish(b"a/1", b"x", 1, 1)
        assert answers[PubAck] == PubAck(5)
        client.send(PubAck(1), PubAck(77), Unsubscribe(2, ("a/+", "never")))
        assert await client.receive() == UnsubAck(2)
        client.send(Publish(b"a/1", b"y"), Publish(b"b", b"z", retain=True), PingReq())
        answers = {type(answer): answer for answer in (await client.receive(), await client.receive())}
        assert answers == {Publish: Publish(b"b", b"z"), PingResp: PingResp()}


async def test_a_slow_subscriber_loses_qos_0_and_slows_nobody(tmp_path: Path) -> None:
    async with running(tmp_path, send_queue_bytes=1 << 16) as node:
        deaf = await RawClient.deaf(node.port, Connect("deaf"), Subscribe(1, (Subscription("plant/#", 0),)))
        keen = PahoClient("keen")
        await keen.connect(node.port)
        await keen.subscribe(("plant/#", 0))
        await until(lambda: node.counters.connections == 2)
        device = await RawClient.connect(node.port)
        sent = 0
        while node.counters.deliveries_dropped < 5:
            sent += 1
            device.send(Publish(TOPIC, bytes(50_000), 1, sent))
            assert await device.receive() == PubAck(sent)
            assert len((await keen.message()).payload) == 50_000
        assert len(await node.stored()) == sent
        await keen.close()
        await deaf.close()


async def test_a_session_that_resumes_gets_its_unacknowledged_deliveries_again(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        client = await RawClient.connect(node.port, "c", clean_start=False)
        client.send(Subscribe(1, (Subscription("alarm/+", 1),)))
        assert await client.receive() == SubAck(1, (1,))
        device = await RawClient.connect(node.port, "device")
        device.send(Publish(b"alarm/1", b"seen", 1, 1))
        assert await client.receive() == Publish(b"alarm/1", b"seen", 1, 1)
        await client.close()
        await until(lambda: node.counters.connections == 1)
        device.send(Publish(b"alarm/1", b"while away", 1, 2), Publish(b"alarm/1", b"qos 0 is not kept", 0))
        assert [await device.receive(), await device.receive()] == [PubAck(1), PubAck(2)]

        client = await RawClient.open(node.port)
        client.send(Connect("c", clean_start=False))
        assert await client.receive() == ConnAck(True, 0)
        assert await client.receive() == Publish(b"alarm/1", b"seen", 1, 1, dup=True)
        assert await client.receive() == Publish(b"alarm/1", b"while away", 1, 2)
        client.send(PubAck(1), PubAck(2), Connect("c"))  # a second CONNECT: closed, but the PUBACKs counted
        assert await client.receive() is None
        client = await RawClient.open(node.port)
        client.send(Connect("c", clean_start=False), PingReq())
        assert [await client.receive(), await client.receive()] == [ConnAck(True, 0), PingResp()]
        client = await RawClient.open(node.port)
        client.send(Connect("c", clean_start=True))
        assert await client.receive() == ConnAck(False, 0)


async def test_a_client_identifier_that_connects_anew_takes_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running(tmp_path) as node:
        old = await RawClient.connect(node.port, "c", clean_start=False)
        old.send(Subscribe(1, (Subscription("alarm/+", 0),)))
        assert await old.receive() == SubAck(1, (0,))
        new = await RawClient.open(node.port)
        new.send(Connect("c", clean_start=False))
        assert await new.receive() == ConnAck(True, 0)
        assert await old.receive() is None
        new.send(Publish(b"alarm/1", b"x", 0))
        assert await new.receive() == Publish(b"alarm/1", b"x", 0)
        assert node.counters.takeovers == 1
        assert "session taken over" in caplog.text


async def test_who_is_not_let_in_any_more_takes_nothing_over(tmp_path: Path) -> None:
    """A user that is removed while its password is checked."""
    async with running(tmp_path) as node:
        old = await RawClient.connect(node.port, "c", username="ann")
        node.authenticator.removed.add("ann")
        new = await RawClient.open(node.port)
        new.send(Connect("c", username="ann"))
        assert await new.receive() == ConnAck(False, 5)
        old.send(PingReq())
        assert await old.receive() == PingResp()


async def test_paho_resumes_its_session(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        first = PahoClient("c", clean_session=False)
        assert (await first.connect(node.port), first.session_present) == ("Success", False)
        assert await first.subscribe(("plant/+/t", 2), ("alarm/#", 0)) == [2, 0]
        await first.close()
        await until(lambda: node.counters.connections == 0)
        device = PahoClient("device")
        await device.connect(node.port)
        await device.publish("plant/a/t", b"away", 2)
        second = PahoClient("c", clean_session=False)
        assert (await second.connect(node.port), second.session_present) == ("Success", True)
        message = await second.message()
        assert (message.topic, message.payload, message.qos) == ("plant/a/t", b"away", 2)
        await device.publish("alarm/x", b"now", 1)
        assert (await second.message()).payload == b"now"
        await second.close()
        await device.close()


FILTERS, PROPERTIES = 200_000, 120_000
PACKET_S_MAX = 0.2
"""Processor time of the loop's thread, in the quickest of some tries: decoded whole, a packet takes over a second."""


@pytest.mark.parametrize(
    ("version", "packet"),
    [
        (4, Subscribe(1, (Subscription("a"),) * FILTERS)),
        (5, Subscribe(1, (Subscription("a"),) * FILTERS)),
        (4, Unsubscribe(1, ("a",) * FILTERS)),
        (5, Unsubscribe(1, ("a",) * FILTERS)),
        (5, Publish(b"plant/a", b"", 1, 1, properties=Properties(user_properties=(("a", "b"),) * PROPERTIES))),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Packet) else str(value),
)
async def test_one_large_packet_does_not_keep_others_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: int, packet: Packet
) -> None:
    data = encode(packet, version)
    assert len(data) > 600_000
    took: list[float] = []
    async with running(tmp_path, message_bytes=1 << 20) as node:
        while not took or (min(took) > PACKET_S_MAX and len(took) < TRIES):
            client = await RawClient.connect(node.port, version=version)
            seen = node.counters.bytes_received
            client.writer.write(data[:-1])
            await until(lambda: node.counters.bytes_received >= seen + len(data) - 1)
            before = time.thread_time()
            client.writer.write(data[-1:])
            answer = await client.receive()
            took.append(time.thread_time() - before)
            assert (answer and answer.code) == (ReasonCode.QUOTA_EXCEEDED if version == 5 else None)
            assert await client.receive() is None
    assert min(took) <= PACKET_S_MAX, took
    assert "more than" in caplog.text
