"""The how-to pages on brokers that people have, followed with real ones: files and commands as they are printed."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from examples.demo.fabric import free_port
from tests.end_to_end.page_blocks import Block, blocks
from tests.support.brokers import RABBITMQ, RabbitMq, answers, mosquitto, needs_mosquitto
from tests.support.processes import Node
from tests.support.waiting import PATIENCE_S, wait_until
from weft.edge_node.access import users

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300)]
HOW_TO = Path(__file__).parents[2] / "docs/how-to"
SECRET = "a-password"
MESSAGES = 3


class Reader:
    """Someone with a folder who follows a page."""

    def __init__(self, folder: Path, page: str, texts: Mapping[str, str], environment: Mapping[str, str] = os.environ):
        """Begin.

        Args:
            texts: what stands for machines and folders that the page names.
        """
        self.folder = folder
        self._blocks = blocks(HOW_TO / page)
        self._texts = {"/var/lib/weft": "data", "https://hub.example.com": "http://127.0.0.1:9", **texts}
        programs = f"{folder}:{Path(sys.executable).parent}:{environment['PATH']}"
        self._environment = {**environment, "PATH": programs}
        (folder / "token").write_text("t" * 43)
        (folder / "token").chmod(0o600)

    def text(self, language: str, number: int = 0) -> str:
        found: list[Block] = [block for block in self._blocks if block.language == language]
        text = found[number].text
        for shown, meant in self._texts.items():
            text = text.replace(shown, meant)
        return text

    def config(self, more: str = "") -> Path:
        path = self.folder / "edge.yaml"
        pages = f'http: {{bind: "127.0.0.1:{free_port()}"}}'
        path.write_text(f"{self.text('yaml')}{pages}\ndisk: {{budget: 1GiB}}\n{more}")
        return path

    def run(self, commands: str) -> str:
        done = subprocess.run(
            ["bash", "-ec", commands],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        return done.stdout

    def write_password(self, file: str) -> None:
        (self.folder / file).write_text(SECRET + "\n")
        (self.folder / file).chmod(0o600)


@contextlib.contextmanager
def running(config: Path) -> Iterator[Node]:
    node = Node("edge", config)
    try:
        yield node
        assert node.stop() == 0
    finally:
        node.kill()


def publish(port: int, topic: str, user: str | None = None) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2)
    if user is not None:
        client.username_pw_set(user, SECRET)
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        for each in [client.publish(topic, f"message {number}", qos=1) for number in range(MESSAGES)]:
            each.wait_for_publish(PATIENCE_S)
            assert each.is_published()
    finally:
        client.disconnect()
        client.loop_stop()


def kept(node: Node) -> int:
    count: int = node.json("status")["streams"]["telemetry"]["durable_end"]
    return count


@needs_mosquitto
def test_behind_an_existing_mosquitto(tmp_path: Path) -> None:
    port = free_port()
    reader = Reader(tmp_path, "behind-an-existing-mosquitto.md", {"127.0.0.1:1883": f"127.0.0.1:{port}"})
    reader.run(f"mosquitto_passwd -c -b passwords device {SECRET}")
    add = reader.text("sh").replace("mosquitto_passwd", "mosquitto_passwd -b").replace("/etc/mosquitto/", "")
    reader.run(f"{add.strip()} {SECRET}")
    (tmp_path / "acl").write_text(f"{reader.text('text')}\nuser device\ntopic write plant/#\n")
    for each in ("passwords", "acl"):
        (tmp_path / each).chmod(0o644)
    files = f"password_file {tmp_path}/passwords\nacl_file {tmp_path}/acl\n"
    more = f"allow_anonymous false\n{files}{reader.text('text', 1)}"
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\necho {SECRET} > "$1"\n')
    editor.chmod(0o755)
    with mosquitto(tmp_path / "broker", more) as broker:
        config = reader.config()
        config.write_text(config.read_text().replace(f":{port}", f":{broker.port}"))
        assert "edge.yaml is good" in reader.run(reader.text("sh", 1))
        with running(config) as node:
            wait_until(lambda: node.json("status")["sources"]["plant"]["state"] == "connected")
            publish(broker.port, "plant/l4/press/telemetry", "device")
            wait_until(lambda: kept(node) == MESSAGES)
            said = reader.run(reader.text("sh", 2))
            assert re.search(rf"plant\s+connected\s+{MESSAGES}\b", said), said


@pytest.mark.skipif(not Path(RABBITMQ).exists(), reason="RabbitMQ is not installed: apt install rabbitmq-server")
def test_replace_rabbitmq_at_the_edge(tmp_path: Path) -> None:
    broker = RabbitMq()
    try:
        url = f"amqp://127.0.0.1:{broker.port}/factory"
        environment = {**broker.environment, "PATH": f"/usr/lib/rabbitmq/bin:{os.environ['PATH']}"}
        texts = {"amqps://rabbit.example.com/factory": url}
        reader = Reader(tmp_path, "replace-rabbitmq-at-the-edge.md", texts, environment)
        reader.write_password("rabbit-password")
        wait_until(lambda: answers(broker.port))
        reader.run("rabbitmqctl add_vhost factory; rabbitmqctl set_permissions -p factory guest '.*' '.*' '.*'")
        reader.run(reader.text("sh"))
        config = reader.config("listeners: {}\n")
        with running(config) as node:
            wait_until(lambda: node.json("status")["sources"]["rabbit"]["state"] == "connected", 30)
            with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, "factory")) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                for number in range(MESSAGES):
                    channel.basic_publish("amq.topic", "plant.4.press.telemetry", b"%d" % number, mandatory=True)
            wait_until(lambda: kept(node) == MESSAGES)
            said = reader.run(reader.text("sh", 1))
            assert "edge.yaml is good" in said
            assert re.search(rf"rabbit\s+connected\s+{MESSAGES}\b", said), said
    finally:
        broker.close()


def test_store_what_amqtt_receives(tmp_path: Path) -> None:
    pytest.importorskip("amqtt")
    port = free_port()
    reader = Reader(tmp_path, "store-what-amqtt-receives.md", {"0.0.0.0:1883": f"127.0.0.1:{port}"})
    (tmp_path / "amqtt.yaml").write_text(reader.text("text"))
    reader.config()
    install, check, start = reader.text("sh").splitlines()
    assert install.startswith("pip install")
    assert "edge.yaml is good" in reader.run(check)
    with (tmp_path / "said").open("wb") as said:
        program = Path(sys.executable).parent / start.split()[0]
        broker = subprocess.Popen([program, *start.split()[1:]], cwd=tmp_path, stdout=said, stderr=said)
    try:
        wait_until(lambda: answers(port), 60, f"amqtt; it says in {tmp_path}/said")
        publish(port, "plant/l4/press/telemetry")
        wait_until(lambda: reader.run("weft edge tail edge.yaml --json").count("plant/l4/press") == MESSAGES, 30)
    finally:
        broker.terminate()
        broker.wait(PATIENCE_S)


def test_feed_from_a_plc_with_sparkplug(tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf")
    from tests.functions.kinds.sparkplug.edge_node_client import EdgeNodeClient

    reader = Reader(tmp_path, "feed-from-a-plc-with-sparkplug.md", {"0.0.0.0:1883": "127.0.0.1:0", "8GiB": "256MiB"})
    (tmp_path / "acl").write_text(reader.text("text"))
    (tmp_path / "users").write_text(f"line1:{users.hasher().hash(SECRET)}\n")
    (tmp_path / "users").chmod(0o600)
    with running(reader.config("")) as node:
        with EdgeNodeClient(node.mqtt_port, password=SECRET) as edge_node:
            edge_node.measure(22.5)
            wait_until(lambda: node.json("status")["streams"]["tags"]["durable_end"] >= 5)
            said = reader.run(reader.text("sh", 1))
        assert "plant/line1/pump/Motor/RPM" in said
        assert '"value":22.5' in said.replace(" ", "")
