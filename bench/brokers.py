"""The brokers that a benchmark runs: Weft and Mosquitto, each a fresh process on the server's core."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench.common import SERVER_CORE, pinned
from examples.demo.fabric import free_port

START_S_MAX = 60.0
MOSQUITTO_PLACES = "/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin"
STREAM = "plant/{line}/{machine}/telemetry"
"""Topics that the node keeps; ``mqttload`` publishes there by default."""
BROKERS = ("weft", "mosquitto")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate and its key; the load generator does not look at it."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Edge:
    """Options of the node under test beyond its defaults.

    Args:
        settings: sections of ``edge.yaml`` that replace the benchmark's own.
        slow_sync: the library of ``slow_sync.c``; None where no sync is made slower.
        sync_ms: how much longer each sync takes with it.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    slow_sync: Path | None = None
    sync_ms: int = 0


DEFAULTS = Edge()


@dataclass(frozen=True)
class Served:
    """A running broker: its port, its process id, and the port of a node's metrics."""

    port: int
    pid: int
    http: int | None = None

    def written(self) -> dict[str, int]:
        """Return how much the broker has written, by its own count; Mosquitto writes nothing on its defaults."""
        if self.http is None:
            return {"bytes": 0, "commits": 0}
        return {
            "bytes": metric(self.http, "weft_edge_log_device_written_bytes_total"),
            "commits": metric(self.http, "weft_edge_log_commits_total"),
        }


def metric(http: int, name: str) -> int:
    """Return one of the node's own figures.

    Raises:
        SystemExit: the node has no such metric.
    """
    with urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return int(float(line.split()[1]))
    raise SystemExit(f"the node has no metric {name}")


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until something listens.

    Raises:
        SystemExit: the process ended or took too long.
    """
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"{process.args!r} did not start within {START_S_MAX:g} s; run it by hand to see why")


@contextmanager
def server(command: list[str], *ports: int) -> Iterator[int]:
    """Run a broker on its core; yields its process id when it listens on all ports."""
    process = subprocess.Popen(pinned(SERVER_CORE, command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for port in ports:
            wait_for(port, process)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=START_S_MAX)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``changes``, section by section."""
    result = dict(base)
    for name, value in changes.items():
        inner = result.get(name)
        result[name] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return result


def weft(directory: Path, port: int, http: int, tls: Certificate | None, edge: Edge) -> list[str]:
    """Return the command that runs an edge node with a new log."""
    bind = {"bind": f"127.0.0.1:{port}"}
    files = tls and {"certificate": str(tls.certificate), "key": str(tls.key)}
    config = {
        "node": "bench",
        "data_dir": str(directory / "data"),
        "http": {"bind": f"127.0.0.1:{http}"},
        "listeners": {"mqtts": {**bind, "tls": files}} if files else {"mqtt": bind},
        "streams": {"load": {"from": STREAM}},
        "unrouted": "live",
    }
    path = directory / "edge.yaml"
    path.write_bytes(msgspec.json.encode(merged(config, edge.settings)))  # JSON is YAML
    command = [sys.executable, "-m", "weft", "edge", "run", str(path)]
    return slowed(command, edge.slow_sync, edge.sync_ms)


def slowed(command: list[str], slow_sync: Path | None, sync_ms: int) -> list[str]:
    """Return the command with every sync made slower, when a library for it is given."""
    if slow_sync is None:
        return command
    return ["env", f"LD_PRELOAD={slow_sync}", f"SLOW_SYNC_MS={sync_ms}", *command]


def build_slow_sync(directory: Path) -> Path:
    """Compile what makes syncs slower."""
    library = directory / "slow_sync.so"
    source = Path(__file__).parent / "slow_sync.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def mosquitto_program() -> str | None:
    """Return where Mosquitto is; None when it is not installed."""
    return shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:{MOSQUITTO_PLACES}")


def mosquitto(directory: Path, port: int, tls: Certificate | None) -> list[str] | None:
    """Return the command that runs Mosquitto on its defaults, or None when it is not installed."""
    found = mosquitto_program()
    # As the user who runs the benchmark: started by root it would become one who cannot read the key.
    lines = [f"user {getpass.getuser()}", f"listener {port} 127.0.0.1", "allow_anonymous true"]
    if tls:
        lines += [f"certfile {tls.certificate}", f"keyfile {tls.key}"]
    config = directory / "mosquitto.conf"
    config.write_text("\n".join(lines) + "\n")
    return [found, "-c", str(config)] if found else None


def mosquitto_version() -> str:
    """Return such as ``mosquitto version 2.0.11``."""
    found = mosquitto_program()
    if found is None:
        return "not installed"
    return subprocess.run([found, "-h"], capture_output=True, text=True, check=False).stdout.splitlines()[0]


def certificate(directory: Path) -> Certificate | None:
    """Make a certificate on an elliptic curve; None where there is no ``openssl``."""
    made = Certificate(directory / "certificate.pem", directory / "key.pem")
    if shutil.which("openssl") is None:
        return None
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-keyout",
        str(made.key),
        "-out",
        str(made.certificate),
    ]
    subprocess.run(command, capture_output=True, check=True)
    return made


def with_broker(
    broker: str,
    directory: Path,
    run: Callable[[Served], Result],
    *,
    tls: Certificate | None = None,
    edge: Edge = DEFAULTS,
) -> Result | None:
    """Call ``run`` with a fresh broker; None when it is not installed."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-", dir=directory) as name:
        port, http = free_port(), free_port() if broker == "weft" else None
        command = mosquitto(Path(name), port, tls) if http is None else weft(Path(name), port, http, tls, edge)
        if command is None:
            return None
        with server(command, *filter(None, (port, http))) as pid:
            return run(Served(port, pid, http))
