"""The how-to pages on brokers that people have, followed with real ones: files and commands as they are printed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from examples.demo.fabric import free_port
from tests.end_to_end.page_reader import Block, blocks
from tests.storage.segment_log.helpers import open_log
from tests.support.brokers import RABBITMQ, RabbitMq, answers, mosquitto, needs_mosquitto
from tests.support.processes import Node, weft
from tests.support.third_party import NODE_RED
from tests.support.waiting import PATIENCE_S, wait_until
from weft.edge_node.access import users
from weft.protocols.batch import Record, records
from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log import LogSettings

pytestmark = [pytest.mark.slow, pytest.mark.processes]

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


@pytest.mark.timeout(300)
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


@pytest.mark.timeout(300)
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


@pytest.mark.timeout(300)
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


@pytest.mark.timeout(300)
def test_feed_from_a_plc_with_sparkplug(tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf")
    from tests.functions.sparkplug_plant import EdgeNodeClient

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


# --- The flow of the how-to page in a real Node-RED, which publishes to a real node and hears its alerts


PAGE = Path(__file__).parents[2] / "docs/how-to/feed-from-node-red.md"
SETTINGS = 'module.exports = {flowFile: "flows.json", uiPort: 0, uiHost: "127.0.0.1", httpAdminRoot: false};\n'


@pytest.fixture(scope="module")
def node_red() -> Path:
    """The program."""
    try:
        return NODE_RED.obtain() / "node_modules/node-red/red.js"
    except LookupError as error:
        pytest.skip(str(error))


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def flow(port: int) -> list[dict[str, Any]]:
    """The flow of the page, on a tab as an import puts it."""
    nodes: list[dict[str, Any]] = json.loads(block("json"))
    for node in nodes:
        if node["type"] == "mqtt-broker":
            node["port"] = str(port)
        else:
            node["z"] = "tab"
        if node["type"] == "debug":
            node["console"] = "true"
    return [{"id": "tab", "type": "tab", "label": "weft"}, *nodes]


@pytest.mark.timeout(600)
def test_the_flow_publishes_and_hears_alerts(node_red: Path, tmp_path: Path) -> None:
    config = tmp_path / "edge.yaml"
    text = block("yaml").replace("/var/lib/weft", str(tmp_path / "data"))
    config.write_text(text + 'listeners: {mqtt: {bind: "127.0.0.1:0"}}\nhttp: null\n')
    node = Node("edge", config)
    folder, heard = tmp_path / "node-red", tmp_path / "heard"
    folder.mkdir()
    (folder / "flows.json").write_text(json.dumps(flow(node.mqtt_port)))
    (folder / "settings.js").write_text(SETTINGS)
    with heard.open("w") as file:
        running = subprocess.Popen(
            ["node", str(node_red), "-u", str(folder), "-s", str(folder / "settings.js")],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            # A value each second, of which one in seven is hot.
            wait_until(lambda: "plant/l4/m1/telemetry" in heard.read_text(), 180, "an alert in Node-RED")
        finally:
            running.terminate()
            running.wait(PATIENCE_S)
            assert node.stop() == 0
    said = weft("edge", "tail", config, "telemetry", "--json", "--last", 1000)
    assert said.exception is None, said.output
    readings = [json.loads(json.loads(line)["payload"]) for line in said.stdout.splitlines()]
    assert readings
    assert all(set(reading) == {"temperature", "at"} for reading in readings)


# --- The configuration of the how-to page in a real Telegraf, which writes to a real node that is killed meanwhile


TELEGRAF = os.environ.get("TELEGRAF") or shutil.which("telegraf")
"""The program. Telegraf 1.37.2 builds in two minutes from its source, with the tags
`custom,inputs.tail,outputs.influxdb_v2,parsers.influx,serializers.influx`."""
TELEGRAF_PAGE = Path(__file__).parents[2] / "docs/how-to/feed-from-telegraf.md"
AGENT = """\
[agent]
  interval = "100ms"
  flush_interval = "100ms"
  omit_hostname = true
[[inputs.tail]]
  files = ["{folder}/points"]
  from_beginning = true
  data_format = "influx"
  path_tag = ""
"""
KILLS = 2
ROUND = 400
"""Points between two kills."""
SENT = "weft.sent"


def telegraf_block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", TELEGRAF_PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path, port = tmp_path / "edge.yaml", free_port()
    text = telegraf_block("yaml").replace("/var/lib/weft", "data").replace("8081", str(port))
    more = 'disk: {budget: 64MiB, segment: 4MiB}\nauth: {users_file: users}\nhttp: {bind: "127.0.0.1:0"}\n'
    path.write_text(text + more)
    users_file = tmp_path / "users"
    users_file.write_text(f"gateway:{users.hasher().hash('its-password')}\n")
    users_file.chmod(0o600)
    (tmp_path / "points").touch()
    (tmp_path / "telegraf.conf").write_text(
        AGENT.format(folder=tmp_path) + telegraf_block("toml").replace("8081", str(port))
    )
    return path


@pytest.fixture
def telegraf(config: Path) -> Iterator[Path]:
    """What it says."""
    assert TELEGRAF is not None
    said = config.with_name("telegraf.log")
    with said.open("wb") as file:
        command = [TELEGRAF, "--config", str(config.with_name("telegraf.conf"))]
        running = subprocess.Popen(command, stdout=file, stderr=file)
        yield said
        running.terminate()
        running.wait(PATIENCE_S)


def stored(config: Path) -> list[Record]:
    """Records of a node that is dead."""
    settings = LogSettings(segment_bytes=4 << 20, budget_bytes=64 << 20, tail_bytes=0)
    log = open_log(OSFileSystem(), settings, directory=str(config.with_name("data")))
    number, found = log.streams()["metrics"], list[Record]()
    while batches := log.read(number, len(found), 1 << 22):
        found += [record for data in batches for record in records(data)]
    log.close()
    return found


def metrics(node: Node) -> int:
    count: int = node.json("status")["streams"]["metrics"]["durable_end"]
    return count


def await_more(node: Node, before: int) -> None:
    wait_until(lambda: metrics(node) > before, 60, "points at the node")


def newest(config: Path) -> bytes:
    line = weft("edge", "tail", config, "metrics", "--json", "--last", 1).stdout
    payload: str = json.loads(line)["payload"]
    return payload.encode()


@pytest.mark.timeout(240)
@pytest.mark.skipif(TELEGRAF is None, reason="Telegraf is not installed, and TELEGRAF names no program")
def test_points_outlive_kills_of_the_node(config: Path, telegraf: Path) -> None:
    node, written = Node("edge", config), 0
    try:
        with config.with_name("points").open("a") as points:
            for kill in range(KILLS + 1):
                for _ in range(ROUND):
                    points.write(f"press,line=l4,host=g7 n={written}i,temp=21.5 {time.time_ns()}\n")
                    points.flush()
                    written += 1
                before = metrics(node)
                if kill == KILLS:
                    break
                await_more(node, before)
                node.kill()
                points.write(f"press,line=l4,host=g7 n={written}i,temp=21.5 {time.time_ns()}\n")
                points.flush()
                written += 1
                node = Node("edge", config)
        last = b'{"n":%d,"temp":21.5}' % (written - 1)  # Telegraf keeps the order, also when it sends again
        wait_until(lambda: newest(config) == last, 90, f"the last point; Telegraf says in {telegraf}")
        assert node.stop() == 0
    finally:
        node.kill()
    found = stored(config)
    assert {record.key for record in found} == {b"telegraf/press/g7/l4"}
    names = Counter((record.key, dict(record.headers)[SENT]) for record in found)
    payloads = {record.payload for record in found}
    assert payloads == {b'{"n":%d,"temp":21.5}' % number for number in range(written)}
    assert len(names) == len(payloads), "a point that came twice is known by its topic and its time"
