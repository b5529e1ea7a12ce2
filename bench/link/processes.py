"""Processes of the cases: a hub and an edge node with TLS between them, and two Mosquittos with a bridge."""

from __future__ import annotations

import contextlib
import getpass
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.brokers import Certificate, merged, mosquitto_program, wait_for
from examples.demo.fabric import free_port

STREAM = "plant/{line}/{machine}/telemetry"
END_S = 60.0
BRIDGE = """\
user {user}
listener {port} 127.0.0.1
allow_anonymous true
connection up
address localhost:{to}
topic # out 1
notifications false
bridge_cafile {ca}
"""
FAR = """\
user {user}
listener {port} 127.0.0.1
allow_anonymous true
certfile {certificate}
keyfile {key}
"""


def certificate(folder: Path) -> Certificate:
    """Make a certificate of localhost that is its own authority."""
    made = Certificate(folder / "certificate.pem", folder / "key.pem")
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
        "-addext",
        "subjectAltName=DNS:localhost",
        "-keyout",
        str(made.key),
        "-out",
        str(made.certificate),
    ]
    subprocess.run(command, capture_output=True, check=True)
    return made


@contextlib.contextmanager
def running(command: Sequence[str], *ports: int) -> Iterator[int]:
    """Run a command until the block ends; yields its process id when it listens on the ports."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for port in ports:
            wait_for(port, process)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def weft_pair(folder: Path, proxy: int, hub: int, settings: Mapping[str, Any]) -> Iterator[int]:
    """Run a hub on port ``hub`` and an edge node whose link goes to ``proxy``; yields the node's MQTT port.

    Args:
        settings: sections of the node's configuration that replace those of the benchmark.
    """
    made, port = certificate(folder), free_port()
    tls = {"certificate": str(made.certificate), "key": str(made.key)}
    far = {"listen": f"127.0.0.1:{hub}", "store": str(folder / "store"), "processes": 1, "tls": tls}
    near = {
        "node": "bench",
        "data_dir": str(folder / "data"),
        "http": None,
        "listeners": {"mqtt": {"bind": f"127.0.0.1:{port}"}},
        "streams": {"load": {"from": STREAM}},
        "links": {"cloud": {"to": f"https://localhost:{proxy}", "ca_file": str(made.certificate)}},
    }
    for name, config in (("hub", far), ("edge", merged(near, settings))):
        (folder / f"{name}.yaml").write_bytes(msgspec.json.encode(config))  # JSON is YAML
    weft = [sys.executable, "-m", "weft"]
    with (
        running([*weft, "hub", "run", str(folder / "hub.yaml")], hub),
        running([*weft, "edge", "run", str(folder / "edge.yaml")], port),
    ):
        yield port


@contextlib.contextmanager
def bridge(folder: Path, proxy: int, far: int) -> Iterator[int]:
    """Run a Mosquitto on port ``far`` and one whose bridge goes to ``proxy``; yields the MQTT port of that one.

    Raises:
        SystemExit: Mosquitto is not installed.
    """
    program, made, port, user = mosquitto_program(), certificate(folder), free_port(), getpass.getuser()
    if program is None:
        raise SystemExit("Mosquitto is not installed (Debian: apt install mosquitto)")
    (folder / "near.conf").write_text(BRIDGE.format(user=user, port=port, to=proxy, ca=made.certificate))
    (folder / "far.conf").write_text(FAR.format(user=user, port=far, certificate=made.certificate, key=made.key))
    with (
        running([program, "-c", str(folder / "far.conf")], far),
        running([program, "-c", str(folder / "near.conf")], port),
    ):
        yield port
