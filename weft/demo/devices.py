"""The demo's devices: real sensor data, replayed through paho-mqtt at QoS 1, through pika with confirms, and by HTTP.

Run as a process (`python -m weft.demo.devices --mqtt P --amqp P --http P NAME ...`), one client per device. Writes one
JSON line of progress at most every quarter of a second, and a last one when every message is acked.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from weft.demo.senders import AmqpDevice, Device, HttpDevice, MqttDevice

PI_DEVICES = ("iot-device-01", "iot-device-02", "iot-device-03")
CSV_DEVICES = {
    "machine-7": "machine_temperature_system_failure.csv.gz",
    "office": "ambient_temperature_system_failure.csv.gz",
}
AMQP_DEVICE = "iot-device-02"
HTTP_DEVICE = "iot-device-03"
PROTOCOLS = ("mqtt", "amqp", "http")
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


def device(name: str, ports: Mapping[str, int], rate: float) -> Device:
    """Return a device of the demo with its protocol."""
    kind = {AMQP_DEVICE: AmqpDevice, HTTP_DEVICE: HttpDevice}.get(name, MqttDevice)
    port = ports[{AMQP_DEVICE: "amqp", HTTP_DEVICE: "http"}.get(name, "mqtt")]
    topic = f"series/{name}/temperature" if name in CSV_DEVICES else f"sensors/{name}/telemetry"
    return kind(name, topic, payloads(name), port, rate)


def main() -> None:
    """Run the device process."""
    parser = argparse.ArgumentParser(description=__doc__)
    for protocol in PROTOCOLS:
        parser.add_argument(f"--{protocol}", type=int, required=True, help="port of the node")
    parser.add_argument("--rate", type=float, default=1500.0, help="messages per second and device at most")
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    ports = {protocol: getattr(options, protocol) for protocol in PROTOCOLS}
    devices = [device(name, ports, options.rate) for name in options.names]
    threads = [threading.Thread(target=each.run, daemon=True) for each in devices]
    for thread in threads:
        thread.start()
    while True:
        done = not any(thread.is_alive() for thread in threads)
        counts = {each.name: [each.acked, len(each.payloads), each.again] for each in devices}
        print(json.dumps({"devices": counts, "done": done}), flush=True)  # noqa: T201
        if done:
            return
        time.sleep(PROGRESS_INTERVAL_S)


if __name__ == "__main__":
    main()
