"""The demo's devices: real sensor data, replayed through paho-mqtt at QoS 1.

Run as a process (`python -m weft.demo.devices --port P NAME ...`), one MQTT client per device. Writes one JSON line
of progress at most every quarter of a second, and a last one when every message is acked.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import paho.mqtt.client as mqtt

PI_DEVICES = ("iot-device-01", "iot-device-02", "iot-device-03")
CSV_DEVICES = {
    "machine-7": "machine_temperature_system_failure.csv.gz",
    "office": "ambient_temperature_system_failure.csv.gz",
}
IN_FLIGHT_MAX = 200
"""Maximum number of unacked messages of a device; the device waits above it."""
PROGRESS_INTERVAL_S = 0.25


def _lines(name: str) -> Iterator[str]:
    with gzip.open(str(files("weft.demo") / "data" / name), "rt", encoding="utf-8") as file:
        yield from file


def payloads(device: str) -> list[bytes]:
    """Return a device's messages in order: the original reading with its timestamp, numbered by ``n`` from 0."""
    if device in CSV_DEVICES:
        rows = csv.DictReader(_lines(CSV_DEVICES[device]))
        readings: Iterator[dict[str, Any]] = (
            {
                "ts": datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC).timestamp(),
                "data": {"temp": float(row["value"])},
            }
            for row in rows
        )
    else:
        messages = map(json.loads, _lines("telemetry_50270.jsonl.gz"))
        readings = (message for message in messages if message["device"] == device)
    return [json.dumps({"n": n, **reading}, separators=(",", ":")).encode() for n, reading in enumerate(readings)]


class Device:
    """One simulated device: publishes its messages in order, counts the acks, and sends unacked messages again."""

    def __init__(self, name: str, port: int, rate: float) -> None:
        self.name = name
        self.payloads = payloads(name)
        self.acked = 0
        self._port = port
        self._interval_s = 1 / rate
        self._slots = threading.Semaphore(IN_FLIGHT_MAX)
        self._done = threading.Event()
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)
        self._client.max_inflight_messages_set(IN_FLIGHT_MAX)
        self._client.reconnect_delay_set(min_delay=1, max_delay=2)
        self._client.on_publish = self._on_publish

    def _on_publish(self, *_: object) -> None:
        self.acked += 1
        self._slots.release()
        if self.acked == len(self.payloads):
            self._done.set()

    def run(self) -> None:
        """Publish everything and return when all of it is acked."""
        self._client.connect("127.0.0.1", self._port, keepalive=10)
        self._client.loop_start()
        topic = f"series/{self.name}/temperature" if self.name in CSV_DEVICES else f"sensors/{self.name}/telemetry"
        start = time.monotonic()
        for n, payload in enumerate(self.payloads):
            self._slots.acquire()
            ahead = start + n * self._interval_s - time.monotonic()
            if ahead > 0.01:
                time.sleep(ahead)
            self._client.publish(topic, payload, qos=1)
        self._done.wait()
        self._client.disconnect()
        self._client.loop_stop()


def main() -> None:
    """Run the device process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, default=1500.0, help="messages per second and device at most")
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    devices = [Device(name, options.port, options.rate) for name in options.names]
    threads = [threading.Thread(target=device.run, daemon=True) for device in devices]
    for thread in threads:
        thread.start()
    while True:
        done = not any(thread.is_alive() for thread in threads)
        counts = {device.name: [device.acked, len(device.payloads)] for device in devices}
        print(json.dumps({"devices": counts, "done": done}), flush=True)  # noqa: T201
        if done:
            return
        time.sleep(PROGRESS_INTERVAL_S)


if __name__ == "__main__":
    main()
