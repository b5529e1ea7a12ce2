"""The demo's devices: real sensor data, replayed by MQTT at QoS 1 (paho), AMQP 0-9-1 with confirms (pika), and HTTP."""

from __future__ import annotations

import contextlib
import csv
import gzip
import http.client
import json
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pika
import pika.channel
import pika.frame
import pika.spec

DATA = Path(__file__).parent / "data"
IN_FLIGHT_MAX = 200
"""Maximum number of unacked messages of a device; the device waits above it."""
POST_MESSAGES = 50
"""Messages of one request."""
RECONNECT_S = 0.3
_SOON_S = 0.005


class Device(ABC):
    """A device that sends its messages in order, counts the acks, and sends again what was not acknowledged."""

    def __init__(self, name: str, topic: str, payloads: Sequence[bytes], port: int, rate: float) -> None:
        """Take what it sends, and at how many messages per second at most."""
        self.name = name
        self.acked = 0
        self.again = 0
        """Messages sent again without a sign that says so: the node cannot know them."""
        self.error: Exception | None = None
        """Cause why it ended before everything was acked."""
        self.payloads = payloads
        self._topic = topic
        self._port = port
        self._interval_s = 1 / rate
        self._start = 0.0

    def run(self) -> None:
        """Send everything and return when all of it is acked."""
        self._start = time.monotonic()
        try:
            self._send()
        except Exception as error:
            self.error = error

    @abstractmethod
    def _send(self) -> None: ...

    def _ahead(self, n: int) -> float:
        """Return for how many seconds the message ``n`` has to wait; below zero when it is late."""
        return self._start + n * self._interval_s - time.monotonic()


class MqttDevice(Device):
    """A device that publishes at QoS 1, with the DUP flag where it does so again."""

    def _send(self) -> None:
        slots, done = threading.Semaphore(IN_FLIGHT_MAX), threading.Event()

        def on_publish(*_: object) -> None:
            self.acked += 1
            slots.release()
            if self.acked == len(self.payloads):
                done.set()

        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=self.name, clean_session=False)
        client.max_inflight_messages_set(IN_FLIGHT_MAX)
        client.reconnect_delay_set(min_delay=1, max_delay=2)
        client.on_publish = on_publish
        client.connect("127.0.0.1", self._port, keepalive=10)
        client.loop_start()
        for n, payload in enumerate(self.payloads):
            slots.acquire()
            if (ahead := self._ahead(n)) > 0.01:
                time.sleep(ahead)
            client.publish(self._topic, payload, qos=1)
        done.wait()
        client.disconnect()
        client.loop_stop()


class AmqpDevice(Device):
    """A device that publishes to ``amq.topic`` with confirms. AMQP 0-9-1 has no flag for what is published again."""

    _connection: pika.SelectConnection
    _unconfirmed: dict[int, int]
    """Delivery tag -> number of the message, in the order of the tags."""
    _waiting: deque[int]
    """Numbers of messages to be sent."""

    def _send(self) -> None:
        self._unconfirmed, self._waiting = {}, deque(range(len(self.payloads)))
        while self.acked < len(self.payloads):
            parameters = pika.ConnectionParameters("127.0.0.1", self._port, heartbeat=10)
            connection = pika.SelectConnection(
                parameters,
                on_open_callback=lambda it: it.channel(on_open_callback=self._opened),
                on_open_error_callback=self._ended,
                on_close_callback=self._ended,
            )
            self._connection = connection
            connection.ioloop.start()
            if self.acked < len(self.payloads):
                time.sleep(RECONNECT_S)

    def _opened(self, channel: pika.channel.Channel) -> None:
        """Begin with what the last connection left unconfirmed: it may be on disk, or not."""
        self.again += len(self._unconfirmed)
        self._waiting.extendleft(reversed(self._unconfirmed.values()))
        self._unconfirmed = {}
        self._tag = 0
        channel.confirm_delivery(self._confirmed, callback=lambda _: self._publish(channel))

    def _publish(self, channel: pika.channel.Channel) -> None:
        if not channel.is_open:
            return
        while self._waiting and len(self._unconfirmed) < IN_FLIGHT_MAX and self._ahead(self._waiting[0]) <= 0:
            number = self._waiting.popleft()
            self._tag += 1
            self._unconfirmed[self._tag] = number
            properties = pika.BasicProperties(
                content_type="application/json", delivery_mode=2, message_id=f"{self.name}-{number}"
            )
            channel.basic_publish("amq.topic", self._topic.replace("/", "."), self.payloads[number], properties)
        self._connection.ioloop.call_later(_SOON_S, lambda: self._publish(channel))

    def _confirmed(self, frame: pika.frame.Method) -> None:
        method = frame.method
        first = next(iter(self._unconfirmed)) if method.multiple else method.delivery_tag
        numbers = [self._unconfirmed.pop(tag) for tag in range(first, method.delivery_tag + 1)]
        if isinstance(method, pika.spec.Basic.Ack):
            self.acked += len(numbers)
        else:
            self._waiting.extendleft(reversed(numbers))
        if self.acked == len(self.payloads):
            self._connection.close()

    def _ended(self, *_: object) -> None:
        self._connection.ioloop.stop()


class HttpDevice(Device):
    """A device that posts arrays, and the same array with the same idempotency key until it has an answer."""

    def _send(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        for first in range(0, len(self.payloads), POST_MESSAGES):
            if (ahead := self._ahead(first)) > 0:
                time.sleep(ahead)
            batch = self.payloads[first : first + POST_MESSAGES]
            while not self._post(connection, first, batch):
                connection.close()
                time.sleep(RECONNECT_S)
            self.acked += len(batch)
        connection.close()

    def _post(self, connection: http.client.HTTPConnection, first: int, batch: Sequence[bytes]) -> bool:
        """Return whether the request was answered with its place in the log."""
        fields = {"Content-Type": "application/json", "Idempotency-Key": f"{self.name}-{first}"}
        path = f"/v1/streams/telemetry/{self._topic}"
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("POST", path, b"[" + b",".join(batch) + b"]", fields)
            answer = connection.getresponse()
            said = answer.read().decode(errors="replace")
            if answer.status not in (200, 429, 503):
                raise RuntimeError(f"{self.name}: {answer.status} {said}")
            return answer.status == 200
        return False


PI_DEVICES = ("iot-device-01", "iot-device-02", "iot-device-03")
CSV_DEVICES = {
    "machine-7": "machine_temperature_system_failure.csv.gz",
    "office": "ambient_temperature_system_failure.csv.gz",
}
TELEMETRY = "telemetry_50270.jsonl.gz"
AMQP_DEVICE = "iot-device-02"
HTTP_DEVICE = "iot-device-03"


def lines(name: str) -> Iterator[str]:
    """Yield the lines of a file of the data."""
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        yield from file


def payloads(device: str) -> list[bytes]:
    """Return a device's messages in order: the original reading with its timestamp, numbered by ``n`` from 0."""
    if device in CSV_DEVICES:
        rows = csv.DictReader(lines(CSV_DEVICES[device]))
        readings: Iterator[dict[str, Any]] = (
            {
                "ts": datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC).timestamp(),
                "data": {"temp": float(row["value"])},
            }
            for row in rows
        )
    else:
        messages = map(json.loads, lines(TELEMETRY))
        readings = (message for message in messages if message["device"] == device)
    return [json.dumps({"n": n, **reading}, separators=(",", ":")).encode() for n, reading in enumerate(readings)]


def device(name: str, ports: Mapping[str, int], rate: float) -> Device:
    """Return a device of the demo with its protocol."""
    kind = {AMQP_DEVICE: AmqpDevice, HTTP_DEVICE: HttpDevice}.get(name, MqttDevice)
    port = ports[{AMQP_DEVICE: "amqp", HTTP_DEVICE: "http"}.get(name, "mqtt")]
    topic = f"series/{name}/temperature" if name in CSV_DEVICES else f"sensors/{name}/telemetry"
    return kind(name, topic, payloads(name), port, rate)
