"""Checks of payloads on ingest: what fits is stored as ever, what does not becomes what ``on_misfit`` says, once."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pika
import pika.exceptions
import pytest

from tests.edge_node.servers.clients import PROTOCOLS, ProtocolClient, Way
from tests.edge_node.servers.mqtt.harness import RawClient
from tests.edge_node.sources import nodes
from tests.support import live_node
from tests.support.live_node import LiveNode
from tests.support.steps import Guard, LongStep
from tests.support.waiting import PATIENCE_S, until
from weft.config.units import Address
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.ingest.record import Gathering, NodeSource
from weft.edge_node.ingest.routing import PayloadChecks, StreamCheck
from weft.edge_node.status.facts import render
from weft.edge_node.streams import SESSION_TOPICS_STREAM
from weft.protocols.batch import Flag, Record
from weft.protocols.mqtt.packets import (
    Disconnect,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    Will,
)
from weft.storage.payloads.check import CHECKED_BYTES_MAX
from weft.storage.segment_log import StreamPolicy
from weft.text.edge_status import show_running

pytestmark = pytest.mark.slow

SCHEMA = "schema: {fields: {t: float, n: {type: int, required: true}}}"
CONFIG = """
node: press-hall
data_dir: data
http: null
disk: {budget: 64MiB, segment: 4MiB}
listeners:
  mqtt: {bind: "127.0.0.1:0"}
  amqp: {bind: "127.0.0.1:0"}
  http: {bind: "127.0.0.1:0"}
streams:
  accept: {from: "accept/#", SCHEMA}
  letter: {from: "dead_letter/#", SCHEMA, on_misfit: dead_letter}
  refuse: {from: "refuse/#", SCHEMA, on_misfit: refuse}
  archive: {from: "dead_letter/kept"}
""".replace("SCHEMA", SCHEMA)
STREAMS = {"accept": "accept", "dead_letter": "letter", "refuse": "refuse"}
GOOD, BAD = b'{"t":21.5,"n":1}', b'{"t":"hot","n":1}'
REASON = 't: expected a number of 64 bits, got "hot"'


@asynccontextmanager
async def running(directory: Path, text: str = CONFIG) -> AsyncIterator[LiveNode]:
    async with live_node.running(directory, text) as node:
        yield LiveNode(node, directory)


async def errors(node: LiveNode, stream: str) -> list[Record]:
    """All dead letters of a stream; none where it has no stream of errors."""
    name = f"{stream}-errors"
    return await node.stored(name) if name in node.node.log.streams() else []


def figures(node: LiveNode, stream: str) -> dict[str, Any]:
    found: dict[str, Any] = node.node.part(PayloadChecks).facts()["schemas"][stream]
    return found


async def places(node: LiveNode, policy: str) -> tuple[list[bytes], list[bytes]]:
    """Payloads of a policy's stream, and of its dead letters."""
    stream = STREAMS[policy]
    stored = [record.payload for record in await node.stored(stream)]
    return stored, [record.payload for record in await errors(node, stream)]


@pytest.mark.parametrize("make", PROTOCOLS)
@pytest.mark.parametrize("policy", [*STREAMS])
async def test_every_protocol_does_what_the_stream_says(
    policy: str, make: type[ProtocolClient], tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        address = node.node.addresses[make.protocol]
        assert isinstance(address, Address)
        client = make(Way(address.port))
        await asyncio.to_thread(client.connect)
        try:
            sent = [await asyncio.to_thread(client.publish, f"{policy}/a", body) for body in (GOOD, BAD, b"", GOOD)]
        finally:
            await asyncio.to_thread(client.close)
        misfits = [BAD, b""]
        assert sent == [True, policy != "refuse", policy != "refuse", True]
        stored, letters = await places(node, policy)
        assert stored == ([GOOD, *misfits, GOOD] if policy == "accept" else [GOOD, GOOD])
        assert letters == (misfits if policy == "dead_letter" else [])
        counts = figures(node, STREAMS[policy])
        outcome = {"accept": "accepted", "dead_letter": "dead_lettered", "refuse": "refused"}[policy]
        assert (counts["checked"], counts[outcome]) == (4, 2)
        assert counts["last_misfit"] == "payload"
        if policy == "dead_letter":
            first, second = await errors(node, "letter")
            assert first.key == b"dead_letter/a"
            assert dict(first.headers)["weft.reason"] == REASON
            assert dict(second.headers)["weft.reason"] == "payload: it is empty"


async def published(client: RawClient, packet: Publish) -> PubAck | PubRec | None:
    """The answer to a publish, at QoS 2 of its first half; the second half is done."""
    client.send(packet)
    if not packet.qos:
        return None
    answer = await client.receive()
    assert isinstance(answer, PubAck | PubRec)
    if packet.qos == 2 and answer.code < 0x80:
        client.send(PubRel(packet.packet_id))
        assert isinstance(await client.receive(), PubComp)
    return answer


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("persistent", [False, True])
async def test_mqtt_refuses_where_it_has_an_answer_and_else_loses_nothing(
    version: int, persistent: bool, tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        if version == 5:
            expiry = {"session_expiry_interval": 600} if persistent else {}
            client = await RawClient.connect5(node.port, "device", clean_start=True, **expiry)
        else:
            client = await RawClient.connect(node.port, "device", version=version, clean_start=not persistent)
        codes = []
        for qos in (0, 1, 2):
            for number, payload in enumerate((GOOD, BAD, GOOD)):
                answer = await published(client, Publish(b"refuse/a", payload, qos, qos and 1 + number))
                codes.append(answer.code if answer else None)
                if answer and answer.code:
                    assert answer.properties.reason_string == f"it does not fit the schema of stream refuse: {REASON}"
        bad = ReasonCode.PAYLOAD_FORMAT_INVALID if version == 5 else 0
        assert codes == [None, None, None, 0, bad, 0, 0, bad, 0]
        stored, letters = await places(node, "refuse")
        assert stored == [GOOD] * 6
        assert letters == [BAD] * (1 if version == 5 else 3), "at QoS 0 there is no answer in any version"
        assert {dict(record.headers)["weft.sender"] for record in await errors(node, "refuse")} == {"device"}
        flags = [record.flags for record in await errors(node, "refuse")]
        assert flags == [Flag.PUBLISHED_QOS0, 0, Flag.PUBLISHED_QOS2][: len(flags)]
        counters = node.node.counters
        assert counters.publishes_received == 6 + len(letters), "each message once, a refused one not"
        assert counters.publishes_denied == 0


async def test_a_client_that_wants_no_reasons_gets_the_code_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        client = await RawClient.connect5(node.port, request_problem_information=False)
        answer = await published(client, Publish(b"refuse/a", BAD, 1, 7))
        assert answer == PubAck(7, ReasonCode.PAYLOAD_FORMAT_INVALID)


async def test_answers_keep_their_order_with_reasons_between_them(tmp_path: Path) -> None:
    """The long answers must not confuse the count of those that are due."""
    async with running(tmp_path) as node:
        client = await RawClient.connect5(node.port)
        client.send(*(Publish(b"refuse/a", BAD if number % 3 else GOOD, 1, number) for number in range(1, 301)))
        answers = [await client.receive() for _ in range(300)]
        assert [answer.packet_id for answer in answers] == [*range(1, 301)]
        assert [answer.code for answer in answers] == [0x99 if number % 3 else 0 for number in range(1, 301)]
        assert len(await node.stored("refuse")) == 100


@pytest.mark.parametrize("version", [4, 5])
async def test_a_read_of_many_messages_is_parted_in_order(version: int, tmp_path: Path) -> None:
    """Plain publishes are gathered in runs, of which those that do not fit are taken out again."""
    chance, sent = random.Random(1), list[tuple[bytes, bytes, int]]()
    for number in range(1, 400):
        topic = chance.choice([b"accept/a", b"dead_letter/a", b"dead_letter/a", b"dead_letter/kept", b"other"])
        fits = chance.random() < 0.6
        payload = b'{"n":%d}' % number if fits else b'{"n":"%d"}' % number
        sent += [(topic, payload, chance.choice([0, 1, 2]))] * chance.choice([1, 1, 1, 5])
    async with running(tmp_path) as node:
        here = await RawClient.connect5(node.port, "here")
        await here.subscribe(("dead_letter/#", 0), ("accept/#", 0))
        if version == 5:
            device = await RawClient.connect5(node.port, "device")
        else:
            device = await RawClient.connect(node.port, "device")
        device.send(*(Publish(topic, payload, qos, qos and at) for at, (topic, payload, qos) in enumerate(sent, 1)))
        for at, (_, _, qos) in enumerate(sent, 1):
            if qos:
                answer = await device.receive()
                assert (answer.packet_id, answer.code & 0x80) == (at, 0)
        got: dict[bytes, list[bytes]] = {}
        for topic, payload, _ in sent:
            if topic == b"accept/a" or (topic != b"other" and b'"n":"' not in payload):
                got.setdefault(topic, []).append(payload)
        live: dict[bytes, list[bytes]] = {}
        for _ in range(sum(map(len, got.values()))):
            packet = await here.receive()
            live.setdefault(packet.topic, []).append(packet.payload)
        assert live == got, "subscribers get what the stream has, in its order"

        async def kept(stream: str, topic: bytes) -> list[tuple[bytes, int]]:
            return [(each.payload, each.flags) for each in await node.stored(stream) if each.key == topic]

        qos_flags = [Flag.PUBLISHED_QOS0, 0, Flag.PUBLISHED_QOS2]
        for topic in got:
            own = [(payload, qos_flags[qos]) for each, payload, qos in sent if each == topic]
            fitting = [each for each in own if b'"n":"' not in each[0]]
            misfits = [each for each in own if each not in fitting]
            if topic == b"accept/a":
                assert await kept("accept", topic) == own
            else:
                assert await kept("letter", topic) == fitting
                assert await kept("letter-errors", topic) == misfits
        archive = [payload for payload, _ in await kept("archive", b"dead_letter/kept")]
        assert archive == [payload for topic, payload, _ in sent if topic == b"dead_letter/kept"]
        assert node.node.counters.publishes_received == len(sent)


async def test_subscribers_and_sessions_get_what_the_stream_has(tmp_path: Path) -> None:
    """Live and away alike, in one order: that of the first stream that matches the topic."""
    text = CONFIG.replace("streams:\n", 'streams:\n  all: {from: "dead_letter/all"}\n')
    async with running(tmp_path, text) as node:
        away = await RawClient.connect5(node.port, "away", session_expiry_interval=600)
        await away.subscribe(("dead_letter/#", 1), ("refuse/#", 1), ("accept/#", 1))
        away.send(Disconnect())
        here, device = await RawClient.connect5(node.port, "here"), await RawClient.connect(node.port, "device")
        await here.subscribe(("dead_letter/#", 1), ("refuse/#", 1), ("accept/#", 1))
        topics = (b"accept/a", b"dead_letter/all", b"dead_letter/a", b"dead_letter/kept", b"refuse/a")
        for topic in topics:
            for number, payload in enumerate((GOOD, BAD, GOOD), 1):
                await published(device, Publish(topic, payload, 1, number))
        expected = [
            (topic, payload)
            for topic in topics
            for payload in (GOOD, BAD, GOOD)
            if payload == GOOD or topic in topics[:2]
        ]
        got = [await here.receive() for _ in expected]
        assert [(packet.topic, packet.payload) for packet in got] == expected
        assert await here.silent()
        assert await node.stored(SESSION_TOPICS_STREAM) == []
    async with running(tmp_path, text) as node:
        away = await RawClient.connect5(node.port, "away", session_expiry_interval=600, clean_start=False)
        got = [await away.receive() for _ in expected]
        for topic in topics:
            payloads = [packet.payload for packet in got if packet.topic == topic]
            assert payloads == [payload for each, payload in expected if each == topic]
        assert await away.silent()


async def test_another_stream_keeps_what_one_puts_aside(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        device = await RawClient.connect(node.port, "device")
        for number, payload in enumerate((GOOD, BAD, GOOD), 1):
            await published(device, Publish(b"dead_letter/kept", payload, 1, number))
        assert [record.payload for record in await node.stored("archive")] == [GOOD, BAD, GOOD]
        assert await places(node, "dead_letter") == ([GOOD, GOOD], [BAD])
        assert node.node.counters.publishes_received == 3


async def test_a_full_stream_refuses_a_source_and_keeps_the_others(tmp_path: Path) -> None:
    """One by one, each record in the streams that get it, and the numbers are those of its own."""
    async with running(tmp_path) as node:
        log, ingest, topic = node.node.log, node.node.batch._store, b"dead_letter/kept"
        assert isinstance(ingest, Ingest)
        log.set_policy(log.stream("archive"), StreamPolicy("refuse", retain_bytes=5_000))
        one, other = NodeSource("one"), NodeSource("other")

        def gathered(*sent: tuple[NodeSource, bytes]) -> Gathering:
            found = Gathering()
            for source, payload in sent:
                found.add(ingest.routing.route(topic), topic, payload, source)
            return found

        full, long = (b'{"n":1,"x":"%s"}' % random.Random(1).randbytes(size).hex().encode() for size in (2_000, 4_000))
        assert ingest.store_each(gathered((one, full))) == {}
        assert len(await node.stored("archive")) == 1
        found = gathered((one, GOOD), (one, BAD), (other, long), (one, BAD), (one, GOOD))
        (run,) = (run for run in found.groups.values() if len(run.keys) == 5)
        assert [*ingest.store_each(found)] == [other]
        archive, letter = log.stream("archive"), log.stream("letter")
        assert run.by_stream[archive] == [1, 2, None, 3, 4]
        assert run.by_stream[letter] == [1, None, 2, None, 3]
        assert [record.payload for record in await node.stored("archive")] == [full, GOOD, BAD, BAD, GOOD]
        assert await places(node, "dead_letter") == ([full, GOOD, long, GOOD], [BAD, BAD])
        log.set_policy(archive, StreamPolicy("refuse"))
        with log.together(100_000):
            stored = ingest.store(gathered((one, BAD), (one, BAD)))
        assert stored == [(log.stream("letter-errors"), 2, 2)], "where a repetition is looked for"
        assert len(await node.stored("archive")) == 7


async def test_what_does_not_fit_is_not_retained_and_neither_is_a_will(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        new, old = await RawClient.connect5(node.port, "new"), await RawClient.connect(node.port, "old")
        await published(new, Publish(b"refuse/new", BAD, 1, 1, retain=True))
        await published(old, Publish(b"refuse/old", BAD, 1, 1, retain=True))
        await published(old, Publish(b"refuse/good", GOOD, 1, 2, retain=True))
        await published(old, Publish(b"dead_letter/a", BAD, 1, 3, retain=True))
        await published(old, Publish(b"accept/a", BAD, 1, 4, retain=True))
        gone = await RawClient.connect(node.port, "gone", will=Will(b"refuse/will", BAD, 1, retain=True))
        gone.writer.close()
        await until(lambda: node.node.counters.wills_published == 1)
        assert [(record.key, record.payload) for record in await errors(node, "refuse")] == [
            (b"refuse/old", BAD),
            (b"refuse/will", BAD),
        ]
        late = await RawClient.connect5(node.port, "late")
        await late.subscribe(("refuse/#", 1), ("dead_letter/#", 1), ("accept/#", 1))
        assert {(await late.receive()).topic for _ in range(2)} == {b"refuse/good", b"accept/a"}
        assert await late.silent()


async def test_an_empty_payload_ends_a_retained_message_unless_it_is_refused(tmp_path: Path) -> None:
    """[MQTT-3.3.1-6]: without it, the message stays retained."""
    async with running(tmp_path) as node:
        new, old = await RawClient.connect5(node.port, "new"), await RawClient.connect(node.port, "old")
        for number, topic in enumerate((b"dead_letter/a", b"refuse/old", b"refuse/new", b"refuse/will"), 1):
            await published(old, Publish(topic, GOOD, 1, number, retain=True))
        await published(new, Publish(b"dead_letter/a", b"", 1, 1, retain=True))
        await published(old, Publish(b"refuse/old", b"", 1, 5, retain=True))
        answer = await published(new, Publish(b"refuse/new", b"", 1, 2, retain=True))
        assert answer is not None
        assert answer.code == ReasonCode.PAYLOAD_FORMAT_INVALID
        gone = await RawClient.connect(node.port, "gone", will=Will(b"refuse/will", b"", 1, retain=True))
        gone.writer.close()
        await until(lambda: node.node.counters.wills_published == 1)
        late = await RawClient.connect5(node.port, "late")
        await late.subscribe(("refuse/#", 1), ("dead_letter/#", 1))
        assert (await late.receive()).topic == b"refuse/new"
        assert await late.silent()
        assert [record.payload for record in await errors(node, "refuse")] == [b"", b""]


async def test_a_long_payload_is_stored_unchecked_and_counted(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        device = await RawClient.connect5(node.port, "device")
        for number, size in enumerate((40_000, 1 << 21), 1):
            answer = await published(device, Publish(b"refuse/a", b" " * size, 1, number))
            assert answer is not None
            assert answer.code == (0 if size == 40_000 else 0x99), "more than 1 MiB fits no schema"
        assert figures(node, "refuse")["unchecked"] == 1
        assert [len(record.payload) for record in await node.stored("refuse")] == [40_000]


async def test_a_message_sent_again_is_found_among_the_dead_letters(tmp_path: Path) -> None:
    text = CONFIG.replace("on_misfit: dead_letter", "on_misfit: dead_letter, resent: suppress")
    async with running(tmp_path, text) as node:
        expiry = Properties(session_expiry_interval=600)
        device = await RawClient.connect(node.port, "device", version=5, properties=expiry)
        await published(device, Publish(b"dead_letter/a", BAD, 1, 5))
        device.writer.close()
        device = await RawClient.connect(node.port, "device", version=5, properties=expiry, clean_start=False)
        await published(device, Publish(b"dead_letter/a", BAD, 1, 5, dup=True))
        assert await places(node, "dead_letter") == ([], [BAD])


# --- Answers of each protocol about payloads that do not fit: to transactions, queues, batches, and brokers behind
# sources; and figures and changes of the checks


def port(node: LiveNode, listener: str) -> int:
    address = node.node.addresses[listener]
    assert isinstance(address, Address)
    return address.port


@contextmanager
def amqp(node: LiveNode) -> Iterator[Any]:
    parameters = pika.ConnectionParameters("127.0.0.1", port(node, "amqp"), socket_timeout=PATIENCE_S)
    connection = pika.BlockingConnection(parameters)
    try:
        yield connection.channel()
    finally:
        connection.close()


async def test_amqp_without_confirms_makes_dead_letters(tmp_path: Path) -> None:
    def publish() -> None:
        with amqp(node) as channel:
            for body in (GOOD, BAD, GOOD):
                channel.basic_publish("amq.topic", "refuse.a", body)

    async with running(tmp_path) as node:
        await asyncio.to_thread(publish)
        await until(lambda: figures(node, "refuse")["checked"] == 3)
        assert await places(node, "refuse") == ([GOOD, GOOD], [BAD])


async def test_a_transaction_takes_effect_with_its_dead_letters(tmp_path: Path) -> None:
    def publish() -> None:
        with amqp(node) as channel:
            channel.tx_select()
            for body in (GOOD, BAD):
                channel.basic_publish("amq.topic", "refuse.a", body)
            channel.tx_commit()
            channel.basic_publish("amq.topic", "refuse.a", BAD)
            channel.tx_rollback()

    async with running(tmp_path) as node:
        await asyncio.to_thread(publish)
        assert await places(node, "refuse") == ([GOOD], [BAD])


async def test_a_queue_gets_what_fits_and_keeps_its_room(tmp_path: Path) -> None:
    got: list[bytes] = []

    def publish() -> None:
        with amqp(node) as channel:
            channel.queue_declare("q", arguments={"x-max-length": 8, "x-overflow": "reject-publish"})
            for key in ("refuse.#", "dead_letter.#"):
                channel.queue_bind("q", "amq.topic", key)
            channel.confirm_delivery()
            for _ in range(20):  # they must not use up the room of the queue
                with pytest.raises(pika.exceptions.NackError):
                    channel.basic_publish("amq.topic", "refuse.a", BAD)
            for _ in range(20):
                channel.basic_publish("amq.topic", "dead_letter.a", BAD)
            for key, body in (("refuse.a", GOOD), ("dead_letter.a", GOOD)):
                channel.basic_publish("amq.topic", key, body)
            while (found := channel.basic_get("q", auto_ack=True))[0] is not None:
                got.append(found[2])

    async with running(tmp_path) as node:
        await asyncio.to_thread(publish)
        assert got == [GOOD, GOOD]
        assert await places(node, "refuse") == ([GOOD], [])
        assert await places(node, "dead_letter") == ([GOOD], [BAD] * 20)
        assert figures(node, "refuse")["refused"] == 20


async def test_amqp_1_0_has_a_condition_and_its_settled_messages_none(tmp_path: Path) -> None:
    pytest.importorskip("proton")
    from proton import Delivery, Message
    from proton.reactor import AtMostOnce
    from proton.utils import BlockingConnection, SendException

    def publish() -> str:
        connection = BlockingConnection(f"amqp://127.0.0.1:{port(node, 'amqp')}", timeout=PATIENCE_S)
        sender = connection.create_sender("stream/refuse")
        with pytest.raises(SendException) as caught:
            sender.send(Message(body=BAD, inferred=True, subject="refuse/a"))
        assert caught.value.state == Delivery.REJECTED
        connection.create_sender("refuse/b", options=AtMostOnce()).send(Message(body=BAD, inferred=True))
        sender.send(Message(body=GOOD, inferred=True, subject="refuse/a"))
        connection.close()
        return str(caught.value)

    async with running(tmp_path) as node:
        await asyncio.to_thread(publish)
        assert await places(node, "refuse") == ([GOOD], [BAD])
        assert [record.key for record in await errors(node, "refuse")] == [b"refuse/b"]


async def post(node: LiveNode, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"http://127.0.0.1:{port(node, 'http')}{path}"
    async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=fields) as answer:
        text = await answer.text()
        return answer.status, json.loads(text) if text else None


async def test_http_says_which_field_and_stores_nothing_of_such_a_request(tmp_path: Path) -> None:
    path, json_type = "/v1/streams/letter/dead_letter/a", {"Content_Type": "application/json"}
    async with running(tmp_path) as node:
        status, reported = await post(node, "/v1/topics/refuse/a", b"[%b,%b]" % (GOOD, BAD), **json_type)
        assert (status, REASON in reported["detail"]) == (400, True), reported
        assert await places(node, "refuse") == ([], [])
        status, reported = await post(
            node, "/v1/streams/letter/dead_letter/a", b"[%b,%b,%b]" % (GOOD, BAD, GOOD), **json_type
        )
        assert (status, reported["count"], reported["first_seq"]) == (200, 3, 0)
        assert await places(node, "dead_letter") == ([GOOD, GOOD], [BAD])
        for number in range(2):
            answer = await post(node, path, BAD, Idempotency_Key="k")
            assert answer[1]["first_seq"] is None, number
        assert await places(node, "dead_letter") == ([GOOD, GOOD], [BAD, BAD]), "the second request is a repetition"


async def test_a_schema_decides_about_payloads_in_place_of_misfits(tmp_path: Path) -> None:
    text = CONFIG.replace('{from: "accept/#",', '{from: "accept/#", payload: json,')
    async with running(tmp_path, text) as node:
        assert (await post(node, "/v1/topics/accept/a", b"{"))[0] == 200
        assert figures(node, "accept")["accepted"] == 1
        assert (await post(node, "/v1/streams/accept/other/a", GOOD))[0] == 422, "topics are for `misfits` as before"


async def test_points_of_influxdb_that_do_not_fit_are_dropped_and_named(tmp_path: Path) -> None:
    lines = b"a t=1.5,n=1i\na t=2.5\na n=2i\n"
    async with running(tmp_path) as node:
        status, reported = await post(node, "/write?db=refuse", lines)
        assert status == 400
        assert "partial write" in str(reported)
        assert "n: required, and missing" in str(reported)
        stored, letters = await places(node, "refuse")
        assert [json.loads(payload) for payload in stored] == [{"t": 1.5, "n": 1}, {"n": 2}]
        assert letters == []


@pytest.mark.parametrize("body", [BAD, b'{"n":1,"t":[' + b"1," * (CHECKED_BYTES_MAX // 2 - 20) + b"1]}"])
async def test_no_request_and_no_read_of_misfits_is_a_long_step(body: bytes, tmp_path: Path) -> None:
    """The whole of a request, and of a read, in steps that others do not feel."""
    count = min(3_000, 900_000 // len(body))
    found: list[LongStep] = []

    def publish(times: int) -> None:
        with amqp(node) as channel:
            for _ in range(times):
                channel.basic_publish("amq.topic", "dead_letter.a", body)

    text = CONFIG.replace("schema: {fields: {t: float,", 'schema: {fields: {t: "array<decimal(9,2)>",')
    async with running(tmp_path, text) as node:
        device = await RawClient.connect(node.port, "device")
        await post(node, "/v1/topics/other", b"1")  # modules are imported with the first of each
        await asyncio.to_thread(publish, 1)
        with Guard(found.append).on():
            status, reported = await post(
                node, "/v1/topics/dead_letter/a", b"\n".join([body] * count), Content_Type="application/x-ndjson"
            )
            assert status == 200, reported
            device.send(*(Publish(b"dead_letter/a", body, 1, number) for number in range(1, count + 1)))
            for _ in range(count):
                await device.receive()
            await asyncio.to_thread(publish, count)
            await until(lambda: figures(node, "letter")["checked"] == 3 * count + 1)
    assert not found, "\n".join(map(str, found))


async def test_short_payloads_that_lack_many_fields_are_no_long_step(tmp_path: Path) -> None:
    """Each costs some bytes, and a reason for each of the schema's fields."""
    found: list[LongStep] = []
    fields = ", ".join(f'f{number}: {{type: float, from: "a[{number}].x"}}' for number in range(256))
    body = b'{"a":[' + b"1," * 255 + b"1]}"
    text = CONFIG.replace(SCHEMA, f"schema: {{fields: {{{fields}}}}}")
    async with running(tmp_path, text) as node:
        device = await RawClient.connect(node.port, "device")
        await post(node, "/v1/topics/dead_letter/a", body)  # modules are imported with the first
        with Guard(found.append).on():
            for count in (30, 200):
                lines = b"\n".join([body] * count)
                status, reported = await post(
                    node, "/v1/topics/dead_letter/a", lines, Content_Type="application/x-ndjson"
                )
                assert status == 200, reported
            device.send(*(Publish(b"dead_letter/a", body, 1, number) for number in range(1, 201)))
            for _ in range(200):
                await device.receive()
        assert figures(node, "letter")["dead_lettered"] == 431
    assert not found, "\n".join(map(str, found))


async def test_checks_of_a_fleet_leave_the_loop_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client sends one message; one iteration of the loop does not check them all."""
    rounds, checked = 0, list[int]()
    count, look = 40, StreamCheck.look

    def slow(check: StreamCheck, payload: bytes) -> str:
        checked.append(rounds)
        time.sleep(0.005)
        return look(check, payload)

    def tick() -> None:
        nonlocal rounds
        rounds += 1
        if len(checked) < 2 * count:
            asyncio.get_running_loop().call_soon(tick)

    async with running(tmp_path) as node:
        fleet = [await RawClient.connect(node.port, f"device-{number}") for number in range(count)]
        for number, device in enumerate(fleet):  # the topic is known from now on
            await published(device, Publish(b"dead_letter/a", GOOD, 1, number + 1))
        monkeypatch.setattr(StreamCheck, "look", slow)
        checked += [-1] * count
        for number, device in enumerate(fleet):
            device.send(Publish(b"dead_letter/a", GOOD, 1, number + 1))
        tick()
        for device in fleet:
            await device.receive()
    assert max(checked.count(each) for each in range(rounds + 1)) < 10


async def test_sources_acknowledge_what_does_not_fit(tmp_path: Path) -> None:
    """After an answer that refuses, some brokers would send the message again and again, and others drop it."""
    broker = """\
node: broker
data_dir: broker
http: null
disk: {budget: 64MiB, segment: 4MiB}
listeners: {mqtt: {bind: "127.0.0.1:0"}, amqp: {bind: "127.0.0.1:0"}}
streams: {own: {from: "#"}}
"""

    def fill(node: LiveNode) -> None:
        with amqp(node) as channel:
            channel.queue_declare("jobs", durable=True)
            channel.queue_bind("jobs", "amq.topic", "refuse.amqp")
            for body in (GOOD, BAD, GOOD):
                channel.basic_publish("amq.topic", "refuse.amqp", body)

    async with running(tmp_path, broker) as upstream:
        await asyncio.to_thread(fill, upstream)
        text = f"""{CONFIG}
sources:
  plant: {{mqtt: {{url: "mqtt://127.0.0.1:{upstream.port}", topics: "refuse/mqtt", retry_min: 20ms}}}}
  jobs: {{amqp: {{url: "amqp://127.0.0.1:{port(upstream, "amqp")}", queue: jobs, retry_min: 20ms}}}}
"""
        async with running(tmp_path, text) as node:
            await until(lambda: upstream.node.counters.subscriptions > 0)
            await nodes.publish(upstream.port, [GOOD, BAD, GOOD], "refuse/mqtt")
            await until(lambda: figures(node, "refuse")["checked"] >= 6)
            stored, letters = await places(node, "refuse")
            assert (stored, letters) == ([GOOD] * 4, [BAD] * 2)
            senders = {record.key: dict(record.headers)["weft.sender"] for record in await errors(node, "refuse")}
            assert senders == {b"refuse/mqtt": "source:plant", b"refuse/amqp": "source:jobs"}
            facts = node.node.status.facts()
            assert facts["sources"]["plant"]["refused"] == facts["sources"]["jobs"]["refused"] == 0
            await until(lambda: node.node.status.facts()["sources"]["jobs"]["acknowledged"] == 3)
            await until(lambda: upstream.node.status.facts()["queues"]["messages"] == 0)


async def test_schemas_change_on_the_running_node(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        device = await RawClient.connect5(node.port, "device")

        async def code(topic: bytes, payload: bytes) -> int:
            device.send(Publish(topic, payload, 1, 1))
            answer: int = (await device.receive()).code
            return answer

        assert await code(b"refuse/a", BAD) == 0x99
        node.apply(CONFIG.replace("on_misfit: refuse", "on_misfit: dead_letter"))
        assert await code(b"refuse/a", BAD) == 0
        node.apply(CONFIG.replace("t: float", "t: string"))
        assert await code(b"refuse/a", BAD) == 0
        assert await code(b"refuse/a", GOOD) == 0x99
        counts = figures(node, "refuse")
        assert (counts["checked"], counts["refused"], counts["dead_lettered"]) == (4, 2, 1)
        node.apply(re.sub(r", schema: .*(?=}\n)", "", CONFIG))
        assert await code(b"refuse/a", b"anything") == 0
        assert node.node.status.facts()["schemas"] == {}


@pytest.mark.parametrize("make", PROTOCOLS)
async def test_schemas_change_for_connections_that_are_open(make: type[ProtocolClient], tmp_path: Path) -> None:
    """Each has ways of its own to remember where the messages of a topic go."""
    async with running(tmp_path) as node:
        client = make(Way(port(node, make.protocol)))
        await asyncio.to_thread(client.connect)

        async def taken(*bodies: bytes) -> list[bool]:
            return [await asyncio.to_thread(client.publish, "refuse/a", body) for body in bodies]

        try:
            assert await taken(GOOD, GOOD, BAD) == [True, True, False]
            node.apply(CONFIG.replace("on_misfit: refuse", "on_misfit: dead_letter"))
            assert await taken(GOOD, GOOD, BAD) == [True] * 3
            node.apply(re.sub(r", schema: .*(?=}\n)", "", CONFIG))
            assert await taken(GOOD, GOOD, BAD) == [True] * 3
            node.apply(CONFIG)
            assert await taken(GOOD, GOOD, BAD, GOOD) == [True, True, False, True]
        finally:
            await asyncio.to_thread(client.close)
        assert await places(node, "refuse") == ([GOOD] * 6 + [BAD] + [GOOD] * 3, [BAD])


async def test_a_changed_file_counts_from_the_next_reload(tmp_path: Path) -> None:
    file = tmp_path / "telemetry.yaml"
    file.write_text("fields: {t: float}\n")
    text = (
        "node: a\ndata_dir: data\nhttp: null\nlisteners: {mqtt: {bind: '127.0.0.1:0'}}\n"
        "streams: {s: {from: 's/#', schema: telemetry.yaml, on_misfit: dead_letter}}\n"
    )
    async with running(tmp_path, text) as node:
        device = await RawClient.connect(node.port, "device")
        file.write_text("fields: {t: string}\n")
        for _ in range(2):
            device.send(Publish(b"s/a", b'{"t": "x"}', 1, 1))
            await device.receive()
            node.apply(text)
        assert [len(await node.stored(name)) for name in ("s", "s-errors")] == [1, 1]


async def test_figures_metrics_and_a_line_say_what_does_not_fit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.WARNING)
    async with running(tmp_path) as node:
        device = await RawClient.connect(node.port, "device")
        for payload in (GOOD, BAD, BAD, b"secret"):
            device.send(Publish(b"dead_letter/a", payload, 1, 1))
            await device.receive()
        counts = figures(node, "letter")
        assert counts == {
            "on_misfit": "dead_letter",
            "checked": 4,
            "unchecked": 0,
            "accepted": 0,
            "dead_lettered": 3,
            "refused": 0,
            "last_misfit": "payload",
        }
        show_running(node.node.status.facts(), time.time())
        assert "\nletter\t4\t0\t0\t3\t0\tpayload\n" in capsys.readouterr().out
        text = render(node.node.status).decode()
        assert 'weft_edge_schema_checked_total{stream="letter"} 4.0' in text
        assert 'weft_edge_schema_misfits_total{outcome="dead_lettered",stream="letter"} 3.0' in text
    lines = [record.getMessage() for record in caplog.records if "does not fit" in record.getMessage()]
    assert lines == ["stream letter: a message does not fit the schema (t): it is in letter-errors, with the reason"]
    assert "hot" not in caplog.text, "logs go further than payloads"
