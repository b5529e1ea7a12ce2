"""POSTs to Weft beside nginx, in the same run.

    python -m bench.http [--only post_1000] [--rounds 3] [--seconds 3] [--directory DIR]

The server has one core and the load generator (``httpload.c``) the other. Weft runs as ``weft edge run``, stores each
message in a stream and answers after fdatasync. nginx (one process) answers 204 and keeps nothing: it says what the
requests themselves cost. Each server is a fresh process in each round.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.amqp import all_rounds
from bench.brokers import server
from bench.common import machine, write_results
from bench.generator import Figures, Generator
from bench.loads import Case, Door, choose, generators, load_before, measure, parser, summary, weft
from bench.mqtt.compare import fsync_ms
from examples.demo.fabric import free_port

WEFT, NGINX = "weft", "nginx, 204"
NGINX_PLACES = "/usr/sbin:/usr/local/sbin:/opt/homebrew/bin"
CASES: tuple[Case, ...] = (
    Case("post_1000", "one message, 1,000 x 1", "httpload", {"c": 1000}),
    Case("post_100", "one message, 100 x 1", "httpload", {"c": 100}),
    Case("array", "arrays of 100, 10 x 1", "httpload", {"c": 10, "b": 100}),
    Case("lines", "NDJSON of 100, 10 x 1", "httpload", {"c": 10, "b": 100, "n": True}),
    Case("rate_2000", "one message, 2,000/s over 100", "httpload", {"c": 100, "r": 2000}),
)
CONFIGURATION = """daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/errors;
worker_rlimit_nofile 20000;
events {{ worker_connections 10000; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port}; location / {{ return 204; }} }}
}}
"""


def nginx_program() -> str | None:
    """Return the path of nginx; None where it is not installed."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{NGINX_PLACES}")


def nginx_version(program: str) -> str:
    """Return such as ``nginx version: nginx/1.22.1``."""
    return subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stderr.strip()


def one_round(
    name: str, cases: Sequence[Case], directory: Path, generator: Generator, seconds: float
) -> Mapping[str, Figures]:
    """Run all cases on a fresh server."""
    found: dict[str, Figures] = {}

    def run(door: Door) -> None:
        for case in cases:
            found[case.name] = measure(generator, door.ports["http"], door.pid, seconds, case.options)

    if name == WEFT:
        weft(directory, run)
        return found
    program = nginx_program()
    assert program is not None, "it is asked for only where it is installed"
    with tempfile.TemporaryDirectory(prefix="weft-bench-", dir=directory) as folder:
        port, path = free_port(), Path(folder) / "nginx.conf"
        path.write_text(CONFIGURATION.format(folder=folder, port=port))
        with server([program, "-c", str(path), "-e", f"{folder}/errors"], port) as pid:
            run(Door({"http": port}, pid))
    return found


def main() -> None:
    """Run the cases and write the results."""
    command = parser("bench.http", __doc__, CASES)
    arguments = command.parse_args()
    try:
        cases = choose(CASES, arguments.only)
    except ValueError as error:
        command.error(str(error))
    started, program, load = time.monotonic(), nginx_program(), load_before()
    rival = nginx_version(program) if program else None
    if rival is None:
        print("nginx is not installed (Debian: apt install nginx-light): nothing to compare with")
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as name:
        directory = arguments.directory or Path(name)
        generator = generators(Path(name), ("httpload",))["httpload"]
        fsync = fsync_ms(directory)
        print(f"{machine()['cpu']}; {rival}; one fsync {fsync['p50']:.2f} ms, p99 {fsync['p99']:.2f} ms; load {load}")
        rounds = all_rounds(
            arguments.rounds,
            (WEFT, NGINX) if rival else (WEFT,),
            lambda server: one_round(server, cases, directory, generator, arguments.seconds),
        )
    results = {
        "nginx": rival,
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
        "fsync_ms": fsync,
        "load_before": load,
        "cases": summary(cases, rounds),
    }
    print(f"took {(time.monotonic() - started) / 60:.1f} minutes")
    if not arguments.only:
        print(f"wrote {write_results('http', results)}")


if __name__ == "__main__":
    main()
