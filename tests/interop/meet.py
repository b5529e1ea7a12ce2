"""A node with listeners of every protocol, clients of each, and the table of docs/reference/message-headers.md."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import queue
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pika
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from proton import Delivery, Message, symbol
from proton.reactor import Container
from proton.utils import BlockingConnection, BlockingReceiver
from websockets.sync.client import connect as connect_websocket

from examples.demo.fabric import free_port
from tests.support.processes import EdgeProcess
from tests.support.waiting import PATIENCE_S
from weft.edge_node.access import users

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "message-headers.md"
SENT_S = 1_700_000_000
EXPIRY_S = 60
USER, PASSWORD, STRANGER = "press", "secret of the press", "stranger"
VALUES: dict[str, Any] = {
    "weft.content-type": "text/plain",
    "weft.content-encoding": "identity",
    "weft.correlation-id": "c-1",
    "weft.reply-to": "answers/1",
    "weft.expires": EXPIRY_S,
    "weft.message-id": "m-1",
    "weft.priority": 5,
    "weft.sent": SENT_S,
    "weft.subject": "alarm",
    "weft.user-id": USER,
    "NAME": "value",
    "mqtt.payload-format": 1,
    "amqp.delivery-mode": 2,
    "amqp.app-id": "app",
    "amqp.cluster-id": "cluster",
    "amqp.group-id": "group",
    "amqp.group-sequence": 3,
    "amqp.reply-to-group-id": "answers",
    "amqp.annotation.NAME": "note",
    "amqp.footer.NAME": "sum",
}
"""Header -> what is published, in the unit that clients have."""
MQTT = {
    "content type": "ContentType",
    "correlation data": "CorrelationData",
    "response topic": "ResponseTopic",
    "message expiry interval": "MessageExpiryInterval",
    "user property": "UserProperty",
    "payload format indicator": "PayloadFormatIndicator",
}
"""Cell -> attribute of the client's message."""
AMQP = {
    name: name.replace("-", "_")
    for name in (
        "content-type",
        "content-encoding",
        "correlation-id",
        "reply-to",
        "expiration",
        "message-id",
        "priority",
        "timestamp",
        "type",
        "user-id",
        "headers",
        "delivery-mode",
        "app-id",
        "cluster-id",
    )
}
AMQP1 = {
    "content-type": "content_type",
    "content-encoding": "content_encoding",
    "correlation-id": "correlation_id",
    "reply-to": "reply_to",
    "ttl": "ttl",
    "absolute-expiry-time": "expiry_time",
    "message-id": "id",
    "priority": "priority",
    "creation-time": "creation_time",
    "subject": "subject",
    "user-id": "user_id",
    "application property": "properties",
    "group-id": "group_id",
    "group-sequence": "group_sequence",
    "reply-to-group-id": "reply_to_group_id",
    "message annotation": "annotations",
    "footer": "footer",
}
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
NUMBERS = itertools.count()


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


class Meet(EdgeProcess):
    """A node that listens for every protocol."""

    def __init__(self, directory: Path) -> None:
        self.mqtt, self.amqp, self.http = free_port(), free_port(), free_port()
        super().__init__(directory, CONFIG.format(directory=directory, mqtt=self.mqtt, amqp=self.amqp, http=self.http))
        (directory / "acl").write_text(RULES)
        for name in (USER, STRANGER):
            users.add(str(directory / "users"), name, PASSWORD.encode())
        self.start()
        self.closing = contextlib.ExitStack()

    def mqtt_client(self, version: int = 5, user: str = USER) -> tuple[paho.Client, queue.Queue[Any]]:
        client = paho.Client(
            CallbackAPIVersion.VERSION2, f"meet-{next(NUMBERS)}", protocol=paho.MQTTProtocolVersion(version)
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
        container.container_id = f"meet-{next(NUMBERS)}"
        connection = BlockingConnection(
            f"amqp://127.0.0.1:{self.amqp}",
            timeout=PATIENCE_S,
            container=container,
            user=user,
            password=PASSWORD,
            allowed_mechs="PLAIN",
            sasl_enabled=True,
        )
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
            elif header == "amqp.delivery-mode" and reader == AMQP091 and not is_sent:
                assert value == 2  # it was acknowledged when it was on disk
            elif header == "weft.expires" and is_sent:
                assert 0 < value <= EXPIRY_S + 1, (publisher, reader, header, value)
            elif is_sent:
                assert value == VALUES[header], (publisher, reader, header, value)
            else:
                assert value is None, (publisher, reader, header, value)
