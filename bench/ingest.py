"""MQTT ingest: acknowledged QoS 1 messages a second on one core, Weft against Mosquitto in the same run.

    python -m bench.ingest [--seconds 5] [--points 10x100,100x20]

The broker has one core and the load generator (``mqttload.c``) the other, so it takes a machine with two. Weft runs as
``weft edge run`` with a log on disk and acknowledges after fdatasync; Mosquitto runs with its default configuration,
which syncs nothing before it acknowledges. Payloads are real telemetry (``bench/payloads.py``). Every point starts
a new broker.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from bench.brokers import Served, mosquitto_version, with_broker
from bench.common import write_results
from bench.generator import Generator, build

POINTS = "1x1,1x100,10x20,10x100,100x20,100x100"


def measure(broker: str, generator: Generator, conns: int, window: int, seconds: float) -> dict[str, Any] | None:
    """Measure one point of one broker; return None when it is not installed."""

    def run(served: Served) -> dict[str, Any]:
        return generator.run(served.port, served.pid, seconds, {"c": conns, "w": window, "W": 1})

    figures = with_broker(broker, generator.program.parent, run)
    if figures is None:
        return None
    return {
        "messages_per_s": figures["messages_per_s"],
        "ack_ms_p50": figures["ack_ms"]["p50"],
        "ack_ms_p99": figures["ack_ms"]["p99"],
        "server_cpu": figures["server_cpu"],
        "server_us_per_message": figures["server_us_per_message"],
        "server_rss_mib": round(figures["server_peak_rss_kib"] / 1024),
    }


def cells(figures: dict[str, Any]) -> str:
    """Return one broker's part of a line."""
    return (
        f"{figures['messages_per_s']:>12,.0f} {figures['ack_ms_p50']:>8.2f} {figures['ack_ms_p99']:>8.2f}"
        f" {figures['server_us_per_message']:>7.2f}"
    )


def row(conns: int, window: int, ours: dict[str, Any], theirs: dict[str, Any] | None) -> str:
    """Return one line of the table."""
    line = f"{conns:>5} x {window:<5}{cells(ours)}"
    if theirs is None:
        return line
    return f"{line}  {cells(theirs)} {ours['messages_per_s'] / theirs['messages_per_s']:>6.2f}"


def main() -> None:
    """Run all points and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured time of each point, after 1 s of warm-up")
    parser.add_argument(
        "--points", default=POINTS, help="connections x unacknowledged messages of each, such as 10x100"
    )
    arguments = parser.parse_args()
    points = [tuple(map(int, point.split("x"))) for point in arguments.points.split(",")]
    results = []
    titles = f"{'messages/s':>12} {'p50 ms':>8} {'p99 ms':>8} {'CPU us':>7}"
    print(f"{'':13}{'Weft, acknowledged after fdatasync':^38}  {'Mosquitto, nothing synced':^38}")
    print(f"conns x window{titles[1:]}  {titles} {'ratio':>6}")
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as name:
        generator = build(Path(name))
        for conns, window in points:
            ours = measure("weft", generator, conns, window, arguments.seconds)
            theirs = measure("mosquitto", generator, conns, window, arguments.seconds)
            assert ours is not None
            print(row(conns, window, ours, theirs), flush=True)
            results.append({"conns": conns, "window": window, "weft": ours, "mosquitto": theirs})
    path = write_results(
        "ingest", {"qos": 1, "seconds": arguments.seconds, "mosquitto": mosquitto_version(), "points": results}
    )
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
