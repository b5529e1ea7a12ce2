"""Connections that are cut at every byte of a conversation: nothing of them stays charged to their user."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.edge_node.servers.amqp import harness as amqp
from tests.edge_node.servers.amqp1 import harness as amqp1
from tests.edge_node.servers.http import harness as http
from tests.edge_node.servers.mqtt.harness import RawClient, SyncGate, running
from tests.support.waiting import PATIENCE_S, until
from weft.bounds import Owner, OwnerKind
from weft.config.log_lines import NAMES_MAX, DisconnectLog
from weft.edge_node.queues.queue import QueueClient
from weft.edge_node.servers.http.part import Http
from weft.protocols.amqp.content import write_content
from weft.protocols.amqp.frames import FRAME_BYTES_MIN, PROTOCOL_HEADER
from weft.protocols.amqp.methods import Method, commands, write_method
from weft.protocols.mqtt.packets import Publish

Basic, Channel, Connection, Queue, Tx = (
    commands.Basic,
    commands.Channel,
    commands.Connection,
    commands.Queue,
    commands.Tx,
)


QUIET_S = 0.01


async def cut(port: int, data: bytes, *, resets: bool, waits: bool = True) -> None:
    """Send something, and go: when the node has no more to say, or at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await asyncio.sleep(0)
    with suppress(TimeoutError):
        while waits:
            async with asyncio.timeout(QUIET_S):
                waits = bool(await reader.read(1 << 16))
    if resets:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()


def on_channel(*methods: Method) -> bytes:
    return b"".join(write_method(each, 1) for each in methods)


def published(body: bytes, exchange: str = "", key: str = "q") -> bytes:
    return on_channel(Basic.Publish(0, exchange, key)) + write_content(1, b"\0\0", body, FRAME_BYTES_MIN)


AMQP = [
    PROTOCOL_HEADER,
    write_method(Connection.StartOk({}, "PLAIN", "\0guest\0guest"), 0),
    write_method(Connection.TuneOk(0, 0, 0), 0),
    write_method(Connection.Open("/"), 0),
    on_channel(Channel.Open()),
    on_channel(Queue.Declare(0, "q", exclusive=True)),
    on_channel(Queue.Bind(0, "q", "amq.topic", "plant.#")),
    published(bytes(9000)) + published(b"1", "amq.topic", "plant.1"),
    on_channel(Basic.Qos(prefetch_count=1), Basic.Consume(0, "q", "tag")),
    on_channel(Basic.Get(0, "q")),
    on_channel(Tx.Select()),
    published(bytes(9000)),
    on_channel(Basic.Ack(1)),
    on_channel(Tx.Commit()),
    on_channel(Queue.Delete(0, "q")),
    on_channel(Channel.Close(200, "", 0, 0)),
    write_method(Connection.Close(200, "", 0, 0), 0),
]


def cuts(steps: list[bytes], each: int) -> list[bytes]:
    """Beginnings of a conversation: the end of each step, and some within it."""
    whole, found = b"".join(steps), set[int]()
    at = 0
    for step in steps:
        found |= {at + 1, at + len(step) // 2, *range(at, at + len(step), each)}
        at += len(step)
    return [whole[:end] for end in sorted({*found, len(whole)})]


@pytest.mark.parametrize("resets", [False, True])
async def test_an_amqp_connection_leaves_nothing_behind(tmp_path: Path, resets: bool) -> None:
    async with amqp.serving(tmp_path) as node:
        for number, data in enumerate(cuts(AMQP, 20_000)):
            await cut(node.port, data, resets=resets, waits=number % 4 != 0)
        assert node.counters_of_node.publishes_received
        bounds = node.queues.bounds
        held: dict[str, Any] = {
            "unfinished": node.context.unfinished,
            "channels": node.amqp._shared.channels,
            "queues": bounds.queues,
            "bindings": bounds.bindings,
            "unacknowledged": bounds.unacknowledged,
            "waiting": bounds.waiting,
            "places": node.context.connection_bound,
        }
        await until(lambda: not node.amqp._shared.clients and not node.amqp._shared.lingering)
        assert {name: bound.used for name, bound in held.items()} == dict.fromkeys(held, 0)
        assert node.counters.amqp_channels == 0
        assert not node.context.routing.remembering


HTTP = [
    b"POST /v1/streams/telemetry/plant/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n" + b"x" * 9000,
    b"POST /v1/topics/plant/a HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n21",
    b"POST /v1/topics/plant/a HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n2000\r\n" + b"1\n" * 0x1000 + b"\r\n0\r\n\r\n",
    b"GET /v1/topics?filter=plant/%23 HTTP/1.1\r\nHost: localhost\r\n\r\n",
]


async def test_an_http_connection_leaves_nothing_behind(tmp_path: Path) -> None:
    async with http.running(tmp_path) as node:
        service = node.node.part(Http).service
        for data in cuts(HTTP, 3000):
            await cut(node.port, data, resets=True)
        assert node.stored()
        await until(lambda: not service._open)
        context = service.context
        held: dict[str, Any] = {
            "unfinished": context.unfinished,
            "places": context.connection_bound,
            "readers": service._readers._bound,
        }
        assert {name: bound.used for name, bound in held.items()} == dict.fromkeys(held, 0)


def sends(client: amqp1.ProtonClient) -> None:
    link = client.sender("plant/a").link
    for number in range(50):
        link.send(amqp1.Message(body=bytes(3000) + b"%d" % number, inferred=True))
    client.connection.wait(lambda: client.connection.conn.transport.pending() <= 0)


def receives(client: amqp1.ProtonClient) -> None:
    """Deliveries of a stream, a topic and a queue are not settled."""
    stream, topic, jobs = (client.receiver(each) for each in ("stream/telemetry", "plant/#", "queue/jobs"))
    client.send("plant/a", *(amqp1.Message(body=bytes(1000), inferred=True) for _ in range(20)))
    client.send("queue/jobs", *(amqp1.Message(body=bytes(1000), inferred=True) for _ in range(20)))
    for each in (stream, topic, jobs):
        each.receive(timeout=amqp1.PATIENCE_S)


@pytest.mark.parametrize("work", [lambda client: None, sends, receives], ids=["idle", "sends", "receives"])
async def test_an_amqp1_connection_leaves_nothing_behind(tmp_path: Path, work: Callable[[Any], None]) -> None:
    async with amqp1.amqp(tmp_path) as node:
        queues = node.parts.queues
        assert queues is not None
        queues.declarations.declare_queue(QueueClient(Owner(OwnerKind.USER, "ann")), "jobs", durable=True)
        client = await node.client()
        await amqp1.in_thread(work, client)
        client.drop()
        await until(lambda: not node.parts.connections)
        context = node.node.context
        shares = context.delivery.shares
        held: dict[str, Any] = {
            "unfinished": context.unfinished,
            "filters": shares.filter_bytes,
            "match cost": shares.match_cost,
            "unacknowledged": queues.bounds.unacknowledged,
            "windows": context.delivery.budget,
            "places": context.connection_bound,
        }
        assert {name: bound.used for name, bound in held.items()} == dict.fromkeys(held, 0)
        assert context.counters.subscriptions == 0


# --- Log lines about clients that were closed: one for what many meet, or one client again and again, then a count


ATTEMPTS = 20
FULL = "what it sent could not be stored and is not acknowledged: the log is full: %d bytes"
log = logging.getLogger(__name__)


def lines(caplog: pytest.LogCaptureFixture, beginning: str) -> list[str]:
    return [line for record in caplog.records if (line := record.getMessage()).startswith(beginning)]


def test_few_names_that_a_stranger_chooses_give_it_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    disconnect_log = DisconnectLog(lambda: 0.0)
    for number in range(50):
        name = f"a'b\"{number:x}-{'x' * (number % 7)}"
        disconnect_log.closed(log, "closed a client", f"user {name!r}: wrong password", stranger_at="10.0.0.7")
        disconnect_log.closed(log, "closed a client", f"no protocol: {name.encode()!r}", stranger_at="10.0.0.7")
    assert len(lines(caplog, "closed a client")) == NAMES_MAX + 2


def test_each_of_a_few_devices_with_an_old_password_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Behind one address: a gateway, or the devices of a site."""
    disconnect_log = DisconnectLog(lambda: 0.0)
    for _ in range(10):
        for name in ("press", "oven"):
            disconnect_log.closed(log, "closed a client", f"no such user or password: {name!r}", stranger_at="10.0.0.7")
    assert [line[-7:] for line in lines(caplog, "closed a client")] == ["'press'", " 'oven'"]


def test_a_refusal_each_second_is_a_line_after_1_2_and_4_minutes(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    disconnect_log = DisconnectLog(lambda: now)
    said: list[float] = []
    for second in range(10 * 60):
        now = float(second)
        before = len(caplog.records)
        for device in range(50):
            disconnect_log.closed(log, f"closed MQTT client 'device-{device}'", FULL % (second + device))
        said += [now] * (len(caplog.records) - before)
    assert said == [0, 60, 180, 420]
    assert "'device-0'" in caplog.records[0].getMessage()
    assert caplog.records[1].getMessage().endswith("; 2,999 more like this since the last line")


def test_other_reasons_addresses_and_clients_have_lines_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    disconnect_log = DisconnectLog(lambda: 0.0)
    for _ in range(3):
        for origin in ("192.0.2.7", "192.0.2.8"):
            for reason in ("expected a frame, got b'\\x01'", "expected a frame, got b'\\x02'", "no password"):
                disconnect_log.closed(log, "closed", reason, stranger_at=origin)
        disconnect_log.closed(log, "closed MQTT client 'a'", "did not read what it was sent for 60 s")
        disconnect_log.closed(log, "closed", "expected a frame", logging.INFO, "192.0.2.7")
    levels = [record.levelno for record in caplog.records]
    assert levels.count(logging.WARNING) == 2 * 2 + 3, "what a client that was let in did is said each time"


def test_what_is_remembered_of_a_reason_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    disconnect_log = DisconnectLog(lambda: 0.0)
    for number in range(3):
        disconnect_log.closed(log, "closed", "x" * 10_000 + chr(97 + number), stranger_at="192.0.2.7")
    assert len(caplog.records) == 1


async def test_a_disk_that_fails_is_one_line_for_all_clients(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate = SyncGate()
    async with running(tmp_path, filesystem=gate) as node:
        gate.error = OSError(5, "Input/output error")
        for number in range(ATTEMPTS):
            device = await RawClient.connect(node.port, f"device-{number % 3}")
            device.send(Publish(b"plant/a", b"x", 1, 9))
            assert await device.receive() is None
        assert node.counters.log_refusals == ATTEMPTS
    assert len(lines(caplog, "closed MQTT client 'device-")) <= 2, "the first is told of the error, the others after it"


@pytest.mark.parametrize("first", [amqp1.SASL, b"GET /%02d"], ids=["a bad frame", "another protocol"])
async def test_attempts_without_a_login_do_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: bytes
) -> None:
    async with amqp1.amqp(tmp_path) as node:
        for number in range(ATTEMPTS):
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
            writer.write((first % number if b"%" in first else first) + b"\xff\0\0\0%02d" % number)
            async with asyncio.timeout(PATIENCE_S):
                await reader.read()
            writer.close()
    assert len(lines(caplog, "closed ")) == 1
