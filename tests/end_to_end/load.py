"""Devices for the kill tests: paho clients that number their messages and send until told to stop.

`python -m tests.end_to_end.load --port P --devices N --rate R` publishes 0, 1, 2, ... at QoS 1 to `load/<device>/count`
and continues through every lost connection. As many devices as `--strays` says publish to topics that no stream
matches. On SIGTERM it stops publishing, waits until every message is acked, and prints `{"device": count, ...}`.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time

import paho.mqtt.client as mqtt

IN_FLIGHT_MAX = 100


class CountingDevice(threading.Thread):
    """Publishes 0, 1, 2, ... and remembers how many were acked."""

    def __init__(self, name: str, topic: str, port: int, rate: float, stop: threading.Event) -> None:
        super().__init__(name=name)
        self.device, self._topic = name, topic
        self.acked = 0
        self._port, self._interval_s, self._stopping = port, 1 / rate, stop
        self._slots = threading.Semaphore(IN_FLIGHT_MAX)
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)
        self._client.max_inflight_messages_set(IN_FLIGHT_MAX)
        self._client.reconnect_delay_set(min_delay=0.05, max_delay=0.2)
        self._client.on_publish = self._on_publish

    def _on_publish(self, *_: object) -> None:
        self.acked += 1
        self._slots.release()

    def run(self) -> None:
        self._client.connect_async("127.0.0.1", self._port, keepalive=10)  # the edge may be down just now
        self._client.loop_start()
        n = 0
        due = time.monotonic()
        while not self._stopping.is_set():
            if not self._slots.acquire(timeout=0.1):
                continue
            due = max(due + self._interval_s, time.monotonic() - 0.1)
            self._stopping.wait(max(0.0, due - time.monotonic()))
            self._client.publish(self._topic, str(n), qos=1)
            n += 1
        while self.acked < n:
            time.sleep(0.05)
        self._client.disconnect()
        self._client.loop_stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--prefix", default="", help="of the devices' names, where several processes are the devices")
    parser.add_argument("--strays", type=int, default=0)
    parser.add_argument("--rate", type=float, default=500)
    options = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    names = [f"{options.prefix}device-{i}" for i in range(options.devices)]
    topics = {name: f"load/{name}/count" for name in names}
    topics |= {f"stray-{i}": f"stray/stray-{i}" for i in range(options.strays)}
    devices = [CountingDevice(name, topic, options.port, options.rate, stop) for name, topic in topics.items()]
    for device in devices:
        device.start()
    for device in devices:
        while device.is_alive():
            device.join(0.5)
    print(json.dumps({device.device: device.acked for device in devices}), flush=True)


if __name__ == "__main__":
    main()
