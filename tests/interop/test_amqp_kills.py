"""SIGKILL of the node under each client of AMQP 0-9-1, a process of its own: while it publishes with confirms, and
while it consumes with acknowledgements."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.interop.test_amqp_clients import AmqpBroker
from tests.support.third_party import AMQP_OF_JAVA, AMQPLIB
from tests.support.waiting import PATIENCE_S, Patience

pytestmark = [pytest.mark.processes, pytest.mark.slow]
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


def test_amqplib_closes_behind_its_publishes(amqplib: Command, node: AmqpBroker) -> None:
    """connection.close: amqplib writes it before messages that it has queued, and those follow."""
    done = said(amqplib("close", node.port, ""))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == [*(f"closed {count}" for count in (0, 100, 500, 1000, 2046, 5000)), ""]


def test_the_java_client_uses_what_it_has(java: Command, node: AmqpBroker) -> None:
    """RabbitMQ's Java client: confirms, returns, types of headers, bindings of exchanges, transactions, prefetch,
    rejects, reply codes, direct reply-to; it checks them itself."""
    done = said(java("everything", node.port, ""))
    assert (done.returncode, done.stdout) == (0, "everything\n"), done.stderr
