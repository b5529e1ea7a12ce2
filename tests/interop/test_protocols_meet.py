"""Clients of MQTT, AMQP 0-9-1, AMQP 1.0 and HTTP at one node: what one publishes, the others get.

The table of docs/reference/message-headers.md is read from the page. Each of its cells is published by a client of its
column, and looked for in what a client of each other column gets.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from websockets.sync.client import connect as connect_websocket

pytest.importorskip("proton", reason="python-qpid-proton is not installed: pip install weft-fabric[amqp1]")

from proton import Delivery, Message, symbol
from proton.reactor import Container, Filter
from proton.utils import BlockingConnection, BlockingReceiver

from weft.demo.fabric import free_port
from weft.edge_node.access import users

pytestmark = pytest.mark.processes

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "message-headers.md"
PATIENCE_S = 10.0
SENT_S = 1_700_000_000
EXPIRY_S = 60
USER, PASSWORD, STRANGER = "press", "secret of the press", "stranger"
VALUES: dict[str, Any] = {
    "weft.content-type": "text/plain", "weft.content-encoding": "identity", "weft.correlation-id": "c-1",
    "weft.reply-to": "answers/1", "weft.expires": EXPIRY_S, "weft.message-id": "m-1", "weft.priority": 5,
    "weft.sent": SENT_S, "weft.subject": "alarm", "weft.user-id": USER, "NAME": "value", "mqtt.payload-format": 1,
    "amqp.delivery-mode": 2, "amqp.app-id": "app", "amqp.cluster-id": "cluster", "amqp.group-id": "group",
    "amqp.group-sequence": 3, "amqp.reply-to-group-id": "answers", "amqp.annotation.NAME": "note",
    "amqp.footer.NAME": "sum",
}  # fmt: skip
"""Header -> what is published, in the unit that clients have."""
MQTT = {
    "content type": "ContentType", "correlation data": "CorrelationData", "response topic": "ResponseTopic",
    "message expiry interval": "MessageExpiryInterval", "user property": "UserProperty",
    "payload format indicator": "PayloadFormatIndicator",
}  # fmt: skip
"""Cell -> attribute of the client's message."""
AMQP = {
    name: name.replace("-", "_")
    for name in (
        "content-type", "content-encoding", "correlation-id", "reply-to", "expiration", "message-id", "priority",
        "timestamp", "type", "user-id", "headers", "delivery-mode", "app-id", "cluster-id",
    )
}  # fmt: skip
AMQP1 = {
    "content-type": "content_type", "content-encoding": "content_encoding", "correlation-id": "correlation_id",
    "reply-to": "reply_to", "ttl": "ttl", "absolute-expiry-time": "expiry_time", "message-id": "id",
    "priority": "priority", "creation-time": "creation_time", "subject": "subject", "user-id": "user_id",
    "application property": "properties", "group-id": "group_id", "group-sequence": "group_sequence",
    "reply-to-group-id": "reply_to_group_id", "message annotation": "annotations", "footer": "footer",
}  # fmt: skip
CONFIG = """\
node: meet
data_dir: {directory}/data
http: null
auth: {{users_file: users, acl_file: acl}}
listeners:
  mqtt: {{bind: "127.0.0.1:{mqtt}"}}
  amqp: {{bind: "127.0.0.1:{amqp}"}}
  http: {{bind: "127.0.0.1:{http}"}}
streams:
  telemetry: {{from: "plant/#"}}
"""
RULES = f"user {USER}\ntopic readwrite #\nuser {STRANGER}\ntopic readwrite own/#\n"
_numbers = itertools.count()


def table() -> dict[str, dict[str, list[str]]]:
    """The page's first table: header -> protocol -> properties."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    columns = [cell.strip() for cell in lines[0].strip("|").split("|")]
    found: dict[str, dict[str, list[str]]] = {}
    for line in lines[1 : len(VALUES) + 1]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = [[each.strip(" `") for each in cell.split(",") if each.strip()] for cell in cells]
        found[names[0][0]] = dict(zip(columns[2:], names[2:], strict=True))
    return found


TABLE = table()
MQTT5, AMQP091, AMQP10, HTTP = "MQTT 5.0", "AMQP 0-9-1", "AMQP 1.0", "HTTP"


def of(protocol: str) -> dict[str, Any]:
    """Property -> value to publish, by the table."""
    return {names[protocol][0]: VALUES[header] for header, names in TABLE.items() if names[protocol]}


class Meet:
    """A node that listens for every protocol."""

    def __init__(self, directory: Path) -> None:
        self.mqtt, self.amqp, self.http = free_port(), free_port(), free_port()
        config = directory / "edge.yaml"
        config.write_text(CONFIG.format(directory=directory, mqtt=self.mqtt, amqp=self.amqp, http=self.http))
        (directory / "acl").write_text(RULES)
        for name in (USER, STRANGER):
            users.add(str(directory / "users"), name, PASSWORD.encode())
        self.process = subprocess.Popen(
            [sys.executable, "-m", "weft", "edge", "run", str(config)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert "ready" in self.process.stdout.readline()
        self.closing = contextlib.ExitStack()

    def mqtt_client(self, version: int = 5, user: str = USER) -> tuple[paho.Client, queue.Queue[Any]]:
        client = paho.Client(
            CallbackAPIVersion.VERSION2, f"meet-{next(_numbers)}", protocol=paho.MQTTProtocolVersion(version)
        )
        came: queue.Queue[Any] = queue.Queue()
        connected = threading.Event()
        client.on_message = lambda _client, _data, message: came.put(message)
        client.on_connect = lambda *_: connected.set()
        client.on_subscribe = lambda _client, _data, _mid, codes, _properties: came.put(codes)
        client.username_pw_set(user, PASSWORD)
        client.connect("127.0.0.1", self.mqtt)
        client.loop_start()
        assert connected.wait(PATIENCE_S)
        self.closing.callback(client.loop_stop)
        self.closing.callback(client.disconnect)
        return client, came

    def subscriber(self, topic_filter: str, version: int = 5, user: str = USER) -> Callable[[], Any]:
        client, came = self.mqtt_client(version, user)
        client.subscribe(topic_filter, 1)
        self.codes = came.get(timeout=PATIENCE_S)
        return lambda: came.get(timeout=PATIENCE_S)

    def channel(self, user: str = USER) -> Any:
        credentials = pika.PlainCredentials(user, PASSWORD)
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.amqp, credentials=credentials))
        self.closing.callback(lambda: connection.is_open and connection.close())
        channel = connection.channel()
        channel.confirm_delivery()
        return channel

    def proton(self, user: str = USER) -> BlockingConnection:
        container = Container()
        container.container_id = f"meet-{next(_numbers)}"
        connection = BlockingConnection(
            f"amqp://127.0.0.1:{self.amqp}", timeout=PATIENCE_S, container=container, user=user, password=PASSWORD,
            allowed_mechs="PLAIN", sasl_enabled=True,
        )  # fmt: skip
        self.closing.callback(connection.close)
        return connection

    def post(self, path: str, body: bytes, headers: dict[str, str], user: str = USER) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=PATIENCE_S)
        connection.request("POST", path, body, {"Authorization": f"Bearer {user}:{PASSWORD}", **headers})
        status = connection.getresponse().status
        connection.close()
        return status

    def events(self, path: str) -> Callable[[], dict[str, Any]]:
        """Server-sent events; the first of them, which tells of the stream, is passed over."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=PATIENCE_S)
        connection.request("GET", path, headers={"Authorization": f"Bearer {USER}:{PASSWORD}"})
        answer = connection.getresponse()
        assert answer.status == 200
        self.closing.callback(connection.close)

        def next_event() -> dict[str, Any]:
            is_own = True
            while line := answer.readline():
                if line.startswith(b"event:"):
                    is_own = False
                elif line.startswith(b"data:"):
                    if is_own:
                        return json.loads(line[5:])  # type: ignore[no-any-return]
                    is_own = True
            raise AssertionError("the events have ended")

        return next_event

    def websocket(self, path: str) -> Callable[[], dict[str, Any]]:
        fields = {"Authorization": f"Bearer {USER}:{PASSWORD}"}
        connection = self.closing.enter_context(
            connect_websocket(f"ws://127.0.0.1:{self.http}{path}", additional_headers=fields)
        )

        def next_event() -> dict[str, Any]:
            while True:
                found = json.loads(connection.recv(PATIENCE_S))
                if "event" not in found:
                    return found  # type: ignore[no-any-return]

        return next_event


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meet]:
    started = Meet(tmp_path_factory.mktemp("meet"))
    yield started
    started.process.kill()
    started.process.wait()


@pytest.fixture(autouse=True)
def closing(node: Meet) -> Iterator[None]:
    """Close the clients of each test."""
    with contextlib.ExitStack() as stack:
        node.closing = stack
        yield


# --- publishers: all properties of the table that the protocol has


def by_mqtt(node: Meet, topic: str, **only: Any) -> None:
    properties = Properties(PacketTypes.PUBLISH)
    for name, value in (only or of(MQTT5)).items():
        data = value.encode() if name == "correlation data" else ("NAME", value) if name == "user property" else value
        setattr(properties, MQTT[name], data)
    client, _ = node.mqtt_client()
    client.publish(topic, b"by MQTT", 1, properties=properties).wait_for_publish(PATIENCE_S)


def by_amqp(node: Meet, topic: str, **only: Any) -> None:
    fields = {AMQP[name]: value for name, value in (only or of(AMQP091)).items()}
    if "headers" in fields and not only:
        fields["headers"] = {"NAME": fields["headers"]}
        fields["expiration"] = str(1000 * fields["expiration"])
    node.channel().basic_publish("amq.topic", topic.replace("/", "."), b"by AMQP", pika.BasicProperties(**fields))


def by_amqp1(node: Meet, topic: str) -> None:
    message = Message(body=b"by AMQP 1.0", inferred=True)
    footer = ""
    for name, value in of(AMQP10).items():
        if name == "footer":
            footer = value
        elif name in ("message annotation", "application property"):
            key = symbol("NAME") if name == "message annotation" else "NAME"
            setattr(message, AMQP1[name], {key: value})
        else:
            setattr(message, AMQP1[name], value.encode() if name == "user-id" else value)
    sender = node.proton().create_sender(topic)
    # Proton's Message has no footer: it is the last section of the encoded message.
    note = b"\0\x53\x78\xc1" + bytes((1 + 6 + 2 + len(footer), 2)) + b"\xa3\x04NAME\xa1" + bytes((len(footer),))
    encoded = message.encode() + note + footer.encode()
    delivery = sender.link.delivery("footer")
    sender.link.stream(encoded)
    sender.link.advance()
    sender.connection.wait(lambda: delivery.settled, timeout=PATIENCE_S)
    assert delivery.remote_state == Delivery.ACCEPTED


def by_http(node: Meet, topic: str) -> None:
    fields = {name.replace("NAME", "name"): str(value) for name, value in of(HTTP).items()}
    assert node.post(f"/v1/streams/telemetry/{topic}", b"by HTTP", fields) == 200


PUBLISHERS = {MQTT5: by_mqtt, AMQP091: by_amqp, AMQP10: by_amqp1, HTTP: by_http}


# --- readers: property -> value, in the units of VALUES


def plain(name: str, value: Any) -> Any:
    if isinstance(value, bytes | memoryview):
        return bytes(value).decode()
    if name in ("headers", "application property", "message annotation", "footer", "user property"):
        found = dict(value or {})
        return next((each for key, each in found.items() if key.lower() == "name"), None)
    if name == "expiration":
        return None if value is None else int(value) / 1000
    if name == "absolute-expiry-time":
        return value - time.time() if value else None
    return value


def shown_by_mqtt(message: Any) -> dict[str, Any]:
    return {name: plain(name, getattr(message.properties, own, None)) for name, own in MQTT.items()}


def shown_by_amqp(properties: Any) -> dict[str, Any]:
    return {name: plain(name, getattr(properties, own)) for name, own in AMQP.items()}


def shown_by_amqp1(message: Any) -> dict[str, Any]:
    found = {name: plain(name, getattr(message, own, None)) for name, own in AMQP1.items()}
    return {name: None if value in ("", "None", 0, 0.0) else value for name, value in found.items()}


def shown_by_http(event: dict[str, Any]) -> dict[str, Any]:
    found = {
        re.sub("(?i)name", "NAME", name) if "name" in name.lower() else name: value
        for name, value in event["headers"].items()
    }
    for name, unit in (("weft.expires", 10**9), ("weft.sent", 10**9)):
        if name in found:
            found[name] = found[name] / unit - (time.time() if name == "weft.expires" else 0)
    if found.get("weft.correlation-id") == "Yy0x":
        found["weft.correlation-id"] = "c-1"  # bytes are base64
    return found


def got(channel: Any, name: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        method, properties, body = channel.basic_get(name, auto_ack=True)
        if method is not None:
            return method, properties, body
        time.sleep(0.01)
    raise AssertionError(f"nothing came to {name}")


def body_of(receiver: BlockingReceiver) -> bytes:
    message = receiver.receive(timeout=PATIENCE_S)  # the body is a view of memory that goes with the message
    return bytes(message.body)


def check(publisher: str, reader: str, shown: dict[str, Any]) -> None:
    """Check each cell of the reader's column for what the publisher's column has."""
    for header, names in TABLE.items():
        if header == "amqp.footer.NAME" and reader == AMQP10:
            continue  # Proton's Message has no footer: tests/edge_node/servers/amqp1/test_mapping.py looks at the bytes
        is_sent = bool(names[publisher])
        for name in [header] if reader == HTTP else names[reader][:1]:
            value: Any = shown.get(name)
            if header == "weft.priority" and reader == AMQP10 and not is_sent:
                assert value == 4  # what Proton says of a message without one
            elif header == "weft.expires" and is_sent:
                assert 0 < value <= EXPIRY_S + 1, (publisher, reader, header, value)
            elif is_sent:
                assert value == VALUES[header], (publisher, reader, header, value)
            else:
                assert value is None, (publisher, reader, header, value)


@pytest.mark.parametrize("publisher", PUBLISHERS)
def test_every_cell_of_the_table(node: Meet, publisher: str) -> None:
    number = next(_numbers)
    topic = f"plant/{number}/x"
    channel, name = node.channel(), f"q{number}"
    channel.queue_declare(name)
    channel.queue_bind(name, "amq.topic", topic.replace("/", "."))
    second = f"second-{number}"
    channel.queue_declare(second)
    channel.queue_bind(second, "amq.topic", topic.replace("/", "."))
    mqtt, plain_mqtt = node.subscriber(topic), node.subscriber(topic, version=4)
    proton = node.proton()
    start = Filter({symbol("weft:offset-spec"): "next"})
    receivers = [
        proton.create_receiver("stream/telemetry", credit=1, options=start), proton.create_receiver(topic, credit=1),
        proton.create_receiver(f"queue/{second}", credit=1),
    ]  # fmt: skip
    events = [
        node.events("/v1/streams/telemetry/events"), node.events(f"/v1/topics?filter={topic}"),
        node.websocket("/v1/streams/telemetry/events"), node.websocket(f"/v1/topics?filter={topic}"),
    ]  # fmt: skip

    PUBLISHERS[publisher](node, topic)

    payload = f"by {publisher.removesuffix(' 5.0').removesuffix(' 0-9-1')}"
    message = mqtt()
    assert (message.topic, message.payload.decode()) == (topic, payload)
    check(publisher, MQTT5, shown_by_mqtt(message))
    message = plain_mqtt()
    assert (message.topic, message.payload.decode()) == (topic, payload)
    method, properties, body = got(channel, name)
    assert (method.exchange, method.routing_key, body.decode()) == ("amq.topic", topic.replace("/", "."), payload)
    check(publisher, AMQP091, shown_by_amqp(properties))
    for receiver in receivers:
        received = receiver.receive(timeout=PATIENCE_S)
        receiver.accept()
        assert (received.address, bytes(received.body).decode()) == (topic, payload)
        check(publisher, AMQP10, shown_by_amqp1(received))
    for read in events:
        event = read()
        assert (event.get("key", event.get("topic")), event["payload"]) == (topic, payload)
        check(publisher, HTTP, shown_by_http(event))


def test_the_page_has_a_publisher_and_a_reader_for_every_cell() -> None:
    known = {MQTT5: set(MQTT), AMQP091: set(AMQP), AMQP10: set(AMQP1), HTTP: None}
    assert set(TABLE) == set(VALUES)
    for header, names in TABLE.items():
        for protocol, cells in names.items():
            known_names = known[protocol]
            assert known_names is None or set(cells) <= known_names, header


EVENT = {"specversion": "1.0", "id": "e-1", "source": "/press", "type": "reading", "data": {"a": 1}}
FORMS: dict[str, tuple[dict[str, str], bytes, list[bytes], tuple[str, str]]] = {
    "array": ({"Content-Type": "application/json", "Weft-Header-unit": "C"}, b'[{"a": 1}, 2.50]',
              [b'{"a": 1}', b"2.50"], ("unit", "C")),
    "NDJSON": ({"Content-Type": "application/x-ndjson", "Weft-Header-unit": "C"}, b'{"a":1}\n2\n',
               [b'{"a":1}', b"2"], ("unit", "C")),
    "CloudEvents, binary": ({"ce-specversion": "1.0", "ce-id": "e-1", "ce-source": "/press",
                            "ce-type": "reading", "Content-Type": "text/plain"}, b"1", [b"1"], ("ce-type", "reading")),
    "CloudEvents, structured": ({"Content-Type": "application/cloudevents+json"},
                                json.dumps(EVENT, separators=(",", ":")).encode(), [b'{"a":1}'], ("ce-id", "e-1")),
}  # fmt: skip
"""Form of a POST -> fields, body; and the payloads and a header that clients of other protocols get."""


@pytest.mark.parametrize("form", [*FORMS, "InfluxDB"])
def test_every_form_of_post_comes_to_clients_of_every_protocol(node: Meet, form: str) -> None:
    number = next(_numbers)
    topic, channel = f"plant/{number}/x", node.channel()
    own = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(own, "amq.topic", f"plant.{number}.x")
    subscriber, receiver = node.subscriber(topic), node.proton().create_receiver(topic, credit=10)
    event = node.websocket(f"/v1/topics?filter={topic}")
    if form == "InfluxDB":
        payloads, header = [b'{"v":1.5}'], ("line", str(number))
        line = f"x,line={number} v=1.5".encode()
        assert node.post("/api/v2/write?bucket=plant/{line}/{measurement}", line, {}) == 204
    else:
        fields, body, payloads, header = FORMS[form]
        assert node.post(f"/v1/streams/telemetry/{topic}", body, fields) == 200
    for payload in payloads:
        message = subscriber()
        assert (message.payload, header in message.properties.UserProperty) == (payload, True)
        _, properties, body = got(channel, own)
        assert (body, properties.headers[header[0]]) == (payload, header[1])
        received = receiver.receive(timeout=PATIENCE_S)
        assert (bytes(received.body), received.properties[header[0]]) == (payload, header[1])
        shown = event()
        assert (shown["payload"], shown["headers"][header[0]]) == (payload.decode(), header[1])


# --- requests and answers


def test_an_mqtt_client_asks_and_an_amqp_worker_answers(node: Meet) -> None:
    number = next(_numbers)
    channel = node.channel()
    channel.queue_declare(f"work-{number}")
    channel.queue_bind(f"work-{number}", "amq.topic", f"ask.{number}")
    answers = node.subscriber(f"answers/{number}")
    by_mqtt(node, f"ask/{number}", **{"response topic": f"answers/{number}", "correlation data": "q-1"})
    _, asked, _ = got(channel, f"work-{number}")
    fields = pika.BasicProperties(correlation_id=asked.correlation_id)
    channel.basic_publish("amq.topic", asked.reply_to.replace("/", "."), b"answer", fields)
    answer = answers()
    assert (answer.payload, answer.properties.CorrelationData) == (b"answer", b"q-1")


def test_an_amqp_client_asks_and_an_mqtt_worker_answers(node: Meet) -> None:
    number = next(_numbers)
    channel = node.channel()
    own = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(own, "amq.topic", f"answers.{number}")
    work = node.subscriber(f"ask/{number}")
    fields = pika.BasicProperties(reply_to=f"answers/{number}", correlation_id="q-2")
    channel.basic_publish("amq.topic", f"ask.{number}", b"question", fields)
    asked = work()
    properties = Properties(PacketTypes.PUBLISH)
    properties.CorrelationData = asked.properties.CorrelationData
    client, _ = node.mqtt_client()
    client.publish(asked.properties.ResponseTopic, b"answer", 1, properties=properties).wait_for_publish(PATIENCE_S)
    _, answered, body = got(channel, own)
    assert (body, answered.correlation_id) == (b"answer", "q-2")


# --- topics and routing keys


@pytest.mark.parametrize(
    ("key", "topic"),
    [
        ("k{n}.b.c", "k{n}/b/c"), ("k{n}/b.c", "k{n}/b/c"), ("k{n}..c", "k{n}//c"), (".k{n}", "/k{n}"),
        ("k{n}.+.#", "k{n}/_/_"), ("$k{n}.x", "_k{n}/x"), ("$SYS.k{n}", "_SYS/k{n}"), ("k{n}.\0", "k{n}/_"),
    ],
)  # fmt: skip
def test_routing_keys_are_topics_and_come_back_as_they_were_sent(node: Meet, key: str, topic: str) -> None:
    number = next(_numbers)
    key, topic = key.format(n=number), topic.format(n=number)
    channel = node.channel()
    own = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(own, "amq.topic", "#")
    subscriber = node.subscriber(topic)
    channel.basic_publish("amq.topic", key, b"x")
    assert subscriber().topic == topic
    method, _, body = got(channel, own)
    assert (method.routing_key, body) == (key, b"x")


@pytest.mark.parametrize(
    ("topic", "key"),
    [("t{n}/7.5/x", "t{n}.7.5.x"), ("t{n}//x/", "t{n}..x."), ("/t{n}", ".t{n}"), ("t{n}/" + 300 * "x", None)],
)
def test_topics_come_to_queues_as_routing_keys(node: Meet, topic: str, key: str | None) -> None:
    number = next(_numbers)
    topic = topic.format(n=number)
    channel = node.channel()
    own = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(own, "amq.topic", "#")
    client, _ = node.mqtt_client()
    client.publish(topic, b"x", 1).wait_for_publish(PATIENCE_S)
    method, _, _ = got(channel, own)
    assert method.routing_key == (topic.replace("/", ".")[:255] if key is None else key.format(n=number))


def test_a_publisher_of_any_protocol_is_heard_in_its_order(node: Meet) -> None:
    number = next(_numbers)
    topic = f"order/{number}"
    subscriber, channel = node.subscriber(topic), node.channel()
    own = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(own, "amq.topic", topic.replace("/", "."))
    receiver = node.proton().create_receiver(topic, credit=100)
    sender, (client, _) = node.proton().create_sender(topic), node.mqtt_client()
    sent: list[Any] = []
    for each in range(10):
        client.publish(topic, b"mqtt %d" % each, 1)
        sent.append(sender.link.send(Message(body=b"amqp1 %d" % each, inferred=True)))
        channel.basic_publish("amq.topic", topic.replace("/", "."), b"amqp %d" % each)
    sender.connection.wait(lambda: all(each.settled for each in sent), timeout=PATIENCE_S)
    assert {each.remote_state for each in sent} == {Delivery.ACCEPTED}
    readers: list[Callable[[], bytes]] = [
        lambda: bytes(subscriber().payload), lambda: bytes(got(channel, own)[2]),
        lambda: body_of(receiver),
    ]  # fmt: skip
    for read in readers:
        came = [read() for _ in range(30)]
        for name in (b"mqtt", b"amqp", b"amqp1"):
            assert [each for each in came if each.startswith(name + b" ")] == [b"%b %d" % (name, n) for n in range(10)]


# --- retained messages and expiry


def test_a_retained_message_is_for_subscribers_and_passes_queues_once(node: Meet) -> None:
    number = next(_numbers)
    topic, channel = f"kept/{number}", node.channel()
    own = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(own, "amq.topic", topic.replace("/", "."))
    client, _ = node.mqtt_client()
    client.publish(topic, b"kept", 1, retain=True).wait_for_publish(PATIENCE_S)
    assert got(channel, own)[2] == b"kept"
    message = node.subscriber(topic)()
    assert (message.payload, message.retain) == (b"kept", True)
    assert channel.basic_get(own, auto_ack=True)[0] is None


@pytest.mark.slow
def test_what_has_expired_comes_to_no_queue_and_no_stream(node: Meet) -> None:
    number = next(_numbers)
    topic, channel = f"plant/{number}/expiring", node.channel()
    own = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(own, "amq.topic", topic.replace("/", "."))
    begin = Filter({symbol("weft:offset-spec"): "next"})
    receiver = node.proton().create_receiver("stream/telemetry", credit=0, options=begin)
    by_mqtt(node, topic, **{"message expiry interval": 1})
    by_amqp(node, topic, expiration="1")
    sender = node.proton().create_sender(topic)
    sender.send(Message(body=b"by AMQP 1.0", ttl=0.001))
    time.sleep(1.1)  # the node is a process of its own, with the clock of the wall
    client, _ = node.mqtt_client()
    client.publish(topic, b"last", 1).wait_for_publish(PATIENCE_S)
    assert got(channel, own)[2] == b"last"
    receiver.link.flow(1)
    assert body_of(receiver) == b"last"


# --- access


def test_what_a_user_may_not_read_comes_by_no_protocol(node: Meet) -> None:
    assert (node.subscriber("plant/#", user=STRANGER), node.codes[0].value)[1] == 0x87
    channel = node.channel(STRANGER)
    own = channel.queue_declare("", exclusive=True).method.queue
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.queue_bind(own, "amq.topic", "plant.#")
    assert refused.value.reply_code == 403
    from proton.utils import LinkDetached

    with pytest.raises(LinkDetached) as detached:
        node.proton(STRANGER).create_receiver("plant/#")
    assert detached.value.condition == "amqp:unauthorized-access"
    connection = http.client.HTTPConnection("127.0.0.1", node.http, timeout=PATIENCE_S)
    fields = {"Authorization": f"Bearer {STRANGER}:{PASSWORD}"}
    connection.request("GET", "/v1/topics?filter=plant/%23", headers=fields)
    assert connection.getresponse().status == 403
    connection.close()


def test_what_a_user_may_not_write_it_publishes_by_no_protocol(node: Meet) -> None:
    seen = node.subscriber("plant/#")
    client, _ = node.mqtt_client(user=STRANGER)
    client.publish("plant/1/forbidden", b"mqtt", 1).wait_for_publish(PATIENCE_S)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        node.channel(STRANGER).basic_publish("amq.topic", "plant.1.forbidden", b"amqp")
    assert refused.value.reply_code == 403
    from proton.utils import LinkDetached

    with pytest.raises(LinkDetached):
        node.proton(STRANGER).create_sender("plant/1/forbidden").send(Message(body=b"amqp1"))
    assert node.post("/v1/topics/plant/1/forbidden", b"http", {}, STRANGER) == 403
    node.mqtt_client()[0].publish("plant/1/allowed", b"", 1).wait_for_publish(PATIENCE_S)
    assert seen().topic == "plant/1/allowed"


@pytest.mark.parametrize("name", ["weft-queues", "weft-queues-state", "weft-amqp-links", "$SYS", "$weft/queues"])
def test_what_is_internal_is_reached_by_no_protocol(node: Meet, name: str) -> None:
    from proton.utils import LinkDetached

    for attach in (node.proton().create_receiver, node.proton().create_sender):
        with pytest.raises(LinkDetached):
            attach(f"stream/{name}")
    connection = http.client.HTTPConnection("127.0.0.1", node.http, timeout=PATIENCE_S)
    fields = {"Authorization": f"Bearer {USER}:{PASSWORD}"}
    connection.request("GET", f"/v1/streams/{name}/events", headers=fields)
    assert connection.getresponse().status in (400, 404, 405)
    connection.close()
    assert node.post(f"/v1/streams/{name}", b"x", {}) in (400, 403, 404, 405)
