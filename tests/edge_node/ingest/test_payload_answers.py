"""Answers of each protocol about payloads that do not fit: to transactions, queues, batches, and brokers behind
sources; and figures and changes of the checks."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pika
import pika.exceptions
import pytest

from tests.edge_node.ingest.test_payload_checks import (
    BAD,
    CONFIG,
    GOOD,
    REASON,
    SCHEMA,
    errors,
    figures,
    places,
    published,
    running,
)
from tests.edge_node.servers.clients import PROTOCOLS, ProtocolClient, Way
from tests.edge_node.servers.mqtt.harness import RawClient
from tests.edge_node.sources import nodes
from tests.support.live_node import LiveNode
from tests.support.steps import Guard, LongStep
from tests.support.waiting import PATIENCE_S, until
from weft.config.units import Address
from weft.edge_node.ingest.routing import StreamCheck
from weft.edge_node.status.facts import render
from weft.protocols.mqtt.packets import Publish
from weft.storage.payloads.check import CHECKED_BYTES_MAX
from weft.text.status import show_running

pytestmark = pytest.mark.slow


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
