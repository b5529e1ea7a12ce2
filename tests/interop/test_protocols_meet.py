"""Clients of MQTT, AMQP 0-9-1, AMQP 1.0 and HTTP at one node: what one publishes, the others get.

The table of docs/reference/message-headers.md is read from the page. Each of its cells is published by a client of its
column, and looked for in what a client of each other column gets.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.interop.queues import got
from tests.support.waiting import PATIENCE_S

pytest.importorskip("proton", reason="python-qpid-proton is not installed: pip install weft-fabric[amqp1]")

from proton import Delivery, Message, symbol
from proton.reactor import Filter

from tests.interop.meet import (
    AMQP,
    AMQP091,
    AMQP1,
    AMQP10,
    HTTP,
    MQTT,
    MQTT5,
    NUMBERS,
    PASSWORD,
    PUBLISHERS,
    STRANGER,
    TABLE,
    USER,
    VALUES,
    Meet,
    body_of,
    by_amqp,
    by_mqtt,
    check,
    shown_by_amqp,
    shown_by_amqp1,
    shown_by_http,
    shown_by_mqtt,
)

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meet]:
    with Meet(tmp_path_factory.mktemp("meet")) as started:
        yield started


@pytest.fixture(autouse=True)
def closing(node: Meet) -> Iterator[None]:
    """Close the clients of each test."""
    with contextlib.ExitStack() as stack:
        node.closing = stack
        yield


@pytest.mark.parametrize("publisher", PUBLISHERS)
def test_every_cell_of_the_table(node: Meet, publisher: str) -> None:
    number = next(NUMBERS)
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
        proton.create_receiver("stream/telemetry", credit=1, options=start),
        proton.create_receiver(topic, credit=1),
        proton.create_receiver(f"queue/{second}", credit=1),
    ]
    events = [
        node.events("/v1/streams/telemetry/events"),
        node.events(f"/v1/topics?filter={topic}"),
        node.websocket("/v1/streams/telemetry/events"),
        node.websocket(f"/v1/topics?filter={topic}"),
    ]

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
    "array": (
        {"Content-Type": "application/json", "Weft-Header-unit": "C"},
        b'[{"a": 1}, 2.50]',
        [b'{"a": 1}', b"2.50"],
        ("unit", "C"),
    ),
    "NDJSON": (
        {"Content-Type": "application/x-ndjson", "Weft-Header-unit": "C"},
        b'{"a":1}\n2\n',
        [b'{"a":1}', b"2"],
        ("unit", "C"),
    ),
    "CloudEvents, binary": (
        {
            "ce-specversion": "1.0",
            "ce-id": "e-1",
            "ce-source": "/press",
            "ce-type": "reading",
            "Content-Type": "text/plain",
        },
        b"1",
        [b"1"],
        ("ce-type", "reading"),
    ),
    "CloudEvents, structured": (
        {"Content-Type": "application/cloudevents+json"},
        json.dumps(EVENT, separators=(",", ":")).encode(),
        [b'{"a":1}'],
        ("ce-id", "e-1"),
    ),
}
"""Form of a POST -> fields, body; and the payloads and a header that clients of other protocols get."""


@pytest.mark.parametrize("form", [*FORMS, "InfluxDB"])
def test_every_form_of_post_comes_to_clients_of_every_protocol(node: Meet, form: str) -> None:
    number = next(NUMBERS)
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
    number = next(NUMBERS)
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
    number = next(NUMBERS)
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
        ("k{n}.b.c", "k{n}/b/c"),
        ("k{n}/b.c", "k{n}/b/c"),
        ("k{n}..c", "k{n}//c"),
        (".k{n}", "/k{n}"),
        ("k{n}.+.#", "k{n}/_/_"),
        ("$k{n}.x", "_k{n}/x"),
        ("$SYS.k{n}", "_SYS/k{n}"),
        ("k{n}.\0", "k{n}/_"),
    ],
)
def test_routing_keys_are_topics_and_come_back_as_they_were_sent(node: Meet, key: str, topic: str) -> None:
    number = next(NUMBERS)
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
    number = next(NUMBERS)
    topic = topic.format(n=number)
    channel = node.channel()
    own = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(own, "amq.topic", "#")
    client, _ = node.mqtt_client()
    client.publish(topic, b"x", 1).wait_for_publish(PATIENCE_S)
    method, _, _ = got(channel, own)
    assert method.routing_key == (topic.replace("/", ".")[:255] if key is None else key.format(n=number))


def test_a_publisher_of_any_protocol_is_heard_in_its_order(node: Meet) -> None:
    number = next(NUMBERS)
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
        lambda: bytes(subscriber().payload),
        lambda: bytes(got(channel, own)[2]),
        lambda: body_of(receiver),
    ]
    for read in readers:
        came = [read() for _ in range(30)]
        for name in (b"mqtt", b"amqp", b"amqp1"):
            assert [each for each in came if each.startswith(name + b" ")] == [b"%b %d" % (name, n) for n in range(10)]


# --- retained messages and expiry


def test_a_retained_message_is_for_subscribers_and_passes_queues_once(node: Meet) -> None:
    number = next(NUMBERS)
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
    number = next(NUMBERS)
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


def test_what_is_acknowledged_on_disk_is_persistent_for_amqp_0_9_1(node: Meet) -> None:
    """delivery-mode 2: of QoS 1, of HTTP, of AMQP 1.0. What AMQP 0-9-1 says itself stays as it is, also nothing."""
    number = next(NUMBERS)
    topic = f"plant/{number}/x"
    channel, name = node.channel(), f"q{number}"
    channel.queue_declare(name)
    channel.queue_bind(name, "amq.topic", topic.replace("/", "."))
    mqtt, _ = node.mqtt_client()
    proton, durable = node.proton(), Message(body=b"x", inferred=True, durable=True)
    by_name, by_topic = proton.create_sender(f"queue/{name}"), proton.create_sender(topic)

    def by_amqp(mode: int | None) -> None:
        properties = pika.BasicProperties(delivery_mode=mode)
        channel.basic_publish("amq.topic", topic.replace("/", "."), b"x", properties)

    for publish, expected in (
        (lambda: mqtt.publish(topic, b"x", 1).wait_for_publish(PATIENCE_S), 2),
        (lambda: mqtt.publish(topic, b"x", 0), None),
        (lambda: node.post(f"/v1/topics/{topic}", b"x", {}), 2),
        (lambda: by_topic.send(Message(body=b"x", inferred=True)), 2),
        (lambda: by_topic.send(durable), 2),
        (lambda: by_name.send(durable), 2),
        (lambda: by_amqp(None), None),
        (lambda: by_amqp(1), 1),
        (lambda: by_amqp(2), 2),
    ):
        publish()
        _, properties, _ = got(channel, name)
        assert properties.delivery_mode == expected
