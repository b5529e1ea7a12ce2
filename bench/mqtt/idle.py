"""Idle connections: the memory of each, and how fast they are accepted."""

from __future__ import annotations

import psutil

from bench.brokers import BROKERS, Served, with_broker
from bench.generator import Figures
from bench.mqtt.compare import Run

CONNECTIONS = 10_000
BYTES_EACH_MAX = 8192
ACCEPTED_PER_S_MIN = 1000
SECONDS = 2


def measure(run: Run) -> Figures:
    """Connect ``CONNECTIONS`` clients that say nothing, to each broker."""

    def connected(broker: Served) -> Figures:
        # A first client, so that what is made once is there.
        run.generator.run(broker.port, broker.pid, 0.5, {"W": 0, "c": 1, "w": 1})
        before = psutil.Process(broker.pid).memory_info().rss
        figures = run.generator.run(broker.port, broker.pid, SECONDS, {"W": 0, "c": CONNECTIONS, "r": 0.001})
        return {
            "connections": CONNECTIONS,
            "bytes_each": round((figures["server_rss_kib"] * 1024 - before) / CONNECTIONS),
            "connections_per_s": round(CONNECTIONS / figures["connect_s"]),
        }

    found = {broker: with_broker(broker, run.directory, connected, edge=run.edge) for broker in BROKERS}
    ours = found["weft"]
    assert ours is not None
    met = ours["bytes_each"] < BYTES_EACH_MAX and ours["connections_per_s"] >= ACCEPTED_PER_S_MIN
    return {**found, "met": met}
