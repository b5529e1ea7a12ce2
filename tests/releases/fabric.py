"""Folders compared byte by byte."""

from __future__ import annotations

import contextlib
import hashlib
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pika
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from examples.demo.fabric import free_port
from tests.support.processes import Node
from tests.support.tokens import declare_in
from tests.support.waiting import PATIENCE_S, wait_until


def content(folder: Path) -> dict[str, str]:
    """Every name below a folder, with the hash of what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
        if path.is_file() or path.is_dir()
    }


# --- The edge node and the hub whose files are kept of each release, and what their clients do


EDGE = """\
node: press-1
data_dir: data
listeners:
  mqtt: {{bind: "127.0.0.1:{mqtt}"}}
  amqp: {{bind: "127.0.0.1:{amqp}"}}
  http: {{bind: "127.0.0.1:{http}"}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 64MiB, segment: 1MiB}}
limits: {{session_expiry: 10000d}}
streams:
  telemetry: {{from: "plant/{{line}}/{{machine}}/telemetry", payload: json}}
  readings: {{from: "series/{{device}}/temperature", payload: json, replicate: false, retain: {{time: 10000d}}}}
  points:
    from_stream: readings
    replicate: false
    retain: {{time: 10000d}}
    functions: [{{deadband: {{field: temp, delta: 2}}}}]
links:
  cloud: {{to: "http://127.0.0.1:{hub}", token_file: edge.token, retry_min: 50ms, retry_max: 200ms}}
"""
HUB = """\
listen: 127.0.0.1:{hub}
store: store
shards: 2
processes: 1
tables: {{interval: 1s}}
"""
TELEMETRY, READINGS, STATE = "plant/a/m1/telemetry", "series/t1/temperature", "plant/a/m1/state"
READER = "reader"
QUEUE = "plant.jobs"


class Fabric:
    """A folder with an edge node, a hub and its store, under ports that are free now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {name: free_port() for name in ("mqtt", "amqp", "http", "hub")}
        (folder / "edge.yaml").write_text(EDGE.format(**self.ports))
        (folder / "hub.yaml").write_text(HUB.format(**self.ports))

    @contextlib.contextmanager
    def edge(self) -> Iterator[Node]:
        with _running("edge", self.folder / "edge.yaml") as node:
            yield node

    def start_edge(self) -> Node:
        """Start the node; the caller ends it."""
        return Node("edge", self.folder / "edge.yaml")

    @contextlib.contextmanager
    def hub(self) -> Iterator[Node]:
        declare_in(self.folder / "store", self.folder / "tokens.json")
        with _running("hub", self.folder / "hub.yaml") as node:
            yield node

    def publish(self, topic: str, payloads: list[str], *, retain: bool = False) -> None:
        """Publish at QoS 1 and wait for each acknowledgement."""
        client = paho.Client(CallbackAPIVersion.VERSION2)
        client.connect("127.0.0.1", self.ports["mqtt"])
        client.loop_start()
        try:
            for sent in [client.publish(topic, payload, qos=1, retain=retain) for payload in payloads]:
                sent.wait_for_publish(PATIENCE_S)
                assert sent.is_published()
        finally:
            client.disconnect()
            client.loop_stop()

    def session(self, expected: int, *, subscribe: bool = False) -> tuple[bool, list[str], list[str]]:
        """Connect the client whose session outlives the node, and take so many messages, retained ones included.

        Returns:
            Whether the session was there; what it got; and what of it was retained.
        """
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id=READER, protocol=paho.MQTTv5)
        got: list[str] = []
        kept: list[str] = []
        present: list[bool] = []
        subscribed: list[int] = []

        def on_message(_client: paho.Client, _userdata: object, message: paho.MQTTMessage) -> None:
            (kept if message.retain else got).append(message.payload.decode())

        def on_connect(_c: paho.Client, _u: object, flags: paho.ConnectFlags, *_: object) -> None:
            present.append(flags.session_present)

        client.on_message, client.on_connect = on_message, on_connect
        client.on_subscribe = lambda *_: subscribed.append(1)
        never = Properties(PacketTypes.CONNECT)
        never.SessionExpiryInterval = 0xFFFFFFFF
        client.connect("127.0.0.1", self.ports["mqtt"], clean_start=False, properties=never)
        client.loop_start()
        try:
            wait_until(lambda: bool(present))
            if subscribe:
                client.subscribe([("plant/a/+/telemetry", 1), (STATE, 1)])
                wait_until(lambda: bool(subscribed))
            wait_until(lambda: len(got) + len(kept) >= expected)
        finally:
            client.disconnect()
            client.loop_stop()
        return present[0], got, kept

    def retained(self, topic: str) -> str:
        """Return the message that the node keeps for a topic."""
        got: list[str] = []
        client = paho.Client(CallbackAPIVersion.VERSION2)
        client.on_message = lambda _client, _userdata, message: got.append(message.payload.decode())
        client.connect("127.0.0.1", self.ports["mqtt"])
        client.loop_start()
        try:
            client.subscribe(topic)
            wait_until(lambda: bool(got))
        finally:
            client.disconnect()
            client.loop_stop()
        return got[0]

    @contextlib.contextmanager
    def channel(self) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
        address = pika.ConnectionParameters("127.0.0.1", self.ports["amqp"])
        with contextlib.closing(pika.BlockingConnection(address)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            yield channel

    def enqueue(self, jobs: list[str], *, declare: bool = False) -> None:
        with self.channel() as channel:
            if declare:
                channel.exchange_declare("plant.work", "topic", durable=True)
                channel.queue_declare(QUEUE, durable=True)
                channel.queue_bind(QUEUE, "plant.work", "job.*")
            for job in jobs:
                lasting = pika.BasicProperties(delivery_mode=2)
                channel.basic_publish("plant.work", "job.new", job.encode(), lasting, mandatory=True)

    def dequeue(self, count: int) -> list[str]:
        """Take so many messages out of the queue for good."""
        found: list[str] = []
        with self.channel() as channel:
            deadline = time.monotonic() + PATIENCE_S
            while len(found) < count and time.monotonic() < deadline:
                method, _, body = channel.basic_get(QUEUE)
                if method is not None:
                    found.append(body.decode())
                    channel.basic_ack(method.delivery_tag)
        return found

    def post(self, payload: str, key: str) -> None:
        """Post by HTTP under an idempotency key."""
        url = f"http://127.0.0.1:{self.ports['http']}/v1/streams/telemetry/{TELEMETRY}"
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, payload.encode(), headers), timeout=PATIENCE_S):
            pass


@contextlib.contextmanager
def _running(kind: str, config: Path) -> Iterator[Node]:
    node = Node(kind, config)
    try:
        yield node
    finally:
        assert node.stop() == 0
