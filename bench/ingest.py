"""MQTT ingest: acknowledged QoS 1 messages a second on one core, Weft against Mosquitto in the same run.

    python -m bench.ingest [--seconds 5] [--points 10x100,100x20]

The broker has one core and the load generator (``mqttload.c``) the other, so it takes a machine with two. Weft runs as
``weft edge run`` with a log on disk and acknowledges after fdatasync; Mosquitto runs with its default configuration,
which syncs nothing before it acknowledges. Payloads are 100 bytes that compress well. Every point starts afresh.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.common import LOAD_CORE, PAYLOAD_BYTES, SERVER_CORE, write_results
from weft.demo.fabric import free_port

POINTS = "1x1,1x100,10x20,10x100,100x20,100x100"
START_S_MAX = 15.0
MOSQUITTO_PLACES = "/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin"

EDGE_YAML = """\
node: bench
data_dir: {directory}/data
http: null
listeners:
  mqtt: {{bind: "127.0.0.1:{port}"}}
streams:
  load: {{from: "lg/{{device}}"}}
unrouted: live
"""


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until something listens."""
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"{process.args!r} did not start within {START_S_MAX:g} s; run it by hand to see why")


def pinned(core: int, command: list[str]) -> list[str]:
    """The command on one core, when the machine has it."""
    return ["taskset", "-c", str(core), *command] if core < (os.cpu_count() or 1) else command


@contextmanager
def server(command: list[str], port: int) -> Iterator[int]:
    """A broker pinned to its core; yields its process id."""
    process = subprocess.Popen(pinned(SERVER_CORE, command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, process)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=START_S_MAX)


def weft(directory: Path, port: int) -> list[str]:
    """The command that runs an edge node with a new log."""
    config = directory / "edge.yaml"
    config.write_text(EDGE_YAML.format(directory=directory, port=port))
    return [sys.executable, "-m", "weft", "edge", "run", str(config)]


def mosquitto(directory: Path, port: int) -> list[str] | None:
    """The command that runs Mosquitto, or None when it is not installed."""
    found = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:{MOSQUITTO_PLACES}")
    config = directory / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    return [found, "-c", str(config)] if found else None


def mosquitto_version() -> str:
    """Such as ``mosquitto version 2.0.11``."""
    found = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:{MOSQUITTO_PLACES}")
    if found is None:
        return "not installed"
    return subprocess.run([found, "-h"], capture_output=True, text=True, check=False).stdout.splitlines()[0]


def load(generator: Path, port: int, pid: int, *, conns: int, window: int, seconds: float) -> dict[str, Any]:
    """One run of the load generator on the other core: its figures."""
    command = [
        str(generator), "-p", str(port), "-P", str(pid), "-c", str(conns), "-w", str(window),
        "-q", "1", "-s", str(PAYLOAD_BYTES), "-t", str(seconds), "-W", "1",
    ]  # fmt: skip
    done = subprocess.run(pinned(LOAD_CORE, command), stdout=subprocess.PIPE, check=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def measure(broker: str, generator: Path, conns: int, window: int, seconds: float) -> dict[str, Any] | None:
    """One point of one broker; None when it is not installed."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as name:
        directory, port = Path(name), free_port()
        command = weft(directory, port) if broker == "weft" else mosquitto(directory, port)
        if command is None:
            return None
        with server(command, port) as pid:
            figures = load(generator, port, pid, conns=conns, window=window, seconds=seconds)
    return {
        "messages_per_s": figures["msgs_s"],
        "ack_ms_p50": figures["ack_us"]["p50"] / 1000,
        "ack_ms_p99": figures["ack_us"]["p99"] / 1000,
        "server_cpu": figures["srv_cpu"],
        "server_us_per_message": figures["srv_us_msg"],
        "server_rss_mib": round(figures["srv_hwm_kb"] / 1024),
    }


def build(directory: Path) -> Path:
    """Compile the load generator."""
    generator = directory / "mqttload"
    source = Path(__file__).parent / "mqttload.c"
    subprocess.run(["cc", "-O2", "-o", str(generator), str(source)], check=True)
    return generator


def cells(figures: dict[str, Any]) -> str:
    """One broker's part of a line."""
    return (
        f"{figures['messages_per_s']:>12,.0f} {figures['ack_ms_p50']:>8.2f} {figures['ack_ms_p99']:>8.2f}"
        f" {figures['server_us_per_message']:>7.2f}"
    )


def row(conns: int, window: int, ours: dict[str, Any], theirs: dict[str, Any] | None) -> str:
    """One line of the table."""
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
        "ingest",
        {"qos": 1, "payload_bytes": PAYLOAD_BYTES, "seconds": arguments.seconds, "mosquitto": mosquitto_version(),
         "points": results},
    )  # fmt: skip
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
