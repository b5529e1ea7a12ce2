"""What people do with AMQP 0-9-1, with pika, aio-pika and kombu, against a node as a process of its own."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aio_pika
import kombu
import paho.mqtt.client as paho
import pika
import pytest
from aio_pika.patterns import RPC
from paho.mqtt.enums import CallbackAPIVersion
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from examples.demo.fabric import free_port
from tests.interop.queues import got
from tests.support.processes import EdgeProcess
from tests.support.third_party import AMQP_OF_JAVA, AMQPLIB
from tests.support.waiting import PATIENCE_S, Patience, wait_until

pytestmark = pytest.mark.processes

CONFIG = """\
node: amqp
data_dir: {directory}/data
http: null
listeners:
  mqtt: {{bind: "127.0.0.1:{mqtt_port}"}}
  amqp: {{bind: "127.0.0.1:{port}", vhosts: {{"/": null, line-7: plant/7}}}}
streams:
  telemetry: {{from: "plant/{{line}}/#"}}
"""
_numbers = itertools.count()


class AmqpBroker(EdgeProcess):
    """An edge node with listeners for AMQP and MQTT."""

    def __init__(self, directory: Path) -> None:
        self.port, self.mqtt_port = free_port(), free_port()
        super().__init__(directory, CONFIG.format(directory=directory, port=self.port, mqtt_port=self.mqtt_port))

    @property
    def parameters(self) -> pika.ConnectionParameters:
        return self.at("/")

    def at(self, vhost: str) -> pika.ConnectionParameters:
        return pika.ConnectionParameters("127.0.0.1", self.port, vhost)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AmqpBroker]:
    started = AmqpBroker(tmp_path_factory.mktemp("amqp"))
    started.start()
    yield started
    started.kill()


@pytest.fixture
def channel(broker: AmqpBroker) -> Iterator[Any]:
    connection = pika.BlockingConnection(broker.parameters)
    yield connection.channel()
    if connection.is_open:
        connection.close()


@pytest.fixture
def name() -> str:
    return f"q{next(_numbers)}"


def test_pika_publishes_with_confirms_to_a_stream(channel: Any) -> None:
    channel.confirm_delivery()
    for n in range(20):
        channel.basic_publish("amq.topic", "plant.1.temperature", b"%d" % n, mandatory=True)


def test_pika_hands_work_to_a_queue(channel: Any, name: str) -> None:
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    sent = pika.BasicProperties(content_type="text/plain", headers={"n": 1}, delivery_mode=2, message_id="m")
    channel.basic_publish("", name, b"work", sent, mandatory=True)
    method, properties, body = got(channel, name)
    assert (body, method.redelivered, method.exchange, method.routing_key) == (b"work", False, "", name)
    assert properties == sent


def test_pika_consumes_with_acknowledgements(channel: Any, name: str) -> None:
    channel.queue_declare(name)
    channel.basic_qos(prefetch_count=2)
    for n in range(6):
        channel.basic_publish("", name, b"%d" % n)
    taken: list[bytes] = []
    for method, _, body in channel.consume(name, inactivity_timeout=PATIENCE_S):
        assert method is not None
        if body == b"3" and not method.redelivered:
            channel.basic_nack(method.delivery_tag, requeue=True)
            continue
        taken.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(taken) == 6:
            break
    assert sorted(taken) == [b"%d" % n for n in range(6)]
    assert channel.cancel() == 0


def test_pika_is_told_what_nothing_takes(channel: Any) -> None:
    channel.confirm_delivery()
    with pytest.raises(UnroutableError):
        channel.basic_publish("", "no-such-queue", b"x", mandatory=True)


def test_pika_sees_channel_exceptions(broker: AmqpBroker, channel: Any) -> None:
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.queue_declare("no-such-queue", passive=True)
    assert closed.value.reply_code == 404


def test_pika_transactions(channel: Any, name: str) -> None:
    channel.queue_declare(name)
    channel.tx_select()
    channel.basic_publish("", name, b"no")
    channel.tx_rollback()
    channel.basic_publish("", name, b"yes")
    channel.tx_commit()
    assert got(channel, name)[2] == b"yes"


def test_a_full_queue_that_rejects_nacks(channel: Any, name: str) -> None:
    channel.queue_declare(name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    channel.basic_publish("", name, b"1")
    with pytest.raises(NackError):
        channel.basic_publish("", name, b"2")


def test_mqtt_and_amqp_meet(broker: AmqpBroker, channel: Any, name: str) -> None:
    channel.queue_declare(name)
    channel.queue_bind(name, "amq.topic", "plant.*.temperature")
    seen: list[tuple[str, bytes]] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, f"meet-{name}")
    client.on_message = lambda _client, _data, message: seen.append((message.topic, message.payload))
    client.connect("127.0.0.1", broker.mqtt_port)
    client.loop_start()
    client.subscribe(f"plant/{name}/#", 1)[0]
    client.publish("plant/7/temperature", b"by mqtt", 1).wait_for_publish(PATIENCE_S)
    method, _, body = got(channel, name)
    assert (method.routing_key, method.exchange, body) == ("plant.7.temperature", "amq.topic", b"by mqtt")
    channel.confirm_delivery()

    def sent_until_it_comes() -> bool:
        channel.basic_publish("amq.topic", f"plant.{name}.amqp", b"by amqp")
        return bool(seen)

    wait_until(sent_until_it_comes)
    client.loop_stop()
    assert seen[0] == (f"plant/{name}/amqp", b"by amqp")


@pytest.fixture
def in_line_7(broker: AmqpBroker) -> Iterator[Any]:
    """A channel in a virtual host whose topics begin with plant/7."""
    connection = pika.BlockingConnection(broker.at("line-7"))
    yield connection.channel()
    connection.close()


def test_virtual_hosts_have_names_of_their_own(channel: Any, in_line_7: Any, name: str) -> None:
    """connection.open: virtual-host; queues and exchanges of the same name are others, also those found by CC."""
    exchange = f"x-{name}"
    for each, kind in ((channel, "fanout"), (in_line_7, "direct")):
        each.exchange_declare(exchange, kind, auto_delete=True)
        each.queue_declare(name, auto_delete=True)
        each.queue_bind(name, exchange, name)
        each.confirm_delivery()
    copies = pika.BasicProperties(headers={"CC": [name]})
    in_line_7.basic_publish("", name, b"to its queue", mandatory=True)
    in_line_7.basic_publish(exchange, name, b"to its exchange", mandatory=True)
    in_line_7.basic_publish("", "none", b"to a further key", copies, mandatory=True)
    channel.basic_publish(exchange, "any", b"outside", mandatory=True)
    found = [got(in_line_7, name) for _ in range(3)]
    assert [(method.exchange, method.routing_key, body) for method, _, body in found] == [
        ("", name, b"to its queue"),
        (exchange, name, b"to its exchange"),
        ("", "none", b"to a further key"),
    ]
    assert got(channel, name)[2] == b"outside"
    for each in (channel, in_line_7):
        assert each.queue_declare(name, passive=True).method.message_count == 0


def test_topics_of_a_virtual_host_begin_with_its_prefix(channel: Any, in_line_7: Any, name: str) -> None:
    """connection.open: virtual-host; the topic exchange is the same for all."""
    channel.queue_declare(name, auto_delete=True)
    channel.queue_bind(name, "amq.topic", "plant.7.*")
    in_line_7.queue_declare(name, auto_delete=True)
    in_line_7.queue_bind(name, "amq.topic", "*")
    in_line_7.confirm_delivery()
    in_line_7.basic_publish("amq.topic", "pressure", b"3", mandatory=True)
    assert [got(each, name)[0].routing_key for each in (channel, in_line_7)] == ["plant.7.pressure", "pressure"]


def test_direct_reply_to_in_a_virtual_host(in_line_7: Any, name: str) -> None:
    """basic.consume: queue, no-ack."""
    answers: list[bytes] = []
    in_line_7.queue_declare(name, auto_delete=True)
    in_line_7.basic_consume("amq.rabbitmq.reply-to", lambda *found: answers.append(found[3]), auto_ack=True)
    in_line_7.basic_publish("", name, b"question", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    _, properties, _ = got(in_line_7, name)
    in_line_7.basic_publish("", properties.reply_to, b"answer")
    patience = Patience()
    while not answers and not patience.is_over():
        in_line_7.connection.process_data_events(0.05)
    assert answers == [b"answer"]


def test_an_unknown_virtual_host_is_refused(broker: AmqpBroker) -> None:
    """connection.open: virtual-host."""
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="no virtual host 'line-8'"):
        pika.BlockingConnection(broker.at("line-8"))


async def test_aio_pika(broker: AmqpBroker, name: str) -> None:
    connection = await aio_pika.connect_robust(broker.url)
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=10)
        exchange = await channel.declare_exchange(f"x-{name}", aio_pika.ExchangeType.TOPIC, auto_delete=True)
        queue = await channel.declare_queue("", exclusive=True)
        await queue.bind(exchange, "a.*")
        for n in range(20):
            await exchange.publish(aio_pika.Message(b"%d" % n, headers={"n": n}), "a.b")
        taken = []
        async with queue.iterator(timeout=PATIENCE_S) as messages:
            async for message in messages:
                async with message.process():
                    taken.append((message.body, message.headers["n"]))
                if len(taken) == 20:
                    break
        assert taken == [(b"%d" % n, n) for n in range(20)]
        await queue.unbind(exchange, "a.*")
        await queue.delete()


async def test_aio_pika_transactions(broker: AmqpBroker, name: str) -> None:
    async with await aio_pika.connect(broker.url) as connection:
        channel = await connection.channel(publisher_confirms=False)
        queue = await channel.declare_queue(name, auto_delete=True)
        async with channel.transaction():
            await channel.default_exchange.publish(aio_pika.Message(b"one"), name)
        message = await queue.get(timeout=PATIENCE_S)
        assert message.body == b"one"
        await message.ack()


async def test_aio_pika_calls_and_closes_its_rpc(broker: AmqpBroker, name: str) -> None:
    """It cancels its consumer, with which its queue of answers goes, and unbinds that queue then."""
    async with await aio_pika.connect(broker.url) as connection:
        rpc = await RPC.create(await connection.channel())

        async def double(*, number: int) -> int:
            return 2 * number

        await rpc.register(name, double, auto_delete=True)
        assert await rpc.call(name, {"number": 21}) == 42
        await rpc.unregister(double)
        await rpc.close()
        assert not rpc.channel.is_closed


def test_kombu(broker: AmqpBroker, name: str) -> None:
    taken: list[Any] = []
    with kombu.Connection(broker.url, heartbeat=10, transport_options={"confirm_publish": True}) as connection:
        exchange = kombu.Exchange(f"tasks-{name}", "direct", durable=True)
        queue = kombu.Queue(name, exchange, routing_key="video", queue_arguments={"x-max-priority": 5})
        with connection.Producer(serializer="json") as producer:
            for n in range(5):
                producer.publish({"n": n}, exchange=exchange, routing_key="video", declare=[queue], retry=True)

        def take(body: Any, message: Any) -> None:
            taken.append(body)
            message.ack()

        with connection.Consumer(queue, callbacks=[take], prefetch_count=2):
            while len(taken) < 5:
                connection.drain_events(timeout=PATIENCE_S)
    assert taken == [{"n": n} for n in range(5)]


def test_kombu_simple_queue(broker: AmqpBroker, name: str) -> None:
    with kombu.Connection(broker.url) as connection:
        with connection.SimpleQueue(name) as queue:
            queue.put({"hello": "world"})
            message = queue.get(timeout=PATIENCE_S)
            assert message.payload == {"hello": "world"}
            message.ack()


def test_what_was_confirmed_survives_sigkill(tmp_path: Path) -> None:
    """SIGKILL between publish and confirm: everything that was confirmed is there, in its order."""
    node = AmqpBroker(tmp_path)
    node.start()
    confirmed: list[int] = []
    try:
        connection = pika.BlockingConnection(node.parameters)
        channel = connection.channel()
        channel.queue_declare("kept", durable=True)
        channel.confirm_delivery()
        for n in range(10_000):
            if n == 150:
                os.kill(node.pid, signal.SIGKILL)
            channel.basic_publish("", "kept", b"%d" % n, pika.BasicProperties(delivery_mode=2), mandatory=True)
            confirmed.append(n)
    except (pika.exceptions.AMQPError, OSError):
        pass
    finally:
        node.kill()
    assert len(confirmed) >= 150
    node.start()
    try:
        channel = pika.BlockingConnection(node.parameters).channel()
        found = channel.queue_declare("kept", passive=True).method.message_count
        taken = [int(got(channel, "kept")[2]) for _ in range(found)]
        assert taken[: len(confirmed)] == confirmed
        assert len(taken) <= len(confirmed) + 1
    finally:
        node.kill()


# --- SIGKILL of the node under each client of AMQP 0-9-1, a process of its own: while it publishes with confirms, and
# while it consumes with acknowledgements


HERE = Path(__file__).parent
MESSAGES = 120
KILL_AFTER = 40

Command = Callable[..., list[str]]


@pytest.fixture(scope="module")
def amqplib() -> Command:
    try:
        folder = AMQPLIB.obtain()
    except LookupError as error:
        pytest.skip(str(error))
    return lambda *arguments: ["node", str(HERE / "amqplib_peer.js"), str(folder), *map(str, arguments)]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Command:
    if missing := [program for program in ("javac", "java") if shutil.which(program) is None]:
        pytest.skip(f"{', '.join(missing)}: not installed")
    try:
        jars = os.pathsep.join(AMQP_OF_JAVA.jars())
    except LookupError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("java")
    subprocess.run(["javac", "-cp", jars, "-d", str(folder), str(HERE / "JavaPeer.java")], check=True, cwd=folder)
    return lambda *arguments: ["java", "-cp", f"{folder}:{jars}", "JavaPeer", *map(str, arguments)]


@pytest.fixture(params=["pika", "aio-pika", "kombu", "amqplib", "java"])
def command(request: pytest.FixtureRequest) -> Command:
    """Each library, as the command of its process."""
    if request.param in {"amqplib", "java"}:
        found: Command = request.getfixturevalue(request.param)
        return found
    return lambda *arguments: [sys.executable, str(HERE / "amqp_peer.py"), request.param, *map(str, arguments)]


class Peer:
    """A client that says what it sees."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: list[list[str]] = []
        self._came = threading.Condition()
        self._errors: list[str] = []
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._came:
                self.lines.append(line.split())
                self._came.notify_all()
        with self._came:
            self._came.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors += list(self.process.stderr)

    def said(self, word: str) -> list[str]:
        return [line[1] for line in self.lines if line[0] == word]

    def so_far(self) -> list[list[str]]:
        """What the client has said, now that the node is gone: half a second without another line."""
        with self._came:
            while self._came.wait(0.5):
                pass
            return list(self.lines)

    def wait_for(self, word: str, count: int) -> None:
        """Wait until the client has said so many different things with a word."""
        patience = Patience(60)
        with self._came:
            while len(set(self.said(word))) < count:
                assert self.process.poll() is None, "".join(self._errors)
                assert self._came.wait(patience.left()) or patience.left(), f"{self.lines[-5:]} {''.join(self._errors)}"

    def end(self) -> list[list[str]]:
        """Wait until the client ends by itself; return all that it said."""
        code = self.process.wait(PATIENCE_S)
        self.kill()
        assert code == 0, "".join(self._errors)
        return self.lines

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AmqpBroker]:
    started = AmqpBroker(tmp_path)
    started.start()
    yield started
    started.kill()


@pytest.fixture
def peers() -> Iterator[Callable[[list[str]], Peer]]:
    """Starts clients, and ends those that are still there."""
    started: list[Peer] = []

    def start(command: list[str]) -> Peer:
        started.append(Peer(command))
        return started[-1]

    yield start
    for peer in started:
        peer.kill()


def said(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def drained(channel: Any, queue: str) -> list[int]:
    """The numbers of all messages of a queue."""
    found = channel.queue_declare(queue, passive=True).method.message_count
    taken = []
    for _ in range(found):
        method, _, body = channel.basic_get(queue, auto_ack=True)
        assert method is not None
        taken.append(int(body))
    return taken


@pytest.mark.slow
def test_what_was_confirmed_is_there(command: Command, node: AmqpBroker, peers: Any) -> None:
    """confirm.select, basic.ack from the node: SIGKILL of the node while a client publishes."""
    peer = peers(command("publish", node.port, "kept"))
    peer.wait_for("confirmed", MESSAGES)
    node.kill()
    confirmed = {int(number) for _, number in peer.end()}
    node.start()
    connection = pika.BlockingConnection(node.parameters)
    taken = drained(connection.channel(), "kept")
    connection.close()
    assert len(confirmed) >= MESSAGES
    assert not confirmed - set(taken)
    assert len(taken) == len(set(taken))
    assert taken == sorted(taken)


@pytest.mark.slow
def test_what_was_acknowledged_does_not_come_again(command: Command, node: AmqpBroker, peers: Any) -> None:
    """basic.ack, basic.deliver: redelivered; SIGKILL of the node while a client consumes. Once the effect of an
    acknowledgement was seen, the message is gone; what was delivered before comes again, flagged; nothing is lost."""
    channel = pika.BlockingConnection(node.parameters).channel()
    channel.queue_declare("work", durable=True)
    channel.confirm_delivery()
    for n in range(MESSAGES):
        channel.basic_publish("", "work", b"%d" % n, pika.BasicProperties(delivery_mode=2), mandatory=True)
    peer = peers(command("consume", node.port, "work"))
    peer.wait_for("done", KILL_AFTER)
    node.kill()
    before = peer.so_far()
    node.start()
    channel = pika.BlockingConnection(node.parameters).channel()
    channel.basic_publish("", "work", b"end")
    after = peer.end()[len(before) :]
    done = {line[1] for line in before if line[0] == "done"}
    taken = {line[1] for line in before if line[0] == "taken"}
    again = [line for line in after if line[0] == "taken" and line[1] != "end"]
    assert not done & {line[1] for line in again}
    assert all(line[2] == "1" for line in again if line[1] in taken), "what comes again is flagged"
    assert {str(n) for n in range(MESSAGES)} == taken | {line[1] for line in again}
    assert drained(channel, "work") == []


@pytest.mark.slow
def test_amqplib_uses_what_it_has(amqplib: Command, node: AmqpBroker) -> None:
    """amqplib of npm: confirms, returns, types of headers, bindings of exchanges, prefetch, rejects and others."""
    done = said(amqplib("everything", node.port, ""))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["named"]
    assert found["empty"] is False
    assert found["returned"] == 312
    assert found["taken"] == [["a", False], ["a", True], ["b", False], ["c", False]]
    assert found["dead"] == ["b", "rejected"]
    assert found["answer"] == "answer"
    assert found["gone"] is None
    assert found["purged"] == 0
    assert found["headers"] == {
        "kind": "hot",
        "whole": 7,
        "large": 1 << 40,
        "negative": -5,
        "half": 1.5,
        "yes": True,
        "text": "ü",
        "nothing": None,
        "list": [1, "two", {"three": 3}],
        "table": {"inner": {"deep": "x"}},
        "bytes": [0, 255],
        "when": {"!": "timestamp", "value": 1_700_000_000},
        "price": {"!": "decimal", "value": {"places": 2, "digits": 1999}},
    }
    assert found["properties"] == {
        "contentType": "text/plain",
        "contentEncoding": "utf-8",
        "deliveryMode": 2,
        "priority": 4,
        "correlationId": "c",
        "replyTo": "r",
        "expiration": "60000",
        "messageId": "m",
        "timestamp": 1_700_000_000,
        "type": "t",
        "appId": "a",
    }


@pytest.mark.slow
def test_amqplib_closes_behind_its_publishes(amqplib: Command, node: AmqpBroker) -> None:
    """connection.close: amqplib writes it before messages that it has queued, and those follow."""
    done = said(amqplib("close", node.port, ""))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == [*(f"closed {count}" for count in (0, 100, 500, 1000, 2046, 5000)), ""]


@pytest.mark.slow
def test_the_java_client_uses_what_it_has(java: Command, node: AmqpBroker) -> None:
    """RabbitMQ's Java client: confirms, returns, types of headers, bindings of exchanges, transactions, prefetch,
    rejects, reply codes, direct reply-to; it checks them itself."""
    done = said(java("everything", node.port, ""))
    assert (done.returncode, done.stdout) == (0, "everything\n"), done.stderr
