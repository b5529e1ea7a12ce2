"""MQTT to Weft beside publishing to a NATS server's JetStream, in the same run.

    python -m bench.nats [--only 1000x1] [--rounds 3] [--seconds 3] [--directory DIR]

The server has one core and the load generator the other. Both keep each message in a log of a file and acknowledge it
by itself. Weft (``weft edge run``) takes MQTT at QoS 1 (``mqttload.c``) and answers after fdatasync. NATS takes its own
protocol (``natsload.c``) into a stream with file storage, in two ways: with ``sync_interval: always`` it answers after
a sync as Weft does; on its defaults it syncs every two minutes, so what it has answered can be lost with its machine.
Each server is a fresh process in each round.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.amqp import all_rounds
from bench.brokers import Served, server, with_broker
from bench.common import machine, write_results
from bench.generator import Figures, Generator, build
from bench.loads import Case, Target, choose, generators, load_before, measure, parser, summary
from bench.mqtt.compare import fsync_ms
from examples.demo.fabric import free_port

WEFT, SYNCED, LATER = "weft", "nats, sync always", "nats, sync later"
CASES: tuple[Case, ...] = (
    Case("1000x1", "1,000 x 1", "natsload", {"c": 1000, "w": 1}, (Target(WEFT, SYNCED, 3.0),)),
    Case("100x20", "100 x 20", "natsload", {"c": 100, "w": 20}, (Target(WEFT, SYNCED, 3.0),)),
    Case("10x100", "10 x 100", "natsload", {"c": 10, "w": 100}, (Target(WEFT, SYNCED, 3.0),)),
    Case("rate_1000", "1,000/s over 100", "natsload", {"c": 100, "r": 1000}),
)
CONFIGURATION = """listen: "127.0.0.1:{port}"
jetstream: {{ store_dir: "{folder}/jetstream"{sync} }}
max_connections: 10000
"""
STREAM = {"name": "load", "subjects": ["plant.>"], "storage": "file", "retention": "limits", "num_replicas": 1}
ANSWER_S = 10.0


def nats_program() -> str | None:
    """Return the path of the NATS server; None where it is not installed."""
    return shutil.which("nats-server")


def nats_version(program: str) -> str:
    """Return such as ``nats-server: v2.12.0``."""
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip()


def make_stream(port: int) -> None:
    """Make the stream that takes what the generator publishes.

    Raises:
        SystemExit: the server does not make it.
    """
    request = json.dumps(STREAM)
    with socket.create_connection(("127.0.0.1", port), ANSWER_S) as connection:
        reader = connection.makefile("rb")
        reader.readline()  # INFO
        connection.sendall(
            b'CONNECT {"verbose":false}\r\nSUB answer 1\r\n'
            + f"PUB $JS.API.STREAM.CREATE.{STREAM['name']} answer {len(request)}\r\n{request}\r\n".encode()
        )
        head = reader.readline().split()
        answer = reader.read(int(head[-1])) if head and head[0] == b"MSG" else b" ".join(head)
    if b'"created"' not in answer:
        raise SystemExit(f"the NATS server does not make a stream: {answer.decode(errors='replace')}")


def one_round(
    name: str, cases: Sequence[Case], directory: Path, tools: Mapping[str, Generator], seconds: float
) -> Mapping[str, Figures]:
    """Run all cases on a fresh server."""
    found: dict[str, Figures] = {}
    if name == WEFT:

        def run(served: Served) -> None:
            for case in cases:
                options = {"q": 1, **case.options}
                found[case.name] = measure(tools["mqttload"], served.port, served.pid, seconds, options)

        with_broker("weft", directory, run)
        return found
    program = nats_program()
    assert program is not None, "it is asked for only where it is installed"
    with tempfile.TemporaryDirectory(prefix="weft-bench-", dir=directory) as folder:
        port, path = free_port(), Path(folder) / "nats.conf"
        sync = ", sync_interval: always" if name == SYNCED else ""
        path.write_text(CONFIGURATION.format(folder=folder, port=port, sync=sync))
        with server([program, "--config", str(path)], port) as pid:
            make_stream(port)
            for case in cases:
                found[case.name] = measure(tools[case.program], port, pid, seconds, case.options)
    return found


def main() -> None:
    """Run the cases and write the results."""
    command = parser("bench.nats", __doc__, CASES)
    arguments = command.parse_args()
    try:
        cases = choose(CASES, arguments.only)
    except ValueError as error:
        command.error(str(error))
    started, program, load = time.monotonic(), nats_program(), load_before()
    rival = nats_version(program) if program else None
    if rival is None:
        print("nats-server is not installed (2.10 or later, with sync_interval: always): nothing to compare with")
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as name:
        directory = arguments.directory or Path(name)
        tools = {**generators(Path(name), ("natsload",)), "mqttload": build(Path(name))}
        fsync = fsync_ms(directory)
        print(f"{machine()['cpu']}; {rival}; one fsync {fsync['p50']:.2f} ms, p99 {fsync['p99']:.2f} ms; load {load}")
        rounds = all_rounds(
            arguments.rounds,
            (WEFT, SYNCED, LATER) if rival else (WEFT,),
            lambda server: one_round(server, cases, directory, tools, arguments.seconds),
        )
    results = {
        "nats": rival,
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
        "fsync_ms": fsync,
        "load_before": load,
        "cases": summary(cases, rounds),
    }
    print(f"took {(time.monotonic() - started) / 60:.1f} minutes")
    if not arguments.only:
        print(f"wrote {write_results('nats', results)}")


if __name__ == "__main__":
    main()
